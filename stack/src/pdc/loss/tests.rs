use super::*;
use crate::packet::Addr;
use crate::pdc::{PacketKind, PdcConfig};
use crate::spray::Entropy;
use crate::wire::pds::{
    Ack, AckCc, AckRequest, AckTrigger, CcState, DeliveryMode, NextHeader, NsccState, PdcId,
};

fn at(us: u64) -> Time {
    Time::ZERO + Span::from_us(us)
}

const REACH: Span = Span::from_us(100);
const PATIENCE: Patience =
    Patience { reach: REACH, quiet: Span::from_us(150), longest_rest: Span::from_ms(20) };

/// Packets that were sent one every microsecond from time 0 on.
fn sent(packets: u32) -> TxPdc {
    let config = PdcConfig { mp_range: 512, ..PdcConfig::default() };
    let mut pdc = TxPdc::new(&config, Addr(1), PdcId(1), DeliveryMode::Rud, Psn(0));
    for i in 0..packets {
        send(&mut pdc, u64::from(i));
    }
    pdc
}

fn send(pdc: &mut TxPdc, us: u64) {
    pdc.send_new(at(us), PacketKind::Data { send: 0, offset: 0, len: 1 }, 100, Entropy(0));
}

/// An acknowledgement of all packets before `next` and those of the bitmap that begins there, of which the target
/// holds `held` in all. `trigger` is the packet that it answers.
fn ack(next: u32, bits: u64, held: u16, trigger: AckTrigger) -> Ack {
    Ack {
        next: NextHeader::None,
        ecn: false,
        retx: false,
        request: AckRequest::None,
        trigger,
        cack_psn: Psn(next).minus(1),
        spdcid: PdcId(1),
        dpdcid: PdcId(1),
        cc: Some(AckCc {
            flags: 0,
            mpr: 4,
            sack_psn_offset: 1,
            sack_bitmap: bits,
            state: CcState::Nscc(NsccState { ooo_count: held, rcv_cwnd_pend: 0x7f, ..NsccState::default() }),
        }),
    }
}

/// Takes in `ack` and returns the packets that are inferred lost.
fn inferred(pdc: &mut TxPdc, now: Time, ack: &Ack) -> Vec<u32> {
    let outcome = pdc.on_ack(now, ack, |_, _, _| ()).unwrap();
    let mut lost = Vec::new();
    if outcome.rtt.is_some() {
        let evidence = pdc.evidence(ack);
        pdc.infer_losses(now, evidence, REACH, |psn, _| lost.push(psn.0));
    }
    lost
}

/// The answer to packet 4 of those before `next`.
fn answer(next: u32, bits: u64, held: u16, trigger: u32) -> Ack {
    ack(next, bits, held, AckTrigger::Psn((trigger + 1 - next) as i16))
}

#[test]
fn a_packet_is_lost_once_it_is_older_than_any_answer_takes() {
    let mut pdc = sent(5);
    // 0 has been overtaken by 2 and 3, but may be on its way still.
    assert_eq!(inferred(&mut pdc, at(60), &answer(0, 0b1100, 2, 3)), [0; 0]);
    assert_eq!(inferred(&mut pdc, at(100), &answer(0, 0b1_1100, 3, 4)), [0], "1 is not old enough");
    assert!(pdc.is_in_flight(Psn(1)));
}

/// The bitmap tells of 64 packets; of others the acknowledgement says nothing, unless nothing is unknown.
#[test]
fn a_packet_outside_the_bitmap_is_judged_only_if_all_that_the_target_holds_is_known() {
    let late = |held| {
        let mut pdc = sent(200);
        let far = Ack { cack_psn: Psn(0), ..answer(1, 0, held, 150) };
        let cc = AckCc { sack_psn_offset: 100, sack_bitmap: 1 << 50, ..far.cc.unwrap() };
        inferred(&mut pdc, at(300), &Ack { cc: Some(cc), ..far })
    };
    assert_eq!(late(1).len(), 198, "the target holds 0 and 150, and nothing else");
    assert_eq!(
        late(2),
        (100..164).filter(|psn| *psn != 150).collect::<Vec<_>>(),
        "it holds one that is not named"
    );
}

