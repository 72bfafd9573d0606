#!/usr/bin/env bash
# Runs the tests of rings, regions, sessions and memif, in one process and in several, under a sanitiser of the nightly
# toolchain; under that of addresses also tests of the libfabric provider, of which one calls every function of every table, and
# under that of threads those in which threads share its endpoints.
# scripts/sanitize.sh [address|thread]      (default: address)
# The thread sanitiser needs the sources of the standard library (rustup component add rust-src --toolchain nightly).
set -euo pipefail
cd "$(dirname "$0")/.."

sanitiser=${1:-address}
extra=()
case $sanitiser in
    address) ;;
    # Unless the standard library is built with the sanitiser too, its synchronisation is invisible to it.
    thread) extra=(-Zbuild-std) ;;
    *) echo "usage: scripts/sanitize.sh [address|thread]" >&2; exit 2 ;;
esac
if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "sanitize.sh needs the nightly toolchain: rustup toolchain install nightly" >&2
    exit 1
fi
sources=$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library
if [ "$sanitiser" = thread ] && [ ! -d "$sources" ]; then
    echo "sanitize.sh needs the standard library's sources: rustup component add rust-src --toolchain nightly" >&2
    exit 1
fi

host=$(rustc +nightly -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/sanitize-$sanitiser
# Sanitisers cannot see copies made by the processor's string instructions.
export RUSTFLAGS="-Zsanitizer=$sanitiser --cfg weft_plain_copies"
cargo +nightly test -p weft-stack --no-default-features --lib --target "$host" "${extra[@]}" -- \
    region worker::ring worker::session port::borrowed port::memif::tests

# The provider, which libfabric loads, uses the sanitiser of the program: that has to export it.
export RUSTFLAGS="$RUSTFLAGS -Clink-arg=-rdynamic"
in_process() {
    cargo +nightly test -p weft-libfabric-provider --target "$host" "${extra[@]}" --test in_process -- "$@"
}
if [ "$sanitiser" = address ]; then
    # Memory that libfabric keeps to the end of the process is no leak of the provider's. A test asks for more than the system has.
    export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
    # All files but one, whose tests ask the command `weft`, which is not built here, for names of congestion controls and load
    # balancers.
    in_process --skip choices:: --skip lossy::
    # The seeds that are usual, in two parts: each test has a limit of time.
    for seeds in 1..3 3..5; do
        WEFT_FI_SEEDS=$seeds in_process lossy::
    done
else
    # Over ports of their own: what a server does on the test's own thread is in the tests above.
    in_process threads:: --skip server
fi
