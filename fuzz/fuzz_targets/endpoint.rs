//! Two endpoints over channels whose faults the bytes determine: every message arrives once, or fails in time if the
//! faults last.
#![no_main]

#[path = "../../stack/tests/endpoint_model/mod.rs"]
mod endpoint_model;
#[path = "../../stack/tests/harness/mod.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    endpoint_model::every_message_arrives_once(bytes);
    endpoint_model::every_message_ends(bytes);
});
