//! Peers that are dead, refuse, answer nonsense, or use up whatever they can.

use std::sync::Arc;

use weft_cc::{CcChoice, CcParams, Rate, Span, Time};
use weft_stack::buffer::Buffer;
use weft_stack::fep::{
    CallError, Completion, ConnectOptions, ConnectionId, Failure, Fep, FepConfig, Limits, Receive, Send,
    SendError,
};
use weft_stack::packet::{Addr, Class, Network, Packet, Payload};
use weft_stack::pdc::RodReceive;
use weft_stack::rng::Rng;
use weft_stack::ses::Matching;
use weft_stack::spray::Entropy;
use weft_stack::wire::pds::{
    AckRequest, Control, ControlKind, DeliveryMode, Destination, Nack, NackCode, NextHeader, PdcId, Pds, Psn,
    Request,
};
use weft_stack::wire::ses::{Opcode, Placement, RequestFlags, Ses, StandardRequest};

const RTO: Span = Span::from_us(10);

fn fep(addr: u32, limits: Limits) -> Fep {
    let params = CcParams {
        mtu: 1_000,
        overhead: 64,
        link_rate: Rate::from_gbps(100),
        network_rtt: Span::from_us(5),
        trimming: true,
        receiver_credit: false,
    };
    let mut config = FepConfig::new(&CcChoice::default(), &params);
    config.pdc.rto_init = RTO;
    config.limits = limits;
    config.busy_timeout = Span::from_ms(10);
    Fep::new(Addr(addr), Arc::new(config), Rng::new(3, u64::from(addr)), Time::ZERO).unwrap()
}

fn send(len: usize, context: u64) -> Send {
    Send { buffer: Buffer::Heap(vec![7; len]), tag: None, header_data: 0, context }
}

/// Runs `fep` by itself until it has nothing left to do for a while; `answer` sees what it sends and
/// says what comes back.
fn run_alone(
    fep: &mut Fep,
    until: Span,
    mut answer: impl FnMut(&Packet) -> Option<Packet>,
) -> Vec<Completion> {
    let (mut now, mut done) = (Time::ZERO, Vec::new());
    loop {
        while let Some(transmit) = fep.poll_transmit(now) {
            if let Some(packet) = answer(&transmit.packet) {
                now += Span::from_us(2);
                fep.on_packet(now, &packet, Payload::EMPTY);
            }
        }
        done.extend(std::iter::from_fn(|| fep.poll_completion()));
        let Some(at) = fep.poll_timeout().filter(|at| at.since(Time::ZERO) < until) else { return done };
        now = at.latest(now);
        fep.on_timeout(now);
    }
}

fn open(fep: &mut Fep, peer: u32) -> ConnectionId {
    fep.connect(Time::ZERO, Addr(peer), ConnectOptions::default()).unwrap()
}

fn nack(to: &Packet, code: NackCode) -> Packet {
    let (psn, dpdcid, retx) = match &to.pds {
        Pds::Request(request) => (request.psn, request.spdcid, request.retx),
        Pds::Control(control) => (control.psn, control.spdcid, control.retx),
        other => panic!("an initiator does not send {other:?}"),
    };
    let nack = Nack {
        next: NextHeader::None,
        ecn: false,
        retx,
        rudi: false,
        code,
        vendor_code: 0,
        psn,
        spdcid: PdcId(9),
        dpdcid,
        payload: psn.0,
        ccx: None,
    };
    let net = Network { src: to.net.dst, dst: to.net.src, class: Class::Control, ..to.net };
    Packet { net, payload_len: 0, pds: Pds::Nack(nack), ses: Ses::None }
}

#[test]
fn a_dead_peer_is_named_in_bounded_time() {
    let mut fep = fep(0, Limits::default());
    let connection = open(&mut fep, 1);
    let ids: Vec<_> = (0..3).map(|i| fep.post_send(connection, send(2_500, i)).unwrap()).collect();
    let mut first = None;
    let mut sent = 0;
    let done = run_alone(&mut fep, Span::from_ms(1), |packet| {
        let Pds::Request(request) = &packet.pds else { panic!("{packet:?}") };
        first.get_or_insert(request.psn);
        sent += u32::from(first == Some(request.psn));
        None
    });
    assert_eq!(sent, 6, "once and five retries");
    let failure = Failure::NoAnswer {
        pdc: PdcId(1),
        peer: Addr(1),
        psn: first.unwrap(),
        waited: RTO.times(1 << 5),
        sent: 6,
    };
    let mut completions = done.iter();
    for id in ids {
        let Some(Completion::Sent { id: done, result, .. }) = completions.next() else { panic!("{done:?}") };
        assert_eq!((*done, *result), (id, Err(SendError::Failed(failure))));
    }
    let Some(Completion::Closed { id, result, .. }) = completions.next() else { panic!("{done:?}") };
    assert_eq!((*id, *result), (connection, Err(failure)));
    assert!(completions.next().is_none());
    assert_eq!(fep.leaks().collect::<Vec<_>>(), [] as [String; 0]);
    assert_eq!(fep.close(Time::ZERO, connection), Err(CallError::NotOpen));
    assert_eq!(fep.post_send(connection, send(1, 0)).unwrap_err().error, CallError::NotOpen);
}

