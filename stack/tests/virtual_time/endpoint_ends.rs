//! PDCs that peers open and end: half-open ones, floods of them, and many that end at a time.

use std::ops::RangeInclusive;

use crate::endpoint_limits::{begins, expose, half_write};
use crate::harness::forge::syn;
use crate::harness::{Alone, Pair, impatient_config, message, params, receive_any};
use weft_stack::cc::CcChoice;
use weft_stack::fep::{Completion, FepConfig, Limits};
use weft_stack::packet::{Addr, Packet, Payload};
use weft_stack::wire::pds::{Control, ControlKind, Destination, NackCode, PdcId, Pds, Psn};
use weft_stack::wire::ses::Ses;
use weft_stack::{Span, Time};

/// All packets between endpoints 0 and 1 arrive; those for others are lost.
fn exchange(pair: &mut Pair) {
    loop {
        let packets: Vec<_> = [0, 1].into_iter().filter_map(|side| pair.transmit(side)).collect();
        if packets.is_empty() {
            return;
        }
        packets
            .iter()
            .filter(|transit| transit.packet.net.dst.0 < 2)
            .for_each(|transit| pair.arrive(transit));
    }
}

/// SYNs from addresses where nobody answers, or whose hosts say that they have sent nothing.
#[test]
fn a_flood_of_syns_keeps_no_connection_out_and_ends_none() {
    let limits =
        Limits { pdcs: 1_000, half_open_pdcs: 400, half_open_pdcs_per_peer: 100, ..Limits::default() };
    for forged in [false, true] {
        let mut pair = Pair::new(&FepConfig { limits, ..impatient_config() });
        let mut number = 0;
        let mut flood = |pair: &mut Pair| {
            for _ in 0..3_000 {
                number += 1;
                // Of endpoint 0 itself, or of a hundred that are not there.
                let (src, pdc) = if forged { (0, 1_000 + number) } else { (100 + number % 100, number) };
                let mut packet = Packet { payload_len: 100, ..syn(src.into(), pdc, 0, 100) };
                packet.net.dst = Addr(1);
                pair.feps[1].on_packet(pair.now, &packet, Payload::Bytes(&[0; 100]));
                if number % 20 == 0 {
                    exchange(pair);
                }
            }
        };
        flood(&mut pair);
        let early = pair.connect();
        for context in 0..20 {
            pair.feps[1].post_receive(receive_any(3_000)).unwrap();
            let connection = pair.connect();
            for connection in [early, connection] {
                pair.post_send(connection, message(2_500, context));
            }
            exchange(&mut pair);
            flood(&mut pair);
        }
        let sent = pair.completions(0);
        assert_eq!(sent.len(), 40, "{forged}: {:?}", pair.explain());
        let is_sent = |done: &Completion| matches!(done, Completion::Sent { result: Ok(()), .. });
        assert!(sent.iter().all(is_sent), "{sent:?}");
        assert!(pair.feps[1].open_targets() <= 421, "{}", pair.feps[1].open_targets());
    }
}

/// Fifteen peers, of which each may have a fifteenth of all PDCs, open as many as they can, all of them shown to be there.
#[test]
fn peers_that_open_as_many_pdcs_as_they_may_leave_some_to_others() {
    let limits = Limits {
        pdcs: 600,
        pdcs_per_peer: 40,
        half_open_pdcs: 300,
        half_open_pdcs_per_peer: 20,
        ..Limits::default()
    };
    let mut alone = Alone::new(FepConfig { limits, ..impatient_config() });
    let mut open = |peer, pdcs| open_proven(&mut alone, peer, 1..=pdcs);
    let many: Vec<_> = (1..=15).map(|peer| open(peer, 60)).collect();
    assert_eq!(many, [40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 20]);
    assert_eq!([16, 17, 18].map(|peer| open(peer, 5)), [5, 5, 5], "others have as many as they need");
}

