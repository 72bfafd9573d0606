//! Each payload byte is copied twice: once from the application's memory to a frame of the port, and once
//! from a frame to its final address. Counted in what every copy goes through.
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

/// Shorter copies are of headers and of structures.
const LONG: usize = 512;

thread_local! {
    /// Long copies of this thread, and their bytes.
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

/// Takes the place of the C library's in this program.
///
/// # Safety
/// As of C's `memcpy`.
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

/// Takes the place of the C library's in this program.
///
/// # Safety
/// As of C's `memmove`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    if (to as usize).wrapping_sub(from as usize) >= len {
        // Forwards nothing is overwritten before it is read.
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
fn one_copy_out_and_one_copy_in() {
    for mode in [DeliveryMode::Rud, DeliveryMode::Rod] {
        copies(mode, 1);
        copies(mode, 16);
    }
}

/// Over rings payload of a region is read by the receiver where the sender's application has it. The one copy that
/// remains, from there to its final address, is made by the processor's own instruction, and counted by `worker/copies.rs`.
#[cfg(feature = "dpdk")]
#[test]
fn no_copy_into_and_out_of_frames_where_the_device_takes_memory_as_it_lies() {
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

/// Over memif payload of a region goes straight into the memory that both ends share, and from there to its final address.
/// Both copies are made by the processor's own instruction, and counted by `worker/copies.rs`; any other is counted here.
#[test]
fn no_copy_but_into_and_out_of_shared_memory() {
    for packets in [1, 16] {
        let mut stream = Stream::over_memif(packets);
        let (before, attached) = (COPIES.get(), stream.pair.a.counters().attached);
        let sent = stream.run(20);
        assert_eq!(COPIES.get(), before, "{packets} packets a message");
        assert_eq!(stream.pair.a.counters().attached - attached, sent);
    }
}

#[test]
fn overlapping_moves_are_moves() {
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
