use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::wire::pds::{AckCc, AckRequest, NextHeader, NsccState};

/// The retransmission timeout of these tests.
const RTO: Span = Span::from_us(100);

const CONFIG: PdcConfig = PdcConfig {
    mp_range: 128,
    first_range: 128,
    rto_init: RTO,
    max_retries: 2,
    ack_bytes: 16 * 1024,
    infer_loss: false,
};

fn at(us: u64) -> Time {
    Time::ZERO + Span::from_us(us)
}

fn pdc_with(packets: u32) -> TxPdc {
    let mut pdc = TxPdc::new(&CONFIG, Addr(1), PdcId(7), DeliveryMode::Rud, Psn(u32::MAX - 1));
    for i in 0..packets {
        let kind = PacketKind::Data { send: 0, offset: i * 4096, len: 4096 };
        pdc.send_new(at(u64::from(i)), kind, 4160, Entropy(i as u16));
    }
    pdc
}

fn ack(cack: u32, trigger: i16, sack_offset: i16, sack: u64, received: u64) -> Ack {
    // The target does not count the packets beyond the first missing one.
    let state =
        NsccState { rcvd_bytes: received.div_ceil(256) as u32, ooo_count: 0xffff, ..NsccState::default() };
    Ack {
        next: NextHeader::None,
        ecn: false,
        retx: false,
        request: AckRequest::None,
        trigger: AckTrigger::Psn(trigger),
        cack_psn: Psn(u32::MAX - 1).plus(cack).minus(1),
        spdcid: PdcId(9),
        dpdcid: PdcId(7),
        cc: Some(AckCc {
            flags: 0,
            mpr: 1,
            sack_psn_offset: sack_offset,
            sack_bitmap: sack,
            state: CcState::Nscc(state),
        }),
    }
}

fn nack(psn: u32, code: NackCode, retx: bool, payload: Psn) -> Nack {
    Nack {
        next: NextHeader::None,
        ecn: false,
        retx,
        rudi: false,
        code,
        vendor_code: 0,
        psn: Psn(u32::MAX - 1).plus(psn),
        spdcid: PdcId(9),
        dpdcid: PdcId(7),
        payload: payload.0,
        ccx: None,
    }
}

#[test]
fn acknowledges_by_cack_and_sack_and_learns_the_pdcid() {
    let mut pdc = pdc_with(8);
    assert!(matches!(pdc.destination(Psn(1)), Destination::Syn { psn_offset: 3, .. }));
    let mut acked = 0;
    let outcome = pdc.on_ack(at(20), &ack(2, 4, 2, 0b101, 5 * 4160), |_, _, _| acked += 1).unwrap();
    assert_eq!(acked, 4, "two by CACK, two sacked, one of which is the trigger");
    assert_eq!(outcome.rtt, Some(Span::from_us(15)), "packet 5 was sent at 5 µs");
    assert!(
        (5 * 4160..5 * 4160 + 256).contains(&outcome.newly_received),
        "the total has one packet more than SACK"
    );
    assert_eq!(outcome.trigger_bytes, 4160, "of one packet, whatever the acknowledgement sums up");
    assert_eq!(pdc.destination(Psn(1)), Destination::Pdc(PdcId(9)));
    assert_eq!(pdc.first_unacknowledged(), Psn(u32::MAX - 1).plus(2));
}

#[test]
fn a_target_without_flow_control_leaves_the_window_alone() {
    let said = |rcv_cwnd_pend, restore_cwnd| {
        let mut answer = ack(1, 0, 0, 0, 4160);
        let state = NsccState { rcvd_bytes: 17, rcv_cwnd_pend, restore_cwnd, ..NsccState::default() };
        answer.cc.as_mut().unwrap().state = CcState::Nscc(state);
        pdc_with(1).on_ack(at(1), &answer, |_, _, _| ()).unwrap().flow_control
    };
    // UET §3.6.13.2: "0 has no effect".
    assert_eq!(said(0, false), FlowControl::Off);
    assert_eq!(said(64, false), FlowControl::Penalty(64));
    assert_eq!(said(127, true), FlowControl::Penalty(127), "rc speaks of the end of the penalty");
    assert_eq!(said(0, true), FlowControl::Restore);
}

