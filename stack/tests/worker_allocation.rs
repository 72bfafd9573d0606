//! The fast path does not allocate: counted, with the allocator itself.

mod endpoints;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use endpoints::{MTU, Pair, config_with, worker};
use weft_stack::buffer::Buffer;
use weft_stack::cc::CcChoice;
use weft_stack::fep::{Completion, ConnectionId, FepConfig, Receive, Send};
use weft_stack::packet::Addr;
use weft_stack::pdc::PdcConfig;
use weft_stack::port::memory::{MemoryConfig, MemoryPort, pair};
use weft_stack::ses::Matching;
use weft_stack::wire::pds::DeliveryMode;
use weft_stack::worker::LinkConfig;

thread_local! {
    /// Allocations of this thread; other tests, and the harness, run in others.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting.
struct Counting;

fn count() {
    ALLOCATIONS.with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is passed on as it came; the counter neither allocates nor needs a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

type Link = Pair<MemoryPort, MemoryPort>;

/// Messages under way at a time.
const DEPTH: usize = 4;

/// Sends `rounds` times [`DEPTH`] messages; their memory comes back and is used again.
fn rounds(pair: &mut Link, connection: ConnectionId, rounds: u32, memory: &mut Vec<Vec<u8>>) {
    for _ in 0..rounds {
        for _ in 0..DEPTH {
            let room = memory.pop().unwrap();
            let buffer = Buffer::Heap(room);
            let receive = Receive { buffer, from: Some(Addr(0)), matching: Matching::Untagged, context: 0 };
            pair.fep(1).post_receive(receive).unwrap();
            let buffer = Buffer::Heap(memory.pop().unwrap());
            pair.fep(0)
                .post_send(connection, Send { buffer, tag: None, header_data: 0, context: 0 })
                .unwrap();
        }
        let mut turns = 0;
        while memory.len() < 2 * DEPTH {
            pair.turn();
            turns += 1;
            assert!(turns < 100_000, "the messages do not arrive");
            for side in [0, 1] {
                while let Some(completion) = pair.fep(side).poll_completion() {
                    memory.push(returned(completion));
                }
            }
        }
    }
}

fn returned(completion: Completion) -> Vec<u8> {
    match completion {
        Completion::Sent { buffer: Buffer::Heap(bytes), result: Ok(()), .. }
        | Completion::Received { buffer: Buffer::Heap(bytes), result: Ok(()), .. } => bytes,
        other => panic!("{other:?}"),
    }
}

fn steady_state_allocates_nothing(mode: DeliveryMode, infer_loss: bool, packets: usize) {
    with_cc(&CcChoice::default(), mode, infer_loss, packets);
}

fn with_cc(cc: &CcChoice, mode: DeliveryMode, infer_loss: bool, packets: usize) {
    let base = config_with(cc, MTU, true);
    let config = FepConfig { pdc: PdcConfig { infer_loss, ..base.pdc }, ..base };
    let (left, right) = pair(&MemoryConfig::default()).unwrap();
    let side = |own, port| worker(own, port, &config, LinkConfig::default(), false);
    let mut pair = Pair::new(side(0, left), side(1, right));
    let connection = pair.connect(0, mode);
    let mut memory: Vec<Vec<u8>> = (0..2 * DEPTH).map(|n| vec![n as u8; packets * MTU as usize]).collect();

    rounds(&mut pair, connection, 100, &mut memory);
    let (before, sent) = (allocations(), pair.a.fep().counters().data_sent);
    rounds(&mut pair, connection, 100, &mut memory);
    let (after, sent) = (allocations(), pair.a.fep().counters().data_sent - sent);
    assert_eq!(sent, 100 * (DEPTH * packets) as u64);
    assert_eq!(after - before, 0, "allocations for {sent} packets, {mode:?}, {packets} a message");
    assert!(before > 0, "the counter counts");
}

#[test]
fn long_messages() {
    steady_state_allocates_nothing(DeliveryMode::Rud, false, 64);
    steady_state_allocates_nothing(DeliveryMode::Rod, false, 64);
}

#[test]
fn short_messages() {
    steady_state_allocates_nothing(DeliveryMode::Rud, false, 1);
    steady_state_allocates_nothing(DeliveryMode::Rod, false, 1);
}

#[test]
fn while_looking_for_losses() {
    steady_state_allocates_nothing(DeliveryMode::Rud, true, 16);
}

#[test]
fn with_credit() {
    for name in ["rccc", "nscc+rccc"] {
        let cc = CcChoice::parse(name).unwrap();
        with_cc(&cc, DeliveryMode::Rud, false, 64);
        with_cc(&cc, DeliveryMode::Rod, false, 1);
    }
}
