//! Whole frames: parsed, emitted, trimmed, edited.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_stack::wire::properties::frame(bytes));