#[test]
fn a_packet_triggers_one_acknowledgement() {
    let mut pdc = pdc_with(8);
    let first = pdc.on_ack(at(20), &ack(0, 5, 0, 1 << 4, 4160), |_, _, _| ()).unwrap();
    let copy = pdc.on_ack(at(21), &ack(0, 5, 0, 1 << 4, 4160), |_, _, _| ()).unwrap();
    assert_eq!(
        [first, copy].map(|outcome| (outcome.trigger_bytes, outcome.rtt.is_some())),
        [(4160, true), (0, false)]
    );
}

#[test]
fn bytes_reported_beyond_the_sack_bitmap_leave_the_window() {
    let mut pdc = pdc_with(8);
    pdc.on_ack(at(20), &ack(1, 0, 0, 0, 6 * 4160), |_, _, _| ());
    let rounding = 256;
    assert!(pdc.in_flight() <= 2 * 4160 && pdc.in_flight() + rounding >= 2 * 4160);
    pdc.on_ack(at(20), &ack(8, 0, 0, 0, 8 * 4160), |_, _, _| ());
    assert_eq!(pdc.in_flight(), 0);
}

/// An ACK, and an ACK_CC with the state of receiver credit, carry no total.
#[test]
fn acknowledgements_without_a_total_open_the_window_too() {
    let credit = CcState::Credit { credit: 0x12_3456, ooo_count: 0xffff };
    for state in [None, Some(credit), Some(CcState::Other { kind: 9, bits: u64::MAX })] {
        let mut pdc = pdc_with(8);
        let mut answer = ack(2, 4, 2, 0b101, 0);
        match state {
            Some(state) => answer.cc.as_mut().unwrap().state = state,
            None => answer.cc = None,
        }
        let outcome = pdc.on_ack(at(20), &answer, |_, _, _| ()).unwrap();
        let known = if state.is_some() { 4 } else { 3 };
        assert_eq!(outcome.newly_received, known * 4160, "{state:?}");
        assert_eq!(pdc.in_flight(), (8 - known) * 4160);
        let said = matches!(state, Some(CcState::Credit { .. })).then_some(0x12_3456);
        assert_eq!((outcome.credit, outcome.out_of_order), (said, 0));
    }
}

#[test]
fn a_nacked_packet_is_sent_again_once() {
    let mut pdc = pdc_with(4);
    let trimmed = nack(2, NackCode::TRIMMED, false, Psn(0));
    let outcome = pdc.on_nack(at(10), &trimmed, Entropy(0)).unwrap();
    assert_eq!((outcome.bytes, outcome.rtt), (4160, Some(Span::from_us(8))));
    assert!(pdc.on_nack(at(10), &trimmed, Entropy(0)).is_none(), "already waiting");
    assert_eq!(pdc.in_flight(), 3 * 4160);
    pdc.resend(at(11), Entropy(5));
    assert!(pdc.on_nack(at(12), &trimmed, Entropy(0)).is_none(), "it answers the first transmission");
    assert!(pdc.on_nack(at(13), &nack(2, NackCode::TRIMMED, true, Psn(0)), Entropy(5)).is_some());
}

#[test]
fn rod_goes_back_to_the_expected_packet() {
    let mut pdc = pdc_with(6);
    pdc.on_nack(at(10), &nack(4, NackCode::ROD_OOO, false, Psn(u32::MAX - 1).plus(1)), Entropy(0)).unwrap();
    let mut order = Vec::new();
    while let Some((psn, _)) = pdc.peek_lost() {
        order.push(psn.distance(Psn(u32::MAX - 1)));
        pdc.resend(at(11), Entropy(0));
    }
    assert_eq!(order, [1, 2, 3, 4]);
}

#[test]
fn rod_does_not_resend_packets_sent_after_the_refused_one() {
    let mut pdc = pdc_with(6);
    let refused = |psn| nack(psn, NackCode::ROD_OOO, false, Psn(u32::MAX - 1).plus(1));
    pdc.on_nack(at(10), &refused(2), Entropy(0)).unwrap();
    while pdc.peek_lost().is_some() {
        pdc.resend(at(11), Entropy(0));
    }
    // 3 was sent before 1 and 2 were retransmitted, so it does not concern them.
    pdc.on_nack(at(12), &refused(3), Entropy(0)).unwrap();
    assert_eq!(pdc.peek_lost().map(|(psn, _)| psn.distance(Psn(u32::MAX - 1))), Some(3));
    pdc.resend(at(13), Entropy(0));
    assert!(!pdc.has_lost());
}