/// A peer that leaves as many PDCs as it has opens half-open ones in the names of hosts that are not there, and then tries to
/// have their places, both while there is room and when there is none for half-open PDCs.
#[test]
fn a_peer_gets_no_more_pdcs_by_half_open_ones_that_it_makes_itself() {
    for most_half_open in [60, 40] {
        let mut alone = Alone::new(FepConfig { limits: few_pdcs(most_half_open), ..impatient_config() });
        assert_eq!(open_proven(&mut alone, 1, 1..=80), 50);
        assert_eq!(open_half_way(&mut alone, 101..=104, 10), [10, 10, 10, 10]);
        alone.now += Span::from_ms(10);
        assert_eq!(open_proven(&mut alone, 1, 81..=160), 0, "it would leave less than it has");
        assert_eq!(open_proven(&mut alone, 2, 1..=80), 25, "another one has half of the rest");
    }
}

/// Where half-open PDCs whose initiators do not answer stand in the way, peers have as many as without them.
#[test]
fn half_open_pdcs_leave_a_peer_its_part() {
    let mut alone = Alone::new(FepConfig { limits: few_pdcs(60), ..impatient_config() });
    assert_eq!(open_proven(&mut alone, 1, 1..=40), 40);
    // Ten of them are not asked, as there are few PDCs yet: they stay, and are no part of the rest.
    assert_eq!(open_half_way(&mut alone, 101..=103, 10), [10, 10, 10]);
    assert_eq!(open_proven(&mut alone, 1, 41..=80), 0, "they have had no time to answer");
    alone.now += Span::from_ms(10);
    assert_eq!(open_proven(&mut alone, 1, 41..=80), 5);
}

/// Limits with 100 PDCs, 80 of one peer.
fn few_pdcs(half_open_pdcs: usize) -> Limits {
    Limits { pdcs: 100, pdcs_per_peer: 80, half_open_pdcs, half_open_pdcs_per_peer: 20, ..Limits::default() }
}

/// Peers `names` open so many PDCs each, and never name them. Returns how many each has got.
fn open_half_way(alone: &mut Alone, names: RangeInclusive<u32>, pdcs: u16) -> Vec<usize> {
    let mut opens = |peer, pdc| {
        alone.arrive(&syn(peer, pdc, 0, 100), &[0; 100]);
        matches!(alone.transmit_all()[0].pds, Pds::Ack(_))
    };
    names.map(|peer| (1..=pdcs).filter(|pdc| opens(peer, *pdc)).count()).collect()
}

/// A peer tries to open these PDCs, and names those that it gets, so that they are not half-open. Returns how many it has got.
fn open_proven(alone: &mut Alone, peer: u32, pdcs: RangeInclusive<u16>) -> usize {
    let opens = |pdc: &u16| {
        alone.arrive(&syn(peer, *pdc, 0, 100), &[0; 100]);
        let answers = alone.transmit_all();
        match &answers[0].pds {
            Pds::Nack(nack) => {
                assert_eq!(nack.code, NackCode::NO_PDC_AVAIL);
                false
            }
            Pds::Ack(ack) => {
                let mut next = Packet { payload_len: 100, ..syn(peer, *pdc, 1, 100) };
                let Pds::Request(request) = &mut next.pds else { unreachable!() };
                request.destination = Destination::Pdc(ack.spdcid);
                alone.arrive(&next, &[0; 100]);
                assert!(matches!(alone.transmit_all()[0].pds, Pds::Ack(_)));
                true
            }
            other => panic!("{other:?}"),
        }
    };
    pdcs.filter(opens).count()
}

