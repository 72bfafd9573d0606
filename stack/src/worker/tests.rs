//! How the codec writes and reads frames, and which frames a worker drops.

use std::collections::BTreeMap;

use proptest::prelude::*;
use weft_cc::{CcChoice, Span, Time};

use super::*;
use crate::buffer::Buffer;
use crate::fep::{COMPLETED_PER_BURST, ConnectOptions, Send};
use crate::harness::{self, MTU, host};
use crate::packet::{Class, Network, Payload};
use crate::port::memory::{MemoryConfig, MemoryPort, pair};
use crate::port::{Frame, FramePool, PortCaps, Timestamps};
use crate::spray::Entropy;
use crate::wire::class::{Priority, TrimPoint};
use crate::wire::edit::{decrement_ttl, mark_ce};
use crate::wire::ethernet::VlanTag;
use crate::wire::frame::{ChecksumFill, ChecksumPolicy, finish_checksums, parse_frame};
use crate::wire::frame::{Ecn, TrimFormat, TrimOutcome, TrimPolicy, trim_frame};
use crate::wire::pds::{Ack, AckRequest, AckTrigger, Destination, NextHeader, PdcId, Pds, Psn};
use crate::wire::ses::Ses;

/// The address book of endpoint `own` of two.
fn book(own: u32, v6: bool) -> AddressBook {
    harness::book(own, 2, v6)
}

fn request(payload: u32, entropy: u16) -> Packet {
    let destination = Destination::Syn { use_reserved: false, psn_offset: 2 };
    let (pds, ses) = properties::request(payload as u16, destination);
    Packet {
        net: Network {
            src: Addr(0),
            dst: Addr(1),
            entropy: Entropy(entropy),
            class: Class::Data,
            priority: Priority::LOWEST,
            ecn: false,
            hops: 0,
        },
        payload_len: payload,
        pds,
        ses,
    }
}

fn ack(entropy: u16) -> Packet {
    let net = Network { entropy: Entropy(entropy), class: Class::Control, ..request(0, 0).net };
    let pds = Pds::Ack(Ack {
        next: NextHeader::None,
        ecn: true,
        retx: false,
        request: AckRequest::None,
        trigger: AckTrigger::Psn(0),
        cack_psn: Psn(3),
        spdcid: PdcId(1),
        dpdcid: PdcId(2),
        cc: None,
    });
    Packet { net, payload_len: 0, pds, ses: Ses::None }
}

const CAPS: PortCaps = PortCaps {
    max_frame: 9014,
    mac: [2; 6],
    tx_ipv4_checksum: false,
    tx_udp_checksum: false,
    rx_checksum: false,
    multi_segment: false,
    timestamps: Timestamps::Burst,
    in_memory: false,
};

fn buffer() -> Frame {
    FramePool::heap(1, 9014).unwrap().allocate(9014).unwrap()
}

/// A buffer for a frame whose checksums the kernel computes.
fn kernel_buffer() -> Frame {
    FramePool::heap_for_kernel(1, 9014).unwrap().allocate(9014).unwrap()
}

fn written(codec: &Codec, v6: bool, packet: &Packet, payload: &[u8]) -> Frame {
    let mut frame = buffer();
    codec.write(&book(0, v6), packet, Payload::Bytes(payload), &mut frame).unwrap();
    frame
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7) as u8).collect()
}