/// Sends all that waits for retransmission again at `now`.
fn resend_all(pdc: &mut TxPdc, now: Time) {
    while pdc.peek_lost().is_some() {
        pdc.resend(now, Entropy(0));
    }
}

#[test]
fn rod_goes_back_in_vain_once_five_windows_were_refused_and_nothing_has_arrived() {
    let mut pdc = pdc_with(6);
    let first = Psn(u32::MAX - 1);
    let refuse_all = |pdc: &mut TxPdc, now: u64, expected: u32, retx| {
        for psn in expected + 1..6 {
            let nack = nack(psn, NackCode::ROD_OOO, retx, first.plus(expected));
            pdc.on_nack(at(now), &nack, Entropy(0)).unwrap();
        }
        let in_vain = pdc.goes_back_in_vain(at(now), at(40).since(at(0)));
        resend_all(pdc, at(now));
        in_vain
    };
    for round in 0..5 {
        assert_eq!(refuse_all(&mut pdc, 10 * (round + 1), 0, round > 0), round == 4, "round {round}");
    }
    pdc.on_ack(at(55), &ack(1, 0, 0, 0, 4160), |_, _, _| ()).unwrap();
    assert!(!pdc.goes_back_in_vain(at(1_000), Span::ZERO), "a packet has arrived");
    for round in 0..5 {
        assert_eq!(refuse_all(&mut pdc, 60 + 10 * round, 1, true), round == 4, "round {round}");
    }
    // The packet that the target waits for has come as far as a switch that is full.
    let trimmed = nack(1, NackCode::TRIMMED, true, Psn(0));
    pdc.on_nack(at(120), &trimmed, Entropy(0)).unwrap();
    assert!(!pdc.goes_back_in_vain(at(1_000), Span::ZERO), "the packet was trimmed");
}

#[test]
fn packets_that_were_sent_and_are_acknowledged_are_known_as_such() {
    let mut pdc = pdc_with(6);
    let first = Psn(u32::MAX - 1);
    assert!(!pdc.was_acknowledged(first.minus(1)), "the PDC has sent no such packet");
    pdc.on_ack(at(10), &ack(3, 0, 0, 0, 3 * 4160), |_, _, _| ()).unwrap();
    let known: Vec<i32> = (-2..8).filter(|n| pdc.was_acknowledged(first.offset(*n))).collect();
    assert_eq!(known, [0, 1, 2]);
    assert!(!pdc.was_acknowledged(first.offset(i32::MIN)));
}

#[test]
fn copies_of_a_nack_do_not_multiply_retransmissions() {
    let mut pdc = pdc_with(1);
    let again = nack(0, NackCode::TRIMMED, true, Psn(0));
    pdc.on_nack(at(8), &nack(0, NackCode::TRIMMED, false, Psn(0)), Entropy(0)).unwrap();
    pdc.resend(at(8), Entropy(3));
    pdc.on_nack(at(16), &again, Entropy(3)).unwrap();
    pdc.resend(at(16), Entropy(4));
    assert!(pdc.on_nack(at(30), &again, Entropy(3)).is_none(), "it answers the second transmission");
    assert!(pdc.on_nack(at(30), &again, Entropy(4)).is_some());
    pdc.resend(at(30), Entropy(4));
    let soon = at(30) + Span::from_ns(999);
    assert!(pdc.on_nack(soon, &again, Entropy(4)).is_none(), "no answer takes an eighth of 8 µs");
    assert!(pdc.on_nack(at(32), &again, Entropy(4)).is_some(), "queues may be shorter than ever");
}

