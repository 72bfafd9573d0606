//! NSCC against numbers computed by hand.
//!
//! 100 Gbit/s, 12 µs, MTU 4096 + 64 B: BDP 150,000 B, a = 1, target 9 µs, b = 0.75,
//! alpha = 4·4096·0.75 / 9e6 ps = 16,384 / 12e6 B/ps, fi = 20,480 B, eta = 614 B,
//! largest window 225,000 B, quick-adapt gate 28,125 B, period 21 µs, adjustment after 33,280 B.

use super::*;
use crate::{HostReport, Rate};

const MTU: u64 = 4_160;

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

fn flow(change: impl FnOnce(&mut NsccConfig)) -> Nscc {
    let mut config = NsccConfig { initial_window: Some(100_000), ..NsccConfig::default() };
    change(&mut config);
    Nscc::new(Arc::new(NsccShared::new(&config, &params(), false)))
}

fn at_us(us: u64) -> Time {
    Time::from_ps(us * 1_000_000)
}

fn ack(bytes: u64, delay: Span, ecn: bool) -> AckSample {
    AckSample {
        newly_received: bytes.try_into().unwrap(),
        trigger_bytes: bytes.try_into().unwrap(),
        rtt: Some(Span::from_us(12) + delay),
        ecn,
        in_flight: 50_000,
        out_of_order: 0,
        hosts: None,
    }
}

fn nack(cause: NackCause) -> NackSample {
    NackSample { bytes: MTU, cause, ecn: true, rtt: None, in_flight: 50_000 }
}

fn us(n: u64) -> Span {
    Span::from_us(n)
}

#[test]
fn a_flow_starts_at_one_and_a_half_bdp() {
    assert_eq!(flow(|c| c.initial_window = None).window(), Window(225_000));
}

#[test]
fn proportional_increase_grows_with_the_distance_to_target() {
    let mut cc = flow(|_| ());
    cc.on_ack(at_us(100), &ack(MTU, us(3), false));
    // 16,384/12e6 · 4160 · 6e6 = 34,078,720; / 100,000 = 340; first adjustment adds eta 614.
    assert_eq!(cc.window(), Window(100_954));
}

#[test]
fn fair_increase_collects_until_eight_packets_have_arrived() {
    let mut cc = flow(|_| ());
    cc.on_ack(at_us(100), &ack(MTU, us(9), false));
    // 20,480 · 4160 = 85,196,800; / 100,000 = 851; + 614.
    assert_eq!(cc.window(), Window(101_465));
    for _ in 0..8 {
        cc.on_ack(at_us(101), &ack(MTU, us(9), false));
    }
    assert_eq!(cc.window(), Window(101_465), "33,280 B are not more than 33,280 B");
    cc.on_ack(at_us(101), &ack(MTU, us(9), false));
    // 9 · 85,196,800 / 101,465 = 7,557; the RTT has not passed: no eta.
    assert_eq!(cc.window(), Window(109_022));
}

#[test]
fn eta_is_added_once_per_network_rtt() {
    let mut cc = flow(|_| ());
    cc.on_ack(at_us(100), &ack(0, us(9), false));
    assert_eq!(cc.window(), Window(100_614));
    cc.on_ack(at_us(112), &ack(0, us(9), false));
    assert_eq!(cc.window(), Window(100_614), "exactly one RTT later: not yet");
    cc.on_ack(at_us(113), &ack(0, us(9), false));
    assert_eq!(cc.window(), Window(101_228));
}

#[test]
fn a_mark_below_target_leaves_the_window_to_the_load_balancer() {
    let mut cc = flow(|c| c.eta = 0.0);
    for t in 0..20 {
        cc.on_ack(at_us(100 + t), &ack(MTU, us(8), true));
    }
    assert_eq!(cc.window(), Window(100_000));
}

#[test]
fn multiplicative_decrease_follows_the_average_once_per_base_rtt() {
    let mut cc = flow(|c| (c.eta, c.delay_gain) = (0.0, 1.0));
    cc.on_ack(at_us(100), &ack(MTU, us(18), true));
    // 1 − 0.8 · (18 − 9)/18 = 0.6.
    assert_eq!(cc.window(), Window(60_000));
    cc.on_ack(at_us(112), &ack(MTU, us(18), true));
    assert_eq!(cc.window(), Window(60_000), "one base RTT must be exceeded");
    cc.on_ack(at_us(113), &ack(MTU, us(18), true));
    assert_eq!(cc.window(), Window(36_000));
}

