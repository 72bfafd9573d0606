//! Each payload byte is copied twice: once from the application's memory to a frame of the port, and once
//! from a frame to its final address. This program replaces `memcpy` and `memmove` in order to count.
#![cfg(target_arch = "x86_64")]

mod harness;
mod steady;

use std::arch::asm;
use std::cell::Cell;
use std::ffi::c_void;

use harness::MTU;
use steady::Stream;
use weft_stack::cc::CcChoice;
use weft_stack::wire::pds::DeliveryMode;

/// Shorter copies, in bytes, are copies of headers and structures.
const LONG: usize = 512;

thread_local! {
    /// The number of long copies by this thread, and their bytes.
    static COPIES: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

fn note(len: usize) {
    if len >= LONG {
        COPIES.with(|copies| {
            let (count, bytes) = copies.get();
            copies.set((count + 1, bytes + len as u64));
        });
    }
}

/// Replaces the C library's function in this program.
///
/// # Safety
/// The same as for C's `memcpy`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    note(len);
    // SAFETY: copies `len` bytes, as the caller promises that it may; the direction flag is clear, as it
    // always is between functions.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
    to
}

/// Replaces the C library's function in this program.
///
/// # Safety
/// The same as for C's `memmove`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    if (to as usize).wrapping_sub(from as usize) >= len {
        // A forward copy overwrites no byte before it has read it.
        // SAFETY: as the caller promises.
        return unsafe { memcpy(to, from, len) };
    }
    note(len);
    // SAFETY: copies `len` bytes, which is not 0 here, from the last to the first, as the caller promises
    // that it may; the direction flag is clear again afterwards.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") len => _, inout("rdi") to.byte_add(len - 1) => _,
            inout("rsi") from.byte_add(len - 1) => _, options(nostack));
    }
    to
}

fn copies(mode: DeliveryMode, packets: usize) {
    let mut stream = Stream::new(&CcChoice::default(), mode, false, packets);
    let before = COPIES.get();
    let sent = stream.run(20);
    let after = COPIES.get();
    assert_eq!(after.0 - before.0, 2 * sent, "copies, {mode:?}");
    assert_eq!(after.1 - before.1, 2 * sent * u64::from(MTU), "bytes copied, {mode:?}");
}

#[test]
fn payload_is_copied_once_into_a_frame_and_once_out_of_it() {
    for mode in [DeliveryMode::Rud, DeliveryMode::Rod] {
        copies(mode, 1);
        copies(mode, 16);
    }
}

/// Over rings, the receiver reads payload of a region in the memory of the sender's application. A processor
/// instruction makes the one remaining copy, from there to the final address; `worker/copies.rs` counts it.
#[cfg(feature = "dpdk")]
#[test]
fn payload_of_a_region_is_not_copied_into_frames_of_rings() {
    use weft_stack::port::dpdk::{DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig};
    let eal = Eal::init(&EalOptions::default()).unwrap();
    let pool = MbufPool::create(eal, "copies", &MbufPoolConfig::default()).unwrap();
    for (n, packets) in [1, 16].into_iter().enumerate() {
        let (name, config) = (format!("copies{n}"), DpdkPortConfig::default());
        let ports = DpdkPort::ring_pair(eal, &name, 512, pool, &config).unwrap();
        let mut stream = Stream::of_region(ports, &CcChoice::default(), DeliveryMode::Rud, packets);
        let (before, attached) = (COPIES.get(), stream.pair.a.counters().attached);
        let sent = stream.run(20);
        assert_eq!(COPIES.get(), before, "{packets} packets a message");
        assert_eq!(stream.pair.a.counters().attached - attached, sent);
        assert_eq!(stream.pair.b.port().gathered(), 0);
    }
}

/// Over memif, payload of a region is copied into the memory that both ends share, and from there to its final address.
/// A processor instruction makes both copies, which `worker/copies.rs` counts. Any other copy is counted here.
#[test]
fn payload_of_a_region_is_copied_over_memif_only_into_and_out_of_shared_memory() {
    for packets in [1, 16] {
        let mut stream = Stream::over_memif(packets);
        let (before, attached) = (COPIES.get(), stream.pair.a.counters().attached);
        let sent = stream.run(20);
        assert_eq!(COPIES.get(), before, "{packets} packets a message");
        assert_eq!(stream.pair.a.counters().attached - attached, sent);
    }
}

#[test]
fn the_counting_memmove_copies_overlapping_memory_correctly() {
    for (to, from, len) in [(0, 3, 700), (3, 0, 700), (1, 0, 2), (0, 1, 0), (5, 5, 600), (600, 0, 600)] {
        let content: Vec<u8> = (0..1_400).map(|n| (n * 7 % 251) as u8).collect();
        let mut moved = content.clone();
        moved.copy_within(from..from + len, to);
        for (at, byte) in moved.iter().enumerate() {
            let expected = if (to..to + len).contains(&at) { content[at - to + from] } else { content[at] };
            assert_eq!(*byte, expected, "byte {at}, {len} bytes from {from} to {to}");
        }
    }
}