proptest! {
    #[test]
    fn packets_are_read_as_they_were_written(len in 0u32..8800, entropy in 0u16..16_384, v6: bool, tagged: bool) {
        let vlan = tagged.then_some(VlanTag { priority: 3, drop_eligible: false, id: 7 });
        let codec = Codec::new(LinkConfig { vlan, ..LinkConfig::default() }, &CAPS);
        let (packet, payload) = (request(len, entropy), bytes(len as usize));
        let frame = written(&codec, v6, &packet, &payload);
        let mut receiver = book(1, v6);
        prop_assert_eq!(codec.read(&mut receiver, &frame), Ok((packet, &payload[..])));
        let ack = ack(entropy);
        let frame = written(&codec, v6, &ack, &[]);
        prop_assert_eq!(codec.read(&mut receiver, &frame), Ok((ack, &[][..])));
    }

    /// Prepared headers equal headers that are written in full, whether the port or the worker computes the checksums.
    #[test]
    fn prepared_headers_equal_headers_written_in_full(
        len in 0u32..2000, entropy in 0u16..16_384, data: bool, checksum in 0usize..3, in_memory: bool, offload: bool, ecn: bool, hops in 0u8..3,
    ) {
        let checksum = [Checksum::WhereNeeded, Checksum::Always, Checksum::Never][checksum];
        let caps = PortCaps { in_memory, tx_ipv4_checksum: offload, tx_udp_checksum: offload, ..CAPS };
        let codec = Codec::new(LinkConfig { checksum, ..LinkConfig::default() }, &caps);
        let mut packet = if data { request(len, entropy) } else { ack(entropy) };
        (packet.net.ecn, packet.net.hops) = (ecn, hops);
        let payload = bytes(if data { len as usize } else { 0 });
        // Only the second kind of buffer can leave checksums to its port.
        for new in [buffer, kernel_buffer] {
            let mut any = new();
            let whole = Payload::Bytes(&payload);
            codec.write_any(&book(0, false), &packet, payload.len(), whole, &mut any).unwrap();
            let mut plain = new();
            codec.write(&book(0, false), &packet, whole, &mut plain).unwrap();
            prop_assert_eq!(&plain[..], &any[..]);
        }
    }

    #[test]
    fn trimmed_frames_arrive_as_trimmed_packets(
        len in 200u32..8800, v6: bool, kept: bool, last_hop: bool, size in 0usize..200
    ) {
        let codec = Codec::new(LinkConfig::default(), &CAPS);
        let mut frame = written(&codec, v6, &request(len, 1), &bytes(len as usize));
        let policy = TrimPolicy {
            size,
            format: if kept { TrimFormat::LengthKept } else { TrimFormat::LengthRewritten },
            point: if last_hop { TrimPoint::LastHop } else { TrimPoint::Fabric },
        };
        let outcome = trim_frame(&mut frame, &LinkConfig::default().classes, &policy).unwrap();
        let TrimOutcome::Trimmed(end) = outcome else { panic!("{outcome:?}") };
        frame.truncate(end);
        let mut receiver = book(1, v6);
        let (packet, payload) = codec.read(&mut receiver, &frame).unwrap();
        prop_assert!(payload.is_empty());
        prop_assert_eq!(packet.payload_len, len);
        prop_assert_eq!(packet.pds, request(len, 1).pds);
        prop_assert_eq!(packet.net.class, if last_hop { Class::TrimmedLastHop } else { Class::Trimmed });
    }
}

/// Reads `bytes` with `codec` at endpoint 1, with predictions from earlier frames.
fn read_expecting(
    codec: &Codec,
    next: &mut Predictions,
    bytes: &[u8],
) -> Result<(Packet, Vec<u8>), ReadError> {
    let frame = FramePool::heap(1, bytes.len()).unwrap().copy(bytes).unwrap();
    let mut packet = Packet::BLANK;
    let mut book = book(1, false);
    let payload = match codec.read_expected(&book, next, &frame, &mut packet) {
        Some(payload) => payload,
        None => codec.read_any(&mut book, next, &frame, &mut packet)?,
    };
    Ok((packet, payload.to_vec()))
}

proptest! {
    /// However a frame was damaged, reading it with and without predictions gives the same result.
    #[test]
    fn predictions_do_not_change_the_result_of_reading_a_frame(
        len in 0u32..300, data: bool, other in any::<bool>(), checksum in 0usize..3, refill: bool,
        changes in prop::collection::vec((0usize..110, 0u8..8), 0..3), cut in prop::option::of(0usize..400),
        crc: bool,
    ) {
        let checksum = [Checksum::WhereNeeded, Checksum::Always, Checksum::Never][checksum];
        let codec = Codec::new(LinkConfig { checksum, ..LinkConfig::default() }, &CAPS).with_crc(crc);
        let mut next = Predictions::new();
        let before = written(&codec, false, &request(100, 9), &bytes(100));
        read_expecting(&codec, &mut next, &before).unwrap();
        prop_assert!(next.of(&before).is_some());

        let packet = if data { request(len, 1) } else { ack(2) };
        let payload = bytes(if data { len as usize } else { 0 });
        let mut changed = written(&codec, false, &packet, &payload).to_vec();
        for (at, bit) in changes {
            let at = at % changed.len();
            changed[at] ^= 1 << bit;
        }
        if refill {
            // The frame is then wrong for another reason than its checksum.
            let _ = finish_checksums(&mut changed, ChecksumFill::default());
        }
        changed.truncate(cut.unwrap_or(usize::MAX).max(14));
        if other {
            changed.extend([0xee; 7]);
        }
        let as_expected = read_expecting(&codec, &mut next.clone(), &changed);
        prop_assert_eq!(as_expected, read_expecting(&codec, &mut Predictions::default(), &changed));
    }
}