#[test]
fn a_peer_that_dies_before_close_is_given_up_too() {
    let mut pair = [fep(0, Limits::default()), fep(1, Limits::default())];
    let connection = open(&mut pair[0], 1);
    pair[0].post_send(connection, send(10, 0)).unwrap();
    exchange(&mut pair, Time::ZERO);
    pair[0].close(Time::ZERO, connection).unwrap();
    let done = run_alone(&mut pair[0], Span::from_ms(1), |_| None);
    let closed = |c: &Completion| {
        matches!(c, Completion::Closed { result: Err(Failure::NoAnswer { sent: 6, .. }), .. })
    };
    assert!(done.iter().any(closed), "{done:?}");
    assert_eq!(pair[0].leaks().count(), 0);
}

/// Moves packets between two endpoints at one instant until both are silent.
fn exchange(pair: &mut [Fep; 2], now: Time) {
    loop {
        let mut moved = false;
        for from in 0..2 {
            while let Some(transmit) = pair[from].poll_transmit(now) {
                let bytes = match pair[from].payload(transmit.payload) {
                    Payload::Bytes(bytes) => bytes.to_vec(),
                    Payload::Virtual(_) | Payload::Region(_) => panic!("bytes were posted"),
                };
                pair[1 - from].on_packet(now, &transmit.packet, Payload::Bytes(&bytes));
                moved = true;
            }
        }
        if !moved {
            return;
        }
    }
}

/// What an initiator does about a NACK code.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    /// Gives the PDC up.
    Close,
    /// Sends the packet again when the answer is in.
    Again,
    /// Sends it again after a pause of a timeout.
    Pause,
    /// Leaves it to the timer.
    Timer,
}

/// Facts of an open implementation: 0E 0F 10 11 13 15 16 19 close the PDC, the others lead to
/// retransmission. The pauses are this implementation's choice.
const ANSWERS: [(u8, Answer); 28] = [
    (0x01, Answer::Again),
    (0x02, Answer::Again),
    (0x03, Answer::Again),
    (0x04, Answer::Pause),
    (0x05, Answer::Pause),
    (0x06, Answer::Pause),
    (0x07, Answer::Pause),
    (0x08, Answer::Pause),
    (0x09, Answer::Pause),
    (0x0a, Answer::Pause),
    (0x0b, Answer::Pause),
    (0x0c, Answer::Again),
    (0x0d, Answer::Again),
    (0x0e, Answer::Close),
    (0x0f, Answer::Close),
    (0x10, Answer::Close),
    (0x11, Answer::Close),
    (0x12, Answer::Again),
    (0x13, Answer::Close),
    (0x14, Answer::Again),
    (0x15, Answer::Close),
    (0x16, Answer::Close),
    (0x17, Answer::Again),
    (0x18, Answer::Timer),
    (0x19, Answer::Close),
    (0x1a, Answer::Again),
    (0xfd, Answer::Again),
    (0xff, Answer::Close),
];

/// What `code` as the answer to the first packet of a message leads to.
fn observe(code: NackCode) -> Answer {
    let mut fep = fep(0, Limits::default());
    let connection = open(&mut fep, 1);
    fep.post_send(connection, send(100, 0)).unwrap();
    let first = fep.poll_transmit(Time::ZERO).expect("the message").packet;
    let heard = Time::ZERO + Span::from_us(2);
    fep.on_packet(heard, &nack(&first, code), Payload::EMPTY);
    if let Some(again) = fep.poll_transmit(heard) {
        let (Pds::Request(a), Pds::Request(b)) = (&first.pds, &again.packet.pds) else { panic!("{again:?}") };
        assert!(a.psn == b.psn && b.retx);
        return Answer::Again;
    }
    match fep.poll_completion() {
        Some(Completion::Sent {
            result: Err(SendError::Failed(Failure::Refused { code: said, psn, .. })),
            ..
        }) => {
            let Pds::Request(request) = &first.pds else { panic!("{first:?}") };
            assert_eq!((said, psn), (code, request.psn));
            assert!(matches!(fep.poll_completion(), Some(Completion::Closed { result: Err(_), .. })));
            assert_eq!(fep.leaks().count(), 0);
            return Answer::Close;
        }
        None => {}
        other => panic!("{other:?}"),
    }
    let since = if fep.explain(heard)[0].contains("put off") { heard } else { Time::ZERO };
    for (at, expected) in [(since + RTO.minus(Span::from_ns(1)), false), (since + RTO, true)] {
        fep.on_timeout(at);
        assert_eq!(fep.poll_transmit(at).is_some(), expected, "NACK {:#04x}", code.0);
    }
    if since == heard { Answer::Pause } else { Answer::Timer }
}

