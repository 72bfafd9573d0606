# Two ends of weft perf on a core each. To be sourced by a script that defines `die`, `root`, and its options `weft`, `cores` and
# `rounds`. Sets `weft` (built if it is missing), `first` and `second` (the cores) and `scratch` (a directory that goes when
# the script ends); the processes in `pids` end with it.

[[ $rounds =~ ^[1-9][0-9]*$ ]] || die "--rounds: a number from 1 on, not '$rounds'"
if [[ -z $weft ]]; then
    weft=$root/target/release/weft
    [[ -x $weft ]] || (cd "$root" && cargo build --release -p weft-apps)
fi
if [[ -z $cores ]]; then
    cores=$(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0))[:2], sep=",")')
fi
[[ $cores =~ ^[0-9]+,[0-9]+$ ]] || die "two cores are needed, not '$cores'"
first=${cores%,*}
second=${cores#*,}

scratch=$(mktemp -d)
pids=()
cleanup() {
    local pid
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    wait 2>/dev/null || true
    rm -rf "$scratch"
}
trap cleanup EXIT

# Options of both ends over memif.
on_both=()

# over_memif NAME ARGUMENTS…: a server, and a client with these arguments, each a process with the options `on_both`. Writes
# the client's report to NAME.json in `scratch`; there is none if one of them fails. Their output is in NAME-server.log and
# NAME-client.log.
over_memif() {
    local name=$scratch/$1 link="memif:$scratch/weft.sock" server
    shift
    local common=(--idle spin --patience 20000ms "${on_both[@]}")
    "$weft" perf server --port "$link,role=server" --ip 10.0.0.1 --once --wait 30000ms --core "$first" \
        "${common[@]}" >"$name-server.log" 2>&1 &
    server=$!
    pids+=("$server")
    "$weft" perf client 10.0.0.1 --port "$link,role=client" --ip 10.0.0.2 --core "$second" "${common[@]}" "$@" \
        --json "$name.json" >"$name-client.log" 2>&1 || {
        kill "$server" 2>/dev/null || true
        rm -f "$name.json"
    }
    wait "$server" || rm -f "$name.json"
    rm -f "$scratch/weft.sock"
    [[ -e $name.json ]]
}
