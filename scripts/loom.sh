#!/usr/bin/env bash
# Checks the worker's rings and the reference counts of borrowed frames in all interleavings that the memory model
# allows, with loom. Takes a few seconds.
set -euo pipefail
cd "$(dirname "$0")/.."

# A separate directory for this configuration, because otherwise each configuration would rebuild the other's output.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/loom
export RUSTFLAGS="--cfg loom -A dead_code -A unused_imports"
cargo test --quiet -p weft-stack --no-default-features --lib -- \
    worker::ring::spsc::model port::batch_arc::model