/// SYNs from addresses where nobody answers, each followed by a packet that names the PDC as the next one would be if
/// PDCIDs were given in turn: as an initiator would that has seen the answer.
#[test]
fn a_flood_of_syns_with_guessed_pdcids_keeps_no_connection_out() {
    let mut pair = Pair::impatient();
    let early = pair.connect();
    for number in 0..60_000u32 {
        let (src, pdc) = (100 + number % 100, (1 + number / 100) as u16);
        let mut packet = Packet { payload_len: 100, ..syn(src, pdc, 0, 100) };
        packet.net.dst = Addr(1);
        pair.feps[1].on_packet(pair.now, &packet, Payload::Bytes(&[0; 100]));
        let control = Control {
            kind: ControlKind::ClearCommand,
            rod: false,
            retx: false,
            ack_request: false,
            probe_opaque: 0,
            psn: Psn(0),
            spdcid: PdcId(pdc),
            destination: Destination::Pdc(PdcId((number + 1) as u16)),
            payload: 0,
        };
        let guess = Packet { payload_len: 0, pds: Pds::Control(control), ses: Ses::None, ..packet };
        pair.feps[1].on_packet(pair.now, &guess, Payload::EMPTY);
        if number % 20 == 0 {
            exchange(&mut pair);
        }
    }
    let limits = Limits::default();
    let most = limits.half_open_pdcs + 1_024 + 100;
    assert!(pair.feps[1].open_targets() <= most, "{} PDCs of strangers", pair.feps[1].open_targets());
    for connection in [early, pair.connect()] {
        pair.feps[1].post_receive(receive_any(3_000)).unwrap();
        pair.post_send(connection, message(2_500, 0));
    }
    exchange(&mut pair);
    let sent = pair.completions(0);
    let is_sent = |done: &Completion| matches!(done, Completion::Sent { result: Ok(()), .. });
    assert_eq!(sent.iter().filter(|done| is_sent(done)).count(), 2, "{sent:?}: {:?}", pair.explain());
}

/// Each SYN asks for another PDC of the same name.
#[test]
fn syns_that_replace_each_other_leave_no_memory_behind() {
    let mut alone = Alone::impatient();
    let mut after = Vec::new();
    for round in 0..4u32 {
        for n in 0..50_000 {
            let mut packet = syn(5, 1, 0, 3_000);
            let Pds::Request(request) = &mut packet.pds else { unreachable!() };
            request.psn = Psn((round * 50_000 + n) << 12);
            alone.arrive(&packet, &[0; 100]);
            alone.transmit_all();
            alone.now += Span::from_us(1);
            if alone.fep.poll_timeout().is_some_and(|at| alone.now.is_at_or_after(at)) {
                alone.fep.on_timeout(alone.now);
            }
        }
        after.push(alone.fep.footprint().total());
    }
    // The names of those that were replaced in the last 100 ms, and timers: 200,000 PDCs would be 48 MB.
    assert!(after.iter().all(|bytes| *bytes < 1 << 20), "{after:?}");
}

/// A peer opens many PDCs, each with messages of which parts are missing, and falls silent. All are to end at the time of the next
/// call. Those that are heard of before their turn stay, and end together later.
#[test]
fn pdcs_of_a_silent_peer_end_in_several_calls() {
    const PDCS: u16 = 100;
    let idle = Span::from_ms(10);
    let mut alone = Alone::new(FepConfig { idle_timeout: idle, ..impatient_config() });
    for pdc in 1..=PDCS {
        (0..3).for_each(|msg_id| alone.arrive(&syn(5, pdc, msg_id, 3_000), &[0; 100]));
        alone.transmit_all();
        alone.now += Span::from_us(1);
    }
    let over = Time::ZERO + idle.times(2);
    while let Some(due) = alone.fep.poll_timeout().filter(|at| at.is_before(over)) {
        alone.expire_at(due);
        alone.transmit_all();
    }
    assert_eq!(alone.leaks(), ["300 messages on their way in", "100 PDCs of peers"]);
    // One call; returns how many PDCs end in it.
    let call = |alone: &mut Alone| {
        let before = alone.fep.open_targets();
        alone.fep.on_timeout(alone.now);
        alone.transmit_all();
        before - alone.fep.open_targets()
    };
    let is_due = |alone: &Alone| alone.fep.poll_timeout().is_some_and(|at| alone.now.is_at_or_after(at));
    alone.now = over + Span::from_us(u64::from(PDCS));
    for _ in 0..3 {
        assert_eq!((is_due(&alone), call(&mut alone)), (true, 8));
    }
    let heard = alone.now;
    for pdc in 1..=PDCS {
        alone.arrive(&syn(5, pdc, 0, 3_000), &[0; 100]);
    }
    alone.transmit_all();
    while is_due(&alone) {
        assert_eq!(call(&mut alone), 0);
    }
    assert_eq!(alone.leaks(), ["228 messages on their way in", "76 PDCs of peers"]);
    let mut ended = Vec::new();
    while alone.fep.open_targets() > 0 {
        let due = alone.fep.poll_timeout().expect("PDCs have timers");
        alone.now = due.latest(alone.now);
        ended.push(call(&mut alone));
    }
    ended.retain(|ended| *ended > 0);
    assert_eq!(ended, [&[8; 9][..], &[4]].concat());
    assert_eq!((alone.now, alone.leaks()), (heard + idle.times(2), vec![]));
}

