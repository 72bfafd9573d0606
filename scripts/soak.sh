#!/usr/bin/env bash
# Random campaigns against weft, simulated and real, until the time is over; prints what was run and what failed.
#
# Usage: scripts/soak.sh MINUTES [--seed N] [--only CAMPAIGN] [--list]
#   MINUTES          how long, builds not counted; each campaign runs once at least, so 0 runs each once. After that a
#                    campaign is started only if it would end in time when it takes as long as its longest run so far;
#                    one that then takes longer is what the soak can be late by
#   --seed N         the first seed; each round takes the next [the clock]
#   --only CAMPAIGN  this campaign alone; with MINUTES 0 and --seed it repeats one run
#   --list           prints the campaigns and ends
#
# WEFT names the binary of the real campaigns; without it the script makes a build with the profile ci, which has all
# assertions.
# A campaign fails if something that must be true is not, or if nothing moves within its bound after all faults have
# healed. For each failure the last lines of its output are printed, and the command that repeats it; the exit status is
# 1 then. A real campaign that fails while the machine keeps processes from running for long proves nothing: its seed is
# repeated, twice at most while there is time. The summary says how many seeds were repeated, and names those that were
# never judged; the exit status is 2 if there are any, and nothing has failed. Wrong options have it, too.
# Real campaigns use kernel UDP on the loopback interface, at addresses in 127.64.0.0/10, and no privileges.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v python3 >/dev/null || { echo "soak.sh: python3 is missing; on Debian: apt-get install python3" >&2; exit 1; }
case ${1:---help} in
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit ;;
    --list) exec python3 scripts/lib/soak.py --list ;;
esac

if [[ -z ${WEFT:-} ]]; then
    cargo build --quiet --profile ci -p weft-apps --bin weft
    WEFT=${CARGO_TARGET_DIR:-target}/ci/weft
fi
export WEFT
# The tests that campaigns run: building them takes no time from the soak.
cargo test --quiet --profile ci --no-run -p weft-stack --test virtual_time
cargo test --quiet --profile ci --no-run -p weft-stack --lib
cargo test --quiet --profile ci --no-run -p weft-testbed --test random_fabrics
cargo test --quiet --profile ci --no-run -p weft-apps --test serve
cargo test --quiet --profile ci --no-run -p weft-libfabric-provider --test in_process
exec python3 scripts/lib/soak.py "$@"
