//! Peers that send arbitrary bytes over the control channel of memif.
#![no_main]

use weft_stack::port::memif::properties as memif;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    memif::any_bytes_are_a_message_or_none(bytes);
    memif::a_server_makes_no_link_that_it_cannot_trust(bytes);
    memif::a_client_sends_each_message_once_in_order(bytes);
});
