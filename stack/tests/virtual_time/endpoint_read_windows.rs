//! Readers whose window, packet range or patience is tested: how much they keep in flight, and what they take for lost.

use crate::harness::{MTU, Pair, config_with, receive_any, untagged};
use weft_stack::buffer::Buffer;
use weft_stack::cc::CcChoice;
use weft_stack::fep::{Completion, Exposure, FepConfig, Read, Rights};
use weft_stack::{Span, Time};

const KEY: u64 = 1;
/// The time that a packet is under way.
const DELAY: Span = Span::from_us(5);

/// A pair whose endpoint 1 exposes this many bytes.
fn pair_with(config: &FepConfig, len: usize) -> Pair {
    let mut pair = Pair::new(config);
    pair.feps[1]
        .expose(
            0,
            Exposure {
                key: KEY,
                buffer: Buffer::Heap(vec![7; len]),
                base: 0,
                rights: Rights::ALL,
                from: None,
            },
        )
        .unwrap();
    pair
}

fn read(len: usize) -> Read {
    Read { buffer: Buffer::Heap(vec![0; len]), key: KEY, offset: 0, context: 0 }
}

/// Congestion control with a window of this many full packets.
fn window_of(packets: u32) -> CcChoice {
    let mut cc = CcChoice::parse("constant").unwrap();
    cc.set("window", &(packets * (MTU + 64)).to_string()).unwrap();
    cc
}

/// A path of 10 µs, which the window does not limit. The responses that have come are cleared by the requests that
/// follow them, so these need not wait until the target has reported the clear.
#[test]
fn a_reader_keeps_mp_range_requests_in_flight() {
    const RANGE: usize = 128;
    const ROUNDS: usize = 20;
    const LEN: usize = ROUNDS * RANGE * MTU as usize;
    let config = config_with(&window_of(10_000), MTU, true).with_zones(|zone| zone.pdc.mp_range = 128);
    let mut pair = pair_with(&config, LEN);
    let connection = pair.connect();
    pair.feps[0].post_read(connection, read(LEN)).unwrap();
    let done = pair.run(Time::ZERO + Span::from_ms(100), |_| Some(DELAY));
    let [(at, Completion::Read { retransmissions: 0, result: Ok(()), .. })] = &done[..] else {
        panic!("{done:?}")
    };
    let took = at.since(Time::ZERO);
    assert!(took <= DELAY.times(2 * (ROUNDS as u64 + 1)), "{took}");
}

/// The target serves other readers for 20 RTTs before the responses to a window of requests leave. Answers to messages
/// and to probes overtake them, and do not say that the target lacks the requests.
#[test]
fn reads_whose_responses_wait_in_the_target_are_not_taken_for_lost() {
    const LEN: usize = 200_000;
    let config = config_with(&window_of(32), MTU, false).with_zones(|zone| {
        zone.pdc.infer_loss = true;
        zone.pdc.rto_init = Span::from_ms(10);
    });
    let mut pair = pair_with(&config, LEN);
    let connection = pair.connect();
    let mut free_at = Time::ZERO + DELAY.times(40);
    for len in [60_000, LEN] {
        pair.feps[0].post_read(connection, read(len)).unwrap();
        pair.feps[1].post_receive(receive_any(5_000)).unwrap();
        pair.post_send(connection, untagged(vec![1; 5_000], 0));
    }
    let done = pair.run(Time::ZERO + Span::from_ms(9), |transit| {
        if !transit.is_response() {
            return Some(DELAY);
        }
        free_at = free_at.latest(transit.sent_at) + Span::from_ns(400);
        Some(free_at.since(transit.sent_at) + DELAY)
    });
    assert_eq!(done.len(), 4, "{:#?}", pair.explain());
    let counters = pair.feps[0].counters();
    assert!(counters.probes_sent > 0, "the silence is noticed");
    assert_eq!((counters.losses_inferred, counters.data_retransmitted), (0, 0), "{counters:?}");
}
