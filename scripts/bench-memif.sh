#!/usr/bin/env bash
# Measures weft over memif against DPDK's own generator over DPDK's memif: two processes, one core each,
# in turn
#   - frames of a 4 KiB payload packet: testpmd txonly -> rxonly, then weft perf throughput;
#   - 64 bytes: testpmd's frames, then weft's messages, each a reliable packet of its own.
# Prints the medians of several rounds, and their ratios, because the speed of a shared machine may halve within a
# minute. A figure that could not be measured is `-`, and the status is then 1.
#
# Usage: scripts/bench-memif.sh [--weft PATH] [--seconds N] [--rounds N] [--cores A,B] [--bsize BYTES]
#        [--size BYTES] [--depth N] [--ack-every BYTES] [--check]
#   --weft PATH    the command to measure (default: target/release/weft, built if missing)
#   --seconds N    length of each measurement (default: 3)
#   --rounds N     how often each is made, in turn (default: 5)
#   --cores A,B    the cores (default: the first two that this process may use)
#   --bsize BYTES  bytes of a buffer of testpmd's memif (default: 8192); weft's own hold one frame
#   --size BYTES   of a message in the measurement of goodput (default: 64KiB, so that the messages of an end
#                  stay in the cache of its core, as testpmd's only frame does)
#   --depth N      messages in flight in that measurement (default: 8)
#   --ack-every B  bytes that weft acknowledges at a time (default: 32KiB)
#   --check        fail when goodput is below 0.6 or the message rate below 0.2 of testpmd's
#
# Needs dpdk-testpmd (Debian: dpdk-dev) and two otherwise idle cores; no privileges, no huge pages.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
weft=
seconds=3
rounds=5
cores=
check=
payload=4096
# Length of Ethernet, IPv4, UDP, PDS request and SES standard headers.
frame=$((payload + 14 + 20 + 8 + 12 + 44))
bsize=8192
size=64KiB
depth=8
ack_every=32KiB

die() {
    printf 'bench-memif.sh: %s\n' "$@" >&2
    exit 1
}

while [[ $# -gt 0 ]]; do
    case $1 in
        --weft) weft=$2; shift 2 ;;
        --seconds) seconds=$2; shift 2 ;;
        --rounds) rounds=$2; shift 2 ;;
        --cores) cores=$2; shift 2 ;;
        --bsize) bsize=$2; shift 2 ;;
        --size) size=$2; shift 2 ;;
        --depth) depth=$2; shift 2 ;;
        --ack-every) ack_every=$2; shift 2 ;;
        --check) check=1; shift ;;
        -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
        *) die "unknown argument $1 (try --help)" ;;
    esac
done

command -v dpdk-testpmd >/dev/null || die "no dpdk-testpmd: sudo apt install dpdk-dev"
. "$root/scripts/lib/pair.sh"
on_both=(--port-mtu $((frame - 14 + 4)) --payload "$payload" --ack-every "$ack_every")

# testpmd CORE NAME ROLE MODE BYTES: starts testpmd in the background, with statistics once a second in NAME.log.
# Both of its threads share the core: the main one only prints. --mbuf-size must come before --txpkts,
# whose lengths are checked against it.
testpmd() {
    local core=$1 name=$2 role=$3 mode=$4 bytes=$5
    # DPDK leaves a directory behind for each process.
    RUNTIME_DIRECTORY=$scratch dpdk-testpmd --lcores="0@$core,1@$core" --no-huge -m 512 --no-pci --no-shconf --no-telemetry \
        --file-prefix="weft-bench-$$-$name" --log-level=4 \
        --vdev="net_memif0,role=$role,socket=$scratch/testpmd.sock,socket-abstract=no,bsize=$bsize" \
        -- --mbuf-size=$((bsize + 128)) --txpkts="$bytes" --forward-mode="$mode" --nb-cores=1 --total-num-mbufs=8192 \
        --txd=1024 --rxd=1024 --no-lsc-interrupt --auto-start --stats-period=1 </dev/null >"$scratch/$name.log" 2>&1 &
    pids+=($!)
}

# The median of the packet rates that the receiver printed while packets arrived.
received_pps() {
    python3 - "$1" <<'PYTHON'
import re, statistics, sys
text = open(sys.argv[1]).read()
rates = [int(n) for n in re.findall(r"Rx-pps:\s+(\d+)", text)]
rates = [n for n in rates if n > 0]
# The first rate covers the time before the link was up.
print(round(statistics.median(rates[1:])) if len(rates) > 1 else 0)
PYTHON
}

# missing WHAT LOG...: reports that a figure is missing, with the ends of the logs.
missing() {
    local what=$1 log
    shift
    printf 'bench-memif.sh: %s. A machine that is busy with other things may be why: try again when it is idle\n' "$what" >&2
    for log in "$@"; do
        printf '  %s ended with:\n' "$(basename "$log" .log)" >&2
        { grep -vE '^[ +#-]*$|^ *[+#]{3}|^(Bye|Stopping|Shutting|Closing|Done|Primary: Sending|Port [0-9]+ is closed)' "$log" || true; } | tail -n 5 | sed 's/^/    /' >&2
    done
}

