//! A target remembers a PDC for a time after it has last heard of its initiator. An initiator that has never had an
//! answer sends nothing for which that memory may be too short: its packets would open the PDC again, and their
//! messages would be delivered twice.

use crate::harness::{Pair, RTO, Transit, params, receive_any, untagged};
use weft_stack::cc::{CcChoice, CcParams};
use weft_stack::fep::{Completion, Failure, FepConfig};
use weft_stack::wire::pds::Pds;
use weft_stack::{Span, Time};

/// A configuration whose targets forget a silent initiator after two of these, and a packet's life after that.
const IDLE: Span = Span::from_ms(2);
const LIFETIME: Span = Span::from_us(10);

fn config(busy_timeout: Span) -> FepConfig {
    let network = CcParams { mtu: 1_000, network_rtt: Span::from_us(2), ..params() };
    // One packet at a time.
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", "1").unwrap();
    let base = FepConfig::new(&cc, &network);
    FepConfig {
        idle_timeout: IDLE,
        time_wait: LIFETIME,
        busy_timeout: busy_timeout.into(),
        ..base.with_zones(|zone| (zone.pdc.rto_init, zone.pdc.max_retries) = (RTO, 12))
    }
}

fn received(pair: &mut Pair) -> usize {
    let all = pair.completions(1);
    all.iter().filter(|completion| matches!(completion, Completion::Received { result: Ok(()), .. })).count()
}

/// The first connection that is given up. Idle ones that their target closes are not.
fn failure(done: &[(Time, Completion)]) -> Option<(Time, Failure)> {
    done.iter().find_map(|(at, completion)| match completion {
        Completion::Closed { result: Err(Failure::ClosedByPeer { .. }), .. } => None,
        Completion::Closed { result: Err(failure), .. } => Some((*at, *failure)),
        _ => None,
    })
}

/// The first packet arrives, but no answer. Later packets arrive once the target has forgotten the first.
#[test]
fn a_message_is_not_delivered_again_after_its_target_has_forgotten_the_initiator() {
    let mut pair = Pair::new(&config(IDLE.times(10)));
    for _ in 0..2 {
        pair.feps[1].post_receive(receive_any(100)).unwrap();
    }
    let connection = pair.connect();
    pair.post_send(connection, untagged(vec![1; 100], 0));
    let healed = Time::ZERO + IDLE.times(2) + LIFETIME.times(2);
    let done = pair.run(Time::ZERO + IDLE.times(20), |transit| {
        let forth = transit.packet.net.dst.0 == 1;
        let passes = forth && (transit.sent_at == Time::ZERO || transit.sent_at.is_at_or_after(healed));
        passes.then_some(Span::from_us(1))
    });
    assert_eq!(received(&mut pair), 1);
    let (at, failure) = failure(&done).expect("there is no answer");
    assert!(matches!(failure, Failure::NoAnswer { sent: 2.., .. }), "{failure}");
    assert!(at.since(Time::ZERO) <= IDLE.times(2) + RTO, "{at:?}");
}

/// A connection that waits for its turn has no timer of its own. Here the others of its context get on, but so slowly
/// that its turn comes when its target has forgotten it.
#[test]
fn a_connection_whose_turn_comes_too_late_is_given_up_instead_of_sent_again() {
    let mut pair = Pair::new(&config(IDLE));
    let connections: Vec<_> = (0..100).map(|_| pair.connect()).collect();
    for _ in 0..=connections.len() {
        pair.feps[1].post_receive(receive_any(100)).unwrap();
    }
    for (n, connection) in connections.iter().enumerate() {
        pair.post_send(*connection, untagged(vec![n as u8; 100], n as u64));
    }
    let slow = RTO.mul_f64(0.9);
    let is_data = |transit: &Transit| matches!(transit.packet.pds, Pds::Request(_));
    let done = pair.run(Time::ZERO + IDLE.times(20), |transit| match is_data(transit) {
        true => Some(Span::from_us(1)),
        // The answer to the first packet is lost; those to others take long.
        false => (transit.sent_at.since(Time::ZERO) > Span::from_us(5)).then_some(slow),
    });
    let sent = done.iter().filter(|(_, c)| matches!(c, Completion::Sent { result: Ok(()), .. })).count();
    assert_eq!((received(&mut pair), sent), (connections.len(), connections.len() - 1));
    assert!(matches!(failure(&done), Some((_, Failure::NoProgress { .. }))), "{:?}", failure(&done));
}
