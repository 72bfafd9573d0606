#!/usr/bin/env bash
# Installs weft's requirements on Debian 12: DPDK and its virtual devices, a C compiler, libclang for the bindings,
# tshark and Python for the independent decoders of the tests, the tools with which other tests make namespaces and
# links, libfabric, and programs that use it; and MPICH and mpi4py with its tests from PyPI, in the directory mpich of cargo's
# target directory.
# Prints nothing if all are installed.
#
# Usage: scripts/setup.sh [--system] [--bench] [--guests]
#   --system  also builds the libfabric provider, and installs it where libfabric looks by itself. PROVIDER names a
#             libweft_fi.so that was built already, which is installed instead
#   --bench   also the requirements of benchmarks: valgrind, and the programs to compare with (iperf3, dpdk-testpmd)
#   --guests  also the requirements of the test of network cards: qemu and the contents of its machines
#
# Run it as root, or as a user who may use sudo.
set -euo pipefail

mpich=5.0.2
mpi4py=4.1.2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# libdpdk-dev depends on the drivers (net_ring, net_null, net_pcap, the vdev bus, …).
packages=(build-essential pkg-config libdpdk-dev libpcap-dev clang libclang-dev tshark python3
    iproute2 util-linux procps libfabric-dev libfabric-bin openmpi-bin libopenmpi-dev python3-venv)

system=no

die() {
    printf 'setup.sh: %s\n' "$@" >&2
    exit 1
}

for argument in "$@"; do
    case $argument in
        --system) system=yes ;;
        --bench) packages+=(valgrind iperf3 dpdk-dev) ;;
        --guests) packages+=(qemu-system-x86 busybox-static cpio) ;;
        -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
        *) die "unknown argument $argument (try --help)" ;;
    esac
done

as_root() {
    if [[ $EUID -eq 0 ]]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "not root, and no sudo here. Run as root: $*"
    fi
}

# Rust is installed in the home of the user who builds, even if the script was started through sudo.
as_builder() {
    if [[ $EUID -eq 0 && -n ${SUDO_USER:-} && $SUDO_USER != root ]]; then
        sudo -u "$SUDO_USER" -H "$@"
    else
        "$@"
    fi
}

installed() {
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

install_packages() {
    command -v dpkg-query >/dev/null || die \
        "this is no Debian system. Install by your own means: DPDK 22.11 or later with its headers," \
        "a C compiler, pkg-config, libclang, libpcap, tshark, libfabric 1.17, Open MPI."
    local package missing=()
    for package in "${packages[@]}"; do
        installed "$package" || missing+=("$package")
    done
    [[ ${#missing[@]} -gt 0 ]] || return 0
    echo "setup.sh: installing ${missing[*]}"
    as_root apt-get update -qq
    # tshark's package asks whether all users may capture; the tests do not capture.
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null
}

check_dpdk() {
    pkg-config --atleast-version=22.11 libdpdk || die \
        "libdpdk $(pkg-config --modversion libdpdk 2>/dev/null || echo '(none)') is installed; 22.11 or later is needed"
}

# The directory of the builder's cargo comes first: sudo resets PATH.
rust() {
    # shellcheck disable=SC2016 # expanded by the inner shell
    as_builder bash -c 'cd "$1" && shift && PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH && exec "$@"' _ "$root" "$@"
}

rust_version() {
    rust rustc --version 2>/dev/null | sed -n 's/^rustc \([0-9.]*\).*/\1/p' || true
}

check_rust() {
    local needed have
    needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
    have=$(rust_version)
    if recent_enough "$have" "$needed"; then
        return 0
    fi
    if rust rustup --version >/dev/null 2>&1; then
        echo "setup.sh: installing the Rust toolchain of rust-toolchain.toml"
        rust rustup toolchain install stable --profile minimal --component rustfmt --component clippy
        have=$(rust_version)
    fi
    recent_enough "$have" "$needed" || die \
        "Rust $needed or later is needed, and ${have:-none} is here. Debian 12's own is 1.63, which is too old." \
        "Install the current one for the user who builds (https://rustup.rs), then run this again."
}

recent_enough() {
    [[ -n $1 && $(printf '%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]
}

# Debian's MPICH does not use libfabric. PyPI's brings one of its own. mpi4py comes as a wheel, and its tests with its sources
# only, in the directory mpi4py beside it, from which nothing is built.
install_mpich() {
    local directory=${CARGO_TARGET_DIR:-$root/target}/mpich
    if [[ ! -x $directory/bin/mpiexec ]]; then
        echo "setup.sh: installing MPICH $mpich from PyPI"
        as_builder mkdir -p "$(dirname "$directory")"
        as_builder python3 -m venv "$directory"
        as_builder_pip install "mpich==$mpich"
    fi
    if [[ ! -f $directory/mpi4py/test/main.py ]]; then
        echo "setup.sh: installing mpi4py $mpi4py from PyPI, and its tests"
        as_builder_pip install "mpi4py==$mpi4py"
        as_builder_pip download --no-deps --no-binary mpi4py --dest "$directory" "mpi4py==$mpi4py"
        as_builder mkdir -p "$directory/mpi4py"
        as_builder tar -C "$directory/mpi4py" --strip-components 1 -xzf "$directory/mpi4py-$mpi4py.tar.gz"
        as_builder rm "$directory/mpi4py-$mpi4py.tar.gz"
    fi
}

# The pip of that directory, with a command of its own and arguments.
as_builder_pip() {
    local command=$1
    shift
    as_builder "${CARGO_TARGET_DIR:-$root/target}/mpich/bin/python" -m pip "$command" --quiet --disable-pip-version-check "$@"
}

# FI_PROVIDER_PATH, where it is set, comes instead of this directory.
install_provider() {
    local directory
    directory=$(pkg-config --variable=libdir libfabric)/libfabric
    if [[ -z ${PROVIDER:-} ]]; then
        rust cargo build --release --quiet -p weft-libfabric-provider
        PROVIDER=${CARGO_TARGET_DIR:-$root/target}/release/libweft_fi.so
    fi
    as_root install -D -m 755 "$PROVIDER" "$directory/libweft-fi.so"
    env -u FI_PROVIDER_PATH fi_info -p weft >/dev/null || die "libfabric does not find the provider in $directory"
    echo "setup.sh: installed $directory/libweft-fi.so"
}

install_packages
check_dpdk
check_rust
install_mpich
if [[ $system == yes ]]; then
    install_provider
fi
