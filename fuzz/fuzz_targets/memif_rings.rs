//! Peers that change rings, descriptors and buffers of memif at any time, also between two reads of one call.
#![no_main]

use weft_stack::port::memif::ring_properties as rings;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    rings::a_peer_that_changes_memory_at_any_time_costs_only_the_link(bytes);
});