#[test]
fn every_nack_code_has_its_answer() {
    for (code, answer) in ANSWERS {
        assert_eq!(observe(NackCode(code)), answer, "NACK {code:#04x}");
    }
}

#[test]
fn a_target_that_is_busy_for_too_long_is_given_up() {
    let mut fep = fep(0, Limits::default());
    let connection = open(&mut fep, 1);
    fep.post_send(connection, send(100, 0)).unwrap();
    let done = run_alone(&mut fep, Span::from_ms(100), |packet| Some(nack(packet, NackCode::NO_PKT_BUFFER)));
    let busy = Failure::Busy {
        pdc: PdcId(1),
        peer: Addr(1),
        psn: Psn(0),
        code: NackCode::NO_PKT_BUFFER,
        waited: RTO,
    };
    let Some(Completion::Sent { result: Err(SendError::Failed(failure)), .. }) = done.first() else {
        panic!("{done:?}")
    };
    assert_eq!(std::mem::discriminant(failure), std::mem::discriminant(&busy));
    assert_eq!(fep.leaks().count(), 0);
}

/// Switches that trim everything, for ever: each NACK asks for one more transmission.
#[test]
fn a_way_that_trims_everything_is_given_up() {
    let mut fep = fep(0, Limits::default());
    let connection = open(&mut fep, 1);
    fep.post_send(connection, send(100, 0)).unwrap();
    let mut sent = 0;
    let done = run_alone(&mut fep, Span::from_ms(100), |packet| {
        sent += 1;
        assert!(sent < 10_000, "sends for ever");
        Some(nack(packet, NackCode::TRIMMED))
    });
    let Some(Completion::Sent { result: Err(SendError::Failed(failure)), .. }) = done.first() else {
        panic!("{done:?}")
    };
    assert!(
        matches!(failure, Failure::Busy { code: NackCode::TRIMMED, psn, .. } if psn != &Psn(0)),
        "{failure:?}"
    );
    assert_eq!(fep.leaks().count(), 0);
}

/// Both connections share a context and its window. One is put off with all that is in flight; the
/// other, and later it too, have to go on.
#[test]
fn being_put_off_leaves_nobody_waiting_for_a_window() {
    let mut fep = fep(0, Limits::default());
    let (a, b) = (open(&mut fep, 1), open(&mut fep, 1));
    fep.post_send(a, send(400_000, 0)).unwrap();
    let mut in_flight = Vec::new();
    while let Some(transmit) = fep.poll_transmit(Time::ZERO) {
        in_flight.push(transmit.packet);
    }
    fep.post_send(b, send(100, 1)).unwrap();
    assert!(fep.poll_transmit(Time::ZERO).is_none(), "the window is full");
    let heard = Time::ZERO + Span::from_us(2);
    for packet in &in_flight {
        fep.on_packet(heard, &nack(packet, NackCode::NO_RESOURCE), Payload::EMPTY);
    }
    let next = fep.poll_transmit(heard).expect("nothing is in flight: the other may send");
    assert!(matches!(&next.packet.pds, Pds::Request(request) if request.spdcid == PdcId(2)));
    let later = heard + RTO;
    fep.on_timeout(later);
    let first = fep.poll_transmit(later).expect("the pause is over");
    assert!(matches!(&first.packet.pds, Pds::Request(request) if request.spdcid == PdcId(1) && request.retx));
}

/// A copy of CLOSE_CMD finds the PDC gone, and the answer to it is the first to arrive.
#[test]
fn a_close_that_was_copied_still_closes() {
    let mut pair = [fep(0, Limits::default()), fep(1, Limits::default())];
    let connection = open(&mut pair[0], 1);
    pair[0].post_send(connection, send(10, 0)).unwrap();
    exchange(&mut pair, Time::ZERO);
    pair[0].close(Time::ZERO, connection).unwrap();
    let close = pair[0].poll_transmit(Time::ZERO).unwrap().packet;
    assert!(matches!(&close.pds, Pds::Control(control) if control.kind == ControlKind::CloseCommand));
    pair[0].on_packet(Time::ZERO, &nack(&close, NackCode::INV_DPDCID), Payload::EMPTY);
    let done: Vec<_> = std::iter::from_fn(|| pair[0].poll_completion()).collect();
    assert!(
        matches!(&done[..], [Completion::Sent { .. }, Completion::Closed { result: Ok(()), .. }]),
        "{done:?}"
    );
}

#[test]
fn closing_what_was_cancelled_says_nothing_to_the_peer() {
    let mut fep = fep(0, Limits::default());
    let connection = open(&mut fep, 1);
    let message = fep.post_send(connection, send(10, 0)).unwrap();
    fep.close(Time::ZERO, connection).unwrap();
    fep.cancel_send(message).unwrap();
    assert!(fep.poll_transmit(Time::ZERO).is_none());
    let done: Vec<_> = std::iter::from_fn(|| fep.poll_completion()).collect();
    assert!(matches!(done.last(), Some(Completion::Closed { result: Ok(()), .. })), "{done:?}");
    assert_eq!(fep.leaks().count(), 0);
}