#[test]
fn answers_reset_the_count_of_timeouts() {
    let mut pdc = pdc_with(1);
    assert_eq!(pdc.on_timer(at(100), RTO, None, |_, _| ()), Overdue::Resend);
    pdc.resend(at(100), Entropy(0));
    assert_eq!(pdc.deadline(RTO, None), Some(at(300)));
    pdc.on_nack(at(110), &nack(0, NackCode::TRIMMED, true, Psn(0)), Entropy(0)).unwrap();
    pdc.resend(at(110), Entropy(0));
    assert_eq!(pdc.deadline(RTO, None), Some(at(210)));
}

#[test]
fn timers_back_off_to_four_timeouts_and_never_give_up() {
    let mut pdc = pdc_with(1);
    let mut now = 0;
    for timeouts in [1, 2, 4, 4, 4] {
        let due = now + 100 * timeouts;
        assert_eq!(pdc.deadline(RTO, None), Some(at(due)));
        assert_eq!(pdc.on_timer(at(due - 1), RTO, None, |_, _| ()), Overdue::Nothing);
        assert_eq!(pdc.on_timer(at(due), RTO, None, |_, _| ()), Overdue::Resend);
        pdc.resend(at(due), Entropy(0));
        now = due;
    }
    // Ever more expiries are still four timeouts apart.
    for expiry in 1..=300 {
        assert_eq!(pdc.on_timer(at(now + 400 * expiry), RTO, None, |_, _| ()), Overdue::Resend);
        pdc.resend(at(now + 400 * expiry), Entropy(0));
    }
}

#[test]
fn with_news_timers_run_from_the_last_packet_that_arrived() {
    let mut pdc = pdc_with(3);
    assert_eq!(pdc.deadline(RTO, Some(at(60))), Some(at(160)));
    assert_eq!(pdc.on_timer(at(159), RTO, Some(at(60)), |_, _| ()), Overdue::Nothing);
    let mut expired = 0;
    assert_eq!(pdc.on_timer(at(160), RTO, Some(at(60)), |_, _| expired += 1), Overdue::Resend);
    assert_eq!(expired, 3);
}

/// A refused packet is sent again once all that its target will refuse as well has been refused.
#[test]
fn rod_waits_with_retransmissions_until_nothing_is_in_the_way() {
    let mut pdc = pdc_with(6);
    let refused = |psn| nack(psn, NackCode::ROD_OOO, false, Psn(u32::MAX - 1).plus(1));
    for psn in 2..6 {
        assert!(psn == 2 || pdc.is_draining(), "packet {psn} is still in flight");
        pdc.on_nack(at(10), &refused(psn), Entropy(0)).unwrap();
    }
    assert!(!pdc.is_draining(), "packet 0 has arrived, as all before the expected one");
    pdc.resend(at(11), Entropy(0));
    assert!(!pdc.is_draining() && pdc.has_lost(), "the others follow at once");
    pdc.resend(at(12), Entropy(0));
    pdc.on_nack(at(20), &nack(2, NackCode::ROD_OOO, true, Psn(u32::MAX - 1).plus(1)), Entropy(0)).unwrap();
    assert!(!pdc.is_draining());
}

#[test]
fn a_loss_is_spurious_if_the_answer_is_to_the_first_transmission_or_comes_too_soon() {
    let count = |pdc: &mut TxPdc, now, ack: &Ack| {
        let mut spurious = Vec::new();
        pdc.on_ack(now, ack, |psn, _, is_spurious| {
            spurious.push((psn.distance(Psn(u32::MAX - 1)), is_spurious))
        })
        .unwrap();
        spurious
    };
    let resent = || {
        let mut pdc = pdc_with(4);
        // The first packet takes 20 µs, so answers do.
        count(&mut pdc, at(20), &ack(1, 0, 0, 0, 4160));
        assert_eq!(pdc.on_timer(at(102), RTO, None, |_, _| ()), Overdue::Resend);
        pdc.resend(at(110), Entropy(0));
        pdc
    };
    let first = ack(1, 1, 1, 1, 2 * 4160);
    assert_eq!(count(&mut resent(), at(190), &first), [(1, true)], "the answer to the first transmission");
    let second = Ack { retx: true, ..first };
    assert_eq!(count(&mut resent(), at(115), &second), [(1, false)], "the answer to the retransmission");
    // That is what its RETX means in a question whether the PDC is there, which tells nothing of the transmission.
    let asks = Ack { retx: true, request: AckRequest::Clear, ..ack(2, 0, 0, 0, 2 * 4160) };
    assert_eq!(count(&mut resent(), at(129), &asks), [(1, true)], "sooner than any answer");
    assert_eq!(count(&mut resent(), at(130), &asks), [(1, false)]);
    let rtt = |ack: &Ack| resent().on_ack(at(130), ack, |_, _, _| ()).unwrap().rtt;
    assert_eq!((rtt(&asks), rtt(&second)), (None, Some(at(130).since(at(110)))));
    let beside = ack(2, 2, 0, 0, 3 * 4160);
    assert_eq!(count(&mut resent(), at(129), &beside)[0], (1, true), "sooner than any answer");
    assert_eq!(count(&mut resent(), at(130), &beside)[0], (1, false));
    assert_eq!(
        count(&mut resent(), at(190), &ack(3, 0, 1, 0, 3 * 4160)),
        [(1, false), (2, true)],
        "2 had not left"
    );
}

