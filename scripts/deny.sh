#!/usr/bin/env bash
# Checks the licences, origins and known vulnerabilities of all dependencies (see deny.toml). Run it
# when dependencies change: it needs the network, for the tool itself and the advisory database.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
# Without --workspace only the facade's dependencies would be checked. Dependencies of the model checker alone, under
# cfg(loom), are not checked: no target of deny.toml has that cfg, and they are never shipped.
for manifest in Cargo.toml fuzz/Cargo.toml; do
    echo "== $manifest"
    cargo deny --manifest-path "$manifest" --workspace --all-features --config deny.toml check \
        --allow license-not-encountered --allow license-exception-not-encountered "$@"
done
