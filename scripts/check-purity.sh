#!/usr/bin/env bash
# Fails when code that must be deterministic touches anything ambient: a clock, a global generator,
# a thread, a file, the environment, a terminal, or the platform's transcendental functions.
# Usage: check-purity.sh [DIRECTORY…]   (default: every directory that must keep to this)
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -gt 0 ]; then
    places=("$@")
else
    places=(cc/src stack/src/{wire,pdc,spray,fec,ses,fep} testbed/src/{switch,sim})
fi

ambient='Instant::now|SystemTime|thread_rng|rand::rng\(|\bsleep\(|thread::(spawn|park|yield_now)'
ambient+='|std::(fs|env|process)\b|(Tcp|Udp)(Stream|Listener|Socket)|\b(print|println|eprint|eprintln|dbg)!'
ambient+='|\.(powf|exp|exp2|exp_m1|ln|ln_1p|log|log2|log10|sin|cos|tan|sinh|cosh|tanh|cbrt|hypot)\('

found=0
for place in "${places[@]}"; do
    [ -e "$place" ] || continue
    # Comments may name what code must not use; files of tests may read their corpora.
    if grep -rnE --include='*.rs' --exclude=tests.rs --exclude-dir=tests "$ambient" "$place" | grep -vE '^[^:]+:[0-9]+:\s*//'; then
        found=1
    fi
done
if [ $found -ne 0 ]; then
    echo "check-purity: the lines above use something ambient (see the rules in docs/architecture.md)" >&2
    exit 1
fi
