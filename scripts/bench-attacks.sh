#!/usr/bin/env bash
# What attacks by peers and applications cost the others at a server: for each attack, without and with it in one run, what an
# honest application and its peer get, as the table of docs/perf.md. Medians. Fails if an attack costs them more than a tenth of
# the time of a round trip or a new connection, of goodput, or of joins, and names what it costs. An attack that is an application
# which always has commands, or 100,000 packets a second, may cost as much as an honest one or a peer that sends as much, and a
# tenth more: these are measured in turn with it, and are in brackets behind what it costs.
#
# Usage: scripts/bench-attacks.sh [ROUNDS] [ATTACK…]      (5 rounds of all attacks; `list` prints their names)
#
# BEFORE names the same program of an earlier state, which then runs in turns with this one. PROFILE names the cargo profile
# [bench]. Under `chrt -f 10` other processes do not interrupt it.
set -euo pipefail
cd "$(dirname "$0")/.."

program=$(cargo bench --no-run -p weft-stack --no-default-features --profile "${PROFILE:-bench}" --bench attacks 2>&1 |
    sed -n 's/.*Executable.*(\(.*\))$/\1/p') || true
[[ -x $program ]] || {
    echo "bench-attacks.sh: not built; why: cargo bench --no-run -p weft-stack --no-default-features --bench attacks" >&2
    exit 1
}
if [[ ${1:-} == list ]]; then exec "$program" list; fi
if [[ ! ${1:-} =~ ^[0-9]+$ ]]; then set -- 5 "$@"; fi
exec python3 scripts/lib/attacks.py "$program" "$@"
