# Runs iperf3 for comparison with weft. To be sourced by a script that defines `die`, `work` (a directory), `seconds`
# (the length of a run) and `server` (the process to end on exit, if any).

# Prefixes of the commands of either end: a namespace, a core.
on_server=() on_client=()

# iperf OUT ADDRESS PORT OPTIONS…: runs one client against the server at ADDRESS and PORT; writes the client's report
# to OUT.
iperf() {
    local out=$1 address=$2 port=$3 tries
    shift 3
    timeout $((seconds + 30)) "${on_server[@]}" iperf3 --server --one-off --bind "$address" --port "$port" \
        >"$work/server" 2>&1 &
    server=$!
    for tries in {1..50}; do
        timeout $((seconds + 20)) "${on_client[@]}" iperf3 --client "$address" --port "$port" --time "$seconds" --json "$@" \
            >"$out" 2>&1 || true
        # With --json a client that reaches no server exits with 0, and reports the error only in its output.
        grep -q '"error":' "$out" || break
        kill -0 "$server" 2>/dev/null || die "iperf3: $(cat "$work/server")"
        [[ $tries -lt 50 ]] || die "iperf3: $(grep '"error":' "$out")"
        sleep 0.1
    done
    wait "$server" || die "iperf3: $(cat "$work/server")"
    server=
}
