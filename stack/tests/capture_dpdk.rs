//! Captures through DPDK's `net_pcap`: other programs decode a conversation that was written to a file, and a file
//! serves as an endpoint's input whose answers are compared bit by bit.

mod capture;
#[path = "capture/decoders.rs"]
mod decoders;
mod harness;
mod skipped;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use capture::{read_capture, write_capture};
use decoders::{assert_decoders_agree, uet_line};
use harness::{MTU, START, WorkerPair, config_with, content, worker};
use weft_stack::Span;
use weft_stack::buffer::Buffer;
use weft_stack::cc::CcChoice;
use weft_stack::fep::{Completion, FepConfig, Receive, ReceiveError, SendError};
use weft_stack::pdc::RodReceive;
use weft_stack::port::dpdk::{DpdkPort, DpdkPortConfig, Eal, EalOptions, MbufPool, MbufPoolConfig};
use weft_stack::port::memory::{MemoryConfig, MemoryPort, pair};
use weft_stack::port::{Frame, FramePool, Port, PortCaps, PortCounters, RxBurst, TxBurst};
use weft_stack::ses::Matching;
use weft_stack::wire::edit::{decrement_ttl, mark_ce};
use weft_stack::wire::ethernet::VlanTag;
use weft_stack::wire::frame::{
    ChecksumPolicy, DscpClasses, TrimFormat, TrimOutcome, TrimPoint, TrimPolicy, parse_frame, trim_frame,
};
use weft_stack::wire::pds::{DeliveryMode, NackCode, Pds};
use weft_stack::worker::LinkConfig;

fn eal() -> Eal {
    Eal::init(&EalOptions::default()).expect("DPDK starts without huge pages and privileges")
}

fn pcap_port(number: u16, rx: Option<&Path>, tx: Option<&Path>) -> DpdkPort {
    let pool_config = MbufPoolConfig { buffers: 255, cache: 0, ..MbufPoolConfig::default() };
    let pool = MbufPool::create(eal(), &format!("capture{number}"), &pool_config).unwrap();
    let path = |path: Option<&Path>| path.map(|path| path.to_str().unwrap().to_owned());
    let (rx, tx) = (path(rx), path(tx));
    DpdkPort::pcap(eal(), number, rx.as_deref(), tx.as_deref(), pool, &DpdkPortConfig::default()).unwrap()
}

/// Writes frames to a capture file, through DPDK.
struct Tap {
    port: DpdkPort,
    burst: TxBurst,
}

impl Tap {
    fn write(&mut self, frame: &[u8]) {
        let mut copy = self.burst.reserve(frame.len()).unwrap();
        copy.copy_from_slice(frame);
        copy.commit();
        assert_eq!(self.port.transmit(&mut self.burst), 1);
    }
}

/// A port behind a switch that trims and marks some arriving packets, and drops some if asked to, by counting. The
/// remaining packets are captured.
struct Switched {
    inner: MemoryPort,
    tap: Rc<RefCell<Tap>>,
    incoming: RxBurst,
    lossy: bool,
    seen: u32,
}

impl Switched {
    fn new(inner: MemoryPort, tap: &Rc<RefCell<Tap>>, lossy: bool) -> Switched {
        Switched { inner, tap: tap.clone(), incoming: RxBurst::new(), lossy, seen: 0 }
    }

    /// Forwards a frame, unless it is dropped.
    fn forward(&mut self, mut frame: Frame) -> Option<Frame> {
        self.seen += 1;
        decrement_ttl(&mut frame).unwrap();
        // Four in a row, so that the sender has to probe.
        if self.lossy && self.seen % 29 > 24 {
            return None;
        }
        if self.seen.is_multiple_of(5) {
            mark_ce(&mut frame).unwrap();
        }
        if self.seen.is_multiple_of(7) {
            let policy = TrimPolicy {
                size: if self.seen % 3 == 1 { 64 } else { 128 },
                format: if self.seen.is_multiple_of(3) {
                    TrimFormat::LengthKept
                } else {
                    TrimFormat::LengthRewritten
                },
                point: if self.seen.is_multiple_of(2) { TrimPoint::LastHop } else { TrimPoint::Fabric },
            };
            let outcome = trim_frame(&mut frame, &DscpClasses::default(), &policy).unwrap();
            if let TrimOutcome::Trimmed(len) = outcome {
                frame.truncate(len);
            }
        }
        self.tap.borrow_mut().write(&frame);
        Some(frame)
    }
}