#[test]
fn predictions_hold_when_any_field_varies_between_frames() {
    let codec = Codec::new(LinkConfig::default(), &CAPS);
    let mut next = Predictions::new();
    let first = written(&codec, false, &request(100, 9), &bytes(100));
    read_expecting(&codec, &mut next, &first).unwrap();
    let next = next.of(&first).unwrap();
    let mut marked = written(&codec, false, &request(3000, 7), &bytes(3000));
    mark_ce(&mut marked).unwrap();
    for frame in [&marked, &written(&codec, false, &ack(1), &[]), &first] {
        let predicted = next.check(frame, ChecksumPolicy::VERIFY).unwrap();
        assert_eq!(predicted.body, &frame[42..]);
        assert!(next.check_head(frame, 0).is_none(), "the UDP checksum would have to be verified");
        assert!(next.check(&frame[..frame.len() - 1], ChecksumPolicy::VERIFY).is_none());
    }
    let v6 = written(&codec, true, &request(100, 9), &bytes(100));
    assert!(next.check(&v6, ChecksumPolicy::VERIFY).is_none());
}

#[test]
fn a_crc_covers_all_from_the_source_address_on_but_the_udp_checksum() {
    for v6 in [false, true] {
        let link = LinkConfig { checksum: Checksum::Never, ..LinkConfig::default() };
        let codec = Codec::new(link, &CAPS).with_crc(true);
        let frame = written(&codec, v6, &request(100, 1), &bytes(100));
        let without = written(&Codec::new(link, &CAPS), v6, &request(100, 1), &bytes(100));
        assert_eq!(frame.len(), without.len() + 4);
        let (source_at, udp_at) = if v6 { (22, 54) } else { (26, 34) };
        let read = |bytes: &[u8]| {
            let frame = FramePool::heap(1, bytes.len()).unwrap().copy(bytes).unwrap();
            codec.read(&mut book(1, v6), &frame).map(|(packet, _)| packet)
        };
        for bit in source_at * 8..frame.len() * 8 {
            let mut damaged = frame.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let read = read(&damaged);
            let is_checksum = (udp_at + 6..udp_at + 8).contains(&(bit / 8));
            assert_eq!(read.is_ok(), is_checksum, "bit {bit} of {} bytes", frame.len());
        }
        let missing = read(&without).unwrap_err();
        assert!(missing.to_string().contains("CRC-32C"), "{missing}");
    }
}

#[test]
fn a_trimmed_frame_has_no_crc_and_tells_the_length_of_the_payload_it_had() {
    let codec = Codec::new(LinkConfig::default(), &CAPS).with_crc(true);
    for format in [TrimFormat::LengthRewritten, TrimFormat::LengthKept] {
        let mut frame = written(&codec, false, &request(1000, 1), &bytes(1000)).to_vec();
        let policy = TrimPolicy { size: 110, format, point: TrimPoint::Fabric };
        let outcome = trim_frame(&mut frame, &LinkConfig::default().classes, &policy).unwrap();
        let TrimOutcome::Trimmed(len) = outcome else { panic!("{outcome:?}") };
        frame.truncate(len);
        let (packet, payload) = read_expecting(&codec, &mut Predictions::default(), &frame).unwrap();
        assert_eq!((packet.payload_len, payload.len(), packet.net.class), (1000, 0, Class::Trimmed));
    }
}

#[test]
fn checksums_are_omitted_where_nothing_can_be_damaged() {
    let udp_checksum = |checksum, in_memory, v6| {
        let codec =
            Codec::new(LinkConfig { checksum, ..LinkConfig::default() }, &PortCaps { in_memory, ..CAPS });
        let frame = written(&codec, v6, &request(100, 1), &bytes(100));
        let read = codec.read(&mut book(1, v6), &frame).map(|(packet, _)| packet);
        assert_eq!(read, Ok(request(100, 1)));
        let at = if v6 { 60 } else { 40 };
        frame[at..at + 2] != [0, 0]
    };
    assert!(udp_checksum(Checksum::WhereNeeded, false, false));
    assert!(!udp_checksum(Checksum::WhereNeeded, true, false));
    assert!(udp_checksum(Checksum::Always, true, false));
    assert!(!udp_checksum(Checksum::Never, false, false));
    for checksum in [Checksum::WhereNeeded, Checksum::Always, Checksum::Never] {
        assert!(udp_checksum(checksum, true, true), "IPv6 requires it");
    }
}

