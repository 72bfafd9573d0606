//! RCCC against schedules worked out by hand.
//!
//! 100 Gbit/s · 0.99: 16 KiB take 131,072 bit / 99 Gbit/s = 1,323,959.6 ps.

use super::*;
use crate::{Rate, Trim};

const PULL_PS: u64 = 1_323_959;
const A: SenderId = SenderId(0);
const B: SenderId = SenderId(1);

fn params() -> CcParams {
    CcParams {
        mtu: 4096,
        overhead: 64,
        link_rate: Rate::from_gbps(100),
        network_rtt: Span::from_us(12),
        trimming: true,
        delays: crate::Delays::Known,
    }
}

fn scheduler(slow_credit_bdp: f64) -> Rccc {
    Rccc::new(&RcccConfig { slow_credit_bdp, ..RcccConfig::default() }, &params())
}

fn at_ps(ps: u64) -> Time {
    // Close to the end of the clock: everything below crosses the wrap.
    Time::from_ps(u64::MAX - 1_000_000) + Span::from_ps(ps)
}

fn data(bytes: u64, trimmed: bool) -> DataSample {
    let trimmed = trimmed.then_some(Trim::InFabric);
    DataSample { bytes, scheduled: true, ecn: false, trimmed, congested_sender: false }
}

/// Grants until nothing is due any more: time since the start, sender, bytes.
fn drain(cc: &mut Rccc, from_ps: u64) -> Vec<(u64, u32, u64)> {
    let start = at_ps(0);
    let mut now = at_ps(from_ps);
    let mut grants = Vec::new();
    while grants.len() < 1_000 {
        if let Some(credit) = cc.poll_credit(now) {
            let ps = now.as_ps().wrapping_sub(start.as_ps());
            grants.push((ps, credit.sender.0, credit.bytes));
        } else if let Some(due) = cc.poll_timeout() {
            now = now.latest(due);
        } else {
            break;
        }
    }
    grants
}

#[test]
fn credit_is_paced_and_granted_round_robin() {
    let mut cc = scheduler(0.0);
    cc.on_demand(at_ps(0), A, 40_000);
    cc.on_demand(at_ps(0), B, 16_384);
    let expected =
        vec![(0, 0, 16_384), (PULL_PS, 1, 16_384), (2 * PULL_PS, 0, 16_384), (3 * PULL_PS, 0, 7_232)];
    assert_eq!(drain(&mut cc, 0), expected);
    assert_eq!((cc.outstanding(A), cc.outstanding(B)), (40_000, 16_384));
}

#[test]
fn a_new_demand_replaces_the_old_one() {
    let mut cc = scheduler(0.0);
    cc.on_demand(at_ps(0), A, 1_000_000);
    cc.on_demand(at_ps(0), A, 5_000);
    assert_eq!(drain(&mut cc, 0), vec![(0, 0, 5_000)]);
    cc.on_demand(at_ps(9_000_000), A, 5_000);
    cc.on_demand(at_ps(9_000_000), A, 0);
    assert_eq!(drain(&mut cc, 9_000_000), vec![]);
}

#[test]
fn the_pacer_keeps_its_pace_when_the_queue_runs_empty() {
    let mut cc = scheduler(0.0);
    cc.on_demand(at_ps(0), A, 16_384);
    assert!(cc.poll_credit(at_ps(0)).is_some());
    cc.on_demand(at_ps(10), B, 16_384);
    assert_eq!(cc.poll_credit(at_ps(10)), None, "the first pull still takes its time");
    assert_eq!(cc.poll_timeout(), Some(at_ps(PULL_PS)));
    assert_eq!(drain(&mut cc, 10), vec![(PULL_PS, 1, 16_384)]);
    // Much later the pacer has rested: it grants at once, without a burst.
    cc.on_demand(at_ps(1 << 62), A, 32_768);
    let late = drain(&mut cc, 1 << 62);
    assert_eq!(late, vec![(1 << 62, 0, 16_384), ((1 << 62) + PULL_PS, 0, 16_384)]);
}

#[test]
fn a_late_poll_catches_up_with_one_pull() {
    let mut cc = scheduler(0.0);
    cc.on_demand(at_ps(0), A, 1 << 20);
    assert!(cc.poll_credit(at_ps(0)).is_some());
    let late = at_ps(10 * PULL_PS);
    assert!(cc.poll_credit(late).is_some() && cc.poll_credit(late).is_some());
    assert_eq!(cc.poll_credit(late), None);
    assert_eq!(cc.poll_timeout(), Some(at_ps(11 * PULL_PS)));
}

