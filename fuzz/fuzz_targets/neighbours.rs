//! Frames of ARP, neighbour discovery and echo: parsed and answered.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weft_stack::worker::neighbours::properties::frame(bytes));
