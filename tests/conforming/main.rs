//! A peer that conforms to UET, with an implementation of its own, talks to an endpoint over a modelled link of 100 Gbit/s.
//!
//! Tests of weft against weft cannot see where both ends have the same wrong idea of a field. This peer is written from the
//! published layout and rules alone.

mod ends;
mod frame;
mod net;
mod peer;
mod udp;

use std::collections::BTreeMap;

use ends::{Host, MTU, Weft, config, settings};
use net::{Net, Node, Path, RATE};
use peer::wire::{Class, Datagram, Pds, Segment};
use peer::{Acks, Counters, Message, Peer, Ps, Settings};
use weft::core::FepConfig;
use weft::{DeliveryMode, Failure, Span};

const LONG: usize = 10_000_000;

fn message(tag: u64, len: usize) -> Message {
    let byte = |at: usize| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ tag).to_be_bytes()[0];
    Message { tag: Some(tag), header_data: !tag, bytes: (0..len).map(byte).collect() }
}

fn weft_and_peer(settings: Settings) -> Net<Weft, Host> {
    Net::new(Weft::new(0, config("nscc")), Host::new(1, settings))
}

/// `from` sends messages of these lengths, and `to` expects them. Returns them.
fn post(now: Ps, from: &mut impl Node, to: &mut impl Node, lens: &[usize]) -> Vec<Message> {
    let messages: Vec<Message> = (1..).zip(lens).map(|(tag, len)| message(tag, *len)).collect();
    for message in &messages {
        to.expect(message.tag.unwrap_or(0), message.bytes.len());
        from.post(now, message.clone());
    }
    messages
}

/// Whether exactly these messages have arrived, in any order.
fn assert_received(node: &impl Node, messages: &[Message]) {
    assert_eq!(node.received().len(), messages.len());
    for message in messages {
        // Not `assert_eq`, which would print megabytes.
        let found = node.received().iter().any(|received| received == message);
        assert!(
            found,
            "the message of {} bytes with tag {:?} arrived differently",
            message.bytes.len(),
            message.tag
        );
    }
}

fn assert_conforms(net: &Net<Weft, Host>) {
    let violations = net.b.peer.violations();
    let mut kinds = BTreeMap::new();
    for violation in violations.iter().rev() {
        kinds.insert(violation.split(':').next(), violation);
    }
    assert!(kinds.is_empty(), "{} violations, the first of each kind: {kinds:#?}", violations.len());
    let counters = net.a.worker.counters();
    assert_eq!((counters.malformed, counters.unsendable), (0, 0), "{:?}", net.a.worker.last_read_error());
}

/// Both ends send messages of these lengths to each other at once; everything arrives as it was sent.
fn exchange(net: &mut Net<Weft, Host>, from_weft: &[usize], from_peer: &[usize]) {
    let to_peer = post(net.now, &mut net.a, &mut net.b, from_weft);
    let to_weft = post(net.now, &mut net.b, &mut net.a, from_peer);
    let (here, there) = (to_weft.len(), to_peer.len());
    net.run(|net| {
        let done = net.a.is_done() && net.b.is_done();
        done && net.a.received().len() >= here && net.b.received().len() >= there
    });
    assert_received(&net.b, &to_peer);
    assert_received(&net.a, &to_weft);
    assert_conforms(net);
}

/// As [`exchange`], over a link without faults: nothing is refused or sent twice, and no timer expires.
fn exchange_undisturbed(net: &mut Net<Weft, Host>, from_weft: &[usize], from_peer: &[usize]) {
    exchange(net, from_weft, from_peer);
    assert_eq!(net.b.peer.initiator.counters, Counters::default());
    assert_eq!(net.b.peer.target.repeated(), 0);
}

/// A window's trace, thinned to lines that fit a screen.
fn show(trace: &[(Ps, u64)]) -> String {
    let step = trace.len().div_ceil(20).max(1);
    let line = |(at, window): &(Ps, u64)| format!("{:>8.1} µs {window:>7} bytes\n", *at as f64 / 1e6);
    trace.iter().step_by(step).chain(trace.last()).map(line).collect()
}

