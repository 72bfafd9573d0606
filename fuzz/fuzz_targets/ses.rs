//! SES headers and their extensions; the first byte chooses the header.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_stack::wire::properties::ses(bytes));
