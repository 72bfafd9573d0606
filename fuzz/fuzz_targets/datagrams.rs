//! Datagrams over a channel whose faults the bytes determine, with forged ones among them.
#![no_main]

#[path = "../../stack/tests/datagram_model/mod.rs"]
mod datagram_model;
#[path = "../../stack/tests/harness/mod.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    datagram_model::datagrams_arrive_at_most_as_often_as_their_packets(bytes);
    datagram_model::all_datagrams_arrive_where_nothing_is_lost(bytes);
});
