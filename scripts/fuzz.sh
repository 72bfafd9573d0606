#!/usr/bin/env bash
# Runs every fuzz target for a bounded time: scripts/fuzz.sh [SECONDS each, default 60]
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
case $seconds in
    '' | *[!0-9]* | 0) echo "usage: scripts/fuzz.sh [SECONDS]" >&2; exit 2 ;;
esac

if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "fuzz.sh needs the nightly toolchain: rustup toolchain install nightly" >&2
    exit 1
fi
if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "fuzz.sh needs cargo-fuzz: cargo install cargo-fuzz" >&2
    exit 1
fi

# Findings of libFuzzer go to a scratch directory; the committed corpus is only the seed.
for target in $(cargo +nightly fuzz list); do
    found=fuzz/target/found/$target
    mkdir -p "$found"
    seeds=()
    if [ -d "fuzz/corpus/$target" ]; then seeds=("fuzz/corpus/$target"); fi
    echo "== $target, $seconds s"
    cargo +nightly fuzz run "$target" "$found" "${seeds[@]}" -- \
        -max_total_time="$seconds" -max_len=4096 -print_final_stats=1
done
