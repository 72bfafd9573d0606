//! Stamps the library with its version, git revision and DPDK version.

#[path = "build/stamp.rs"]
mod stamp;

fn main() {
    stamp::stamp(env!("CARGO_MANIFEST_DIR").as_ref());
}
