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
# WEFT names the binary; without it a release build is made. iperf3 uses two threads where weft has one for
# both ends, so each of its tests is also run with both ends on one core.
set -euo pipefail
cd "$(dirname "$0")/.."

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

# One core for both ends: the last one that this process may use.
core=$(python3 -c 'import os; print(max(os.sched_getaffinity(0)))')
# A port that is free: the system's choice.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

# iperf FILE PREFIX… -- OPTIONS…: one run of iperf3, its client's report in FILE.
iperf() {
    local out=$1 prefix=() tries
    shift
    while [[ $1 != -- ]]; do prefix+=("$1"); shift; done
    shift
    timeout $((seconds + 30)) "${prefix[@]}" iperf3 --server --one-off --bind 127.0.0.1 --port "$port" >"$work/server" 2>&1 &
    server=$!
    for tries in {1..50}; do
        timeout $((seconds + 20)) "${prefix[@]}" iperf3 --client 127.0.0.1 --port "$port" --time "$seconds" --json "$@" >"$out" 2>&1 || true
        # With --json a client that meets no server ends well, and says so in its report only.
        grep -q '"error":' "$out" || break
        kill -0 "$server" 2>/dev/null || die "iperf3: $(cat "$work/server")"
        [[ $tries -lt 50 ]] || die "iperf3: $(grep '"error":' "$out")"
        sleep 0.1
    done
    wait "$server" || die "iperf3: $(cat "$work/server")"
    server=
}

for ((run = 0; run < runs; run++)); do
    printf '\rrun %d of %d ' $((run + 1)) "$runs" >&2
    iperf "$work/tcp.$run" env --
    iperf "$work/tcp-core.$run" taskset --cpu-list "$core" --
    iperf "$work/udp.$run" env -- --udp --bitrate 0 --length "$payload"
    iperf "$work/udp-core.$run" taskset --cpu-list "$core" -- --udp --bitrate 0 --length "$payload"
    taskset --cpu-list "$core" "$WEFT" run --on udp --workload incast:1 --size "$size" --mtu "$payload" \
        --json "$work/weft.$run" >"$work/weft" 2>"$work/weft.err" || die "weft: $(cat "$work/weft.err")"
done
printf '\r%20s\r' '' >&2

python3 - "$work" "$runs" "$payload" <<'PYTHON'
import json, statistics, sys

work, runs, payload = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def read(name):
    return [json.load(open(f"{work}/{name}.{run}")) for run in range(runs)]

def tcp(report):
    return report["end"]["sum_received"]["bits_per_second"] / 1e9, 0.0

def udp(report):
    """What arrived: the sender's rate less what was lost."""
    total = report["end"]["sum"]
    lost = total["lost_percent"] / 100
    return total["bits_per_second"] * (1 - lost) / 1e9, lost

def weft(report):
    packets = report["packets"]
    return report["goodput_gbps"], packets["retransmitted"] / packets["data"]

tests = [
    ("TCP, iperf3, two threads", "tcp", tcp),
    ("TCP, iperf3, one core", "tcp-core", tcp),
    (f"UDP {payload} B, iperf3, two threads", "udp", udp),
    (f"UDP {payload} B, iperf3, one core", "udp-core", udp),
    (f"weft over UDP {payload} B, one core", "weft", weft),
]
rows = []
for title, name, take in tests:
    taken = [take(report) for report in read(name)]
    rows.append((title, *(statistics.median(column) for column in zip(*taken))))
ours = rows[-1][1]
print(f"{'':<36} {'Gbit/s':>8} {'lost':>7}   weft is")
for title, rate, lost in rows:
    share = "" if title == rows[-1][0] or rate == 0 else f"{ours / rate:7.2f} times"
    print(f"{title:<36} {rate:8.2f} {lost:7.1%}   {share}".rstrip())
print("\nRates are of payload that arrived. Over weft all of it did, checked byte for byte afterwards: lost is what was sent again.")
PYTHON
