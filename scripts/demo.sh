#!/usr/bin/env bash
# From a fresh machine to the main workloads: installs missing packages, builds weft, then runs an incast, a
# permutation and an all-to-all in virtual time, and a transfer over real DPDK mbufs.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cargo build --release --quiet -p weft-apps
weft="${CARGO_TARGET_DIR:-target}/release/weft"

show() {
    printf '\n$ weft %s\n' "$*"
    "$weft" "$@"
}

show run --workload incast:15 --size 2MB
show run --workload permutation --hosts 128 --size 2MB
show run --workload all-to-all:4 --hosts 16 --size 100KB
show run --workload permutation --hosts 2 --size 16MiB --on loopback