#[test]
fn packets_sent_again_are_judged_by_their_last_transmission() {
    let mut pdc = sent(3);
    assert_eq!(inferred(&mut pdc, at(100), &answer(0, 0b100, 1, 2)), [0]);
    pdc.resend(at(100), Entropy(0));
    send(&mut pdc, 101);
    assert_eq!(inferred(&mut pdc, at(110), &answer(0, 0b1100, 2, 3)), [1]);
    pdc.resend(at(110), Entropy(0));
    send(&mut pdc, 150);
    assert_eq!(inferred(&mut pdc, at(205), &answer(0, 0b1_1100, 3, 4)), [0], "1 has 5 µs left");
}

/// A path that swallows a packet again and again is not fed at the pace of round trips.
#[test]
fn a_packet_that_is_lost_again_and_again_is_judged_ever_later() {
    let mut pdc = sent(1);
    let (mut now, mut waits) = (0, Vec::new());
    for _ in 0..10 {
        let since = pdc.record(Psn(0)).unwrap().sent_at;
        let lost_at = loop {
            now += 10;
            // An answer to a probe every 10 µs, however it came about.
            pdc.recovery.probes = Some(Sent { at: at(now - 10), first: 0, waiting: 1, in_vain: 0 });
            if inferred(&mut pdc, at(now), &ack(0, 0, 0, AckTrigger::Probe(0))) == [0] {
                break at(now);
            }
        };
        waits.push(lost_at.since(since).as_ps() / Span::from_us(1).as_ps());
        pdc.resend(lost_at, Entropy(0));
    }
    assert_eq!(waits, [100, 100, 200, 400, 800, 1_600, 3_200, 6_400, 6_400, 6_400]);
}

#[test]
fn a_probe_asks_about_each_64_packets_that_have_one_overtaken_and_overdue() {
    let mut pdc = sent(200);
    // All have arrived but 0, 3, 63, 64 and 140, and 199; the answers were lost but for one that names few.
    inferred(&mut pdc, at(90), &answer(0, 0b10, 193, 1));
    let due = |pdc: &mut TxPdc, us| pdc.poll_probes(at(us), &PATIENCE);
    assert_eq!(due(&mut pdc, 99), ProbesDue::At(at(100)), "0 was overtaken by 1, the others by none");
    let ProbesDue::Now(probes) = due(&mut pdc, 100) else { panic!() };
    assert_eq!(probes.iter().map(|(base, _)| base.0).collect::<Vec<_>>(), [0]);
    let (_, opaque) = probes.iter().next().unwrap();
    let answered = ack(0, !(1 | 1 << 3 | 1 << 63), 194, AckTrigger::Probe(opaque));
    assert_eq!(inferred(&mut pdc, at(125), &answered), [0, 3]);
    pdc.on_news();
    assert!(pdc.is_in_flight(Psn(63)), "it is younger than any answer takes");
    assert_eq!(due(&mut pdc, 163), ProbesDue::At(at(200)), "one reach after the last probe");
    let ProbesDue::Now(probes) = due(&mut pdc, 200) else { panic!() };
    assert_eq!(probes.iter().map(|(base, _)| base.0).collect::<Vec<_>>(), [63], "until 100 µs");
    assert_eq!(due(&mut pdc, 290), ProbesDue::At(at(300)));
}

#[test]
fn the_end_of_what_was_sent_is_probed_after_a_silence() {
    let mut pdc = sent(4);
    inferred(&mut pdc, at(20), &answer(2, 0, 0, 1));
    assert_eq!(pdc.probe_not_before(&PATIENCE), Some(at(153)), "150 µs after the last packet left");
    let due = |pdc: &mut TxPdc, us| pdc.poll_probes(at(us), &PATIENCE);
    assert_eq!(due(&mut pdc, 152), ProbesDue::At(at(153)));
    let ProbesDue::Now(probes) = due(&mut pdc, 153) else { panic!() };
    let (base, opaque) = probes.iter().next().unwrap();
    assert_eq!(base, Psn(2));
    assert_eq!(inferred(&mut pdc, at(190), &ack(2, 0, 0, AckTrigger::Probe(opaque))), [2, 3]);
    assert_eq!(pdc.poll_probes(at(190), &PATIENCE), ProbesDue::Never, "nothing is in flight");
}

