//! PDS headers: a header that parses is emitted to bytes that parse equal.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_stack::wire::properties::pds(bytes));
