#!/usr/bin/env bash
# Runs all checks that a change must pass. Continuous integration runs this script with CI set, which makes tests fail
# that cannot run on the machine. Elsewhere such tests are skipped, and listed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

# One profile for all steps, so that nothing is compiled twice: optimised, because the tests simulate fabrics; without
# link-time optimisation, because that takes longer than it saves here; with all assertions.
profile=(--profile ci)
target=${CARGO_TARGET_DIR:-target}

step "packages";      scripts/setup.sh
step "formatting";    cargo fmt --all --check
step "purity";        scripts/check-purity.sh
step "documents";     scripts/check-docs.py
step "clippy";        cargo clippy "${profile[@]}" --workspace --all-targets --quiet -- -D warnings
step "without DPDK";  cargo clippy "${profile[@]}" -p weft-stack -p weft -p weft-apps --no-default-features --all-targets --quiet -- -D warnings
# A workspace of its own, which needs the nightly toolchain only to run. Nothing is linked, so any name of a library will do.
step "fuzz targets"
CUSTOM_LIBFUZZER_PATH=/none/libnone.a cargo check --manifest-path fuzz/Cargo.toml --target-dir "$target" --locked --quiet
said=$(mktemp)
trap 'rm -f "$said"' EXIT
step "tests"
# Keeps a copy of standard error.
{ cargo test "${profile[@]}" --workspace --quiet 2>&1 >&3 | tee "$said" >&2; } 3>&1
step "documentation"; RUSTDOCFLAGS="-D warnings" cargo doc "${profile[@]}" --workspace --no-deps --quiet

step "determinism"
cargo build "${profile[@]}" -p weft-apps --quiet
cargo build -p weft-apps --quiet
scripts/check-determinism.sh "$target/ci/weft" "$target/debug/weft"

skipped=$(grep '^skipped: ' "$said" | sort -u || true)
if [[ -n $skipped ]]; then
    printf '\nAll passed but those that could not take place here:\n%s\n' "$skipped"
else
    printf '\nAll passed.\n'
fi
