#!/usr/bin/env bash
# Boots two virtual machines and transfers between them through real drivers of PCI network cards: weft in each,
# DPDK's driver behind vfio-pci, an IOMMU, huge pages. The cards are virtio and Intel's 82574 (e1000e), joined by
# Unix sockets; each byte is compared. A third card, virtio with four queues, shows that queues are
# chosen by addresses; it needs a network namespace with TAP devices. No privileges, no KVM: the machines
# are emulated.
#
# Usage: scripts/test-guests.sh [--weft FILE] [--queues FILE] [--directory DIR]
#   --weft FILE       the command to test (default: target/ci/weft, built first)
#   --queues FILE     the test program with the guests' ends of the test of queues; without it there is none
#   --directory DIR   where to put the machines' output: server.log, client.log, with the seconds since the test began
#                     before each line, and, as JSON lines, server.results, client.results (default: target/guests)
#
# After a failure, prints the output of both machines, in order of time.
#
# Needs qemu-system-x86, busybox-static, cpio (scripts/setup.sh --guests installs them) and Debian's cloud kernel,
# which apt-get downloads once, 27 MB, without installing it. Exits with 77 if any of these is missing.
set -euo pipefail
export LC_ALL=C

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${CARGO_TARGET_DIR:-$root/target}/guests
kernel_package=linux-image-cloud-amd64
weft=
queues=
directory=
inside=
# Time limits in seconds, after which the machines are considered broken rather than slow. Emulated machines share
# processors with other work. On two cores with a load average of 12 to 15, servers took 11 to 83 s until they were
# ready, and clients 64 to 204 s for all tests. A server in its machine waits for its client for longer than both
# together.
ready_bound=240
client_bound=600

missing() {
    echo "skipped: $*"
    exit 77
}

fail() {
    echo "test-guests.sh: $*" >&2
    exit 1
}

# Fails with the consoles of the machines, because they may be gone with their directory when somebody reads the
# report.
fail_with_consoles() {
    kill "${machines[@]}" 2>/dev/null || true
    wait "${stampers[@]}" || true
    {
        echo "what the machines said, by seconds since the test began:"
        sort -s -n "$directory"/{server,client}.log
        tail -n 20 "$directory"/{server,client}.qemu
        uptime || true
    } >&2
    fail "$*"
}

while [[ $# -gt 0 ]]; do
    case $1 in
        --weft) weft=$2; shift 2 ;;
        --queues) queues=$2; shift 2 ;;
        --directory) directory=$2; shift 2 ;;
        # Internal: the script runs itself again, with a network of its own (own) or without (none).
        --inside) inside=$2; shift 2 ;;
        -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
        *) fail "unknown argument $1 (try --help)" ;;
    esac
done
directory=${directory:-$cache}

check_tools() {
    [[ $(uname -m) == x86_64 ]] || missing "the guests are x86-64 machines with programs of this one"
    local tool
    for tool in qemu-system-x86_64 busybox cpio pkg-config timeout; do
        command -v "$tool" >/dev/null || missing "no $tool here: scripts/setup.sh --guests installs it"
    done
    ! ldd "$(command -v busybox)" >/dev/null 2>&1 || missing "busybox is not linked statically: install busybox-static"
}

# Prints the package of the newest cloud kernel.
newest_kernel() {
    apt-cache depends "$kernel_package" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | head -n 1
}

# Downloads the package $1 into the directory $2.
download() {
    (cd "$2" && timeout 60 apt-get download -qq "$1" >/dev/null 2>log)
}