#[test]
fn congestion_marks_and_hops_are_reported() {
    let codec = Codec::new(LinkConfig::default(), &CAPS);
    let mut frame = written(&codec, false, &request(10, 1), &bytes(10));
    let ecn = |frame: &Frame| {
        parse_frame(frame, &LinkConfig::default().classes, ChecksumPolicy::VERIFY).unwrap().meta.ecn
    };
    assert_eq!(ecn(&frame), Ecn::Ect0);
    assert_eq!(ecn(&written(&codec, false, &ack(1), &[])), Ecn::NotEct);
    mark_ce(&mut frame).unwrap();
    for _ in 0..3 {
        decrement_ttl(&mut frame).unwrap();
    }
    let mut receiver = book(1, false);
    let net = codec.read(&mut receiver, &frame).unwrap().0.net;
    assert!(net.ecn);
    assert_eq!((net.hops, net.class), (3, Class::Data));
}

#[test]
fn checksums_are_left_to_a_port_only_if_frames_can_carry_the_request() {
    // Buffers of ordinary memory cannot, so the port must get finished checksums whatever it offers.
    let caps = PortCaps { tx_ipv4_checksum: true, tx_udp_checksum: true, ..CAPS };
    let codec = Codec::new(LinkConfig::default(), &caps);
    let frame = written(&codec, false, &request(100, 1), &bytes(100));
    assert!(codec.read(&mut book(1, false), &frame).is_ok());
}

#[test]
fn packets_that_cannot_be_written_are_refused() {
    let codec = Codec::new(LinkConfig::default(), &CAPS);
    let write = |packet: &Packet, payload, frame: &mut Frame| {
        codec.write(&book(0, false), packet, payload, frame).unwrap_err()
    };
    let mut stranger = request(10, 1);
    stranger.net.dst = Addr(7);
    let ten = bytes(10);
    assert_eq!(write(&stranger, Payload::Bytes(&ten), &mut buffer()), WriteError::UnknownPeer(Addr(7)));
    let announced = WriteError::Payload { announced: 10, present: 0 };
    assert_eq!(write(&request(10, 1), Payload::Virtual(10), &mut buffer()), announced);
    assert_eq!(write(&request(10, 1), Payload::EMPTY, &mut buffer()), announced);
    let mut short = FramePool::heap(1, 105).unwrap().allocate(105).unwrap();
    let too_long = WriteError::TooLong { needed: 108, room: 105 };
    assert_eq!(write(&request(10, 1), Payload::Bytes(&ten), &mut short), too_long);
}

fn fep(own: u32, mtu: u32) -> Fep {
    harness::fep(own, harness::config_with(&CcChoice::default(), mtu, true), 1, Time::ZERO)
}

fn worker(own: u32, port: MemoryPort) -> Worker<MemoryPort> {
    Worker::new(fep(own, MTU), port, book(own, false), LinkConfig::default(), Clock::new()).unwrap()
}

/// Puts `bytes` on the link as they are.
fn inject(port: &mut MemoryPort, bytes: &[u8]) {
    let mut tx = TxBurst::new(port);
    let mut frame = tx.reserve(bytes.len()).unwrap();
    frame.copy_from_slice(bytes);
    frame.commit();
    assert_eq!(port.transmit(&mut tx), 1);
}