/// The bytes that X2's generator writes for these headers.
#[test]
fn the_peer_writes_and_reads_the_known_vectors() {
    for text in [
        "119012349876543234569abc",
        "119412349876543234568876",
        "69901234987654323456 9abc77887766",
        "199012349876543234569abc",
        "719012349876543234569abc77887766",
        "3a3286422468ace03456789a",
        "423221212468ace03456789a0f876789123456789abcdef099aaff8877668765",
        "423298762468ace03456789a1f879988123456789abcdef01234560000008765",
        "5238168799887766 3456789a56789abc",
    ] {
        let bytes = from_hex(text);
        let (pds, rest) = Pds::decode(&bytes).expect(text);
        assert!(rest.is_empty());
        assert_eq!(pds.encode(), bytes, "{pds:?}");
    }
    let bytes =
        from_hex("022b123477abcdef067809abfedcba9876543210fedcba981122334455667788aabbddddeeff001199887766");
    let (segment, payload) = Segment::decode(&bytes).expect("a standard header");
    assert_eq!((segment.msg_id, segment.pid_on_fep, segment.request_length), (0x1234, 0x678, 0x9988_7766));
    assert!(payload.is_empty());
    let mut written = Vec::new();
    segment.encode(&mut written);
    assert_eq!(written, bytes);
}