#[test]
fn probes_in_vain_back_off_and_news_end_that() {
    let mut pdc = sent(2);
    inferred(&mut pdc, at(10), &answer(1, 0, 0, 0));
    let (mut now, mut sent) = (10, Vec::new());
    while sent.len() < 11 {
        match pdc.poll_probes(at(now), &PATIENCE) {
            ProbesDue::Now(_) => sent.push(now),
            ProbesDue::At(at) => now = at.since(Time::ZERO).as_ps() / Span::from_us(1).as_ps(),
            ProbesDue::Never => panic!("a packet is in flight"),
        }
    }
    let gaps: Vec<_> = sent.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps, [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 20_000, 20_000]);
    pdc.on_news();
    assert_eq!(pdc.poll_probes(at(now + 99), &PATIENCE), ProbesDue::At(at(now + 100)));
}

#[test]
fn each_answer_to_a_probe_is_an_rtt_once() {
    let mut pdc = sent(1);
    let ProbesDue::Now(probes) = pdc.poll_probes(at(200), &PATIENCE) else { panic!() };
    let (_, opaque) = probes.iter().next().unwrap();
    let rtt = |pdc: &mut TxPdc, opaque| {
        pdc.on_ack(at(230), &ack(0, 0, 0, AckTrigger::Probe(opaque)), |_, _, _| ()).unwrap().rtt
    };
    assert_eq!(rtt(&mut pdc, opaque.wrapping_add(1)), None);
    assert_eq!(rtt(&mut pdc, opaque.wrapping_sub(1)), None);
    assert_eq!(rtt(&mut pdc, opaque), Some(Span::from_us(30)));
    assert_eq!(rtt(&mut pdc, opaque), None, "a copy");
}

fn send_read(pdc: &mut TxPdc, us: u64) {
    pdc.send_new(at(us), PacketKind::Read { send: 0, offset: 0, len: 1 }, 100, Entropy(0));
}

/// The responses to reads wait at the target behind others. Answers that do not carry data overtake them.
#[test]
fn reads_are_judged_by_answers_with_data_only() {
    let reading = || {
        let mut pdc = sent(0);
        (0..4).for_each(|us| send_read(&mut pdc, us));
        send(&mut pdc, 4);
        pdc
    };
    let with_data = |ack| Ack { next: NextHeader::ResponseData, ..ack };
    let mut pdc = reading();
    assert_eq!(inferred(&mut pdc, at(200), &answer(0, 0b1_0000, 0, 4)), [0; 0], "4 is a message");
    assert_eq!(inferred(&mut pdc, at(210), &with_data(answer(0, 0b1_0100, 0, 2))), [0, 1, 3], "2 is a read");
    let mut pdc = reading();
    let early = with_data(answer(0, 0b0100, 0, 2));
    assert_eq!(inferred(&mut pdc, at(103), &early), [0, 1, 3], "the message has another µs");
}

/// `ooo_count` begins at the first packet that is missing, behind those whose responses are stored.
#[test]
fn a_target_with_stored_responses_is_definite_about_its_bitmap_only() {
    let mut pdc = sent(0);
    (0..64).for_each(|us| send_read(&mut pdc, us));
    (64..200).for_each(|us| send(&mut pdc, us));
    // The target holds all, and the bitmap would name the first 64, but for their responses.
    pdc.recovery.probes = Some(Sent { at: at(490), first: 0, waiting: 1, in_vain: 0 });
    let answer = Ack { request: AckRequest::Clear, ..ack(0, 0, 0, AckTrigger::Probe(0)) };
    assert_eq!(inferred(&mut pdc, at(500), &answer), [0; 0]);
}