/// The CLOSE_CMD of a PDC of `src` of which so many packets have arrived.
pub(crate) fn close_command(src: u32, pdc: u16, packets: u16) -> Packet {
    control(ControlKind::CloseCommand, src, pdc, packets)
}

fn control(kind: ControlKind, src: u32, pdc: u16, packets: u16) -> Packet {
    let control = Control {
        kind,
        rod: false,
        retx: false,
        ack_request: false,
        probe_opaque: 0,
        psn: Psn(packets.into()),
        spdcid: PdcId(pdc),
        destination: Destination::Syn { use_reserved: false, psn_offset: packets },
        payload: 0,
    };
    Packet { payload_len: 0, pds: Pds::Control(control), ses: Ses::None, ..syn(src, pdc, 0, 0) }
}

/// The peer opens PDCs 1 to `pdcs`, each with the first packets of so many messages.
fn begin_messages(alone: &mut Alone, pdcs: u16, messages: u16) {
    for pdc in 1..=pdcs {
        (0..messages).for_each(|msg_id| alone.arrive(&syn(5, pdc, msg_id, 3_000), &[0; 100]));
        alone.transmit_all();
    }
}

/// How many PDCs end in each call of `on_timeout` that is due now.
fn ends_by_call(alone: &mut Alone) -> Vec<usize> {
    let mut ended = Vec::new();
    while alone.fep.poll_timeout().is_some_and(|at| alone.now.is_at_or_after(at)) {
        let before = alone.fep.open_targets();
        alone.fep.on_timeout(alone.now);
        ended.push(before - alone.fep.open_targets());
        assert!(ended.len() < 1_000, "something is always due");
    }
    ended
}

/// Packets that arrive together may close as many PDCs: those in the middle of many messages end a few in each later call.
#[test]
fn pdcs_that_are_closed_in_the_middle_of_many_messages_end_in_several_calls() {
    const PDCS: u16 = 20;
    let mut alone = Alone::new(impatient_config());
    alone.now += Span::from_us(1);
    begin_messages(&mut alone, PDCS, 20);
    for pdc in 1..=PDCS {
        alone.arrive(&close_command(5, pdc, 20), &[]);
        let answers = alone.transmit_all();
        assert!(matches!(&answers[..], [Packet { pds: Pds::Ack(ack), .. }] if ack.cack_psn == Psn(20)));
    }
    assert_eq!(alone.fep.open_targets(), 20);
    // A copy that comes before they have ended is acknowledged again: the first acknowledgement may have been lost.
    alone.arrive(&close_command(5, 20, 20), &[]);
    let answers = alone.transmit_all();
    assert!(
        matches!(&answers[..], [Packet { pds: Pds::Ack(ack), .. }] if ack.cack_psn == Psn(20)),
        "{answers:?}"
    );
    // A second command, and a SYN for another PDC, change nothing.
    let another = |pdc| {
        let mut packet = syn(5, pdc, 0, 100);
        let Pds::Request(request) = &mut packet.pds else { unreachable!() };
        request.psn = Psn(100_000);
        packet
    };
    let ignored = alone.fep.counters().ignored;
    for packet in [close_command(5, 20, 21), another(20)] {
        alone.arrive(&packet, &[0; 100][..packet.payload_len as usize]);
        assert_eq!(alone.transmit_all().len(), 0);
    }
    assert_eq!(alone.fep.counters().ignored - ignored, 2);
    assert_eq!(ends_by_call(&mut alone), [8, 8, 4]);
    assert_eq!(alone.leaks(), [""; 0]);
    alone.arrive(&another(20), &[0; 100]);
    assert_eq!(alone.fep.open_targets(), 1);
}