/// An ACK of the peer's only packet, with each byte that breaks a rule.
#[test]
fn the_peer_notices_what_breaks_a_rule() {
    let ack = from_hex("40000000fffffe0b3333100100040001 0000000000000000 0000000000010000");
    let cases = [
        (1, 0x40, "reserved bits"),
        (1, 0x04, "REQ"),
        (1, 0x08, "nothing was probed"),
        (7, 0x0c, "never sent"),
        (10, 0x11, "wrong PDCIDs"),
        (12, 0x01, "flags without meaning"),
        (13, 0x00, "no range"),
        (23, 0x01, "SACK"),
        (26, 0x7f, "a penalty without congestion"),
        (29, 0x02, "rcvd_bytes"),
    ];
    let violations = |bytes: Vec<u8>| {
        let mut peer = Peer::new(settings());
        peer.initiator.post(message(1, 100));
        assert!(peer.poll_transmit(0).is_some());
        peer.on_datagram(1, &Datagram::new(bytes, 0xc000, Class::Control));
        peer.violations().to_vec()
    };
    assert_eq!(violations(ack.clone()), [] as [&str; 0]);
    for (at, byte, expected) in cases {
        let mut bytes = ack.clone();
        bytes[at] = byte;
        let found = violations(bytes);
        assert!(found.iter().any(|what| what.starts_with(expected)), "byte {at}: {found:?}");
    }
    // CLOSE_REQ with ISROD, and CREDIT from PDCID 0.
    for (text, expected) in
        [("5aa00000000000003333100100000000", "ISROD"), ("5b800000000000000000100100000000", "PDCID 0")]
    {
        let found = violations(from_hex(text));
        assert!(found.iter().any(|what| what.starts_with(expected)), "{found:?}");
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

#[test]
fn weft_sends_to_the_peer() {
    exchange_undisturbed(&mut weft_and_peer(settings()), &[LONG, 0, 1, MTU, MTU + 1], &[]);
}

#[test]
fn the_peer_sends_to_weft() {
    exchange_undisturbed(&mut weft_and_peer(settings()), &[], &[LONG, 0, 1, MTU, MTU + 1]);
}

#[test]
fn both_send_at_once() {
    exchange_undisturbed(&mut weft_and_peer(settings()), &[LONG / 2, 1, 2], &[LONG / 2, 3, 4]);
}

#[test]
fn ordered_delivery_works_in_both_directions() {
    let weft = Weft::new(0, config("nscc")).mode(DeliveryMode::Rod);
    let mut net = Net::new(weft, Host::new(1, Settings { ordered: true, ..settings() }));
    exchange_undisturbed(&mut net, &[LONG / 4, 5], &[LONG / 4, 5]);
}

#[test]
fn losses_copies_and_reordering_are_survived() {
    let path = Path { lose: 0.05, duplicate: 0.05, reorder: 0.05, ..Path::default() };
    for (seed, infer_loss) in (0..6).zip([false, true].into_iter().cycle()) {
        let config = config("nscc").with_zones(|zone| zone.pdc.infer_loss = infer_loss);
        let (weft, peer) = (Weft::new(0, config), Host::new(1, settings()));
        let mut net = Net::over(weft, peer, path, seed);
        exchange(&mut net, &[1_000_000, 5], &[1_000_000, 5]);
    }
}

#[test]
fn marks_come_back_with_acknowledgements() {
    let (weft, peer) = (Weft::new(0, config("nscc")), Host::new(1, settings()));
    let mut net = Net::over(weft, peer, Path { mark: 0.1, ..Path::default() }, 1);
    exchange(&mut net, &[1_000_000], &[1_000_000]);
    // One in ten of 245 packets.
    let marked = net.b.peer.initiator.counters.marked;
    assert!((12..40).contains(&marked), "{marked} marked packets were acknowledged");
}

#[test]
fn trimmed_packets_are_refused_and_sent_again() {
    for seed in 0..5 {
        let (weft, peer) = (Weft::new(0, config("nscc")), Host::new(1, settings()));
        let mut net = Net::over(weft, peer, Path { trim: 0.05, ..Path::default() }, seed);
        exchange(&mut net, &[2_000_000, 5], &[2_000_000, 5]);
        assert!(net.now < 2_000_000_000, "a NACK takes a round trip, a timer more: {} ps", net.now);
    }
}

#[test]
fn either_initiator_closes() {
    for mode in [DeliveryMode::Rud, DeliveryMode::Rod] {
        let weft = Weft::new(0, config("nscc")).mode(mode);
        let mut net =
            Net::new(weft, Host::new(1, Settings { ordered: mode == DeliveryMode::Rod, ..settings() }));
        exchange_undisturbed(&mut net, &[100_000], &[100_000]);
        let now = net.now;
        net.a.close(now);
        net.b.peer.initiator.close();
        net.run(|net| net.a.closed.is_some() && net.b.is_done());
        assert_eq!(net.a.closed, Some(Ok(())));
        assert!(net.b.peer.target.is_closed());
        assert_eq!(net.a.worker.fep().open_targets(), 0);
        assert_conforms(&net);
    }
}

#[test]
fn either_target_asks_for_the_close() {
    for mode in [DeliveryMode::Rud, DeliveryMode::Rod] {
        let mut config = config("nscc");
        config.idle_timeout = Span::from_ms(2);
        let weft = Weft::new(0, config).mode(mode);
        let mut net =
            Net::new(weft, Host::new(1, Settings { ordered: mode == DeliveryMode::Rod, ..settings() }));
        exchange_undisturbed(&mut net, &[100_000], &[100_000]);
        net.b.peer.ask_to_close();
        net.run(|net| net.a.closed.is_some() && net.a.worker.fep().open_targets() == 0);
        assert!(matches!(net.a.closed, Some(Err(Failure::ClosedByPeer { .. }))), "{:?}", net.a.closed);
        assert!(net.b.peer.target.is_closed());
        assert_conforms(&net);
    }
}

const KEY: u64 = 0xfeed_0001_0002_0003;

/// Both ends read ranges of the other's memory, with messages between them.
fn read_each_other(mode: DeliveryMode, path: Path, seed: u64) {
    let (ours, theirs) = (message(1, 400_000).bytes, message(2, 400_000).bytes);
    let weft = Weft::new(0, config("nscc")).mode(mode);
    let peer = Host::new(1, Settings { ordered: mode == DeliveryMode::Rod, ..settings() });
    let mut net = Net::over(weft, peer, path, seed);
    net.a.expose(KEY, ours.clone());
    net.b.peer.target.expose(KEY, theirs.clone());
    let ranges = [(0, 1), (17, MTU), (399_999, 1), (100_000, 10 * MTU + 3), (1, 399_999)];
    for (offset, len) in ranges {
        net.a.post_read(0, KEY, offset, len);
        net.b.peer.initiator.read(KEY, offset, len);
    }
    exchange(&mut net, &[100_000, 5], &[100_000, 5]);
    net.run(|net| net.a.read.len() == ranges.len() && net.b.peer.initiator.is_done());
    assert_eq!(net.b.peer.initiator.read_bytes().count(), ranges.len());
    for ((offset, len), bytes) in ranges.iter().zip(net.b.peer.initiator.read_bytes()) {
        assert!(*bytes == ours[*offset..offset + len], "the peer reads {len} bytes at {offset}");
    }
    for (offset, len) in ranges {
        let found = net.a.read.iter().any(|bytes| *bytes == theirs[offset..offset + len]);
        assert!(found, "weft reads {len} bytes at {offset}");
    }
    assert_conforms(&net);
}

#[test]
fn each_end_reads_the_other_s_memory() {
    for mode in [DeliveryMode::Rud, DeliveryMode::Rod] {
        read_each_other(mode, Path::default(), 0);
    }
}

#[test]
fn each_end_reads_the_other_s_memory_over_a_path_that_loses_copies_reorders_trims_and_marks() {
    let path = Path { lose: 0.02, duplicate: 0.02, reorder: 0.05, trim: 0.05, mark: 0.05, ..Path::default() };
    for seed in 0..4 {
        read_each_other(DeliveryMode::Rud, path, seed);
    }
}

/// The reader's window grows and shrinks by what comes back to it.
#[test]
fn a_read_is_as_fast_as_a_message_and_few_of_its_responses_are_trimmed() {
    for bottleneck in [None, Some(RATE / 4)] {
        let path = Path { bottleneck, ..Path::default() };
        let mut net = Net::over(Weft::new(0, config("nscc")), Weft::new(1, config("nscc")), path, 1);
        net.b.expose(KEY, message(3, LONG).bytes);
        net.a.post_read(0, KEY, 0, LONG);
        net.run(|net| !net.a.read.is_empty());
        assert!(net.a.read[0] == message(3, LONG).bytes);
        let rate = LONG as f64 * 8e12 / net.now as f64;
        let counters = *net.a.worker.fep().counters();
        assert!(rate > 0.85 * bottleneck.unwrap_or(RATE) as f64, "{rate:.3e} bit/s\n{}", show(net.a.trace()));
        assert!(counters.trimmed_received < counters.data_sent / 10, "{counters:?}");
    }
}

#[test]
fn packets_of_both_end_with_a_crc_where_the_network_has_it() {
    for trim in [0.0, 0.1] {
        let weft = Weft::new(0, FepConfig { crc: true, ..config("nscc") });
        let peer = Host::new(1, Settings { crc: true, ..settings() });
        let mut net = Net::over(weft, peer, Path { trim, ..Path::default() }, 1);
        exchange(&mut net, &[LONG / 10, 5], &[LONG / 10, 5]);
    }
}

/// Whatever the state of its acknowledgements, a window that trims have reduced grows back.
#[test]
fn windows_recover_on_every_kind_of_acknowledgement() {
    for acks in [settings().acks, Acks::Credit, Acks::Plain] {
        let mut net = weft_and_peer(Settings { acks, ..settings() });
        net.path.trim = 0.3;
        exchange(&mut net, &[1_000_000], &[]);
        let (begin, least) = (net.now, net.a.trace().last().expect("a window").1);
        net.path.trim = 0.0;
        net.a.post(begin, message(9, LONG));
        net.run(|net| net.b.received().len() == 2);
        let rate = LONG as f64 * 8e12 / (net.now - begin) as f64;
        let trace = show(net.a.trace());
        assert!(least < 100_000, "trims reduce the window: {least} bytes");
        assert!(rate > 0.8 * RATE as f64, "{acks:?}: {rate:.3e} bit/s after trims\n{trace}");
        assert_conforms(&net);
    }
}

/// A receiver that cannot keep up holds the sender down to a packet per round trip (UET §3.6.13.2).
#[test]
fn weft_obeys_the_receiver_s_penalty() {
    let mut net = weft_and_peer(Settings { acks: Acks::Nscc { penalty: 127 }, ..settings() });
    exchange(&mut net, &[LONG / 10], &[]);
    let (_, last) = net.a.trace().last().expect("a window");
    assert!(*last < 2 * MTU as u64, "the window:\n{}", show(net.a.trace()));
}

#[test]
fn a_sender_that_waits_for_credit_takes_it_from_acknowledgements() {
    let peer = Host::new(1, Settings { acks: Acks::Credit, ..settings() });
    let mut net = Net::new(Weft::new(0, config("rccc")), peer);
    exchange_undisturbed(&mut net, &[LONG], &[]);
    let rate = LONG as f64 * 8e12 / net.now as f64;
    assert!(rate > 0.9 * RATE as f64, "{rate:.3e} bit/s");
}

#[test]
fn credit_comes_from_the_pdc_that_asked_for_it() {
    let mut net =
        Net::new(Weft::new(0, config("rccc")), Host::new(1, Settings { credit: true, ..settings() }));
    exchange(&mut net, &[], &[LONG]);
    assert!(net.b.peer.initiator.counters.credits > 0);
}

/// The bit/s at which one long message arrives at the second node, and the trace of the sender's window.
fn goodput<A: Node, B: Node>(mut net: Net<A, B>) -> (f64, Vec<(Ps, u64)>) {
    let message = post(0, &mut net.a, &mut net.b, &[2 * LONG]);
    net.run(|net| !net.b.received().is_empty());
    assert_received(&net.b, &message);
    (2.0 * LONG as f64 * 8e12 / net.now as f64, net.a.trace().to_vec())
}

/// Sends over a link with this bottleneck from weft to weft, from weft to the peer and from the peer to weft: the
/// goodput of each is that of the first.
fn assert_equal_goodput(bottleneck: Option<u64>) {
    let path = Path { bottleneck, ..Path::default() };
    let (weft, peer) = (|own| Weft::new(own, config("nscc")), |own| Host::new(own, settings()));
    let runs = [
        ("weft to weft", goodput(Net::over(weft(0), weft(1), path, 1))),
        ("weft to the peer", goodput(Net::over(weft(0), peer(1), path, 1))),
        ("the peer to weft", goodput(Net::over(peer(0), weft(1), path, 1))),
    ];
    let table: String = runs
        .iter()
        .map(|(name, (rate, trace))| format!("{name}: {:.2} Gbit/s, window:\n{}", rate / 1e9, show(trace)))
        .collect();
    println!("{table}");
    let expected = runs[0].1.0;
    assert!(expected > 0.9 * bottleneck.unwrap_or(RATE) as f64, "{table}");
    for (_, (rate, _)) in &runs[1..] {
        assert!((0.98 * expected..1.02 * expected).contains(rate), "{table}");
    }
}

#[test]
fn a_conforming_peer_is_as_fast_as_weft_in_both_directions() {
    assert_equal_goodput(None);
}

#[test]
fn a_conforming_peer_is_as_fast_as_weft_through_a_bottleneck() {
    assert_equal_goodput(Some(RATE / 4));
}

/// Nothing is congested: neither window shrinks, however many acknowledgements come. The first measured RTT may correct it.
#[test]
fn windows_do_not_shrink_without_congestion() {
    let (weft, peer) = (|own| Weft::new(own, config("nscc")), |own| Host::new(own, settings()));
    for (name, (_, trace)) in
        [("weft's", goodput(Net::new(weft(0), peer(1)))), ("the peer's", goodput(Net::new(peer(0), weft(1))))]
    {
        let (first, least) = (trace[0].1, trace.iter().map(|(_, window)| *window).min());
        assert!(least >= Some(first * 95 / 100), "{name} window:\n{}", show(&trace));
    }
}
