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
# Needs root, for namespaces and packet sockets; removes what it has created. Each end has a core of its own, the first
# and the last that this process may use.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/scripts/lib/iperf.sh"
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

on_server=(ip netns exec "$one" taskset --cpu-list "$first")
on_client=(ip netns exec "$two" taskset --cpu-list "$last")

# perf OUT: runs weft perf once and writes its client's report to OUT. The kernel does not have these addresses;
# otherwise it would answer with ICMP.
perf() {
    local out=$1 frames
    # A frame in the ring has 66 bytes of the packet socket's own headers; rings consist of whole blocks.
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
    iperf "$work/tcp.$run" 10.0.0.1 5201
    iperf "$work/udp.$run" 10.0.0.1 5201 --udp --bitrate 0 --length "$payload"
    perf "$work/weft.$run"
done
printf '\r%20s\r' '' >&2

python3 "$root/scripts/lib/rates.py" "$work" "$runs" \
    iperf-tcp tcp "TCP, iperf3" \
    iperf-udp udp "UDP $payload B, iperf3" \
    weft-perf weft "weft over packet sockets, $payload B"
printf '\n%s\n' "Rates are of payload that arrived. Over weft all of it did: lost is what was sent again."
