//! Applications that write arbitrary bytes into the memory that they share with their worker.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weft_stack::worker::session::properties::arbitrary_writes_harm_no_other_application(bytes);
});