# Sets `kernel` to the path of the unpacked kernel.
find_kernel() {
    command -v apt-get >/dev/null || missing "no apt-get here to download $kernel_package with"
    local package part
    package=$(newest_kernel)
    kernel=$cache/$package
    [[ -z $package || ! -d $kernel ]] || return 0
    mkdir -p "$cache"
    part=$(mktemp -d "$cache/part.XXXXXX")
    if [[ -z $package ]] || ! download "$package" "$part"; then
        # The package lists are old or missing.
        [[ $EUID -ne 0 ]] || timeout 60 apt-get update -qq || true
        package=$(newest_kernel)
        [[ -n $package ]] || missing "apt-get does not know $kernel_package: run apt-get update"
        download "$package" "$part" || missing "$package cannot be downloaded: $(tail -n 1 "$part/log")"
    fi
    kernel=$cache/$package
    dpkg-deb -x "$part"/*.deb "$part/root"
    # Another process may have created it meanwhile.
    mv -T "$part/root" "$kernel" 2>/dev/null || [[ -d $kernel ]]
    rm -rf "$part"
}

# Copies a file to the same path in the guest; for a link, copies the link and its target.
put() {
    local real link
    real=$(readlink -f "$1")
    link=$(readlink -f "$(dirname "$1")")/$(basename "$1")
    mkdir -p "$image$(dirname "$real")" "$image$(dirname "$link")"
    cp "$real" "$image$real"
    [[ $link == "$real" ]] || ln -sf "$real" "$image$link"
}

# Builds the guests' file system: programs, their libraries, drivers of DPDK and of the kernel.
make_image() {
    image=$work/image
    mkdir -p "$image"/{bin,modules,usr/lib,usr/lib64}
    ln -s usr/lib "$image/lib"
    ln -s usr/lib64 "$image/lib64"
    cp "$(command -v busybox)" "$image/bin/busybox"
    cp "$root/scripts/guest-init.sh" "$image/init"
    cp "$weft" "$image/bin/weft"
    [[ -z $queues ]] || cp "$queues" "$image/bin/queues"
    chmod +x "$image"/init "$image"/bin/*
    local name module drivers file libraries
    for name in irqbypass vfio_virqfd vfio vfio_iommu_type1 vfio-pci-core vfio-pci; do
        module=$(find "$kernel/lib/modules" -name "$name.ko")
        [[ -f $module ]] || fail "the kernel has no module $name"
        cp "$module" "$image/modules"
    done
    drivers=$(echo "$(pkg-config --variable=libdir libdpdk)"/dpdk/pmds-*)
    for name in bus_pci bus_vdev mempool_ring net_virtio net_e1000; do
        for file in "$drivers/librte_$name".so.*; do put "$file"; done
    done
    libraries=$(ldd "$weft" ${queues:+"$queues"} "$image$drivers"/*.so.* \
        | awk '/=> \//{print $3} $1 ~ /^\//&&NF==2{print $1}' | sort -u)
    for file in $libraries; do put "$file"; done
    (cd "$image" && find . | cpio --create --format=newc --quiet) >"$work/image.cpio"
}

# Creates two TAP devices and a bridge in this process's own network.
join_taps() {
    ip link add weft0 type bridge mcast_snooping 0 && ip link set weft0 up || return
    ip tuntap add server mode tap multi_queue && ip tuntap add client mode tap || return
    local tap
    for tap in server client; do ip link set "$tap" master weft0 up || return; done
}

# Microseconds since 1970.
now() { echo "${EPOCHREALTIME//[^0-9]/}"; }

# Copies lines, prefixed with their time of arrival and with $1, their source.
stamp() {
    local line ms
    while IFS= read -r line || [[ -n $line ]]; do
        ms=$((($(now) - begin) / 1000))
        printf '%4d.%03d %s: %s\n' $((ms / 1000)) $((ms % 1000)) "$1" "${line%$'\r'}"
    done
}

# Starts the machine of role $1, number $2, which is killed after $3 seconds.
start() {
    local role=$1 number=$2 bound=$3 listen=off count=1
    # The kernel checks its timer by waiting, and a machine emulated on a busy host may be late.
    local line="console=ttyS0 quiet panic=-1 no_timer_check intel_iommu=on hugepages=144 weft_role=$role"
    [[ $role == client ]] || listen=on
    line+=" weft_cards=virtio/0000:00:03.0/10.0.0.,e1000e/0000:00:04.0/fd00::"
    local arguments=(
        -machine q35 -accel tcg -cpu max -m 640 -nodefaults -no-user-config -display none -no-reboot
        # 48 bits, as many as process addresses have, because DPDK then uses these for DMA.
        -device "intel-iommu,intremap=on,caching-mode=on,device-iotlb=on,aw-bits=48"
        -kernel "$(echo "$kernel"/boot/vmlinuz-*)" -initrd "$work/image.cpio"
        -serial "file:/dev/stdout" -serial "file:$directory/$role.results"
        -netdev "stream,id=a,server=$listen,addr.type=unix,addr.path=$work/a"
        -device "virtio-net-pci,netdev=a,addr=3,mac=02:00:00:00:00:0$number,disable-legacy=on,iommu_platform=on,ats=on,romfile="
        -netdev "stream,id=b,server=$listen,addr.type=unix,addr.path=$work/b"
        -device "e1000e,netdev=b,addr=4,mac=02:00:00:00:01:0$number,romfile="
    )
    if [[ $taps == yes ]]; then
        [[ $role == client ]] || count=4
        line+=" weft_queues=0000:00:05.0"
        arguments+=(
            -netdev "tap,id=c,ifname=$role,script=no,downscript=no,vhost=off,queues=$count"
            -device "virtio-net-pci,netdev=c,addr=5,mac=02:00:00:00:02:0$number,mq=on,vectors=$((2 * count + 2)),rss=on,disable-legacy=on,iommu_platform=on,ats=on,romfile="
        )
    fi
    mkfifo "$work/$role.console"
    stamp "$role" <"$work/$role.console" >"$directory/$role.log" &
    stampers+=($!)
    timeout -k 5 "$bound" qemu-system-x86_64 "${arguments[@]}" -append "$line" \
        >"$work/$role.console" 2>"$directory/$role.qemu" &
    machines+=($!)
}

# Waits until a command, given from $3 on, succeeds: at most $2 seconds, and only while the server's machine runs.
wait_for() {
    local what=$1 patience=$2 deadline=$((SECONDS + $2))
    shift 2
    until "$@"; do
        running 0 || fail_with_consoles "the server's machine has ended, while waiting for $what"
        ((SECONDS < deadline)) || fail_with_consoles "waited $patience s for $what"
        sleep 0.1
    done
}

# Whether machine $1 runs: 0 is the server's, 1 the client's.
running() { kill -0 "${machines[$1]}" 2>/dev/null; }

listening() { [[ -S $work/a && -S $work/b ]]; }

# Whether at least $2 lines of the server's console contain $1.
server_said() { [[ $(grep -c "$1" "$directory/server.log") -ge $2 ]]; }

# Whether test $2 of role $1 has succeeded.
result() {
    [[ $(tr -d '\r' <"$directory/$1.results" | sed -n "s/^result: $2 //p") == 0 ]]
}

boot() {
    local file
    taps=no
    if [[ -n $queues ]]; then
        if [[ $inside == own ]] && join_taps; then taps=yes; else echo "skipped: queues by addresses: no TAP devices here"; fi
    fi
    begin=$(now)
    for file in "$directory"/{server,client}.{log,qemu,results}; do : >"$file"; done
    start server 1 $((ready_bound + client_bound))
    wait_for "the sockets of the server's machine" 20 listening
    # A client resolves its server's address for only three seconds, so it is started after the servers are ready.
    wait_for "the server to wait for clients over both cards" "$ready_bound" server_said "waiting for clients at" 2
    [[ $taps == no ]] || wait_for "the server to listen to its queues" "$ready_bound" server_said "queues: listening" 1
    start client 2 "$client_bound"
    local status=0 late=()
    # The client's machine ends by itself, the server's only after a failure; both end at their time limits.
    wait -n "${machines[@]}" || status=$?
    # Exit status of `timeout` at the limit.
    [[ $status -ne 124 ]] || late=("the client's machine did not end within $client_bound s")
    running 0 || late+=("the server's machine has ended")
    if [[ $taps == yes ]] && result client end; then
        wait_for "the result of the server's test of queues" 30 \
            grep -q 'result: guest_receives' "$directory/server.results"
    fi
    judge "${late[@]}"
}

# Fails if a test has failed, or if there are arguments, which describe earlier failures.
judge() {
    local card test bad=("$@")
    for card in virtio e1000e; do
        for test in throughput jumbo killed rate latency; do
            result client "$card-$test" || bad+=("$card-$test")
        done
    done
    if [[ $taps == yes ]]; then
        result client guest_sends_to_queues || bad+=("sender of queues")
        result server guest_receives_by_queues || bad+=("receiver of queues")
    fi
    # The results also show tests that a guest could not start.
    if grep -h '^result:' "$directory"/*.results | tr -d '\r' | grep -qv ' 0$'; then bad+=("results that are not 0"); fi
    [[ ${#bad[@]} -eq 0 ]] || fail_with_consoles "failed: $(printf '%s, ' "${bad[@]}" | sed 's/, $//')"
    cat "$directory/client.log"
    [[ $taps != yes ]] || sed -n '/ queues: frames/p' "$directory/server.log"
    echo "passed: virtio and e1000e, each byte compared$([[ $taps != yes ]] || echo "; queues chosen by addresses")"
}

check_tools
find_kernel
mkdir -p "$directory"
if [[ -z $inside ]]; then
    if [[ -z $weft ]]; then
        (cd "$root" && cargo build --profile ci -p weft-apps --quiet)
        weft=${CARGO_TARGET_DIR:-$root/target}/ci/weft
    fi
    arguments=(--weft "$weft" --directory "$directory")
    [[ -z $queues ]] || arguments+=(--queues "$queues")
    if unshare --user --map-root-user --net true 2>/dev/null; then
        exec unshare --user --map-root-user --net "${BASH_SOURCE[0]}" "${arguments[@]}" --inside own
    fi
    inside=none
fi
# The paths of sockets are limited in length.
work=$(mktemp -d "${TMPDIR:-/tmp}/weft-guests.XXXXXX")
machines=()
stampers=()
trap 'kill "${machines[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
make_image
boot