/// The PDCIDs and message numbers of a message that nobody has asked for yet are free for others.
#[test]
fn unexpected_messages_do_not_stand_in_the_way_of_later_ones() {
    let mut pair = [fep(0, Limits::default()), fep(1, Limits::default())];
    let lengths = [10usize, 20, 0, 30];
    for (i, len) in lengths.into_iter().enumerate() {
        let connection = open(&mut pair[0], 1);
        pair[0].post_send(connection, send(len, i as u64)).unwrap();
        exchange(&mut pair, Time::ZERO);
        pair[0].close(Time::ZERO, connection).unwrap();
        exchange(&mut pair, Time::ZERO);
        let done: Vec<_> = std::iter::from_fn(|| pair[0].poll_completion()).collect();
        let fine = matches!(
            &done[..],
            [Completion::Sent { result: Ok(()), .. }, Completion::Closed { result: Ok(()), .. }]
        );
        assert!(fine, "{done:?}");
    }
    for len in lengths {
        let (buffer, matching) = (Buffer::Heap(vec![0; len]), Matching::Untagged);
        pair[1].post_receive(Receive { buffer, from: None, matching, context: 0 }).unwrap();
        let Some(Completion::Received { buffer, result: Ok(()), .. }) = pair[1].poll_completion() else {
            panic!()
        };
        assert_eq!(buffer, Buffer::Heap(vec![7; len]));
    }
    assert_eq!(pair[1].leaks().count(), 0);
}

/// A copy of the first packet of a closed PDC arrives when its number has been given to another one.
#[test]
fn late_copies_do_not_displace_the_next_pdc() {
    let mut pair = [fep(0, Limits::default()), fep(1, Limits::default())];
    let mut late = Vec::new();
    for _ in 0..3 {
        let connection = open(&mut pair[0], 1);
        pair[0].post_send(connection, send(10, 0)).unwrap();
        let first = pair[0].poll_transmit(Time::ZERO).unwrap().packet;
        pair[1].on_packet(Time::ZERO, &first, Payload::Bytes(&[7; 10]));
        for old in &late {
            pair[1].on_packet(Time::ZERO, old, Payload::Bytes(&[7; 10]));
        }
        late.push(first);
        pair[0].post_send(connection, send(20, 0)).unwrap();
        exchange(&mut pair, Time::ZERO);
        pair[0].close(Time::ZERO, connection).unwrap();
        exchange(&mut pair, Time::ZERO);
        let done: Vec<_> = std::iter::from_fn(|| pair[0].poll_completion()).collect();
        assert!(matches!(&done[..], [.., Completion::Closed { result: Ok(()), .. }]), "{done:?}");
    }
    assert_eq!(pair[1].leaks().collect::<Vec<_>>(), ["6 messages on their way in"], "none of them twice");
}

fn syn(src: u32, pdc: u16, msg_id: u16, len: u32) -> Packet {
    let request = Request {
        mode: DeliveryMode::Rud,
        next: NextHeader::RequestStandard,
        retx: false,
        ack_request: true,
        clear_psn_offset: -1,
        psn: Psn(u32::from(msg_id)),
        spdcid: PdcId(pdc),
        destination: Destination::Syn { use_reserved: false, psn_offset: msg_id },
        cc: None,
    };
    let ses = StandardRequest {
        opcode: Opcode::SEND,
        flags: RequestFlags { start_of_message: true, ..RequestFlags::default() },
        msg_id,
        ri_generation: 0,
        job_id: 0,
        pid_on_fep: 0,
        resource_index: 0,
        buffer_offset: 0,
        initiator: 0,
        match_bits: 0,
        placement: Placement::Start { header_data: 0 },
        request_length: len,
    };
    let (src, dst, entropy) = (Addr(src), Addr(0), Entropy(0));
    let net = Network { src, dst, entropy, class: Class::Data, ecn: false, hops: 0 };
    Packet { net, payload_len: 100, pds: Pds::Request(request), ses: Ses::Standard(ses) }
}

