//! Tests of how often payload is copied between regions, counted in the one function that makes such copies. Copies
//! between frames and memory outside regions go through the C library: `tests/worker_copies.rs` counts them on the
//! same paths.

#[path = "../../tests/steady/mod.rs"]
mod steady;

use self::steady::{Stream, memif, memory_of};
use super::LinkConfig;
use crate::cc::CcChoice;
use crate::harness::MTU;
use crate::port::Port;
use crate::port::memory::{MemoryConfig, pair};
use crate::region::{LONG, Region, SharedRegion, copied};
use crate::wire::ethernet::VlanTag;
use crate::wire::pds::DeliveryMode;

/// Most bytes of header copies for a packet: the headers of the packet and of its acknowledgement, each copied into a
/// buffer and out of it. Less than any part of the payload that could be copied in short pieces.
const HEADERS: u64 = 4 * 192;

/// Runs the stream, and expects that the payload of each packet is copied `copies` times.
fn expect<P: Port>(mut stream: Stream<P>, copies: u64, path: &str) {
    let before = copied();
    let sent = stream.run(20);
    let after = copied();
    assert_eq!(after.long - before.long, copies * sent, "{path}: copies");
    // Long copies can contain headers, and short copies the first bytes of the payload.
    let bytes = after.bytes - before.bytes;
    let payload = copies * u64::from(MTU);
    assert!(
        bytes >= payload * sent && bytes <= (payload + HEADERS) * sent,
        "{path}: {bytes} bytes of {sent} packets"
    );
}

fn shared(packets: usize) -> SharedRegion {
    SharedRegion::allocate(memory_of(packets)).unwrap()
}

#[test]
fn one_copy_over_memif_from_registered_memory() {
    for packets in [1, 16] {
        let memory = shared(packets);
        let ports = memif(Some(&memory));
        let stream = Stream::in_region(ports, LinkConfig::default(), memory.region(), packets);
        expect(stream, 1, "registered");
    }
}

#[test]
fn one_copy_in_and_one_copy_out_over_memif_from_other_memory() {
    for packets in [1, 16] {
        expect(Stream::over_memif(packets), 2, "of a region");
        let memory = shared(packets);
        let stream = Stream::in_region(memif(None), LinkConfig::default(), memory.region(), packets);
        expect(stream, 2, "shared and not registered");
    }
}

/// From memory that frames cannot refer to, the C library first copies the payload into a frame.
#[test]
fn one_copy_in_and_one_copy_out_over_memif_from_the_heap() {
    for packets in [1, 16] {
        let stream = Stream::over(memif(None), &CcChoice::default(), DeliveryMode::Rud, false, packets);
        expect(stream, 2, "of the heap");
    }
}

/// Tagged frames, like all unusual ones, are gathered into one buffer before they are read.
#[test]
fn one_copy_more_over_memif_with_a_tag() {
    let vlan = Some(VlanTag { priority: 3, drop_eligible: false, id: 7 });
    let link = LinkConfig { vlan, ..LinkConfig::default() };
    for packets in [1, 16] {
        let memory = shared(packets);
        let stream = Stream::in_region(memif(Some(&memory)), link, memory.region(), packets);
        expect(stream, 2, "registered, with a tag");
        let stream = Stream::in_region(memif(None), link, memory.region(), packets);
        expect(stream, 3, "with a tag");
    }
}

/// Both copies of [`worker_copies.rs`](../../tests/worker_copies.rs), from a region to a region.
#[test]
fn one_copy_into_and_one_copy_out_of_frames_that_hold_their_payload() {
    for packets in [1, 16] {
        let region = Region::allocate(memory_of(packets)).unwrap();
        let ports = pair(&MemoryConfig::default()).unwrap();
        expect(Stream::in_region(ports, LinkConfig::default(), &region, packets), 2, "in memory");
    }
}

#[cfg(feature = "dpdk")]
#[test]
fn one_copy_over_rings() {
    use crate::port::dpdk::{DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig};
    let eal = Eal::get().unwrap_or_else(|| Eal::init(&EalOptions::default()).unwrap());
    let pool = MbufPool::create(eal, "region_copies", &MbufPoolConfig::default()).unwrap();
    for packets in [1, 16] {
        let (name, config) = (format!("copies{packets}"), DpdkPortConfig::default());
        let ports = DpdkPort::ring_pair(eal, &name, 512, pool, &config).unwrap();
        let region = Region::allocate(memory_of(packets)).unwrap();
        expect(Stream::in_region(ports, LinkConfig::default(), &region, packets), 1, "rings");
    }
}

/// Copies of a few hundred bytes could not be distinguished from headers.
#[test]
fn payload_copied_in_short_pieces_would_be_noticed() {
    const { assert!(HEADERS < MTU as u64 / 2) };
    let region = Region::allocate(4096).unwrap();
    let slice = region.slice(0, 4096).unwrap();
    let before = copied();
    let mut place = [0; 4096];
    slice.read(0, &mut place);
    slice.write(0, &place[..LONG - 1]);
    slice.copy_from(0, slice.bytes(2048, 4096));
    let after = copied();
    assert_eq!(after.long - before.long, 2);
    assert_eq!(after.bytes - before.bytes, 4096 + 2048 + LONG as u64 - 1);
}
