//! The fast path does not allocate, as a counting allocator shows.

mod harness;
mod steady;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use steady::Stream;
use weft_stack::cc::CcChoice;
use weft_stack::port::Port;
use weft_stack::wire::pds::DeliveryMode;

thread_local! {
    /// Allocations of this thread. Other tests and the test harness run in other threads.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts calls.
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

fn steady_state_allocates_nothing(mode: DeliveryMode, infer_loss: bool, packets: usize) {
    with_cc(&CcChoice::default(), mode, infer_loss, packets);
}

fn with_cc(cc: &CcChoice, mode: DeliveryMode, infer_loss: bool, packets: usize) {
    allocates_nothing(Stream::new(cc, mode, infer_loss, packets));
}

fn allocates_nothing<P: Port>(mut stream: Stream<P>) {
    let before = allocations();
    let sent = stream.run(100);
    let after = allocations();
    assert_eq!(after - before, 0, "allocations for {sent} packets");
    assert!(before > 0, "the allocator counts");
}

#[test]
fn long_messages_allocate_nothing() {
    steady_state_allocates_nothing(DeliveryMode::Rud, false, 64);
    steady_state_allocates_nothing(DeliveryMode::Rod, false, 64);
}

#[test]
fn short_messages_allocate_nothing() {
    steady_state_allocates_nothing(DeliveryMode::Rud, false, 1);
    steady_state_allocates_nothing(DeliveryMode::Rod, false, 1);
}

#[test]
fn loss_inference_allocates_nothing() {
    steady_state_allocates_nothing(DeliveryMode::Rud, true, 16);
}

#[test]
fn receiver_credit_allocates_nothing() {
    for name in ["rccc", "nscc+rccc"] {
        let cc = CcChoice::parse(name).unwrap();
        with_cc(&cc, DeliveryMode::Rud, false, 64);
        with_cc(&cc, DeliveryMode::Rod, false, 1);
    }
}

#[cfg(feature = "dpdk")]
#[test]
fn attached_payload_allocates_nothing() {
    use weft_stack::port::dpdk::{DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig};
    let eal = Eal::init(&EalOptions::default()).unwrap();
    let pool = MbufPool::create(eal, "allocation", &MbufPoolConfig::default()).unwrap();
    for (n, packets) in [1, 16].into_iter().enumerate() {
        let name = format!("allocation{n}");
        let ports = DpdkPort::ring_pair(eal, &name, 512, pool, &DpdkPortConfig::default()).unwrap();
        let stream = Stream::of_region(ports, &CcChoice::default(), DeliveryMode::Rud, packets);
        assert!(stream.pair.a.counters().attached > 0);
        allocates_nothing(stream);
    }
}

#[test]
fn a_stream_over_memif_allocates_nothing() {
    for packets in [1, 16] {
        allocates_nothing(Stream::over_memif(packets));
    }
}

#[test]
fn a_stream_over_kernel_udp_allocates_nothing() {
    use weft_stack::port::udp::{UdpConfig, UdpPort};
    for (joins, packets) in [(true, 16), (false, 16), (true, 1)] {
        let open = |n| {
            let alias = Some(harness::host(n, false).ip);
            // Over several paths messages overtake each other, and each that does is copied into memory of its own.
            let config = UdpConfig { alias, gso: joins, gro: joins, sources: 1, ..UdpConfig::default() };
            UdpPort::open(&config.with_free_ports()).unwrap()
        };
        let (mut left, mut right) = (open(0), open(1));
        left.meet(&right.as_peer()).unwrap();
        right.meet(&left.as_peer()).unwrap();
        let cc = CcChoice::default();
        let stream = Stream::over((left, right), &cc, DeliveryMode::Rud, false, packets);
        allocates_nothing(stream);
    }
}
