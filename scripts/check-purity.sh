#!/usr/bin/env bash
# Fails when code that must be deterministic touches anything ambient: a clock, a global generator,
# a thread, a file, the network, the environment, a terminal, global state, hash maps whose order differs
# from run to run, or the platform's transcendental functions.
# Usage: check-purity.sh [DIRECTORY…]   (default: every directory that must keep to this)
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -gt 0 ]; then
    places=("$@")
else
    places=(cc/src stack/src/{wire,pdc,spray,fec,ses,fep}
        testbed/src/{goal,switch,sim,soft,topology,workload})
fi

modules='(fs|io|net|time|thread|env|process)'
ambient='Instant::now|SystemTime|thread_rng|rand::rng\(|\bsleep\(|thread::(spawn|park|yield_now)'
ambient+="|\\bstd::$modules\\b|\\bstd::\\{([^}]*[ ,{])?$modules\\b"
ambient+='|(Tcp|Udp)(Stream|Listener|Socket)|\b(print|println|eprint|eprintln|dbg)!'
ambient+='|\bstatic mut\b|\bthread_local!'
# std's maps have a random order unless they are given a hasher; these constructors give them none.
ambient+='|\bRandomState\b|\bHash(Map|Set)(::<[^>]*>)?::(new|with_capacity|from|from_iter)\('
ambient+='|\.(powf|exp|exp2|exp_m1|ln|ln_1p|log|log2|log10|sin|cos|tan|sinh|cosh|tanh|cbrt|hypot)\('

# Maps and sets of std whose type names no hasher.
unhashed='\bHash(Map|Set)(::)?<'

# The simulator's threads meet at a barrier after each window, so results cannot depend on them.
threads='^testbed/src/sim/(engine|barrier)\.rs:[0-9]+:.*\bstd::thread::(scope|yield_now|panicking)\('

# Prints the lines of place $2 that match $1 and are code. Comments may name forbidden items, and test files may read
# their corpora.
lines() {
    grep -rnE --include='*.rs' --exclude=tests.rs --exclude-dir=tests "$1" "$2" \
        | grep -vE '^[^:]+:[0-9]+:\s*//' | grep -vE "$threads"
}

found=0
for place in "${places[@]}"; do
    [ -e "$place" ] || continue
    if lines "$ambient" "$place"; then found=1; fi
    if lines "$unhashed" "$place" | grep -v BuildHasher; then found=1; fi
done
if [ $found -ne 0 ]; then
    echo "check-purity: the lines above use something ambient (see the rules in docs/architecture.md)" >&2
    exit 1
fi
