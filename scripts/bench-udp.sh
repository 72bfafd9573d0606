#!/usr/bin/env bash
# Throughput over kernel UDP on loopback: weft against iperf3 over UDP with datagrams of the same payload, and
# against the kernel's TCP, in turn on this machine. Prints a table with ratios; medians of several runs.
#
# Usage: scripts/bench-udp.sh [--seconds S] [--runs N] [--size BYTES] [--payload BYTES]
#   --seconds S      length of each run of iperf3 [3]
#   --runs N         runs of each [3]
#   --size BYTES     what weft transfers, as `weft run --size` takes it [1GiB]; twice as much memory is used
#   --payload BYTES  payload of a datagram [4096]
#
# WEFT names the binary; without it the script makes a release build. iperf3 uses two threads where weft has one for
# both ends, so each of its tests also runs with both ends on one core.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib/iperf.sh

seconds=3 runs=3 size=1GiB payload=4096

die() {
    printf 'bench-udp.sh: %s\n' "$@" >&2
    exit 1
}

while [[ $# -gt 0 ]]; do
    case $1 in
        -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
        --seconds) seconds=${2:?}; shift ;;
        --runs) runs=${2:?}; shift ;;
        --size) size=${2:?}; shift ;;
        --payload) payload=${2:?}; shift ;;
        *) die "unknown argument $1 (try --help)" ;;
    esac
    shift
done

for tool in iperf3 python3 taskset; do
    command -v "$tool" >/dev/null || die "$tool is missing; on Debian: apt-get install iperf3 python3 util-linux"
done

if [[ -z ${WEFT:-} ]]; then
    cargo build --release --quiet -p weft-apps
    WEFT=${CARGO_TARGET_DIR:-target}/release/weft
fi

work=$(mktemp -d)
server=
cleanup() {
    [[ -z $server ]] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

# The core for both ends: the last one that this process may use.
core=$(python3 -c 'import os; print(max(os.sched_getaffinity(0)))')
# A free port, chosen by the system.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

for ((run = 0; run < runs; run++)); do
    printf '\rrun %d of %d ' $((run + 1)) "$runs" >&2
    for name in '' -core; do
        on_server=() on_client=()
        [[ -z $name ]] || on_server=(taskset --cpu-list "$core") on_client=(taskset --cpu-list "$core")
        iperf "$work/tcp$name.$run" 127.0.0.1 "$port"
        iperf "$work/udp$name.$run" 127.0.0.1 "$port" --udp --bitrate 0 --length "$payload"
    done
    taskset --cpu-list "$core" "$WEFT" run --on udp --workload incast:1 --size "$size" --mtu "$payload" \
        --json "$work/weft.$run" >"$work/weft" 2>"$work/weft.err" || die "weft: $(cat "$work/weft.err")"
done
printf '\r%20s\r' '' >&2

python3 scripts/lib/rates.py "$work" "$runs" \
    iperf-tcp tcp "TCP, iperf3, two threads" \
    iperf-tcp tcp-core "TCP, iperf3, one core" \
    iperf-udp udp "UDP $payload B, iperf3, two threads" \
    iperf-udp udp-core "UDP $payload B, iperf3, one core" \
    weft-run weft "weft over UDP $payload B, one core"
printf '\n%s\n' "Rates are of payload that arrived. Over weft all of it did, checked byte for byte afterwards: lost is what was sent again."
