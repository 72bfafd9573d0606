#!/usr/bin/env bash
# Checks the licences, origins and known vulnerabilities of all dependencies (see deny.toml). Run it
# when dependencies change: it needs the network, for the tool itself and the advisory database.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
# Without --workspace only what the facade needs would be looked at. What the model checker alone needs, under
# cfg(loom), is not: no target of deny.toml has it, and nobody ships it.
for manifest in Cargo.toml fuzz/Cargo.toml; do
    echo "== $manifest"
    cargo deny --manifest-path "$manifest" --workspace --all-features --config deny.toml check \
        --allow license-not-encountered --allow license-exception-not-encountered "$@"
done
