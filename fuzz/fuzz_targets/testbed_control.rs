//! The control socket of a testbed: arbitrary bytes from clients, and arbitrary lines from the switches.
#![no_main]

use weft_apps::properties::{any_bytes_are_answered_with_one_line, any_text_is_a_reply_or_an_error};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    any_bytes_are_answered_with_one_line(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        any_text_is_a_reply_or_an_error(text);
    }
});
