#!/usr/bin/env bash
# Compares completion times on software switches in real time with those that the simulator predicts for the same
# fabric: incast 15:1, permutation and all-to-all, with hosts of all kinds; and the delay of the fabric in an incast 15:1
# with swift, with swift's target. Needs an idle machine; with namespaces, root.
#
#   scripts/bench-soft.sh [WEFT] [KIND…]     KIND: one, udp, memif, veth; swift
#
# Fails if a mean or a 99th percentile is off by more than 25 %, or swift's mean delay is.
set -euo pipefail
lib=$(dirname "${BASH_SOURCE[0]}")/lib

weft=${1:-target/release/weft}
shift || true
kinds=("$@")
if [[ ${#kinds[@]} == 0 ]]; then
    kinds=(one udp memif)
    [[ $EUID == 0 ]] && kinds+=(veth)
    kinds+=(swift)
fi
scratch=$(mktemp -d)
report=$scratch/report.json
trap 'rm -rf "$scratch"' EXIT

# The delay of the fabric with swift, in all hosts of one process.
swift() {
    local run=(--workload incast:15 --size 8MiB --cc swift) scaled slow
    [[ ${kinds[*]} == swift ]] || echo
    printf 'incast:15 with swift: delay of the fabric, ms, on software switches and simulated\n'
    printf '%-8s %10s %10s %10s %10s %10s %14s %10s\n' scaled target mean 'least 10 %' 'most 10 %' ratio 'simulated mean' ratio
    for scaled in on off; do
        [[ $scaled == on ]] || run+=(--cc-set flow_scaling=false)
        "$weft" run --on soft "${run[@]}" --json "$report" --trace "$scratch/soft.jsonl" >/dev/null 2>&1
        slow=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["config"]["slow"])' "$report")
        "$weft" run --topology leaf-spine:hosts=16,leaves=4,spines=4 --slow "$slow" "${run[@]}" \
            --trace "$scratch/sim.jsonl" >/dev/null
        python3 "$lib/swift_delay.py" "$report" "$scratch/soft.jsonl" "$scratch/sim.jsonl" "$scaled" || off=1
    done
}

[[ ${kinds[*]} == swift ]] || printf '%-8s %-14s %10s %10s %10s %9s %9s %12s\n' hosts workload 'mean, ms' 'mean' 'p99' trimmed timeouts 'behind, µs'
off=0
for kind in "${kinds[@]}"; do
    if [[ $kind == swift ]]; then
        swift
        continue
    fi
    options=()
    [[ $kind == one ]] || options=("--processes=$kind")
    for flows in incast:15/1MiB permutation/1MiB all-to-all:4/100KB; do
        said=$("$weft" run --on soft "${options[@]}" --workload "${flows%/*}" --size "${flows#*/}" --json "$report" 2>&1 >/dev/null)
        behind=$(sed -n 's/.* were \([0-9]*\) µs behind.*/\1/p' <<<"$said")
        python3 - "$report" "$kind" "${flows%/*}" "${behind:--}" <<'PYTHON' || off=1
import json, sys
path, kind, workload, behind = sys.argv[1:]
run = json.load(open(path))
p = run["predicted"]
mean, p99 = p["mean_ratio"], p["p99_ratio"]
print(f"{kind:8} {workload:14} {run['fct_us']['mean'] / 1e3:10.1f} {mean:10.3f} {p99:10.3f} "
      f"{run['packets']['trimmed']:9} {run['timeouts']:9} {behind:>12}")
sys.exit(not all(abs(ratio - 1) <= 0.25 for ratio in (mean, p99)))
PYTHON
    done
done
if [[ $off != 0 ]]; then
    echo "bench-soft.sh: off by more than 25 %: a busy machine, or a fault" >&2
    exit 1
fi