#[test]
fn a_missing_cack_is_requested_without_resending() {
    let mut pdc = pdc_with(2);
    // Both packets are sacked; the acknowledgement that moves CACK is lost.
    pdc.on_ack(at(20), &ack(0, 1, 1, 0b11, 2 * 4160), |_, _, _| ());
    assert!(pdc.is_idle());
    let deadline = pdc.deadline(RTO, None).unwrap();
    assert_eq!(pdc.on_timer(deadline, RTO, None, |_, _| ()), Overdue::AskForAck);
    assert!(!pdc.is_settled());
    pdc.on_ack(at(400), &ack(2, 0, 0, 0, 2 * 4160), |_, _, _| ());
    assert_eq!(pdc.deadline(RTO, None), None);
    assert!(pdc.is_settled());
}

#[test]
fn impossible_acknowledgements_are_refused() {
    let mut pdc = pdc_with(2);
    assert!(pdc.on_ack(at(1), &ack(3, 0, 0, 0, 0), |_, _, _| ()).is_none(), "CACK beyond what was sent");
    assert!(pdc.on_nack(at(1), &nack(5, NackCode::TRIMMED, false, Psn(0)), Entropy(0)).is_none());
    let before = ack(0, i16::MIN, i16::MIN, u64::MAX, u64::MAX / 512);
    assert!(pdc.on_ack(at(1), &before, |_, _, _| panic!("acknowledges nothing")).is_some());
}

/// Ages the PDC by `packets` packets that were sent and acknowledged.
fn age(pdc: &mut TxPdc, packets: u32) {
    assert!(pdc.is_idle() && pdc.cack.plus(1) == pdc.next_psn());
    pdc.records.skip(packets);
    pdc.cack = pdc.next_psn().minus(1);
    pdc.numbered += u64::from(packets);
}

#[test]
fn psns_may_wrap_many_times() {
    let mut pdc = pdc_with(0);
    assert!(pdc.is_unused());
    let kind = PacketKind::Data { send: 0, offset: 0, len: 4096 };
    for round in 1..12 {
        let psn = pdc.send_new(at(round), kind, 4160, Entropy(0));
        let said = |cack| Ack { cack_psn: cack, ..ack(0, 0, 0, 0, 0) };
        assert!(!pdc.accepts(&said(psn.plus(1))), "never sent");
        assert!(!pdc.accepts(&said(psn.minus(1 + (1 << 30) + 1))), "far behind, round {round}");
        assert!(
            pdc.on_ack(at(round), &said(psn.minus(1)), |_, _, _| panic!("acknowledges nothing")).is_some()
        );
        let mut acked = 0;
        assert!(pdc.on_ack(at(round), &said(psn), |_, _, _| acked += 1).is_some(), "round {round}");
        assert_eq!((acked, pdc.is_idle()), (1, true));
        age(&mut pdc, (1 << 29) - 1);
        assert!(!pdc.is_unused(), "also when the next PSN is the first one again");
    }
}

