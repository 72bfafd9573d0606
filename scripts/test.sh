#!/usr/bin/env bash
# Runs all checks that a change must pass. Continuous integration runs this script with CI set, which makes tests fail
# that cannot run on the machine. Elsewhere such tests are skipped, and listed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

# One profile for all steps, so that little is compiled twice: optimised, because the tests simulate fabrics; without
# link-time optimisation, because that takes longer than it saves here; with all assertions.
profile=(--profile ci)
target=${CARGO_TARGET_DIR:-target}

step "packages";      scripts/setup.sh
step "formatting";    cargo fmt --all --check
step "purity";        scripts/check-purity.sh
step "documents";     scripts/check-docs.py
step "clippy";        cargo clippy "${profile[@]}" --workspace --all-targets --quiet -- -D warnings
step "without DPDK";  cargo clippy "${profile[@]}" -p weft-stack -p weft -p weft-apps --no-default-features --all-targets --quiet -- -D warnings
# A workspace of its own, which needs the nightly toolchain only to run. Nothing is linked, so an empty library will do.
step "fuzz targets"
mkdir -p "$target"
none=$(realpath "$target")/libnone.a
: > "$none"
CUSTOM_LIBFUZZER_PATH=$none JEMALLOC_OVERRIDE=$none \
    cargo check "${profile[@]}" --manifest-path fuzz/Cargo.toml --target-dir "$target" --locked --quiet
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
step "tests"
# Keeps a copy of standard error.
{ cargo test "${profile[@]}" --workspace --quiet 2>&1 >&3 | tee "$scratch/said" >&2; } 3>&1
step "documentation"; RUSTDOCFLAGS="-D warnings" cargo doc "${profile[@]}" --workspace --no-deps --quiet

step "determinism"
# The tests have built the command. The other build takes its place, and a test is named, without which dependencies would
# have other features and be built again.
cp "$target/ci/weft" "$scratch/optimised"
cargo build "${profile[@]}" --config scripts/lib/unoptimised.toml --workspace --bin weft --test skips --quiet
mv "$target/ci/weft" "$scratch/unoptimised"
scripts/check-determinism.sh "$scratch/optimised" "$scratch/unoptimised"
cp "$scratch/optimised" "$target/ci/weft"

skipped=$(grep '^skipped: ' "$scratch/said" | sort -u || true)
if [[ -n $skipped ]]; then
    printf '\nAll passed but those that could not take place here:\n%s\n' "$skipped"
else
    printf '\nAll passed.\n'
fi