#[test]
fn one_decrease_halves_the_window_at_most() {
    let mut cc = flow(|c| (c.eta, c.delay_gain) = (0.0, 1.0));
    // 1 − 0.8 · (36 − 9)/36 = 0.4, floored to 0.5. 36 µs is the quick-adapt threshold, not above it.
    cc.on_ack(at_us(100), &ack(MTU, us(36), true));
    assert_eq!(cc.window(), Window(50_000));
}

#[test]
fn a_low_average_forbids_the_decrease() {
    let mut cc = flow(|c| c.eta = 0.0);
    cc.on_ack(at_us(100), &ack(MTU, us(18), true));
    // The average is 0.0125 · 18 µs = 225 ns.
    assert_eq!(cc.window(), Window(100_000));
    assert_eq!(cc.snapshot().delay.as_ps() / 1_000, 225);
}

#[test]
fn high_delay_without_a_mark_counts_as_a_quarter_of_the_base_rtt() {
    let mut cc = flow(|_| ());
    cc.on_ack(at_us(100), &ack(MTU, us(18), false));
    // 0.0125 · 12 µs / 4 = 37.5 ns.
    assert_eq!(cc.snapshot().delay.as_ps().abs_diff(37_500), 0);
    let mut trimmed = flow(|_| ());
    trimmed.on_nack(at_us(100), &nack(NackCause::Trimmed));
    // A trim counts as one network RTT: 0.0125 · 12 µs = 150 ns.
    assert_eq!(trimmed.snapshot().delay.as_ps().abs_diff(150_000), 0);
}

#[test]
fn fast_increase_needs_a_window_of_idle_bytes() {
    let mut cc = flow(|_| ());
    let idle = Span::from_ns(500);
    cc.on_ack(at_us(100), &ack(60_000, idle, false));
    // Proportional: 16,384/12e6 · 60,000 · 8.5e6 = 696,320,000; / 100,000 = 6,963; + 614.
    assert_eq!(cc.window(), Window(107_577));
    cc.on_ack(at_us(100), &ack(60_000, idle, false));
    assert_eq!(cc.window(), Window(122_577), "120,000 B > 107,577 B: a quarter of 60,000 is added");
    assert_eq!(cc.snapshot().phase, "fast-increase");
    cc.on_ack(at_us(100), &ack(MTU, idle, false));
    assert_eq!(cc.window(), Window(123_617));
    cc.on_ack(at_us(100), &ack(MTU, us(1), false));
    assert_eq!(cc.snapshot().phase, "core", "1 µs is no longer idle");
    cc.on_ack(at_us(100), &ack(MTU, idle, false));
    assert_eq!(cc.snapshot().phase, "core", "the count starts again");
}

#[test]
fn quick_adapt_sets_the_window_to_the_bytes_that_arrived() {
    let mut cc = flow(|c| c.eta = 0.0);
    cc.on_ack(at_us(100), &ack(MTU, us(5), true));
    cc.on_nack(at_us(105), &nack(NackCause::Trimmed));
    assert_eq!(cc.window(), Window(95_840), "the trimmed packet comes off");
    for t in [110, 115, 121] {
        cc.on_ack(at_us(t), &ack(MTU, us(5), true));
    }
    assert_eq!(cc.window(), Window(95_840), "the period of 21 µs must be exceeded");
    cc.on_ack(at_us(122), &ack(MTU, us(5), true));
    assert_eq!(cc.window(), Window(4 * MTU));
    assert_eq!(cc.snapshot().phase, "ignore");
}

#[test]
fn marks_of_bytes_in_flight_are_ignored_after_quick_adapt() {
    let mut cc = flow(|c| (c.eta, c.delay_gain) = (0.0, 1.0));
    cc.on_ack(at_us(100), &ack(MTU, us(5), true));
    cc.on_nack(at_us(105), &nack(NackCause::Trimmed));
    cc.on_ack(at_us(122), &ack(20_000, us(5), true));
    assert_eq!(cc.window(), Window(20_000));
    // 50,000 B were in flight: 40,000 B of them leave the mark without effect …
    cc.on_ack(at_us(140), &ack(40_000, us(18), true));
    assert_eq!(cc.window(), Window(20_000));
    // … and with 10,000 B more they are through.
    cc.on_ack(at_us(141), &ack(10_000, us(18), true));
    assert_eq!(cc.window(), Window(12_000));
}

