//! Datagrams and control messages as the kernel hands them over to a UDP port.
#![no_main]

use weft_stack::port::udp::properties as udp;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    udp::any_bytes_are_control_messages_or_none(bytes);
    udp::datagrams_become_frames_with_their_bytes_or_are_counted(bytes);
});