# baseline NAME BYTES: packets per second of testpmd for frames of BYTES bytes; 0 if none arrived.
baseline() {
    local name=$1 bytes=$2 mark=${#pids[@]} pps
    testpmd "$first" "$name-rx" server rxonly "$bytes"
    sleep 1
    testpmd "$second" "$name-tx" client txonly "$bytes"
    sleep $((seconds + 3))
    pps=$(received_pps "$scratch/$name-rx.log")
    local pid
    for pid in "${pids[@]:mark}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -f "$scratch/testpmd.sock"
    if [[ $pps -eq 0 ]]; then
        missing "testpmd received nothing ($name frames), or not for two seconds" "$scratch/$name-rx.log" "$scratch/$name-tx.log"
    fi
    printf '%s\n' "$pps"
}

# measure NAME ARGUMENTS…: runs weft perf over memif; writes the client's report to NAME.json, if there is one.
measure() {
    over_memif "$@" --warmup 500ms --duration "${seconds}000ms" ||
        missing "weft perf failed ($1)" "$scratch/$1-server.log" "$scratch/$1-client.log"
}

large=() small=()
for ((round = 1; round <= rounds; round++)); do
    large+=("$(baseline "large$round" "$frame")")
    measure "throughput$round" --mode throughput --size "$size" --depth "$depth"
    small+=("$(baseline "small$round" 64)")
    measure "rate$round" --mode rate --size 64
done

python3 - "$scratch" "$payload" "$frame" "${large[*]}" "${small[*]}" "${check:-0}" <<'PYTHON'
import json, os, statistics, sys
scratch, payload, frame, large, small, check = sys.argv[1:]
payload, frame, check = int(payload), int(frame), int(check)
large, small = ([int(pps) for pps in each.split()] for each in (large, small))
def read(path):
    return json.load(open(path)) if os.path.exists(path) else None
reports = {name: [read(f"{scratch}/{name}{n + 1}.json") for n in range(len(large))] for name in ("throughput", "rate")}
def seen(name, key, unit):
    return [report and report["server"][key] / unit for report in reports[name]]
def median(values):
    values = [value for value in values if value]
    return statistics.median(values) if values else None
def text(value, decimals):
    return "-" if value is None else f"{value:.{decimals}f}"
# Columns: title, testpmd's figures, weft's figures, decimals, least ratio.
rows = [
    (f"payload of {frame}-byte frames, Gbit/s", [pps * payload * 8 / 1e9 for pps in large], seen("throughput", "goodput_gbps", 1), 2, 0.6),
    ("64-byte frames / messages, 10^6/s", [pps / 1e6 for pps in small], seen("rate", "messages_per_s", 1e6), 3, 0.2),
]
complete, below = True, False
print(f"{f'over memif, one core each, {len(large)} rounds':<38} {'testpmd':>12} {'weft':>12} {'ratio':>7} {'of each':>13} {'wanted':>7}")
for what, theirs, ours, decimals, wanted in rows:
    each = [b / a for a, b in zip(theirs, ours) if a and b]
    complete &= len(each) == len(theirs)
    theirs, ours = median(theirs), median(ours)
    ratio = ours / theirs if theirs and ours else None
    below |= ratio is not None and ratio < wanted
    spread = f"{min(each):.3f}-{max(each):.3f}" if each else "-"
    print(f"{what:<38} {text(theirs, decimals):>12} {text(ours, decimals):>12} {text(ratio, 3):>7} {spread:>13} {wanted:>7}")
def cost(end):
    cpu = end["cpu"] or {}
    return (f"{text(cpu.get('cycles_per_packet'), 0):>10} {text(cpu.get('instructions_per_packet'), 0):>14}"
            f"   ({cpu.get('counted_by', '-')}, busy {cpu.get('busy', 0):.0%})")
print(f"{'per data packet, in the median round':<38} {'cycles':>12} {'instructions':>14}")
ran = [(name, size) for name, size in (("throughput", "4 KiB"), ("rate", "64 bytes")) if any(reports[name])]
disturbed = {}
for name, size in ran:
    runs = sorted(filter(None, reports[name]), key=lambda report: report["server"]["messages_per_s"])
    for end, side in ("client", "sender"), ("server", "receiver"):
        print(f"{f'  {size}, {side}':<40} {cost(runs[len(runs) // 2][end])}")
        for key in "retransmitted", "timeouts", "duplicates", "dropped":
            disturbed[key] = disturbed.get(key, 0) + sum(report[end][key] for report in runs)
disturbed = {key: n for key, n in disturbed.items() if n}
print(f"disturbed: {disturbed}" if disturbed else "nothing was sent again, late or lost")
if not complete:
    sys.exit("bench-memif.sh: not all could be measured")
if check and below:
    sys.exit("bench-memif.sh: below what is wanted")
PYTHON