#[test]
fn bad_frames_are_counted_and_dropped() {
    let (mut far, near) = pair(&MemoryConfig::default()).unwrap();
    let mut worker = worker(1, near);
    let codec = Codec::new(LinkConfig::default(), &CAPS);
    let good = written(&codec, false, &request(16, 1), &bytes(16)).to_vec();

    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    inject(&mut far, &damaged);
    inject(&mut far, &good[..20]);
    let mut others = AddressBook::new(Addr(0), host(0, false), 8, Strangers::Refuse).unwrap();
    others.insert(Addr(1), host(8, false)).unwrap();
    let mut misdirected = buffer();
    codec.write(&others, &request(16, 1), Payload::Bytes(&bytes(16)), &mut misdirected).unwrap();
    inject(&mut far, &misdirected);
    let mut strangers = AddressBook::new(Addr(0), host(7, false), 8, Strangers::Refuse).unwrap();
    strangers.insert(Addr(1), host(1, false)).unwrap();
    let mut strange = buffer();
    codec.write(&strangers, &request(16, 1), Payload::Bytes(&bytes(16)), &mut strange).unwrap();
    let mut from_itself = good.clone();
    from_itself.copy_within(30..34, 26);
    finish_checksums(&mut from_itself, ChecksumFill::default()).unwrap();
    inject(&mut far, &from_itself);
    inject(&mut far, &strange);

    assert_eq!(worker.poll_at(Time::ZERO).received, 5);
    let counted = worker.counters();
    assert_eq!((counted.malformed, counted.misdirected, counted.strangers), (2, 2, 1));
    assert_eq!(worker.last_read_error(), Some(ReadError::Stranger(BookError::Stranger(host(7, false).ip))));
    assert_eq!(worker.fep().counters().data_received, 0);
    inject(&mut far, &good);
    worker.poll_at(Time::ZERO);
    assert_eq!(worker.fep().counters().data_received, 1, "the worker accepts the frame that is not damaged");
}

#[test]
fn packets_wait_for_a_full_port_and_none_is_lost() {
    let ring = MemoryConfig { ring: 4, spare: 2, ..MemoryConfig::default() };
    let (near, mut far) = pair(&ring).unwrap();
    let mut worker = worker(0, near);
    let connection = worker.fep_mut().connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
    let send = Send { buffer: Buffer::Heap(bytes(40 * 4096)), tag: None, header_data: 0, context: 0 };
    worker.fep_mut().post_send(connection, send).unwrap();

    let mut rx = RxBurst::new();
    let mut psns = Vec::new();
    for _ in 0..40 {
        worker.poll_at(Time::ZERO);
        far.receive(&mut rx);
        for frame in rx.drain() {
            let codec = Codec::new(LinkConfig::default(), &CAPS);
            let (packet, _) = codec.read(&mut book(1, false), &frame).unwrap();
            let Pds::Request(request) = packet.pds else { panic!("{packet:?}") };
            psns.push(request.psn.0);
        }
    }
    assert!(worker.counters().pool_empty > 0, "six buffers are not enough");
    assert_eq!(
        psns.len() as u64,
        worker.fep().counters().data_sent,
        "every packet that left the endpoint has arrived"
    );
    assert!(psns.len() > 20);
    assert!(psns.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1)), "{psns:?}");
}

#[test]
fn a_packet_for_an_unknown_peer_is_dropped_and_the_loop_goes_on() {
    let (near, _far) = pair(&MemoryConfig::default()).unwrap();
    let mut worker = worker(0, near);
    let connection = worker.fep_mut().connect(Time::ZERO, Addr(5), ConnectOptions::default()).unwrap();
    let send = Send { buffer: Buffer::Heap(bytes(10)), tag: None, header_data: 0, context: 0 };
    worker.fep_mut().post_send(connection, send).unwrap();
    assert_eq!(worker.poll_at(Time::ZERO).sent, 0);
    assert_eq!(worker.counters().unsendable, 1);
    assert_eq!(worker.last_write_error(), Some(WriteError::UnknownPeer(Addr(5))));
}

#[test]
fn what_leaves_in_a_turn_has_a_bound_and_the_rest_leaves_in_the_next_ones() {
    let (near, _far) = pair(&MemoryConfig { ring: 1024, ..MemoryConfig::default() }).unwrap();
    let mut worker = worker(0, near);
    let options = ConnectOptions::default();
    for _ in 0..2 * PACKETS_PER_TURN + 1 {
        let connection = worker.fep_mut().connect(Time::ZERO, Addr(1), options).unwrap();
        let send = Send { buffer: Buffer::Heap(bytes(1)), tag: None, header_data: 0, context: 0 };
        worker.fep_mut().post_send(connection, send).unwrap();
    }
    let sent: Vec<usize> = (0..4).map(|_| worker.poll_at(Time::ZERO).sent).collect();
    assert_eq!(sent, [PACKETS_PER_TURN, PACKETS_PER_TURN, 1, 0]);
}