#[test]
fn acknowledgements_of_an_earlier_pdc_are_refused() {
    let mut pdc = pdc_with(2);
    let before_the_first = Ack { cack_psn: Psn(u32::MAX - 1).minus(2), ..ack(0, 0, 0, 0, 0) };
    assert!(!pdc.accepts(&before_the_first));
    pdc.on_ack(at(1), &ack(2, 0, 0, 0, 2 * 4160), |_, _, _| ()).unwrap();
    assert!(!pdc.accepts(&before_the_first));
    assert!(pdc.accepts(&ack(0, 0, 0, 0, 0)), "it is late, but belongs to this PDC");
}

#[test]
fn the_smallest_window_is_assumed_until_the_target_has_answered() {
    let config = PdcConfig { mp_range: 512, ..CONFIG };
    let mut pdc = TxPdc::new(&config, Addr(1), PdcId(7), DeliveryMode::Rud, Psn(u32::MAX - 1));
    let kind = PacketKind::Data { send: 0, offset: 0, len: 4096 };
    let send_all = |pdc: &mut TxPdc| {
        let mut sent = 0;
        while pdc.may_send_new() {
            pdc.send_new(at(0), kind, 4160, Entropy(0));
            sent += 1;
        }
        sent
    };
    assert_eq!(send_all(&mut pdc), 128);
    let mut answer = ack(1, 0, 0, 0, 4160);
    answer.cc.as_mut().unwrap().mpr = 3;
    pdc.on_ack(at(1), &answer, |_, _, _| ()).unwrap();
    assert_eq!(send_all(&mut pdc), 384 - 127, "one of 128 has arrived");
}

#[test]
fn a_postponed_message_waits_behind_the_others_and_rod_postpones_none() {
    for (mode, expected) in [(DeliveryMode::Rud, [1, 2, 0]), (DeliveryMode::Rod, [0, 1, 2])] {
        let mut pdc = TxPdc::new(&PdcConfig::default(), Addr(1), PdcId(5), mode, Psn(u32::MAX - 1));
        for send in 0..3 {
            let kind = PacketKind::Data { send, offset: 0, len: 100 };
            let psn = pdc.send_new(at(0), kind, 100, Entropy(0));
            pdc.mark_lost(psn);
        }
        pdc.postpone([Psn(u32::MAX - 1)]);
        let first = Psn(u32::MAX - 1);
        let order: Vec<i32> = pdc.lost.iter().map(|psn| psn.distance(first)).collect();
        assert_eq!(
            (order, pdc.lost_messages()),
            (expected.to_vec(), if mode == DeliveryMode::Rud { 3 } else { 1 })
        );
    }
}

/// Credit is asked for these bytes, and the data of a response does not travel to the target.
#[test]
fn lost_reads_count_for_what_they_carry() {
    let mut pdc = pdc_with(1);
    let kind = PacketKind::Read { send: 1, offset: 0, len: 4096 };
    (1..4).for_each(|us| _ = pdc.send_new(at(us), kind, 4160, Entropy(0)));
    pdc.lose_all();
    assert_eq!((pdc.lost_bytes(), pdc.in_flight()), (4160 + 3 * 64, 0));
    pdc.resend(at(5), Entropy(0));
    pdc.resend(at(6), Entropy(0));
    assert_eq!((pdc.lost_bytes(), pdc.in_flight()), (2 * 64, 2 * 4160));
    pdc.on_ack(at(7), &ack(4, -1, 1, 0, 0), |_, _, _| {}).unwrap();
    assert_eq!((pdc.lost_bytes(), pdc.in_flight()), (0, 0));
}

/// A PDC of whose packets the first `numbered` are acknowledged by CACK and the `behind` before PSN `next` are not.
fn long_lived(numbered: u64, next: u32, behind: u32) -> TxPdc {
    let mut pdc = TxPdc::new(&CONFIG, Addr(1), PdcId(7), DeliveryMode::Rud, Psn(next).minus(behind));
    (0..behind).for_each(|_| {
        pdc.send_new(at(0), PacketKind::Close, 0, Entropy(0));
    });
    pdc.numbered = numbered + u64::from(behind);
    pdc
}