#[test]
fn what_a_peer_can_use_up_is_limited() {
    let limits = Limits {
        pdcs_per_peer: 4,
        unexpected_bytes_per_peer: 10_000,
        control_queue: 50,
        ..Limits::default()
    };
    let mut fep = fep(0, limits);
    for pdc in 1..=1_000 {
        fep.on_packet(Time::ZERO, &syn(5, pdc, 0, 3_000), Payload::Bytes(&[0; 100]));
        for msg_id in 1..10 {
            fep.on_packet(Time::ZERO, &syn(5, pdc, msg_id, 3_000), Payload::Bytes(&[0; 100]));
        }
    }
    let held: Vec<String> = fep.leaks().collect();
    assert_eq!(held, ["3 messages on their way in", "4 PDCs of peers"], "3 times 3,000 bytes fit in 10,000");
    let answers = std::iter::from_fn(|| fep.poll_transmit(Time::ZERO)).count();
    assert_eq!(answers, 50);
    // Messages of no bytes count as well.
    for msg_id in 0..1_000 {
        fep.on_packet(Time::ZERO, &Packet { payload_len: 0, ..syn(7, 1, msg_id, 0) }, Payload::EMPTY);
    }
    let held: Vec<String> = fep.leaks().collect();
    assert_eq!(held, ["81 messages on their way in", "5 PDCs of peers"], "78 times 128 bytes");
    while fep.poll_transmit(Time::ZERO).is_some() {}
    // Others have their own share.
    fep.on_packet(Time::ZERO, &syn(6, 1, 0, 3_000), Payload::Bytes(&[0; 100]));
    let answer = fep.poll_transmit(Time::ZERO).unwrap();
    assert!(matches!(answer.packet.pds, Pds::Ack(_)), "{answer:?}");
}

/// The target's window may be the smallest there is, and an initiator hears so with the first answer.
#[test]
fn a_first_burst_fits_the_smallest_window() {
    let params = CcParams {
        mtu: 1,
        overhead: 64,
        link_rate: Rate::from_gbps(100),
        network_rtt: Span::from_us(5),
        trimming: true,
        receiver_credit: false,
    };
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", "100000000").unwrap();
    for (ours, theirs) in [(512, 128), (32_640, 128), (32_640, 32_640), (128, 512)] {
        let mut pair = [(0, ours), (1, theirs)].map(|(i, range)| {
            let mut config = FepConfig::new(&cc, &params);
            (config.pdc.mp_range, config.pdc.rto_init) = (range, RTO);
            Fep::new(Addr(i), Arc::new(config), Rng::new(3, u64::from(i)), Time::ZERO).unwrap()
        });
        let connection = open(&mut pair[0], 1);
        pair[0].post_send(connection, send(10_000, 0)).unwrap();
        let lost = std::iter::from_fn(|| pair[0].poll_transmit(Time::ZERO)).count();
        assert_eq!(lost, 128);
        let later = Time::ZERO + RTO;
        pair[0].on_timeout(later);
        exchange(&mut pair, later);
        let done = pair[0].poll_completion();
        assert!(
            matches!(done, Some(Completion::Sent { result: Ok(()), .. })),
            "{ours} to {theirs}: {done:?}"
        );
    }
}

#[test]
fn message_numbers_come_round_while_the_first_still_waits() {
    let mut pair = [fep(0, Limits::default()), fep(1, Limits::default())];
    let connection = open(&mut pair[0], 1);
    for number in 0..70_000u64 {
        let tagged = Send { tag: Some(u64::from(number > 0)), ..send(1 + (number % 3) as usize, number) };
        if number > 0 {
            let matching = Matching::Tagged { tag: 1, ignore: 0 };
            let buffer = Buffer::Heap(vec![0; 3]);
            pair[1].post_receive(Receive { buffer, from: None, matching, context: number }).unwrap();
        }
        pair[0].post_send(connection, tagged).unwrap();
        exchange(&mut pair, Time::ZERO);
        let Some(Completion::Sent { context, result: Ok(()), .. }) = pair[0].poll_completion() else {
            panic!("{number}")
        };
        assert_eq!(context, number);
        let received = match pair[1].poll_completion() {
            Some(Completion::Received { context, len, result: Ok(()), .. }) => {
                Some((context, u64::from(len)))
            }
            _ => None,
        };
        assert_eq!(received, (number > 0).then_some((number, 1 + number % 3)));
    }
}

/// Start_PSN is at least 2¹⁶ from the last PSN that the PDCID was used with.
#[test]
fn reused_pdcids_start_far_away() {
    let mut fep = fep(0, Limits::default());
    let mut last: Option<Psn> = None;
    for _ in 0..2_000 {
        let connection = open(&mut fep, 1);
        fep.post_send(connection, send(10, 0)).unwrap();
        let packet = fep.poll_transmit(Time::ZERO).unwrap().packet;
        let Pds::Request(request) = &packet.pds else { panic!("{packet:?}") };
        assert_eq!(request.spdcid, PdcId(1));
        assert!(last.is_none_or(|last| request.psn.distance(last).unsigned_abs() >= 1 << 16));
        last = Some(request.psn);
        fep.on_packet(Time::ZERO, &nack(&packet, NackCode::CLOSING), Payload::EMPTY);
    }
}