/// Each acknowledgement completes as many messages as were under way on its connection.
#[test]
fn acknowledgements_of_many_packets_are_read_in_several_turns() {
    const CONNECTIONS: usize = 8;
    let (near, mut far) = pair(&MemoryConfig { ring: 1024, ..MemoryConfig::default() }).unwrap();
    let mut worker = worker(0, near);
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let connection = worker.fep_mut().connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
        connections.push(connection);
        for _ in 0..100 {
            let send = Send { buffer: Buffer::Heap(bytes(1)), tag: None, header_data: 0, context: 0 };
            worker.fep_mut().post_send(connection, send).unwrap();
        }
    }
    // The first and the last packet of each connection, and how many there are.
    let (mut sent, mut rx) = (BTreeMap::new(), RxBurst::new());
    let (codec, mut receiver) = (Codec::new(LinkConfig::default(), &far.capabilities()), book(1, false));
    while worker.poll_at(Time::ZERO).sent + far.receive(&mut rx) > 0 {
        for frame in rx.drain() {
            let (packet, _) = codec.read(&mut receiver, &frame).unwrap();
            let Pds::Request(request) = packet.pds else { panic!("{packet:?}") };
            let (_, last, count) = sent.entry(request.spdcid).or_insert((request.psn, request.psn, 0));
            (*last, *count) = (request.psn, *count + 1);
        }
    }
    assert_eq!(sent.len(), CONNECTIONS);
    for (id, (first, last, count)) in &sent {
        assert_eq!(last.distance(*first), count - 1);
        let Pds::Ack(ack) = ack(0).pds else { unreachable!() };
        let pds = Pds::Ack(Ack { ecn: false, cack_psn: *last, dpdcid: *id, ..ack });
        let net = Network { src: Addr(1), dst: Addr(0), ..self::ack(0).net };
        let packet = Packet { net, payload_len: 0, pds, ses: Ses::None };
        let mut frame = buffer();
        codec.write(&book(1, false), &packet, Payload::EMPTY, &mut frame).unwrap();
        inject(&mut far, &frame);
    }
    let (mut read, mut completed, mut now) = (0, 0, Time::ZERO);
    let mut counts = sent.values().map(|(_, _, count)| *count as usize);
    while read < CONNECTIONS {
        now += Span::from_us(10);
        let received = worker.poll_at(now).received;
        let messages: Vec<usize> = counts.by_ref().take(received).collect();
        read += received;
        let (most, all) = (COMPLETED_PER_BURST, messages.iter().sum::<usize>());
        assert!(all < most + messages.last().expect("a turn reads some") && received < CONNECTIONS);
        assert!(all >= most || read == CONNECTIONS, "{all} of {most} packets were answered");
        let done = std::iter::from_fn(|| worker.fep_mut().poll_completion()).count();
        assert_eq!(done, all);
        completed += done;
    }
    assert_eq!(worker.fep().counters().acks_received, CONNECTIONS as u64);
    assert!(completed >= 2 * COMPLETED_PER_BURST);
    // They took 10 µs to arrive. What is more is time in this host.
    let (_, rtt) = worker.fep().flight(connections[0]).unwrap();
    let (smoothed, in_hosts) = (rtt.smoothed().unwrap(), rtt.in_hosts());
    assert!(in_hosts > Span::from_us(2), "{in_hosts}");
    assert_eq!(smoothed.minus(in_hosts).as_us_f64().round(), 10.0);
}

#[test]
fn a_worker_refuses_parts_that_do_not_fit() {
    let make = |fep, book, mtu| {
        let (near, _far) = pair(&MemoryConfig { mtu, ..MemoryConfig::default() }).unwrap();
        Worker::new(fep, near, book, LinkConfig::default(), Clock::new()).err()
    };
    assert_eq!(make(fep(0, MTU), book(0, false), 4096 + 88), None);
    let too_long = WorkerError::FrameTooLong { needed: 4096 + 102, max: 4096 + 101 };
    assert_eq!(make(fep(0, MTU), book(0, false), 4096 + 87), Some(too_long));
    let foreign = WorkerError::ForeignBook { book: Addr(1), fep: Addr(0) };
    assert_eq!(make(fep(0, MTU), book(1, false), 9000), Some(foreign));
}

