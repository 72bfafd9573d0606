#!/bin/busybox sh
# The first program of the guests that scripts/test-guests.sh boots: gives the network cards to vfio-pci, and runs one
# end of each test. Text for people goes to the first serial line; weft's reports, one JSON object per line, and
# `result: NAME STATUS` go to the second.
#
# Parameters on the kernel's command line:
#   weft_role     server or client
#   weft_cards    NAME/PCI-ADDRESS/IP-PREFIX, joined by commas; the prefix and 1 is the server's address
#   weft_queues   PCI address of a card with several queues, if there is one
/bin/busybox mkdir -p /bin /proc /sys /dev /tmp /var/run
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
exec </dev/null >/dev/ttyS0 2>&1
for line in /dev/ttyS0 /dev/ttyS1; do stty -F "$line" -opost; done

end() {
    sync
    # qemu runs with -no-reboot, so this ends it.
    reboot -f
}

# After a failure the guest ends: further tests would fail for the same reason, each after its own timeout.
result() {
    echo "result: $1 $2" | tee /dev/ttyS1
    [ "$2" -eq 0 ] || end
}

give_to_vfio() {
    local card=/sys/bus/pci/devices/$1
    echo vfio-pci >"$card/driver_override"
    echo "$1" >/sys/bus/pci/drivers_probe
    [ -e "/sys/bus/pci/drivers/vfio-pci/$1" ] || result "vfio-$1" 1
}

# A server reports earlier than its client which test it waits for, and waits for clients longer than the machines
# live.
serve() {
    weft perf server --port "dpdk:$1" --ip "${2}1" --rto 1000ms --patience 20000ms --wait 900000ms --json /dev/ttyS1
    result "server-$1" $?
}

# Every message has its own content, and the receiver compares each byte.
ask() {
    local name=$1 card=$2 prefix=$3
    shift 3
    echo "$name: begins"
    # shellcheck disable=SC2086 # two arguments or none
    weft perf client "${prefix}1" --port "dpdk:$card" --ip "${prefix}2" $mac --rto 1000ms --patience 30000ms \
        --verify --json /dev/ttyS1 "$@"
    result "$name" $?
}

# Whether process $1 has taken a card from vfio.
has_card() { ls -l "/proc/$1/fd" 2>/dev/null | grep -q vfio-device; }

# A killed process leaves its card in the middle of DMA. The next process must find the card usable.
ask_and_kill() {
    local name=$1 card=$2 prefix=$3
    echo "$name: begins"
    # shellcheck disable=SC2086
    weft perf client "${prefix}1" --port "dpdk:$card" --ip "${prefix}2" $mac --rto 1000ms \
        --patience 30000ms --duration 60000ms &
    local client=$!
    # It ends by itself if it does not get the card.
    while kill -0 $client && ! has_card $client; do sleep 0.1; done
    sleep 3
    kill -KILL $client
    wait $client
    [ $? -eq 137 ]
    result "$name" $?
}

ask_all() {
    local name=$1 card=$2 prefix=$3 mac=
    # Uses one of the cards under another address than its own.
    [ "$name" != e1000e ] || mac="--mac 02:00:00:00:07:07"
    ask "$name-throughput" "$card" "$prefix" --size 256KiB --count 16
    ask "$name-jumbo" "$card" "$prefix" --size 100KB --count 20 --payload 8800
    ask_and_kill "$name-killed" "$card" "$prefix"
    ask "$name-rate" "$card" "$prefix" --mode rate --count 1000
    ask "$name-latency" "$card" "$prefix" --mode latency --count 50
}

# Runs one test of the test program.
queues() {
    echo "$1: begins"
    WEFT_GUEST_CARD=$weft_queues /bin/queues --ignored --exact --nocapture "$1"
    result "$1" $?
}

for module in irqbypass vfio_virqfd vfio vfio_iommu_type1 vfio-pci-core vfio-pci; do
    insmod "/modules/$module.ko" || result "module-$module" 1
done
cards=$(echo "$weft_cards" | tr , ' ')
for entry in $cards; do
    address=${entry#*/}
    give_to_vfio "${address%/*}"
done
[ -z "$weft_queues" ] || give_to_vfio "$weft_queues"
echo "booted within $(cut -d ' ' -f 1 /proc/uptime) s"

for entry in $cards; do
    name=${entry%%/*} prefix=${entry##*/} card=${entry#*/}
    card=${card%/*}
    if [ "$weft_role" = server ]; then
        serve "$card" "$prefix" &
    else
        ask_all "$name" "$card" "$prefix"
    fi
done
if [ -n "$weft_queues" ]; then
    [ "$weft_role" = server ] && queues guest_receives_by_queues || queues guest_sends_to_queues
fi
wait
result end 0
end
