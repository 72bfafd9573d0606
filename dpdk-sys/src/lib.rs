//! Bindings to libdpdk: the functions and types that weft's DPDK port uses, generated when weft is
//! built from the headers that are installed.
//!
//! What DPDK defines `static inline` (the burst functions, mbuf allocation, `rte_errno`) has a
//! linkable twin named `weft_…` in one small C shim; so have, as `WEFT_…`, the constants that are
//! macros. Everything here is as unsafe as it is in C: the safe types are in `weft_stack::port::dpdk`.

/// The version of libdpdk whose headers these bindings were generated from.
pub const BUILD_VERSION: &str = env!("WEFT_DPDK_VERSION");

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unused,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    rustdoc::all
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;