#[test]
fn a_nack_that_ends_a_period_with_quick_adapt_is_not_subtracted_as_well() {
    let mut cc = flow(|c| c.eta = 0.0);
    cc.on_ack(at_us(100), &ack(MTU, us(5), true));
    cc.on_ack(at_us(110), &ack(3 * MTU, us(5), true));
    cc.on_nack(at_us(122), &nack(NackCause::Trimmed));
    assert_eq!(cc.window(), Window(3 * MTU));
    // The packet itself was in flight: 54,160 B are ignored.
    assert_eq!(cc.to_ignore, 54_160);
}

#[test]
fn quick_adapt_waits_for_a_period_with_few_bytes() {
    let mut cc = flow(|c| c.eta = 0.0);
    cc.on_ack(at_us(100), &ack(MTU, us(5), true));
    cc.on_nack(at_us(105), &nack(NackCause::InferredLoss));
    // An eighth of 225,000 B is 28,125 B: not fewer, so no adapting, but the trigger stays.
    cc.on_ack(at_us(122), &ack(28_125, us(5), true));
    assert_eq!(cc.window(), Window(95_840));
    cc.on_ack(at_us(144), &ack(28_124, us(5), true));
    assert_eq!(cc.window(), Window(28_124));
}

#[test]
fn extreme_delay_triggers_quick_adapt_down_to_one_packet() {
    let mut cc = flow(|c| c.eta = 0.0);
    cc.on_ack(at_us(100), &ack(0, us(5), true));
    cc.on_ack(at_us(122), &ack(0, us(36), true));
    assert_eq!(cc.window(), Window(100_000), "four targets are not more than four targets");
    cc.on_ack(at_us(144), &ack(0, us(37), true));
    assert_eq!(cc.window(), Window(MTU));
}

#[test]
fn credits_exempt_trims_at_the_last_hop_only() {
    let shared = NsccShared::new(&NsccConfig::default(), &params(), true);
    let mut cc = Nscc::new(Arc::new(shared));
    cc.on_nack(at_us(100), &nack(NackCause::TrimmedLastHop));
    assert_eq!(cc.window(), Window(225_000));
    cc.on_nack(at_us(100), &nack(NackCause::Trimmed));
    cc.on_nack(at_us(100), &nack(NackCause::InferredLoss));
    assert_eq!(cc.window(), Window(225_000 - 2 * MTU));
    let mut without = flow(|_| ());
    without.on_nack(at_us(100), &nack(NackCause::TrimmedLastHop));
    assert_eq!(without.window(), Window(100_000 - MTU));
}

#[test]
fn a_timeout_subtracts_its_packet_down_to_a_window_of_one() {
    let mut cc = flow(|c| c.initial_window = Some(2 * MTU + 100));
    let lost = LossSample { bytes: MTU, in_flight: 0, expiries: 1 };
    cc.on_timeout(at_us(100), &lost);
    assert_eq!(cc.window(), Window(MTU + 100));
    cc.on_timeout(at_us(100), &lost);
    assert_eq!(cc.window(), Window(MTU));
}

#[test]
fn the_largest_window_follows_the_base_rtt() {
    let mut cc = flow(|c| c.initial_window = None);
    let mut faster = nack(NackCause::Trimmed);
    faster.rtt = Some(us(8));
    cc.on_nack(at_us(100), &faster);
    // 1.5 · 100,000 B, less the packet.
    assert_eq!(cc.window(), Window(150_000 - MTU));
    assert_eq!(cc.snapshot().base_rtt, us(8));
    let mut deaf = flow(|c| (c.initial_window, c.base_rtt_from_nack) = (None, false));
    deaf.on_nack(at_us(100), &faster);
    assert_eq!(deaf.snapshot().base_rtt, us(12));
}

