//! PDS headers: what parses is emitted and parses equal.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_stack::wire::properties::pds(bytes));