proptest! {
    #[test]
    fn an_acknowledgement_that_is_ahead_is_accepted_without_a_look_behind(
        numbered in prop_oneof![Just(0u64), 1u64..1000, (1u64 << 30) - 2..(1 << 30) + 2, Just(1 << 40)],
        next: u32,
        behind in 1u32..100,
        cack in prop_oneof![-200i32..200, any::<i32>()],
    ) {
        let pdc = long_lived(numbered, next, behind);
        let ack = Ack { cack_psn: Psn(next).offset(cack), ..ack(0, 0, 0, 0, 0) };
        prop_assert_eq!(pdc.accepts(&ack), pdc.accepts_behind(&ack));
        let nameless = Ack { spdcid: PdcId(0), ..ack };
        prop_assert!(!pdc.accepts(&nameless));
    }

    #[test]
    fn a_packet_changes_the_bytes_in_flight_by_what_was_said_before(
        steps in prop::collection::vec((1u32..10_000, 0u32..20, 0u64..100_000), 1..40),
    ) {
        let mut pdc = pdc_with(0);
        let mut total = 0;
        for (n, (bytes, acknowledged, news)) in steps.into_iter().enumerate() {
            let (before, growth) = (pdc.in_flight(), pdc.growth(bytes));
            let kind = PacketKind::Data { send: 0, offset: 0, len: bytes };
            pdc.send_new(at(n as u64), kind, bytes, Entropy(0));
            prop_assert_eq!(pdc.in_flight(), before + growth);
            // Totals that run ahead of the packets known by number, and lag behind them.
            total += news;
            let cack = pdc.numbered as u32 - acknowledged.min(pdc.numbered as u32);
            pdc.on_ack(at(n as u64), &ack(cack, 0, 0, 0, total), |_, _, _| {});
            if acknowledged % 5 == 0 {
                pdc.lose_all();
            }
        }
    }
}

/// Packets of the window of the tests that count steps, and the most steps for each of them.
const MANY: u32 = 2_048;
const FEW_STEPS: u64 = 16;

fn pdc_with_many() -> TxPdc {
    let config = PdcConfig { mp_range: MANY, ..CONFIG };
    let mut pdc = TxPdc::new(&config, Addr(1), PdcId(7), DeliveryMode::Rud, Psn(u32::MAX - 1));
    for send in 0..MANY {
        pdc.send_new(at(0), PacketKind::Data { send, offset: 0, len: 1 }, 65, Entropy(0));
    }
    pdc
}

/// A target is silent for a timeout, and acknowledges all packets at once, or one after the other from the last one on.
#[test]
fn an_acknowledgement_of_packets_taken_for_lost_takes_few_steps_for_each() {
    let mut pdc = pdc_with_many();
    pdc.lose_all();
    let steps = crate::steps::of(|| {
        pdc.on_ack(at(1), &ack(MANY, 0, 0, 0, 0), |_, _, _| ()).unwrap();
    });
    assert!(steps <= FEW_STEPS * u64::from(MANY), "{steps}");
    assert_eq!((pdc.has_lost(), pdc.lost_bytes(), pdc.is_idle()), (false, 0, true));

    let mut pdc = pdc_with_many();
    pdc.lose_all();
    for trigger in (1..MANY as i16).rev() {
        let steps = crate::steps::of(|| {
            pdc.on_ack(at(1), &ack(0, trigger + 1, 0, 0, 0), |_, _, _| ()).unwrap();
        });
        assert!(steps <= FEW_STEPS, "{steps} for packet {trigger}");
        assert_eq!((pdc.lost_bytes(), pdc.lost_messages()), (trigger as u64 * 65, trigger as u32));
    }
    assert_eq!(pdc.peek_lost().unwrap().0, Psn(u32::MAX - 1));
    pdc.resend(at(2), Entropy(0));
    assert!(!pdc.has_lost());
}

/// They are refused in an order that is not that in which they were sent.
#[test]
fn a_packet_that_is_lost_before_others_takes_few_steps() {
    for is_postponed in [false, true] {
        let mut pdc = pdc_with_many();
        let (first, half) = (pdc.first_unacknowledged(), MANY / 2);
        (half..MANY).for_each(|n| pdc.mark_lost(first.plus(n)));
        if is_postponed {
            pdc.postpone([first.plus(MANY - 1)]);
        }
        for n in (0..half).rev().step_by(2) {
            let steps = crate::steps::of(|| pdc.mark_lost(first.plus(n)));
            assert!(steps <= FEW_STEPS, "{steps} for packet {n}");
        }
        let steps = crate::steps::of(|| pdc.lose_all());
        assert!(steps <= FEW_STEPS * u64::from(MANY), "{steps}");
        let order: Vec<_> = std::iter::from_fn(|| {
            let (psn, _) = pdc.peek_lost()?;
            pdc.resend(at(1), Entropy(0));
            Some(psn.distance(first) as u32)
        })
        .collect();
        assert!(order.into_iter().eq(0..MANY));
    }
}