/// Probes have priority over data: unanswered they must become rare.
#[test]
fn probes_without_an_answer_back_off() {
    let params = CcParams {
        mtu: 1_000,
        overhead: 64,
        link_rate: Rate::from_gbps(100),
        network_rtt: Span::from_ns(500),
        trimming: false,
        receiver_credit: false,
    };
    let mut config = FepConfig::new(&CcChoice::parse("constant").unwrap(), &params);
    config.pdc.rto_init = Span::from_ms(1);
    let config = Arc::new(config);
    let mut pair =
        [0, 1].map(|i| Fep::new(Addr(i), config.clone(), Rng::new(3, u64::from(i)), Time::ZERO).unwrap());
    let connection = open(&mut pair[0], 1);
    pair[0].post_send(connection, send(4_000, 0)).unwrap();
    // Only the first packet arrives, and its answer.
    let first = pair[0].poll_transmit(Time::ZERO).unwrap().packet;
    pair[1].on_packet(Time::ZERO, &first, Payload::Bytes(&[7; 1_000]));
    while pair[0].poll_transmit(Time::ZERO).is_some() {}
    let answer = pair[1].poll_transmit(Time::ZERO).unwrap().packet;
    pair[0].on_packet(Time::ZERO + Span::from_ns(500), &answer, Payload::EMPTY);
    let mut probes = 0;
    run_alone(&mut pair[0], Span::from_us(900), |packet| {
        probes +=
            u32::from(matches!(&packet.pds, Pds::Control(control) if control.kind == ControlKind::Probe));
        None
    });
    assert!((6..12).contains(&probes), "{probes} probes in 900 µs, the first after some 1 µs");
}

fn post_receive(fep: &mut Fep, room: usize) {
    let (buffer, matching) = (Buffer::Heap(vec![0; room]), Matching::Untagged);
    fep.post_receive(Receive { buffer, from: None, matching, context: 0 }).unwrap();
}

fn sent_result(fep: &mut Fep) -> Result<(), SendError> {
    match fep.poll_completion() {
        Some(Completion::Sent { result, .. }) => result,
        other => panic!("{other:?}"),
    }
}

/// An acknowledgement that says TOO_LONG comes again when its PDCID and message number are in use for
/// another message.
#[test]
fn a_late_refusal_does_not_meet_a_later_message() {
    let mut pair = [fep(0, Limits::default()), fep(1, Limits::default())];
    post_receive(&mut pair[1], 5);
    let first = open(&mut pair[0], 1);
    pair[0].post_send(first, send(10, 0)).unwrap();
    let request = pair[0].poll_transmit(Time::ZERO).unwrap().packet;
    pair[1].on_packet(Time::ZERO, &request, Payload::Bytes(&[7; 10]));
    let refusal = pair[1].poll_transmit(Time::ZERO).unwrap().packet;
    assert!(matches!(&refusal.ses, Ses::Response(_)), "{refusal:?}");
    pair[0].on_packet(Time::ZERO, &refusal, Payload::EMPTY);
    assert!(matches!(sent_result(&mut pair[0]), Err(SendError::Answered(_))));
    exchange(&mut pair, Time::ZERO);
    pair[0].close(Time::ZERO, first).unwrap();
    exchange(&mut pair, Time::ZERO);
    assert!(matches!(pair[0].poll_completion(), Some(Completion::Closed { result: Ok(()), .. })));

    post_receive(&mut pair[1], 10);
    let second = open(&mut pair[0], 1);
    pair[0].post_send(second, send(10, 0)).unwrap();
    let transmit = pair[0].poll_transmit(Time::ZERO).unwrap().packet;
    let Pds::Request(request) = &transmit.pds else { panic!("{transmit:?}") };
    assert_eq!(request.spdcid, PdcId(1), "the same PDCID");
    pair[0].on_packet(Time::ZERO, &refusal, Payload::EMPTY);
    pair[1].on_packet(Time::ZERO, &transmit, Payload::Bytes(&[7; 10]));
    exchange(&mut pair, Time::ZERO);
    assert_eq!(sent_result(&mut pair[0]), Ok(()));
}

/// Whether asked with CLOSE_REQ, as idle targets do, or in an acknowledgement.
#[test]
fn a_close_that_the_peer_wanted_is_reported_as_such() {
    for in_ack in [false, true] {
        let mut pair = [fep(0, Limits::default()), fep(1, Limits::default())];
        let connection = open(&mut pair[0], 1);
        pair[0].post_send(connection, send(10, 0)).unwrap();
        let mut now = Time::ZERO;
        if in_ack {
            let request = pair[0].poll_transmit(now).unwrap().packet;
            pair[1].on_packet(now, &request, Payload::Bytes(&[7; 10]));
            let mut answer = pair[1].poll_transmit(now).unwrap().packet;
            let Pds::Ack(ack) = &mut answer.pds else { panic!("{answer:?}") };
            ack.request = AckRequest::Close;
            pair[0].on_packet(now, &answer, Payload::EMPTY);
        } else {
            exchange(&mut pair, now);
            now += pair[1].config().idle_timeout;
            pair[1].on_timeout(now);
        }
        exchange(&mut pair, now);
        assert_eq!(sent_result(&mut pair[0]), Ok(()));
        let Some(Completion::Closed { id, result, .. }) = pair[0].poll_completion() else { panic!() };
        assert_eq!((id, result), (connection, Err(Failure::ClosedByPeer { pdc: PdcId(1), peer: Addr(1) })));
        assert_eq!(pair[0].leaks().count(), 0);
    }
}

