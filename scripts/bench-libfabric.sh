#!/usr/bin/env bash
# weft beside libfabric's own providers: half of a round trip (fi_pingpong), bandwidth and message rate (fi_bandwidth, which
# this script builds), all in turn in each round, because the speed of a shared machine may halve within a minute. Two processes,
# a core each. Prints medians, and whether weft is as fast as it should be: by the medians of the ratios of each round.
#
#   memif   weft, each process at a memif port of its own     tcp    tcp;ofi_rxm on the loopback interface
#   serve   weft, each in a `weft serve`, joined by memif     rxd    udp;ofi_rxd on the loopback interface
#   udp     weft over kernel UDP on the loopback interface    shm    shm
#
# Usage: scripts/bench-libfabric.sh [--over LIST] [--sizes LIST] [--rounds N] [--cores A,B[,C,D]]
#        [--tagged] [--realtime] [--verify] [--check]
#   --over LIST    of the names above (default: memif,serve,udp,tcp,rxd,shm)
#   --sizes LIST   bytes of a message (default: 64,4096,65536,1048576,16777216)
#   --rounds N     how often each is measured (default: 3)
#   --cores LIST   two cores for the programs, and two for the servers of `serve` if there are so many (default: the first four,
#                  or two, that this process may use)
#   --tagged       send messages with tags, as MPI libraries do: receivers fetch or read the long ones if they are late
#   --realtime     run all as real-time processes (`chrt -r`), which others on the machine do not interrupt; needs root
#   --verify       compare the bytes of all messages: no speeds to rely on
#   --check        fail when weft is slower than it should be, and before anything is measured if --over or --sizes leave out what
#                  that is judged by (memif, udp, tcp and rxd; 64 and 1048576 bytes)
#
# PROVIDER names libweft_fi.so and WEFT the command; without them the script makes release builds. Needs libfabric's headers
# and programs (Debian: libfabric-dev, libfabric-bin) and a C compiler; FI_WEFT_… variables apply.
set -euo pipefail
cd "$(dirname "$0")/.."

over=memif,serve,udp,tcp,rxd,shm sizes=64,4096,65536,1048576,16777216 rounds=3 cores='' flags=()

die() {
    printf 'bench-libfabric.sh: %s\n' "$@" >&2
    exit 1
}

while [[ $# -gt 0 ]]; do
    case $1 in
        -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
        --over) over=${2:?}; shift ;;
        --sizes) sizes=${2:?}; shift ;;
        --rounds) rounds=${2:?}; shift ;;
        --cores) cores=${2:?}; shift ;;
        --tagged | --realtime | --verify | --check) flags+=("$1") ;;
        *) die "unknown argument $1 (try --help)" ;;
    esac
    shift
done
[[ $rounds =~ ^[1-9][0-9]*$ ]] || die "--rounds: a number from 1 on, not '$rounds'"
for tool in cc fi_pingpong python3 taskset; do
    command -v "$tool" >/dev/null || die "$tool is missing; scripts/setup.sh installs it"
done
if [[ -z $cores ]]; then
    cores=$(python3 -c 'import os; c = sorted(os.sched_getaffinity(0)); print(*c[:4 if len(c) > 3 else 2], sep=",")')
fi
[[ $cores =~ ^[0-9]+,[0-9]+(,[0-9]+,[0-9]+)?$ ]] || die "two or four cores are needed, not '$cores'"

target=${CARGO_TARGET_DIR:-target}/release
if [[ -z ${PROVIDER:-} ]]; then
    cargo build --release --quiet -p weft-libfabric-provider
    PROVIDER=$target/libweft_fi.so
fi
if [[ -z ${WEFT:-} && ,$over, == *,serve,* ]]; then
    cargo build --release --quiet -p weft-apps
    WEFT=$target/weft
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/provider"
cp "$PROVIDER" "$work/provider/libweft-fi.so"
cc -O2 -Wall -Wextra -Werror -o "$work/fi_bandwidth" scripts/lib/fi_bandwidth.c -lfabric

python3 scripts/lib/fi_rounds.py "$work" --weft "${WEFT:-}" --over "$over" --sizes "$sizes" --rounds "$rounds" \
    --cores "$cores" "${flags[@]}"