#[test]
fn the_receiver_can_request_a_smaller_window() {
    let mut cc = flow(|c| c.eta = 0.0);
    let said = |flow_control, in_flight| {
        let hosts = HostReport { flow_control, ..HostReport::default() }.if_any();
        AckSample { hosts, in_flight, ..ack(12_800, us(5), true) }
    };
    cc.on_ack(at_us(100), &said(FlowControl::Penalty(32), 100_000));
    assert_eq!(cc.window(), Window(100_000 - 3_200), "32/128 of 12,800 B");
    cc.on_ack(at_us(100), &said(FlowControl::Penalty(1), 50_000));
    assert_eq!(cc.window(), Window(50_000 - 100), "less than what is in flight");
    cc.on_ack(at_us(100), &said(FlowControl::Off, 50_000));
    assert_eq!(cc.window(), Window(49_900), "no request, no change");
    cc.on_ack(at_us(100), &said(FlowControl::Penalty(127), 0));
    assert_eq!(cc.window(), Window(MTU), "never below one packet");
    cc.on_ack(at_us(100), &said(FlowControl::Restore, 0));
    assert_eq!(cc.window(), Window(100_000), "as before the first penalty");
    cc.on_ack(at_us(100), &said(FlowControl::Restore, 0));
    assert_eq!(cc.window(), Window(100_000), "there is nothing left to restore");
}

#[test]
fn half_the_penalty_in_all_acks_of_an_rtt_halves_the_window() {
    let mut cc = flow(|c| c.eta = 0.0);
    let packets = 25;
    let bytes = 100_000 / packets;
    for n in 1..=packets {
        let hosts = HostReport { flow_control: FlowControl::Penalty(64), ..HostReport::default() }.if_any();
        // The sender keeps the window full.
        let in_flight = cc.window().0;
        let delay = if n % 2 == 0 { us(0) } else { us(10) };
        cc.on_ack(at_us(100 + n), &AckSample { hosts, in_flight, ..ack(bytes, delay, false) });
    }
    assert_eq!(cc.window(), Window(50_000), "and nothing makes it grow meanwhile");
}

#[test]
fn an_ambiguous_rtt_counts_with_the_average() {
    let mut cc = flow(|c| c.eta = 0.0);
    let mut unclear = ack(MTU, us(0), false);
    unclear.rtt = None;
    cc.on_ack(at_us(100), &unclear);
    // Average 0: 16,384/12e6 · 4160 · 9e6 / 100,000 = 511.
    assert_eq!(cc.window(), Window(100_511));
    assert_eq!(cc.snapshot().base_rtt, us(12));
}

#[test]
fn increases_do_not_overflow_at_800_gbits() {
    let fast = CcParams { link_rate: Rate::from_gbps(800), ..params() };
    let config = NsccConfig { initial_window: Some(1_000_000), eta: 0.0, ..NsccConfig::default() };
    let mut cc = Nscc::new(Arc::new(NsccShared::new(&config, &fast, false)));
    cc.on_ack(at_us(100), &ack(0, us(9), false));
    // a = 8: fi = 163,840; · 66,560 B = 10,905,190,400 > 2^32; / 1,000,000 = 10,905.
    cc.on_ack(at_us(101), &ack(66_560, us(9), false));
    assert_eq!(cc.window(), Window(1_010_905));
}

#[test]
fn time_in_hosts_widens_the_largest_window_up_to_that_of_the_network_rtt() {
    let mut cc = Nscc::new(Arc::new(NsccShared::new(&NsccConfig::default(), &params(), false)));
    let network = cc.max_window;
    let idle = AckSample { rtt: Some(Span::from_us(3)), ..ack(MTU, Span::ZERO, false) };
    cc.on_ack(at_us(10), &idle);
    assert_eq!(cc.max_window, network / 4, "the BDP of the least RTT");
    let waited = |remote, local| {
        let (remote_queueing, local_rx_delay) = (Span::from_us(remote), Span::from_us(local));
        let report = HostReport { remote_queueing, local_rx_delay, flow_control: FlowControl::Off };
        AckSample { hosts: report.if_any(), ..idle }
    };
    for n in 0..100 {
        cc.on_ack(at_us(11 + n), &waited(2, 1));
    }
    let half = network / 2;
    assert!(cc.max_window.abs_diff(half) < half / 100, "{} of {network}: 3 µs in hosts", cc.max_window);
    for n in 0..100 {
        cc.on_ack(at_us(111 + n), &waited(0, 500));
    }
    assert_eq!(cc.max_window, network, "never above that of the network RTT");
    assert_eq!(cc.snapshot().base_rtt, Span::from_us(3));
    for n in 0..100 {
        cc.on_ack(at_us(211 + n), &idle);
    }
    assert!(cc.max_window < network / 4 + MTU as u32, "{}: the hosts do not wait any more", cc.max_window);
}

#[test]
fn a_flow_is_small() {
    assert!(size_of::<Nscc>() <= 88, "{} bytes", size_of::<Nscc>());
}