/// A step of the property test below, with the numbers of the packets that it is about.
#[derive(Clone, Copy, Debug)]
enum Step {
    Lose(u32),
    LoseAll,
    Acknowledge(u32),
    Resend,
    Postpone(u32, u32),
}

fn step() -> impl Strategy<Value = Step> {
    const PACKETS: std::ops::Range<u32> = 0..40;
    prop_oneof![
        4 => PACKETS.prop_map(Step::Lose),
        1 => Just(Step::LoseAll),
        4 => PACKETS.prop_map(Step::Acknowledge),
        2 => Just(Step::Resend),
        2 => (PACKETS, PACKETS).prop_map(|(one, other)| Step::Postpone(one, other)),
    ]
}

proptest! {
    #[test]
    fn packets_are_sent_again_in_order_and_those_that_were_postponed_last(
        steps in prop::collection::vec(step(), 0..150),
    ) {
        let mut pdc = pdc_with(0);
        let first = pdc.next_psn();
        let message_of = |n: u32| n / 4;
        for n in 0..40 {
            let kind = PacketKind::Data { send: message_of(n), offset: 0, len: 1 };
            pdc.send_new(at(0), kind, 65, Entropy(0));
        }
        // The model: packets that are lost and were not postponed, those that were postponed, and those that have arrived.
        let (mut in_order, mut postponed) = (BTreeSet::new(), Vec::new());
        let mut arrived = BTreeSet::new();
        for step in steps {
            let is_in_flight = |n: &u32| {
                !in_order.contains(n) && !postponed.contains(n) && !arrived.contains(n)
            };
            match step {
                Step::Lose(n) => {
                    if is_in_flight(&n) {
                        in_order.insert(n);
                    }
                    pdc.mark_lost(first.plus(n));
                }
                Step::LoseAll => {
                    let all: Vec<_> = (0..40).filter(is_in_flight).collect();
                    in_order.extend(all);
                    pdc.lose_all();
                }
                Step::Acknowledge(n) => {
                    in_order.remove(&n);
                    postponed.retain(|other| *other != n);
                    arrived.insert(n);
                    pdc.on_ack(at(1), &ack(0, n as i16 + 1, 0, 0, 0), |_, _, _| ());
                }
                Step::Resend => {
                    let next = in_order.pop_first().or_else(|| (!postponed.is_empty()).then(|| postponed.remove(0)));
                    prop_assert_eq!(pdc.peek_lost().map(|(psn, _)| psn), next.map(|n| first.plus(n)));
                    pdc.resend(at(1), Entropy(0));
                }
                Step::Postpone(one, other) => {
                    // Packets before the first one that has not arrived are forgotten.
                    let una = (0..40).find(|n| !arrived.contains(n)).unwrap_or(40);
                    let refused = [one, other].map(|n| (n >= una).then(|| message_of(n)));
                    let is_refused = |n: &u32| refused.contains(&Some(message_of(*n)));
                    let last: BTreeSet<u32> =
                        in_order.iter().chain(&postponed).copied().filter(is_refused).collect();
                    in_order.retain(|n| !is_refused(n));
                    postponed.retain(|n| !is_refused(n));
                    postponed.extend(last);
                    pdc.postpone([one, other].map(|n| first.plus(n)));
                }
            }
            let expected: Vec<_> = in_order.iter().chain(&postponed).map(|n| first.plus(*n)).collect();
            prop_assert_eq!(pdc.peek_lost().map(|(psn, _)| psn), expected.first().copied());
            prop_assert_eq!(pdc.lost_bytes(), 65 * expected.len() as u64);
            let lost: Vec<_> = pdc.lost.iter().copied().filter(|psn| pdc.is_lost(*psn)).collect();
            prop_assert_eq!(lost, expected);
        }
    }
}
