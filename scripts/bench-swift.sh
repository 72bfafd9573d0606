#!/usr/bin/env bash
# Goodput of swift, lswift and mswift beside that of nscc, over kernel UDP, DPDK's rings and memif: all of them in turn,
# because the speed of a shared machine may halve within a minute. UDP and rings: both ends on one core; memif: two
# processes with a core each. Prints medians of several rounds; the ratio is the median of the ratios of each round.
#
# Usage: scripts/bench-swift.sh [--weft PATH] [--ports LIST] [--cc LIST] [--seconds N] [--rounds N] [--cores A,B]
#        [--lb NAME] [--check]
#   --weft PATH    the command to measure (default: target/release/weft, built if missing)
#   --ports LIST   of udp, ring and memif (default: udp,ring,memif)
#   --cc LIST      what is compared with the first (default: nscc,swift,lswift,mswift)
#   --seconds N    length of each measurement (default: 1)
#   --rounds N     how often each is made (default: 5)
#   --cores A,B    the cores (default: the first two that this process may use)
#   --lb NAME      load balancer (default: ecmp, one path, because swift takes reordered packets for losses)
#   --check        fail when a ratio is below 0.9
#
# Needs an otherwise idle machine; no privileges.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
weft=
ports=udp,ring,memif
ccs=nscc,swift,lswift,mswift
seconds=1
rounds=5
cores=
lb=ecmp
check=

die() {
    printf 'bench-swift.sh: %s\n' "$@" >&2
    exit 1
}

while [[ $# -gt 0 ]]; do
    case $1 in
        --weft) weft=${2:?}; shift 2 ;;
        --ports) ports=${2:?}; shift 2 ;;
        --cc) ccs=${2:?}; shift 2 ;;
        --seconds) seconds=${2:?}; shift 2 ;;
        --rounds) rounds=${2:?}; shift 2 ;;
        --cores) cores=${2:?}; shift 2 ;;
        --lb) lb=${2:?}; shift 2 ;;
        --check) check=1; shift ;;
        -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
        *) die "unknown argument $1 (try --help)" ;;
    esac
done

. "$root/scripts/lib/pair.sh"

timing=(--warmup 200ms --duration "$((seconds * 1000))ms")

# pair PORT CC REPORT: both ends in one process.
pair() {
    "$weft" perf pair --port "$1" --core "$first" --cc "$2" --lb "$lb" "${timing[@]}" --json "$3" >"$scratch/log" 2>&1 ||
        die "weft perf pair over $1 with $2: $(tail -n 3 "$scratch/log")"
}

# memif CC NAME: a process for each end.
memif() {
    on_both=(--cc "$1" --lb "$lb")
    over_memif "$2" --size 64KiB --depth 32 "${timing[@]}" ||
        die "weft perf over memif with $1: $(tail -n 3 "$scratch/$2-client.log" "$scratch/$2-server.log")"
}

for ((round = 0; round < rounds; round++)); do
    for port in ${ports//,/ }; do
        for cc in ${ccs//,/ }; do
            name=$port.$cc.$round
            case $port in
                udp | ring) pair "$port" "$cc" "$scratch/$name.json" ;;
                memif) memif "$cc" "$name" ;;
                *) die "$port is none of udp, ring, memif" ;;
            esac
        done
    done
done

python3 - "$scratch" "$rounds" "$ports" "$ccs" "${check:-0}" <<'PYTHON'
import json, statistics, sys
scratch, rounds, ports, ccs, check = sys.argv[1:]
rounds, ports, ccs, check = int(rounds), ports.split(","), ccs.split(","), int(check)
median = statistics.median
print(f"{'port':<6} {'cc':<8} {'goodput, Gbit/s':>16} {f'of {ccs[0]}':>8} {'in each round':>14} {'ns/packet':>10} {'ACKs/packet':>12} {'sent again':>11}")
below = False
for port in ports:
    base = None
    for cc in ccs:
        runs = [json.load(open(f"{scratch}/{port}.{cc}.{n}.json")) for n in range(rounds)]
        goodputs = [run["server"]["goodput_gbps"] for run in runs]
        base = base or goodputs
        ratios = [a / b for a, b in zip(goodputs, base)]
        # One core has the time of both ends; of two, the sender's.
        cost = [run["client"]["cpu"]["ns_per_packet"] for run in runs if run["client"]["cpu"]]
        acks = [run["client"]["acks"] / run["client"]["packets"] for run in runs]
        again = sum(run["client"]["retransmitted"] for run in runs)
        spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
        print(f"{port:<6} {cc:<8} {median(goodputs):>16.2f} {median(ratios):>8.2f} {spread:>14} "
              f"{median(cost) if cost else float('nan'):>10.0f} {median(acks):>12.2f} {again:>11}")
        below |= median(ratios) < 0.9
if check and below:
    sys.exit("bench-swift.sh: below 0.9")
PYTHON
