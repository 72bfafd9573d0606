#!/usr/bin/env bash
# Checks the licences, origins and known vulnerabilities of all dependencies (see deny.toml). Run it
# when dependencies change: it needs the network, for the tool itself and the advisory database.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
cargo deny --all-features check "$@"
