//! Applications that write anything whatever into the memory that they share with their worker.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weft_stack::worker::session::properties::nonsense_harms_nobody_else(bytes);
});