#[test]
fn run_until_ends_at_its_time_limit() {
    let (near, _far) = pair(&MemoryConfig::default()).unwrap();
    let mut worker = worker(0, near);
    let limit = Span::from_us(200);
    assert_eq!(worker.run_until(limit, |_, _| false), Err(TimedOut(limit)));
    let mut turns = 0;
    let third_turn = |_: &mut Fep, _| {
        turns += 1;
        turns == 3
    };
    assert_eq!(worker.run_until(Span::from_ms(10_000), third_turn), Ok(()));
}

/// No packet waits for the link to come up, so the worker may sleep until its next timer.
#[test]
fn without_a_link_packets_are_lost_and_sent_again_by_their_timers() {
    use crate::port::memif::{MemifConfig, MemifPort, SocketName};
    let directory = tempfile::tempdir().unwrap();
    let socket = SocketName::Path(directory.path().join("w.sock"));
    let port = MemifPort::open(&MemifConfig::server(socket)).unwrap();
    let book = book(0, false);
    let mut worker = Worker::new(fep(0, MTU), port, book, LinkConfig::default(), Clock::new()).unwrap();
    let connection = worker.fep_mut().connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
    let send = Send { buffer: Buffer::Heap(bytes(40 * 4096)), tag: None, header_data: 0, context: 0 };
    worker.fep_mut().post_send(connection, send).unwrap();
    let mut turn = |now| {
        worker.poll_at(now);
        assert!(worker.tx.is_empty() && !worker.fep().wants_to_transmit());
        let next = worker.next_timer().expect("a lost packet has a timer");
        assert!(next.since(now) > Span::ZERO);
        (next, worker.port().counters().tx_no_link)
    };
    let (mut now, first) = turn(Time::ZERO);
    assert!(first > 0);
    let sent_again = (0..20).any(|_| {
        let (next, lost) = turn(now);
        now = next;
        lost > first
    });
    assert!(sent_again);
}

/// Two peers send in turn over memif, and their frames stay in the memory of the sender. The worker copies only the
/// first frame of each peer in order to read it, and no frame is lost although the port has no buffer left.
#[test]
fn attached_frames_are_read_without_buffers_and_copied_once_for_each_peer() {
    use crate::port::memif::{MemifConfig, MemifPort, SocketName};
    let directory = tempfile::tempdir().unwrap();
    let socket = SocketName::Path(directory.path().join("w.sock"));
    let open = |config| MemifPort::open(&config).unwrap();
    let (near, mut far) = (open(MemifConfig::server(socket.clone())), open(MemifConfig::client(socket)));
    for port in [&far, &near] {
        port.wait_for_link(std::time::Duration::from_secs(20)).unwrap();
    }
    let mut book = AddressBook::new(Addr(1), host(1, false), 3, Strangers::Refuse).unwrap();
    book.insert(Addr(0), host(0, false)).unwrap();
    book.insert(Addr(2), host(64, false)).unwrap();
    let hoard: Vec<Frame> = std::iter::from_fn(|| near.pool().allocate(14)).collect();
    let clock = Clock::new();
    let fep = harness::fep(1, harness::config(true), 1, clock.now());
    let mut worker = Worker::new(fep, near, book, LinkConfig::default(), clock).unwrap();

    let codec = Codec::new(LinkConfig::default(), &far.capabilities());
    let mut tx = TxBurst::new(&far);
    for n in 0..6 {
        let (own, at) = [(0, 0), (2, 64)][n % 2];
        let mut book = AddressBook::new(Addr(own), host(at, false), 3, Strangers::Refuse).unwrap();
        book.insert(Addr(1), host(1, false)).unwrap();
        let packet = request(3000, 1);
        let packet = Packet { net: Network { src: Addr(own), ..packet.net }, ..packet };
        let mut frame = tx.reserve(4000).unwrap();
        codec.write(&book, &packet, Payload::Bytes(&bytes(3000)), &mut frame).unwrap();
        frame.commit();
    }
    assert_eq!(far.transmit(&mut tx), 6);
    let progress = worker.poll_at(clock.now());
    assert_eq!((progress.received, worker.counters().gathered), (6, 2));
    assert_eq!(worker.counters().malformed + worker.counters().strangers, 0);
    assert!(worker.fep().wants_to_transmit(), "packets have arrived, and answers wait for buffers");
    drop(hoard);
}

/// A port that sends one frame only, and counts the calls of `recall`.
struct Recalled {
    inner: MemoryPort,
    sent: bool,
    times: u32,
}

