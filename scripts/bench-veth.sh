#!/usr/bin/env bash
# Throughput over packet sockets (net_af_packet) on a veth pair: weft against iperf3 over UDP with datagrams of the
# same payload, and against the kernel's TCP, in turn between the same two network namespaces. Prints a table with
# ratios; medians of several runs.
#
# Usage: scripts/bench-veth.sh [--weft PATH] [--seconds S] [--runs N] [--payload BYTES]
#   --weft PATH      the command to measure (default: target/release/weft, built if missing)
#   --seconds S      length of each run [3]
#   --runs N         runs of each [3]
#   --payload BYTES  payload of a datagram, and of a data packet [4096]
#
# Needs root, for namespaces and packet sockets; what it makes is gone when it ends. Each end has a core of its own,
# the first and the last that this process may use.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
weft='' seconds=3 runs=3 payload=4096

die() {
    printf 'bench-veth.sh: %s\n' "$@" >&2
    exit 1
}

while [[ $# -gt 0 ]]; do
    case $1 in
        -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
        --weft) weft=${2:?}; shift ;;
        --seconds) seconds=${2:?}; shift ;;
        --runs) runs=${2:?}; shift ;;
        --payload) payload=${2:?}; shift ;;
        *) die "unknown argument $1 (try --help)" ;;
    esac
    shift
done

[[ $EUID -eq 0 ]] || die "namespaces and packet sockets need root: sudo $0"
for tool in iperf3 ip python3 taskset; do
    command -v "$tool" >/dev/null || die "$tool is missing; on Debian: apt-get install iperf3 iproute2 python3 util-linux"
done
if [[ -z $weft ]]; then
    weft=${CARGO_TARGET_DIR:-$root/target}/release/weft
    [[ -x $weft ]] || (cd "$root" && cargo build --release -p weft-apps)
fi

work=$(mktemp -d)
one=weft-bench-$$-a two=weft-bench-$$-b
server=
cleanup() {
    [[ -z $server ]] || kill "$server" 2>/dev/null || true
    wait 2>/dev/null || true
    ip netns del "$one" 2>/dev/null || true
    ip netns del "$two" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

read -r first last < <(python3 -c 'import os; cores = sorted(os.sched_getaffinity(0)); print(cores[0], cores[-1])')

# Room for the payload and every header.
mtu=$((payload + 200))
for name in "$one" "$two"; do
    ip netns add "$name"
    ip -n "$name" link set lo up
done
ip link add eth0 netns "$one" mtu "$mtu" type veth peer name eth0 netns "$two" mtu "$mtu"
ip -n "$one" address add 10.0.0.1/24 dev eth0
ip -n "$two" address add 10.0.0.2/24 dev eth0
ip -n "$one" link set eth0 up
ip -n "$two" link set eth0 up

# iperf OUT OPTIONS…: one run of iperf3, its client's report in OUT.
iperf() {
    local out=$1 tries
    shift
    timeout $((seconds + 30)) ip netns exec "$one" taskset --cpu-list "$first" \
        iperf3 --server --one-off >"$work/server" 2>&1 &
    server=$!
    for tries in {1..50}; do
        timeout $((seconds + 20)) ip netns exec "$two" taskset --cpu-list "$last" \
            iperf3 --client 10.0.0.1 --time "$seconds" --json "$@" >"$out" 2>&1 || true
        # With --json a client that meets no server ends well, and says so in its report only.
        grep -q '"error":' "$out" || break
        kill -0 "$server" 2>/dev/null || die "iperf3: $(cat "$work/server")"
        [[ $tries -lt 50 ]] || die "iperf3: $(grep '"error":' "$out")"
        sleep 0.1
    done
    wait "$server" || die "iperf3: $(cat "$work/server")"
    server=
}

# perf OUT: one run of weft perf, its client's report in OUT. The addresses are not the kernel's, which would answer
# with ICMP.
perf() {
    local out=$1 frames
    # A frame in the ring has 66 bytes of the packet socket's own; rings are made of whole blocks.
    frames=$(python3 -c "print(max(2048, 1 << ($mtu + 66 + 14 - 1).bit_length()))")
    local port=dpdk:net_af_packet0,iface=eth0,framesz=$frames,blocksz=$((8 * frames)),framecnt=512
    local common=(--port "$port" --port-mtu "$mtu" --payload "$payload" --patience 20000ms)
    timeout $((seconds + 60)) ip netns exec "$one" "$weft" perf server "${common[@]}" --ip 10.0.1.1 --core "$first" \
        --once --wait 30000ms >"$work/server" 2>&1 &
    server=$!
    timeout $((seconds + 60)) ip netns exec "$two" "$weft" perf client 10.0.1.1 "${common[@]}" --ip 10.0.1.2 \
        --core "$last" --mode throughput --warmup 500ms --duration "$seconds"s --json "$out" >"$work/client" 2>&1 ||
        die "weft perf client: $(cat "$work/client" "$work/server")"
    wait "$server" || die "weft perf server: $(cat "$work/server")"
    server=
}

for ((run = 0; run < runs; run++)); do
    printf '\rrun %d of %d ' $((run + 1)) "$runs" >&2
    iperf "$work/tcp.$run"
    iperf "$work/udp.$run" --udp --bitrate 0 --length "$payload"
    perf "$work/weft.$run"
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
    ours = report["client"]
    return ours["goodput_gbps"], ours["retransmitted"] / max(1, ours["packets"])

tests = [
    ("TCP, iperf3", "tcp", tcp),
    (f"UDP {payload} B, iperf3", "udp", udp),
    (f"weft over packet sockets, {payload} B", "weft", weft),
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
print("\nRates are of payload that arrived. Over weft all of it did: lost is what was sent again.")
PYTHON