/// A peer that repeats itself is there, even if nothing that it says is new.
#[test]
fn copies_keep_a_pdc_alive() {
    let mut fep = fep(0, Limits::default());
    let idle = fep.config().idle_timeout;
    let half = Span::from_ps(idle.as_ps() / 2);
    let packet = syn(5, 1, 0, 3_000);
    fep.on_packet(Time::ZERO, &packet, Payload::Bytes(&[0; 100]));
    let open = |fep: &Fep| fep.leaks().any(|what| what.contains("PDCs of peers"));
    for halves in 1..=12u64 {
        let now = Time::ZERO + half.times(halves);
        fep.on_timeout(now);
        match halves {
            3 | 6 => fep.on_packet(now, &packet, Payload::Bytes(&[0; 100])),
            _ => {}
        }
        assert_eq!(
            open(&fep),
            halves < 10,
            "silent since 3 idle times, given up after 5: now {halves} halves"
        );
    }
}

/// A ROD connection uses one path; if that path drops everything it must find another.
#[test]
fn rod_leaves_a_path_that_has_failed() {
    for rod_receive in [RodReceive::GoBackN, RodReceive::Reorder] {
        let mut pair = [0, 1].map(|i| {
            let mut config = fep(i, Limits::default()).config().clone();
            config.pdc.rod_receive = rod_receive;
            Fep::new(Addr(i), Arc::new(config), Rng::new(3, u64::from(i)), Time::ZERO).unwrap()
        });
        let options = ConnectOptions { mode: DeliveryMode::Rod, ..ConnectOptions::default() };
        let connection = pair[0].connect(Time::ZERO, Addr(1), options).unwrap();
        pair[0].post_send(connection, send(20_000, 0)).unwrap();
        let mut now = Time::ZERO;
        // The path takes five packets, spread over time, and fails.
        let (mut dead, mut sent) = (None, 0);
        while let Some(transmit) = pair[0].poll_transmit(now) {
            let packet = transmit.packet;
            assert_eq!(*dead.get_or_insert(packet.net.entropy), packet.net.entropy, "one path");
            sent += 1;
            now += Span::from_ns(90);
            if sent <= 5 {
                pair[1].on_packet(now, &packet, Payload::Bytes(&[7; 1_000]));
            }
        }
        while let Some(answer) = pair[1].poll_transmit(now) {
            pair[0].on_packet(now, &answer.packet, Payload::EMPTY);
        }
        let mut resent = Vec::new();
        while pair[0].leaks().any(|what| what.contains("messages")) {
            while let Some(transmit) = pair[0].poll_transmit(now) {
                let Payload::Bytes(bytes) = pair[0].payload(transmit.payload) else { panic!() };
                let bytes = bytes.to_vec();
                if let Pds::Request(request) = &transmit.packet.pds
                    && Some(transmit.packet.net.entropy) != dead
                {
                    resent.push((transmit.packet.net.entropy, request.psn));
                    pair[1].on_packet(now, &transmit.packet, Payload::Bytes(&bytes));
                }
            }
            while let Some(answer) = pair[1].poll_transmit(now) {
                pair[0].on_packet(now, &answer.packet, Payload::EMPTY);
            }
            match pair[0].poll_timeout() {
                Some(at) => now = now.latest(at),
                None => break,
            }
            pair[0].on_timeout(now);
        }
        assert_eq!(sent_result(&mut pair[0]), Ok(()));
        assert!(resent.iter().all(|(entropy, _)| *entropy == resent[0].0), "one path again: {resent:?}");
        assert!(resent.is_sorted_by_key(|(_, psn)| psn.distance(resent[0].1)), "in order: {resent:?}");
        assert_eq!(pair[1].counters().duplicates_received, 0, "nothing twice");
    }
}

/// What is remembered of closed PDCs is limited, and what exceeds the limit is refused, not forgotten.
#[test]
fn closed_pdcs_that_are_remembered_are_limited() {
    let limits = Limits { closed_pdcs_per_peer: 3, ..Limits::default() };
    let mut fep = fep(0, limits);
    let time_wait = fep.config().time_wait;
    let close = |pdc: u16, id: PdcId| {
        let request = syn(5, pdc, 0, 100);
        let control = Control {
            kind: ControlKind::CloseCommand,
            rod: false,
            retx: false,
            ack_request: true,
            probe_opaque: 0,
            psn: Psn(1),
            spdcid: PdcId(pdc),
            destination: Destination::Pdc(id),
            payload: 0,
        };
        Packet { payload_len: 0, pds: Pds::Control(control), ses: Ses::None, ..request }
    };
    let try_open = |fep: &mut Fep, now: Time, src: u32, pdc: u16| {
        fep.on_packet(now, &syn(src, pdc, 0, 100), Payload::Bytes(&[0; 100]));
        match fep.poll_transmit(now).expect("an answer").packet.pds {
            Pds::Ack(ack) => Ok(ack.spdcid),
            Pds::Nack(nack) => Err(nack.code),
            other => panic!("{other:?}"),
        }
    };
    for pdc in 1..=3 {
        let id = try_open(&mut fep, Time::ZERO, 5, pdc).unwrap();
        fep.on_packet(Time::ZERO, &close(pdc, id), Payload::EMPTY);
        assert!(matches!(fep.poll_transmit(Time::ZERO).unwrap().packet.pds, Pds::Ack(_)));
    }
    assert_eq!(try_open(&mut fep, Time::ZERO, 5, 4), Err(NackCode::NO_PDC_AVAIL));
    assert!(try_open(&mut fep, Time::ZERO, 6, 4).is_ok(), "others have their own share");
    fep.on_packet(Time::ZERO, &syn(5, 1, 0, 100), Payload::Bytes(&[0; 100]));
    assert!(fep.poll_transmit(Time::ZERO).is_none(), "the first is remembered still");
    let later = Time::ZERO + time_wait;
    fep.on_timeout(later);
    assert!(try_open(&mut fep, later, 5, 4).is_ok());
}

