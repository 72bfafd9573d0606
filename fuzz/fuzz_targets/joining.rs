//! The messages between applications and `weft serve` (requests to join, replies, reports), and a server that writes
//! arbitrary bytes into the rings.
#![no_main]

use weft_stack::worker::session::server_properties as server;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    server::any_bytes_are_a_request_or_refused(bytes);
    server::any_bytes_are_a_reply_or_an_error(bytes);
    server::any_words_are_a_report_in_its_only_form_or_none(bytes);
    server::a_server_that_writes_anything_is_survived(bytes);
});