#[test]
fn idle_senders_get_slow_credit_up_to_their_share() {
    let mut cc = scheduler(1.5);
    cc.on_demand(at_ps(0), A, 1_000);
    let grants = drain(&mut cc, 0);
    // 225,000 B are reached with the 14th pull of 16,384 B.
    assert_eq!(grants.len(), 1 + 14);
    assert!(grants[1..].iter().all(|g| g.1 == 0 && g.2 == 16_384));
    // A demand makes the sender active; afterwards it is idle again, without slow credit so far.
    cc.on_demand(at_ps(1 << 40), A, 1_000);
    assert_eq!(drain(&mut cc, 1 << 40).len(), 15);
}

#[test]
fn active_senders_are_served_before_idle_ones() {
    let mut cc = scheduler(1.5);
    cc.on_demand(at_ps(0), A, 16_384);
    cc.on_demand(at_ps(0), B, 65_536);
    let served: Vec<u32> = drain(&mut cc, 0).iter().map(|g| g.1).take(7).collect();
    assert_eq!(served, [0, 1, 1, 1, 1, 0, 1], "then slow credit, in turn");
}

#[test]
fn trimmed_packets_are_demand_that_a_smaller_request_does_not_cancel() {
    let mut cc = scheduler(0.0);
    cc.on_demand(at_ps(0), A, 4_160);
    assert_eq!(drain(&mut cc, 0).len(), 1);
    cc.on_data(at_ps(5_000_000), A, &data(4_160, true));
    cc.on_demand(at_ps(5_000_001), A, 0);
    assert_eq!(drain(&mut cc, 5_000_001), vec![(5_000_001, 0, 4_160)]);
    assert_eq!(cc.outstanding(A), 4_160);
}

#[test]
fn arriving_data_reduces_the_outstanding_credit() {
    let mut cc = scheduler(0.0);
    cc.on_demand(at_ps(0), A, 10_000);
    drain(&mut cc, 0);
    cc.on_data(at_ps(1), A, &data(4_000, false));
    assert_eq!(cc.outstanding(A), 6_000);
    cc.on_data(at_ps(2), A, &DataSample { scheduled: false, ..data(4_000, false) });
    assert_eq!(cc.outstanding(A), 6_000, "speculative data used no credit");
    cc.on_data(at_ps(3), A, &data(9_000, false));
    assert_eq!(cc.outstanding(A), 0);
}

#[test]
fn the_credit_of_a_silent_sender_is_written_off() {
    let mut cc = scheduler(0.0);
    cc.on_demand(at_ps(0), A, 10_000);
    drain(&mut cc, 0);
    let later = at_ps(Span::from_ms(6).as_ps());
    cc.on_demand(later, A, 4_160);
    assert_eq!(cc.outstanding(A), 0);
    cc.poll_credit(later);
    assert_eq!(cc.outstanding(A), 4_160);
}

#[test]
fn a_sender_that_leaves_is_forgotten() {
    let mut cc = scheduler(1.5);
    cc.on_demand(at_ps(0), A, 100_000);
    cc.on_demand(at_ps(0), B, 1_000);
    cc.on_leave(at_ps(0), A);
    cc.on_leave(at_ps(0), SenderId(77));
    assert_eq!(drain(&mut cc, 0).iter().find(|g| g.1 == 0), None);
    assert_eq!(cc.outstanding(A), 0);
    cc.on_leave(at_ps(0), B);
    assert_eq!(cc.poll_timeout(), None);
}

#[test]
fn room_for_peers_that_have_left_is_given_back() {
    let mut cc = scheduler(1.0);
    for n in 0..1_000 {
        cc.on_join(at_ps(0), SenderId(n), PeerId(n));
        cc.on_demand(at_ps(0), SenderId(n), 1_000);
    }
    drain(&mut cc, 0);
    (1..1_000).for_each(|n| cc.on_leave(at_ps(0), SenderId(n)));
    cc.on_join(at_ps(0), B, PeerId(1));
    cc.on_demand(at_ps(0), B, 1_000);
    assert_eq!(drain(&mut cc, 2_000 * PULL_PS).iter().map(|(_, id, _)| *id).max(), Some(1));
    (0..2).for_each(|n| cc.on_leave(at_ps(0), SenderId(n)));
    assert_eq!((cc.active.room(), cc.idle.room()), (0, 0));
}

#[test]
fn credit_does_not_stop_on_a_link_with_rate_zero() {
    let mut cc = Rccc::new(&RcccConfig::default(), &CcParams { link_rate: Rate::from_bps(0), ..params() });
    cc.on_demand(at_ps(0), A, 20_000);
    let grants = drain(&mut cc, 0);
    assert_eq!(grants, vec![(0, 0, 16_384), (1_000_000_000_000, 0, 3_616)]);
}