/// Writes that have not ended count as messages do.
#[test]
fn pdcs_that_are_closed_in_the_middle_of_many_writes_end_in_several_calls() {
    const PDCS: u16 = 20;
    let mut alone = Alone::new(impatient_config());
    expose(&mut alone);
    alone.now += Span::from_us(1);
    for pdc in 1..=PDCS {
        // The first packet comes last, so that all of them count.
        let mut psns = (1..=20).chain([0]);
        assert!(psns.all(|psn| begins(&mut alone, &half_write(5, pdc, psn))));
        alone.arrive(&close_command(5, pdc, 21), &[]);
        alone.transmit_all();
    }
    assert_eq!(alone.fep.open_targets(), usize::from(PDCS));
    assert_eq!(ends_by_call(&mut alone), [8, 8, 4]);
    assert_eq!(alone.fep.open_targets(), 0);
}

/// Nobody has to wait for one more call who leaves a few messages behind, as an initiator that aborts may do.
#[test]
fn a_pdc_that_is_closed_in_the_middle_of_a_few_messages_ends_at_once() {
    let mut alone = Alone::new(impatient_config());
    begin_messages(&mut alone, 1, 16);
    alone.arrive(&close_command(5, 1, 16), &[]);
    assert_eq!((alone.fep.open_targets(), alone.leaks().len()), (0, 0));
}

/// The messages that go with PDCs in one call have a bound, too.
#[test]
fn pdcs_with_windows_full_of_messages_end_in_more_calls() {
    let mut alone = Alone::new(impatient_config());
    alone.now += Span::from_us(1);
    begin_messages(&mut alone, 7, 500);
    (1..=7).for_each(|pdc| alone.arrive(&close_command(5, pdc, 500), &[]));
    assert_eq!(ends_by_call(&mut alone), [5, 2]);
    assert_eq!(alone.leaks(), [""; 0]);
}

/// Whoever knows that a peer is gone may give it up with all its PDCs at once. Those of which something is heard before their turn
/// stay, and those of others.
#[test]
fn pdcs_of_a_peer_that_is_given_up_end_in_several_calls() {
    const PDCS: u16 = 100;
    let silence = Span::from_ms(2);
    let mut alone = Alone::new(impatient_config());
    begin_messages(&mut alone, PDCS, 3);
    (0..3).for_each(|msg_id| alone.arrive(&syn(6, 1, msg_id, 3_000), &[0; 100]));
    alone.transmit_all();
    alone.now += silence;
    alone.fep.give_up_peer(alone.now, Addr(5), silence);
    assert_eq!(alone.fep.open_targets(), usize::from(PDCS) + 1);
    for left in [93, 85] {
        alone.fep.on_timeout(alone.now);
        assert_eq!(alone.fep.open_targets(), left);
    }
    let late = 80;
    alone.now += Span::from_us(1);
    (late..=PDCS).for_each(|pdc| alone.arrive(&syn(5, pdc, 3, 3_000), &[0; 100]));
    alone.transmit_all();
    assert_eq!(ends_by_call(&mut alone), [&[8; 7][..], &[7]].concat());
    let stay = usize::from(PDCS - late) + 1;
    assert_eq!(
        alone.leaks(),
        [format!("{} messages on their way in", 4 * stay + 3), format!("{} PDCs of peers", stay + 1)]
    );
}

/// Peer 6 has 2,000 PDCs, and peer 5 three.
fn with_many_pdcs() -> Alone {
    let mut alone = Alone::new(impatient_config());
    for pdc in 1..=2_000 {
        alone.arrive(&syn(6, pdc, 0, 3_000), &[0; 100]);
        alone.transmit_all();
    }
    begin_messages(&mut alone, 3, 1);
    alone
}

/// A peer with few PDCs is found among those of others in as many calls as that takes.
#[test]
fn the_pdcs_of_a_peer_that_is_given_up_are_looked_for_in_several_calls() {
    let silence = Span::from_ms(2);
    let mut alone = with_many_pdcs();
    alone.now += silence;
    for peer in [7, 5] {
        alone.fep.give_up_peer(alone.now, Addr(peer), silence);
    }
    assert_eq!(ends_by_call(&mut alone), [0, 3]);
    assert_eq!(alone.fep.open_targets(), 2_000);
}

