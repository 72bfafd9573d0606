//! Bindings to libdpdk: the functions and types that weft's DPDK port uses, generated from the installed headers when
//! weft is built.
//!
//! DPDK defines some functions as `static inline` (the burst functions, mbuf allocation, `rte_errno`) and some
//! constants as macros. One small C shim gives them linkable names that begin with `weft_` and `WEFT_`. Everything
//! here is as unsafe as it is in C; the safe types are in `weft_stack::port::dpdk`.

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
