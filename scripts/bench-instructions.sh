#!/usr/bin/env bash
# Measures instructions per ACK of the congestion control, for each algorithm and case, and the size of its state;
# instructions and cache lines per packet of an endpoint; instructions per message of a server of sessions; and
# instructions per packet of both ends of a real path, everything included.
# Usage: bench-instructions.sh [cc|endpoint|sessions|path|all] [ACKs per case, messages, or data packets]
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:-all}
command -v valgrind >/dev/null || {
    echo "bench-instructions: valgrind is missing: apt-get install valgrind" >&2
    exit 1
}

# Builds benchmark $2 of package $1 and prints its path.
build() {
    local program
    program=$(cargo bench --no-run -p "$1" "${@:3}" --bench "$2" 2>&1 |
        sed -n 's/.*Executable.*(\(.*\))$/\1/p') || true
    [ -x "$program" ] || {
        echo "bench-instructions: not built; why: cargo bench --no-run -p $1 ${*:3} --bench $2" >&2
        exit 1
    }
    echo "$program"
}

# Counts only the function $1 of the program that follows, so that the mean contains nothing else.
counted() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect="*$1*" "${@:2}" 2>&1
}

congestion_control() {
    local count=$1 program algorithm case total
    program=$(build weft-cc instructions)
    printf '%-8s %-24s %s\n' algorithm case instructions/ACK
    "$program" list | while read -r algorithm case; do
        total=$(counted measured "$program" "$algorithm" "$case" "$count" | sed -n 's/.*Collected : \([0-9]*\).*/\1/p')
        printf '%-8s %-24s %s\n' "$algorithm" "$case" "$(mean "$total" "$count")"
    done
    printf '\nbytes per flow and shared\n'
    "$program" sizes
}

# One pair of endpoints for instructions. For cache lines so many pairs that none finds its state in a first-level
# cache of 32 KiB, so that each line touched by a call is a miss.
endpoint() {
    local count=$1 pairs=96 per_pair=64 program case call total misses
    # The packets of the simulator need no DPDK.
    program=$(build weft-stack endpoint --no-default-features)
    printf '%-9s %-13s %-18s %s\n' case call instructions/call lines/call
    "$program" list | while read -r case; do
        for call in send_data receive_data send_ack receive_ack; do
            total=$(counted "measured_$call" "$program" "$case" 1 "$count" |
                sed -n 's/.*Collected : \([0-9]*\).*/\1/p')
            misses=$(counted "measured_$call" --cache-sim=yes --I1=32768,8,64 --D1=32768,8,64 --LL=1048576,16,64 \
                "$program" "$case" "$pairs" "$per_pair" | sed -n 's/.*D1  misses: *\([0-9,]*\).*/\1/p' | tr -d ,)
            printf '%-9s %-13s %-18s %s\n' "$case" "$call" \
                "$(mean "$total" "$(calls "$program" "$case" "$call" 1 "$count")")" \
                "$(mean "$misses" "$(calls "$program" "$case" "$call" "$pairs" "$per_pair")")"
        done
    done
}

# A turn of the server's loop, with headers and a port in memory. Start and end cost the same in two runs of different
# length, and cancel out.
sessions() {
    local messages=$1 program case few many
    program=$(build weft-stack sessions --no-default-features)
    printf '%-16s %s\n' 'the application' instructions/message
    "$program" list | while read -r case; do
        few=$(counted sessions::serve "$program" "$case" "$messages" | sed -n 's/.*Collected : \([0-9]*\).*/\1/p')
        many=$(counted sessions::serve "$program" "$case" $((3 * messages)) | sed -n 's/.*Collected : \([0-9]*\).*/\1/p')
        printf '%-16s %s\n' "$case" "$(mean $((many - few)) $((2 * messages)))"
    done
}

# Both ends over net_ring on one thread: everything from `post_send` to the receiver's completion, including
# acknowledgements and the driver. Start and end cost the same in two runs of different length, and cancel out.
path() {
    local packets=$1 program=target/release/weft
    cargo build --quiet --release -p weft-apps
    printf '%-44s %s\n' 'both ends over net_ring' 'instructions/data packet'
    difference "$program" "$packets" 16 --size 64KiB --depth 8 |
        awk '{ printf "%-44s %.0f\n%-44s %.0f\n", "4 KiB of messages of 64 KiB", $1, "  without the copy, one instruction repeated", $1 - 4096 }'
    difference "$program" "$packets" 1 --mode rate | awk '{ printf "%-44s %.0f\n", "messages of 64 bytes", $1 }'
}

# Instructions per packet of `perf pair` with the arguments from the fourth on, whose messages have $3 packets.
difference() {
    local program=$1 packets=$2 each=$3 few many
    few=$(whole_run "$program" perf pair --port ring "${@:4}" --count $((packets / each)))
    many=$(whole_run "$program" perf pair --port ring "${@:4}" --count $((3 * packets / each)))
    mean $((many - few)) $((2 * (packets / each) * each))
    echo
}

whole_run() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$@" 2>&1 >/dev/null | sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

# Prints how often program $1 makes call $3 in case $2 with $4 pairs and $5 data packets each.
calls() {
    "$1" "$2" "$4" "$5" | sed -n "s/^$3 //p"
}

mean() {
    awk -v n="$1" -v c="$2" 'BEGIN { printf "%.1f", n / c }'
}

case $what in
    cc) congestion_control "${2:-10000}" ;;
    endpoint) endpoint "${2:-4096}" ;;
    sessions) sessions "${2:-8192}" ;;
    path) path "${2:-32768}" ;;
    all)
        congestion_control 10000
        echo
        endpoint 4096
        echo
        sessions 8192
        echo
        path 32768
        ;;
    *)
        echo "bench-instructions: $what is none of cc, endpoint, sessions, path, all" >&2
        exit 1
        ;;
esac