/// One peer opens PDC after PDC and sends all but the first packet of each.
#[test]
fn early_packets_of_a_peer_are_limited() {
    const QUOTA: u64 = 100_000;
    const LEN: u32 = 1_000;
    let limits = Limits { unexpected_bytes_per_peer: QUOTA, ..Limits::default() };
    let mut config = fep(0, limits).config().clone();
    config.pdc.rod_receive = RodReceive::Reorder;
    let mut fep = Fep::new(Addr(0), Arc::new(config), Rng::new(3, 0), Time::ZERO).unwrap();
    let packet = |src, pdc, psn| {
        let mut packet = Packet { payload_len: LEN, ..syn(src, pdc, psn, LEN) };
        let Pds::Request(request) = &mut packet.pds else { unreachable!() };
        request.mode = DeliveryMode::Rod;
        packet
    };
    let bytes = [7; LEN as usize];
    let mut give = |src, pdc, psn| {
        fep.on_packet(Time::ZERO, &packet(src, pdc, psn), Payload::Bytes(&bytes));
        std::iter::from_fn(|| fep.poll_transmit(Time::ZERO))
            .map(|answer| answer.packet.pds)
            .collect::<Vec<_>>()
    };
    let refused = |answers: &[Pds]| matches!(answers, [Pds::Nack(nack)] if nack.code == NackCode::ROD_OOO);
    let mut kept = 0;
    for pdc in 1..=20 {
        for psn in 1..=20 {
            kept += u64::from(!refused(&give(5, pdc, psn)));
        }
    }
    assert!((QUOTA / 2..QUOTA).contains(&(kept * u64::from(LEN))), "{kept} packets of {LEN} bytes");
    assert!(give(6, 1, 1).is_empty(), "others have their own share");
    // What is delivered makes room: all of the first PDC, and later packets of the last are kept.
    assert!(refused(&give(5, 20, 1)));
    assert!(give(5, 1, 0).len() >= 20, "the first packet and the ones that waited for it");
    assert!(give(5, 20, 1).is_empty());
}

/// Connections that share a window take turns, also when some of those that wait no longer want to send.
#[test]
fn connections_that_wait_for_one_window_take_turns() {
    let params = *fep(0, Limits::default()).config().cc.params();
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", "2128").unwrap();
    let config = Arc::new(FepConfig::new(&cc, &params));
    let mut pair =
        [0, 1].map(|i| Fep::new(Addr(i), config.clone(), Rng::new(3, u64::from(i)), Time::ZERO).unwrap());
    let connections: Vec<_> = (0..6).map(|_| open(&mut pair[0], 1)).collect();
    let sends: Vec<_> = connections.iter().map(|&c| pair[0].post_send(c, send(4_000, 0)).unwrap()).collect();
    let mut flying: Vec<Packet> =
        std::iter::from_fn(|| pair[0].poll_transmit(Time::ZERO)).map(|t| t.packet).collect();
    assert_eq!(flying.len(), 2, "so large is the window");
    pair[0].cancel_send(sends[2]).unwrap();
    let (mut order, mut now) = (Vec::new(), Time::ZERO);
    while !flying.is_empty() {
        let packet = flying.remove(0);
        let Pds::Request(request) = &packet.pds else { panic!("{packet:?}") };
        order.push(request.spdcid.0);
        now += Span::from_ns(100);
        pair[1].on_packet(now, &packet, Payload::Bytes(&[7; 1_000]));
        // Packets that are not acknowledged at once are with the next.
        while let Some(answer) = pair[1].poll_transmit(now) {
            pair[0].on_packet(now, &answer.packet, Payload::EMPTY);
        }
        flying.extend(std::iter::from_fn(|| pair[0].poll_transmit(now)).map(|t| t.packet));
    }
    assert_eq!(order, [1, 2, 4, 5, 6].repeat(4));
}
