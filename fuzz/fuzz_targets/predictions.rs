//! Frames of several peers, one after the other: reading them with predicted headers gives what reading them without does.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_stack::worker::properties::predictions_change_no_result(bytes));
