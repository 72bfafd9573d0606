//! Requests for exposed memory that say anything.
#![no_main]

#[path = "../../stack/tests/access_model/mod.rs"]
mod access_model;
#[path = "../../stack/tests/harness/mod.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| access_model::hostile_accesses_stay_inside(bytes));
