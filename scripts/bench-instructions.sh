#!/usr/bin/env bash
# Instructions that one ACK costs the congestion control, for each algorithm and case, and the bytes
# of state. Usage: bench-instructions.sh [ACKs per case]
set -euo pipefail
cd "$(dirname "$0")/.."

count=${1:-10000}
command -v valgrind >/dev/null || {
    echo "bench-instructions: valgrind is missing: apt-get install valgrind" >&2
    exit 1
}

program=$(cargo bench --no-run -p weft-cc --bench instructions 2>&1 |
    sed -n 's/.*Executable.*(\(.*\))$/\1/p')
[ -x "$program" ] || { echo "bench-instructions: the benchmark was not built" >&2; exit 1; }

# Only the function `measured` is counted, so the mean holds nothing but the algorithm.
instructions() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='*measured*' \
        "$program" "$1" "$2" "$count" 2>&1 | sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

printf '%-8s %-24s %s\n' algorithm case instructions/ACK
"$program" list | while read -r algorithm case; do
    total=$(instructions "$algorithm" "$case")
    printf '%-8s %-24s %s\n' "$algorithm" "$case" "$(awk -v n="$total" -v c="$count" 'BEGIN { printf "%.1f", n / c }')"
done
printf '\nbytes per flow and shared\n'
"$program" sizes