/// A peer that is heard of again and again, and given up as often before all PDCs have been looked at.
#[test]
fn a_peer_that_is_given_up_many_times_is_looked_for_once_more() {
    let silence = Span::from_ms(2);
    let mut alone = with_many_pdcs();
    // None has been silent for so long.
    for _ in 0..10 {
        alone.fep.give_up_peer(alone.now, Addr(6), silence);
    }
    assert_eq!(ends_by_call(&mut alone), [0, 0]);
    // Those that are silent are found also where an earlier search has passed them.
    alone.fep.give_up_peer(alone.now, Addr(6), silence);
    alone.fep.on_timeout(alone.now);
    alone.now += silence;
    alone.fep.give_up_peer(alone.now, Addr(6), silence);
    alone.fep.on_timeout(alone.now);
    assert_eq!(alone.fep.open_targets(), 2_003 - 8);
    assert_eq!(ends_by_call(&mut alone).iter().sum::<usize>(), 2_000 - 8);
}

/// All PDCs of a peer that is silent are to be asked about at the same time.
#[test]
fn silent_peers_are_asked_in_several_calls() {
    const PDCS: u16 = 200;
    let idle = Span::from_ms(10);
    let mut alone = Alone::new(FepConfig { idle_timeout: idle, ..impatient_config() });
    begin_messages(&mut alone, PDCS, 1);
    alone.now = Time::ZERO + idle + Span::from_us(1);
    let mut asked = Vec::new();
    while alone.fep.poll_timeout().is_some_and(|at| alone.now.is_at_or_after(at)) {
        alone.fep.on_timeout(alone.now);
        asked.push(alone.transmit_all().len());
        assert!(asked.len() < 1_000, "something is always due");
    }
    assert_eq!(asked, [64, 64, 64, 8]);
    assert_eq!(alone.fep.open_targets(), usize::from(PDCS));
}

/// Requests for credit in the names of many hosts, none of which opens a PDC.
#[test]
fn hosts_that_asked_for_credit_and_are_silent_are_forgotten_in_several_calls() {
    let idle = Span::from_ms(10);
    let config = FepConfig::new(&CcChoice::parse("rccc").unwrap(), &params());
    let mut alone = Alone::new(FepConfig { idle_timeout: idle, ..config });
    for host in 5..205 {
        alone.arrive(&control(ControlKind::CreditRequest, host, 1, 0), &[]);
        alone.transmit_all();
    }
    let mut left = Vec::new();
    for time in 1..=2 {
        alone.now = Time::ZERO + idle.times(time);
        while alone.fep.poll_timeout().is_some_and(|at| alone.now.is_at_or_after(at)) {
            alone.fep.on_timeout(alone.now);
            alone.transmit_all();
            left.extend(alone.leaks());
            assert!(left.len() < 1_000, "something is always due");
        }
    }
    let known = |count| format!("{count} senders known to the credit scheduler");
    assert_eq!(left, [200, 136, 72, 8].map(known));
    assert_eq!((alone.leaks(), alone.fep.poll_timeout()), (vec![], None));
}

/// SYNs in the names of many hosts, of which each makes an older PDC give way, and PDCs that are closed as soon as they are open.
#[test]
fn pdcs_that_are_gone_leave_no_timers_behind() {
    const MOST: usize = 100;
    let limits = Limits { pdcs: MOST, half_open_pdcs: 40, ..Limits::default() };
    let mut alone = Alone::new(FepConfig { limits, ..impatient_config() });
    for src in 1..10_000 {
        alone.arrive(&syn(src, 1, 0, 100), &[0; 100]);
    }
    for pdc in 1..10_000 {
        alone.arrive(&syn(10_000, pdc, 0, 100), &[0; 100]);
        alone.arrive(&close_command(10_000, pdc, 1), &[]);
        alone.transmit_all();
    }
    assert!(alone.fep.open_targets() <= MOST);
    // Those that are there are asked once they have been idle, and given up.
    let timers = alone.fep.footprint().timers;
    assert!(timers < 64 * MOST as u64 + 2_048, "{timers} bytes of timers for {MOST} PDCs");
    alone.run(Span::from_ms(60_000), |_| None);
    assert_eq!(alone.leaks().iter().filter(|what| what.contains("PDC")).count(), 0, "{:?}", alone.leaks());
}