impl Port for Recalled {
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        self.inner.receive(burst)
    }

    fn transmit(&mut self, burst: &mut TxBurst) -> usize {
        let count = usize::from(!std::mem::replace(&mut self.sent, true));
        burst.take_front(count).count()
    }

    fn capabilities(&self) -> PortCaps {
        PortCaps { multi_segment: true, in_memory: true, ..self.inner.capabilities() }
    }

    fn pool(&self) -> FramePool {
        self.inner.pool()
    }

    fn counters(&self) -> crate::port::PortCounters {
        self.inner.counters()
    }

    fn recall(&mut self) {
        self.times += 1;
    }
}

/// A worker whose port takes no more frames than one sends a message, which fails. Returns how often memory was recalled by then,
/// and whether a frame has referred to that of the message.
fn recalls_for(buffer: Buffer) -> (u32, bool) {
    let (inner, _far) = pair(&MemoryConfig::default()).unwrap();
    // The worker drops frames that the port has not taken for a second; the endpoint gives up after 2.5 s.
    let patience =
        |zone: &mut crate::fep::Zone| (zone.pdc.rto_init, zone.pdc.max_retries) = (Span::from_ms(40), 5);
    let config = harness::config(true).with_zones(patience);
    let fep = harness::fep(0, config, 1, Time::ZERO);
    let clock = Clock::new();
    let port = Recalled { inner, sent: false, times: 0 };
    let mut worker = Worker::new(fep, port, book(0, false), LinkConfig::default(), clock).unwrap();
    let mut now = clock.now();
    let connection = worker.fep_mut().connect(now, Addr(1), ConnectOptions::default()).unwrap();
    worker.fep_mut().post_send(connection, Send { buffer, tag: None, header_data: 0, context: 0 }).unwrap();
    let (mut turns, mut refer) = (0, false);
    while worker.fep_mut().poll_completion().is_none() {
        refer = worker.tx.iter().any(Frame::is_attached);
        assert_eq!(worker.port().times, 0, "the memory is not recalled while the message may still arrive");
        worker.poll_at(now);
        now += Span::from_ms(1);
        turns += 1;
        assert!(turns < 100_000, "{:?}", worker.fep().explain(now));
    }
    assert_eq!(worker.tx.iter().filter(|frame| frame.is_attached()).count(), 0);
    assert!(worker.counters().not_taken > 0);
    (worker.port().times, refer)
}

/// No frame refers to the memory of the message any more when the application gets it back.
#[test]
fn memory_is_recalled_before_a_message_that_failed_completes() {
    let region = crate::region::Region::allocate(1 << 20).unwrap();
    assert_eq!(recalls_for(Buffer::Region(region.slice(0, 1 << 20).unwrap())), (1, true));
}

/// A port may wait where it recalls something.
#[test]
fn nothing_is_recalled_if_no_frame_can_refer_to_the_memory_of_a_message_that_failed() {
    let region = crate::region::Region::allocate(4096).unwrap();
    for buffer in [Buffer::Heap(vec![0; 1 << 20]), Buffer::Region(region.slice(5, 0).unwrap())] {
        assert_eq!(recalls_for(buffer), (0, false));
    }
}

#[test]
fn only_frames_that_refer_to_given_memory_are_dropped() {
    let (inner, _far) = pair(&MemoryConfig::default()).unwrap();
    let mut tx = TxBurst::new(&Recalled { inner, sent: true, times: 0 });
    let regions = [(); 2].map(|()| crate::region::Region::allocate(4096).unwrap());
    for n in 0..6 {
        let mut frame = tx.reserve(100).unwrap();
        // Each third one has no attached payload.
        if let Some(region) = regions.get(n % 3) {
            frame.attach(region.slice(n as u64, 1000).unwrap().into()).unwrap();
        }
        frame.commit();
    }
    let refers = |frame: &Frame| match frame.tail() {
        Some(Payload::Region(bytes)) => regions.iter().position(|region| region.place_of(bytes).is_some()),
        _ => None,
    };
    assert_eq!(tx.iter().map(refers).collect::<Vec<_>>(), [Some(0), Some(1), None, Some(0), Some(1), None]);
    tx.drop_attached_to(|bytes| regions[0].place_of(bytes).is_some());
    assert_eq!(tx.iter().map(refers).collect::<Vec<_>>(), [Some(1), None, Some(1), None]);
}
