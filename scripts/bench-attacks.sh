#!/usr/bin/env bash
# What attacks by peers and applications cost the others at a server: for each attack, without and with it in one run,
# the server's time for a ping, for a turn of which one in a hundred is longer, goodput, joins a second, and memory. Medians.
#
# Usage: scripts/bench-attacks.sh [ROUNDS] [ATTACK…]      (3 rounds of all attacks; `list` prints their names)
#
# PROFILE names the cargo profile [bench].
set -euo pipefail
cd "$(dirname "$0")/.."

program=$(cargo bench --no-run -p weft-stack --no-default-features --profile "${PROFILE:-bench}" --bench attacks 2>&1 |
    sed -n 's/.*Executable.*(\(.*\))$/\1/p')
[[ -x $program ]] || { echo "bench-attacks.sh: the benchmark was not built" >&2; exit 1; }
if [[ $# -eq 0 ]]; then set -- 3; fi
exec "$program" "$@"
