//! Workers over DPDK: two threads at the ends of a pair of rings, and checksums that the port computes.

mod harness;

use harness::{MTU, book, config, content, worker_in_real_time};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use weft_stack::Span;
use weft_stack::buffer::Buffer;
use weft_stack::fep::{Completion, ConnectOptions, Fep, Receive, Send};
use weft_stack::packet::{Addr, Class, Network, Packet, Payload};
use weft_stack::port::dpdk::{DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig};
use weft_stack::port::{FramePool, PortCaps, Timestamps};
use weft_stack::ses::Matching;
use weft_stack::spray::Entropy;
use weft_stack::wire::checksum::pseudo_header;
use weft_stack::wire::class::Priority;
use weft_stack::wire::frame::{ChecksumFill, IpAddrs, finish_checksums};
use weft_stack::wire::pds::{Control, ControlKind, Destination, PdcId, Pds, Psn};
use weft_stack::wire::ses::Ses;
use weft_stack::worker::{Clock, Codec, LinkConfig, Worker, pin_to, usable_cores};

/// The longest wait of a test.
const LIMIT: Span = Span::from_ms(60_000);
const MESSAGES: u64 = 20;
const LEN: usize = 200 * MTU as usize + 5;

fn eal() -> Eal {
    Eal::init(&EalOptions::default()).expect("DPDK starts without huge pages and privileges")
}

fn pool(name: &str) -> MbufPool {
    MbufPool::create(eal(), name, &MbufPoolConfig { buffers: 2047, cache: 64, ..MbufPoolConfig::default() })
        .unwrap()
}

fn worker(own: u32, port: DpdkPort, clock: Clock) -> Worker<DpdkPort> {
    // The two threads may share a core, so that each waits for the scheduler.
    let config = config(true).with_zones(|zone| zone.pdc.rto_init = Span::from_ms(200));
    worker_in_real_time(own, 2, port, config, clock)
}

/// Sends [`MESSAGES`] messages to the other side and receives as many. Returns when both sides have finished.
fn converse(own: u32, port: DpdkPort, clock: Clock, done: &AtomicUsize) {
    let cores = usable_cores();
    pin_to(cores[own as usize % cores.len()]).unwrap();
    let _lcore = eal().register_thread().unwrap();
    let mut worker = worker(own, port, clock);
    let fep = worker.fep_mut();
    let connection = fep.connect(clock.now(), Addr(1 - own), ConnectOptions::default()).unwrap();
    for tag in 0..MESSAGES {
        let matching = Matching::Tagged { tag, ignore: 0 };
        let buffer = Buffer::Heap(vec![0; LEN]);
        fep.post_receive(Receive { buffer, from: None, matching, context: tag }).unwrap();
        let buffer = Buffer::Heap(content(tag << 1 | u64::from(own), LEN));
        fep.post_send(connection, Send { buffer, tag: Some(tag), header_data: 0, context: tag }).unwrap();
    }
    let (mut sent, mut received, mut closed) = (0, 0, false);
    let both_done = |fep: &mut Fep, now| {
        while let Some(completion) = fep.poll_completion() {
            match completion {
                Completion::Sent { result, .. } => {
                    assert_eq!(result, Ok(()));
                    sent += 1;
                    if sent == MESSAGES {
                        fep.close(now, connection).unwrap();
                    }
                }
                Completion::Received { context, buffer, result, .. } => {
                    assert_eq!(result, Ok(()));
                    assert!(buffer == Buffer::Heap(content(context << 1 | u64::from(1 - own), LEN)));
                    received += 1;
                }
                Completion::Read { .. } | Completion::Accessed { .. } | Completion::Written(_) => {
                    panic!("nothing was read")
                }
                Completion::Closed { result, .. } => {
                    assert_eq!(result, Ok(()));
                    closed = true;
                    done.fetch_add(1, Ordering::Release);
                }
            }
        }
        // The other side also needs acknowledgements from this one until it has closed.
        closed && done.load(Ordering::Acquire) == 2
    };
    worker.run_until(LIMIT, both_done).unwrap();
    assert_eq!((sent, received), (MESSAGES, MESSAGES));
    assert_eq!(worker.counters().malformed, 0);
    assert_eq!(worker.fep().leaks().collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn two_pinned_threads_exchange_messages_over_rings() {
    let pool = pool("threads");
    let (a, b) = DpdkPort::ring_pair(eal(), "threads", 512, pool, &DpdkPortConfig::default()).unwrap();
    let (clock, done) = (Clock::new(), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| converse(0, a, clock, &done));
        scope.spawn(|| converse(1, b, clock, &done));
    });
    assert_eq!(pool.available(), pool.capacity(), "every mbuf has returned to the pool");
}

/// A card that computes checksums expects the sum of the pseudo-header in the UDP field, and zero in the IPv4 field.
#[test]
fn checksums_are_left_to_a_port_that_computes_them() {
    let caps = PortCaps {
        max_frame: 9014,
        mac: [2; 6],
        tx_ipv4_checksum: true,
        tx_udp_checksum: true,
        rx_checksum: false,
        multi_segment: false,
        timestamps: Timestamps::Burst,
        in_memory: false,
    };
    let pds = Pds::Control(Control {
        kind: ControlKind::Probe,
        rod: false,
        retx: false,
        ack_request: false,
        probe_opaque: 1,
        psn: Psn(2),
        spdcid: PdcId(3),
        destination: Destination::Pdc(PdcId(4)),
        payload: 5,
    });
    let (src, dst, entropy) = (Addr(0), Addr(1), Entropy(6));
    let net =
        Network { src, dst, entropy, class: Class::Control, priority: Priority::LOWEST, ecn: false, hops: 0 };
    let packet = Packet { net, payload_len: 0, pds, ses: Ses::None };
    let codec = Codec::new(LinkConfig::default(), &caps);
    let mut frame = FramePool::from(pool("offload")).allocate(200).unwrap();
    codec.write(&book(0, 2, false), &packet, Payload::EMPTY, &mut frame).unwrap();
    let ip = IpAddrs::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
    assert_eq!(frame.len(), 14 + 20 + 8 + 16);
    assert_eq!(frame[24..26], [0, 0]);
    assert_eq!(frame[40..42], pseudo_header(&ip, 17, 24).fold().to_be_bytes());
    assert!(codec.read(&mut book(1, 2, false), &frame).is_err(), "the checksums are not finished");
    finish_checksums(&mut frame, ChecksumFill::default()).unwrap();
    assert_eq!(codec.read(&mut book(1, 2, false), &frame), Ok((packet, &[][..])));
}