impl Port for Switched {
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        let mut incoming = std::mem::take(&mut self.incoming);
        self.inner.receive(&mut incoming);
        let before = burst.len();
        for frame in incoming.drain().filter_map(|frame| self.forward(frame)) {
            burst.push(frame).unwrap();
        }
        self.incoming = incoming;
        burst.len() - before
    }

    fn transmit(&mut self, burst: &mut TxBurst) -> usize {
        self.inner.transmit(burst)
    }

    fn capabilities(&self) -> PortCaps {
        self.inner.capabilities()
    }

    fn pool(&self) -> FramePool {
        self.inner.pool()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

/// A message that fits its receive, one that does not, and an empty one; then both ends close.
fn converse(pair: &mut WorkerPair<Switched, Switched>, mode: DeliveryMode) {
    const LONG: usize = 60 * MTU as usize + 17;
    const TOO_LONG: usize = 3 * MTU as usize;
    let connection = pair.connect(0, mode);
    pair.post_receive(1, 1, LONG);
    pair.post_receive(1, 2, MTU as usize);
    pair.post_receive(1, 3, 0);
    for (tag, len) in [(1, LONG), (2, TOO_LONG), (3, 0)] {
        pair.post_send(0, connection, tag, content(tag, len));
    }
    let (mut sent, mut received, mut closed) = (0, 0, false);
    for _ in 0..100_000 {
        pair.turn();
        while let Some(completion) = pair.fep(0).poll_completion() {
            match completion {
                Completion::Sent { context: 2, result, .. } => {
                    assert!(matches!(result, Err(SendError::Answered(_))), "{result:?}");
                    sent += 1;
                }
                Completion::Sent { result, .. } => {
                    assert_eq!(result, Ok(()));
                    sent += 1;
                }
                Completion::Read { .. } | Completion::Accessed { .. } | Completion::Written(_) => {
                    panic!("nothing was read")
                }
                Completion::Closed { result, .. } => {
                    assert_eq!(result, Ok(()));
                    closed = true;
                }
                other => panic!("{other:?}"),
            }
            if sent == 3 && !closed {
                let now = pair.now;
                pair.fep(0).close(now, connection).unwrap();
            }
        }
        while let Some(completion) = pair.fep(1).poll_completion() {
            let Completion::Received { context, buffer, result, .. } = completion else { panic!() };
            let Buffer::Heap(bytes) = buffer else { panic!() };
            let (len, expected) = match context {
                1 => (LONG, Ok(())),
                2 => (TOO_LONG, Err(ReceiveError::Truncated { len: TOO_LONG as u32, room: MTU })),
                _ => (0, Ok(())),
            };
            assert_eq!(result, expected);
            assert!(bytes == content(context, len)[..bytes.len()]);
            received += 1;
        }
        if closed {
            assert_eq!((sent, received), (3, 3));
            return;
        }
    }
    let now = pair.now;
    panic!("{sent} sent, {received} received: {:?}", pair.fep(0).explain(now));
}

/// The kinds of packets that a capture holds, in the terms of `decode_uet.py`.
fn kinds(frames: &[Vec<u8>]) -> Vec<String> {
    let line = |frame: &Vec<u8>| {
        uet_line(&parse_frame(frame, &DscpClasses::default(), ChecksumPolicy::VERIFY).unwrap())
    };
    frames.iter().map(line).collect()
}

/// Captures a conversation over net_pcap device `number`, decodes it, and returns its packets.
fn captured_conversation(number: u16, config: &FepConfig, how: How) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("conversation.pcap");
    let port = pcap_port(number, None, Some(&path));
    let tap = Rc::new(RefCell::new(Tap { burst: TxBurst::new(&port), port }));
    let (left, right) = pair(&MemoryConfig::default()).unwrap();
    let side = |own, end| worker(own, Switched::new(end, &tap, how.lossy), config, how.link, how.v6);
    let mut pair = WorkerPair::new(side(0, left), side(1, right));
    converse(&mut pair, how.mode);
    drop((pair, tap));
    assert_decoders_agree(&path);
    kinds(&read_capture(&path))
}

#[derive(Clone, Copy, Default)]
struct How {
    mode: DeliveryMode,
    link: LinkConfig,
    v6: bool,
    lossy: bool,
}

fn assert_all_occur(lines: &[String], words: &[&str]) {
    for word in words {
        assert!(lines.iter().any(|line| line.contains(word)), "no `{word}` in {} frames", lines.len());
    }
}

#[test]
fn a_conversation_decodes_independently() {
    let config = config_with(&CcChoice::default(), MTU, false);
    let mut lines = captured_conversation(20, &config, How::default());
    lines.extend(captured_conversation(21, &config, How { lossy: true, ..How::default() }));
    let words = [
        "RUD_REQ next=3 retx=0",
        "retx=1",
        "syn=1",
        "syn=0",
        "trimmed=fabric",
        "trimmed=last-hop",
        "ACK_CC next=0",
        "ACK_CC next=4",
        "m=1",
        "req=1",
        "NACK next=0",
        "CP ctl=2",
        "CP ctl=4",
        "probe=",
        "RESPONSE",
        "payload=0",
    ];
    assert_all_occur(&lines, &words);
}

