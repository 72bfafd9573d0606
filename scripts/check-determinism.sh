#!/usr/bin/env bash
# Checks that the same seed gives the same report, to the last byte except for the cost of the run, with binaries
# compiled differently. Usage: check-determinism.sh WEFT-BINARY WEFT-BINARY
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: check-determinism.sh WEFT-BINARY WEFT-BINARY" >&2; exit 2; }

runs=(
    "--workload incast:7 --size 200KB"
    "--workload permutation --hosts 16 --size 500KB --seed 3"
    "--workload permutation --hosts 16 --size 500KB --trim off --lb reps"
    "--workload all-to-all:4 --hosts 8 --size 50KB --lb oblivious"
)

# The report without its object "engine", which ends at the first closing brace.
report() { "$1" run $2 --json - | sed '/^  "engine": {/,/^  }/d'; }

for run in "${runs[@]}"; do
    first=$(report "$1" "$run")
    second=$(report "$2" "$run")
    [ -n "$first" ] || { echo "check-determinism: no report from $1 run $run" >&2; exit 1; }
    if [ "$first" != "$second" ]; then
        echo "check-determinism: $1 and $2 differ in: run $run" >&2
        diff <(echo "$first") <(echo "$second") >&2 || true
        exit 1
    fi
done
