//! Control messages of `weft perf`: any bytes are a message or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    weft_apps::properties::any_bytes_are_a_control_message_or_an_error(bytes);
});