#[test]
fn a_conversation_with_credit_over_ipv6_and_a_vlan_decodes_independently() {
    let base = config_with(&CcChoice::parse("nscc+rccc").unwrap(), MTU, true);
    let config = FepConfig { rod_receive: RodReceive::Reorder, ..base };
    let vlan = Some(VlanTag { priority: 5, drop_eligible: false, id: 123 });
    let link = LinkConfig { vlan, ..LinkConfig::default() };
    let lines =
        captured_conversation(22, &config, How { mode: DeliveryMode::Rod, link, v6: true, lossy: true });
    assert_all_occur(&lines, &["ROD_CC_REQ", "CP ctl=7", "CP ctl=4", "trimmed=", "NACK", "STANDARD op=9"]);
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The input was written by `golden/make_question.py`, not by weft. If the right answer changes, `WEFT_BLESS=1 cargo
/// test -p weft-stack --test capture_dpdk` writes the new one; the assertions below hold for any answer.
#[test]
fn a_golden_capture_gets_the_golden_answer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("answer.pcap");
    let question = golden("question.pcap");
    let port = pcap_port(23, Some(&question), Some(&path));
    let config = config_with(&CcChoice::default(), 256, true);
    let mut endpoint = worker(1, port, &config, LinkConfig::default(), false);
    for (len, context) in [(600, 1), (1, 2)] {
        let buffer = Buffer::Heap(vec![0; len]);
        let receive = Receive { buffer, from: None, matching: Matching::Untagged, context };
        endpoint.fep_mut().post_receive(receive).unwrap();
    }
    let mut now = START;
    while !endpoint.poll_at(now).is_idle() {
        now += Span::from_us(1);
    }
    let message: Vec<u8> = (0..600).map(|n| (n * 11) as u8).collect();
    for (expected, word) in [(message, 1), (b"!".to_vec(), 2)] {
        let completion = endpoint.fep_mut().poll_completion().expect("both messages arrive");
        let Completion::Received { context, buffer, header_data, result: Ok(()), .. } = completion else {
            panic!()
        };
        assert_eq!((context, buffer), (word, Buffer::Heap(expected)));
        assert_eq!(header_data, if word == 1 { 0x1122_3344_5566_7788 } else { 0 });
    }
    assert!(endpoint.fep_mut().poll_completion().is_none());
    assert_eq!(endpoint.counters().malformed, 0);
    assert_eq!(endpoint.fep().leaks().count(), 0);
    drop(endpoint);

    let answer = read_capture(&path);
    assert_eq!(summary(&answer), expected_summary());
    if std::env::var_os("WEFT_BLESS").is_some() {
        write_capture(&golden("answer.pcap"), &answer);
    }
    assert!(answer == read_capture(&golden("answer.pcap")), "the answer has changed: {:#?}", kinds(&answer));
    assert_decoders_agree(&path);
    assert_decoders_agree(&question);
}

/// CACK of each ACK, PSN and code of each NACK, both relative to the first PSN.
#[derive(Debug, PartialEq)]
enum Answer {
    Ack(i32, bool),
    Nack(i32, NackCode),
}

fn summary(frames: &[Vec<u8>]) -> Vec<Answer> {
    let relative = |psn: u32| psn.wrapping_sub(0xffff_fffe) as i32;
    let answer = |frame: &Vec<u8>| match parse_frame(frame, &DscpClasses::default(), ChecksumPolicy::VERIFY)
        .unwrap()
        .pds
    {
        Pds::Ack(ack) => Answer::Ack(relative(ack.cack_psn.0), ack.ecn),
        Pds::Nack(nack) => Answer::Nack(relative(nack.psn.0), nack.code),
        other => panic!("{other:?}"),
    };
    frames.iter().map(answer).collect()
}

fn expected_summary() -> Vec<Answer> {
    vec![
        Answer::Ack(0, false),
        Answer::Nack(1, NackCode::TRIMMED),
        // The third packet, marked, twice: the second is still missing.
        Answer::Ack(0, true),
        Answer::Ack(0, true),
        Answer::Nack(1, NackCode::TRIMMED_LASTHOP),
        Answer::Ack(2, false),
        // The first packet again.
        Answer::Ack(2, false),
        Answer::Ack(3, false),
        // ACK_REQ, then CLOSE_CMD, then a copy of CLOSE_CMD, for which the PDC no longer exists.
        Answer::Ack(3, false),
        Answer::Ack(4, false),
        Answer::Nack(4, NackCode::INV_DPDCID),
    ]
}
