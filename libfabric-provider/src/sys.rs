//! libfabric's types, functions and constants, generated from its headers when the provider is built.

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

// These are casts in the headers, which bindgen does not translate.
/// No address in particular: any sender.
pub const FI_ADDR_UNSPEC: fi_addr_t = u64::MAX;
/// No address is known.
pub const FI_ADDR_NOTAVAIL: fi_addr_t = u64::MAX;
