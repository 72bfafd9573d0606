//! SMaRTT against numbers computed by hand from its equations.
//!
//! 100 Gbit/s, 12 µs, 4160 B on the wire: BDP 150,000 B, the reference network, so fi and pi are
//! one packet; target RTT 18 µs; largest window 225,000 B; pi = brtt/(trtt − brtt) = 2.

use super::*;
use crate::{HostReport, NackCause, Rate};

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

fn flow_with(params: &CcParams, cwnd: f64, change: impl FnOnce(&mut SmarttConfig)) -> Smartt {
    let mut config = SmarttConfig::default();
    change(&mut config);
    let mut flow = Smartt::new(Arc::new(SmarttShared::new(&config, params)));
    flow.cwnd = cwnd;
    flow
}

fn flow(cwnd: f64) -> Smartt {
    flow_with(&params(), cwnd, |_| ())
}

fn at_us(us: u64) -> Time {
    Time::from_ps(us * 1_000_000)
}

fn ack(bytes: u64, rtt_us: u64, ecn: bool) -> AckSample {
    AckSample {
        newly_received: bytes.try_into().unwrap(),
        trigger_bytes: bytes.try_into().unwrap(),
        rtt: Some(Span::from_us(rtt_us)),
        ecn,
        in_flight: 50_000,
        out_of_order: 0,
        hosts: None,
    }
}

fn trim() -> NackSample {
    NackSample { bytes: MTU, cause: NackCause::Trimmed, ecn: true, rtt: None, in_flight: 50_000 }
}

fn assert_near(actual: f64, expected: f64) {
    assert!((actual - expected).abs() < expected * 1e-6, "{actual} instead of {expected}");
}

#[test]
fn equation_1_decreases_once_per_base_rtt() {
    let mut cc = flow_with(&params(), 100_000.0, |c| c.rtt_gain = 1.0);
    cc.on_ack(at_us(100), &ack(MTU, 24, true));
    // 1 − 0.8 · (24 − 18)/24 = 0.8.
    assert_near(cc.cwnd, 80_000.0);
    cc.on_ack(at_us(111), &ack(MTU, 24, true));
    assert_near(cc.cwnd, 80_000.0);
    cc.on_ack(at_us(112), &ack(MTU, 24, true));
    assert_near(cc.cwnd, 64_000.0);
    // 1 − 0.8 · (90 − 18)/90 = 0.36, floored to 0.5.
    cc.on_ack(at_us(124), &ack(MTU, 90, true));
    assert_near(cc.cwnd, 32_000.0);
}

#[test]
fn equation_1_waits_for_the_average() {
    let mut cc = flow(100_000.0);
    cc.on_ack(at_us(100), &ack(MTU, 24, true));
    // Average 12 + 0.0125 · 12 = 12.15 µs, below target.
    assert_near(cc.cwnd, 100_000.0);
    assert_near(f64::from(cc.avg_rtt_ps), 12.15e6);
}

#[test]
fn equation_2_adds_a_packet_per_window() {
    let mut cc = flow(100_000.0);
    cc.on_ack(at_us(100), &ack(MTU, 24, false));
    // 4160/100,000 · 4160 = 173.056.
    assert_near(cc.cwnd, 100_173.056);
}

#[test]
fn equation_3_grows_with_the_distance_to_target_and_fair_increase_follows() {
    let mut cc = flow(100_000.0);
    cc.on_ack(at_us(100), &ack(MTU, 15, false));
    // (18 − 15)/15 · 173.056 · 2 = 69.2224, + 173.056.
    assert_near(cc.cwnd, 100_242.278_4);
    let mut alone = flow_with(&params(), 100_000.0, |c| c.fair_after_proportional = false);
    alone.on_ack(at_us(100), &ack(MTU, 15, false));
    assert_near(alone.cwnd, 100_069.222_4);
}

#[test]
fn equation_3_adds_at_most_the_acknowledged_bytes() {
    let mut cc = flow_with(&params(), 100_000.0, |c| (c.pi, c.fi) = (1_000.0, 0.0));
    cc.on_ack(at_us(100), &ack(MTU, 15, false));
    assert_near(cc.cwnd, 104_160.0);
}

#[test]
fn constants_scale_with_the_bdp_of_the_path() {
    // Four times the rate, half the base RTT: twice the reference BDP.
    let fast = CcParams { link_rate: Rate::from_gbps(400), network_rtt: Span::from_us(6), ..params() };
    let mut cc = flow_with(&fast, 100_000.0, |_| ());
    cc.on_ack(at_us(100), &ack(MTU, 12, false));
    assert_near(cc.cwnd, 100_000.0 + 2.0 * 173.056);
}

#[test]
fn marks_below_target_keep_the_window_and_an_rtt_at_target_adds_no_proportional_increase() {
    let mut marked = flow(100_000.0);
    marked.on_ack(at_us(100), &ack(MTU, 17, true));
    marked.on_ack(at_us(100), &ack(MTU, 18, true));
    assert_near(marked.cwnd, 100_000.0);
    let mut unmarked = flow_with(&params(), 100_000.0, |c| c.fi = 0.0);
    unmarked.on_ack(at_us(100), &ack(MTU, 18, false));
    assert_near(unmarked.cwnd, 100_000.0);
}

#[test]
fn algorithm_2_sets_the_window_to_the_bytes_acknowledged() {
    let mut cc = flow(100_000.0);
    cc.on_ack(at_us(100), &ack(MTU, 17, true));
    cc.on_nack(at_us(105), &trim());
    assert_near(cc.cwnd, 95_840.0);
    cc.on_ack(at_us(117), &ack(3 * MTU, 17, true));
    assert_near(cc.cwnd, 95_840.0);
    // 18 µs after the period began: at its end, not beyond (line 3: now ≥ end).
    cc.on_ack(at_us(118), &ack(MTU, 17, true));
    assert_near(cc.cwnd, 4.0 * MTU as f64);
    assert_eq!(cc.to_ignore, 50_000);
}

#[test]
fn algorithm_4_ignores_acks_of_packets_that_were_in_flight() {
    let mut cc = flow_with(&params(), 100_000.0, |c| c.rtt_gain = 1.0);
    cc.on_ack(at_us(100), &ack(MTU, 17, true));
    cc.on_nack(at_us(105), &trim());
    cc.on_ack(at_us(118), &ack(20_000, 17, true));
    assert_near(cc.cwnd, 20_000.0);
    cc.on_ack(at_us(120), &ack(40_000, 24, true));
    assert_near(cc.cwnd, 20_000.0);
    cc.on_ack(at_us(121), &ack(10_000, 24, true));
    assert_near(cc.cwnd, 16_000.0);
}

/// §III-E: the trims of packets that were in flight when QuickAdapt set the window say nothing new.
#[test]
fn trims_during_the_ignore_phase_change_nothing_unless_algorithm_4_is_taken_to_the_letter() {
    let to_the_letter = |c: &mut SmarttConfig| c.ignore_trims = false;
    let flows = [flow(100_000.0), flow_with(&params(), 100_000.0, to_the_letter)];
    for (mut cc, (ignore_trims, window)) in flows.into_iter().zip([(true, 20_000.0), (false, 15_840.0)]) {
        cc.on_ack(at_us(100), &ack(MTU, 17, true));
        cc.on_nack(at_us(105), &trim());
        cc.on_ack(at_us(118), &ack(20_000, 17, true));
        cc.on_nack(at_us(119), &trim());
        assert_near(cc.cwnd, window);
        assert_eq!((cc.trigger_qa, cc.to_ignore), (!ignore_trims, 50_000 - MTU as u32));
        // Behind the ignore phase, a stale trim would set the window to all that was acknowledged in it.
        cc.on_ack(at_us(140), &ack(45_000, 17, true));
        cc.on_ack(at_us(141), &ack(MTU, 17, true));
        assert_near(cc.cwnd, if ignore_trims { window } else { 49_160.0 });
        // A trim of a later packet counts.
        cc.on_nack(at_us(142), &trim());
        assert!(cc.trigger_qa);
    }
}

#[test]
fn trims_count_as_acknowledged_only_with_count_trims() {
    for (count_trims, expected) in [(false, 8_320.0), (true, 12_480.0)] {
        let mut cc = flow_with(&params(), 100_000.0, |c| c.count_trims = count_trims);
        cc.on_ack(at_us(100), &ack(MTU, 17, true));
        cc.on_nack(at_us(105), &trim());
        cc.on_ack(at_us(118), &ack(2 * MTU, 17, true));
        assert_near(cc.cwnd, expected);
    }
}

#[test]
fn algorithm_3_needs_a_window_without_congestion() {
    let mut cc = flow_with(&params(), 100_000.0, |c| (c.fi, c.pi) = (0.0, 0.0));
    cc.on_ack(at_us(100), &ack(60_000, 13, false));
    assert_near(cc.cwnd, 100_000.0);
    cc.on_ack(at_us(101), &ack(40_000, 13, false));
    assert_near(cc.cwnd, 100_000.0);
    cc.on_ack(at_us(102), &ack(MTU, 13, false));
    // 104,160 B in a row: k = 2 packets more.
    assert_near(cc.cwnd, 108_320.0);
    assert_eq!(cc.snapshot().phase, "fast-increase");
    cc.on_ack(at_us(103), &ack(MTU, 14, false));
    assert_near(cc.cwnd, 108_320.0);
    assert_eq!((cc.snapshot().phase, cc.count), ("core", 0));
}

#[test]
fn the_window_stays_within_one_packet_and_one_and_a_half_bdp() {
    let mut cc = flow(220_000.0);
    for _ in 0..200 {
        cc.on_ack(at_us(100), &ack(MTU, 12, false));
    }
    assert_eq!(cc.window(), Window(225_000));
    for _ in 0..200 {
        cc.on_nack(at_us(100), &trim());
    }
    assert_eq!(cc.window(), Window(MTU));
}

#[test]
fn without_trimming_high_rtt_and_few_bytes_trigger_quick_adapt() {
    let lossy = CcParams { trimming: false, ..params() };
    let mut cc = flow_with(&lossy, 100_000.0, |_| ());
    cc.on_ack(at_us(100), &ack(MTU, 20, true));
    cc.on_ack(at_us(119), &ack(20_000, 20, true));
    assert_near(cc.cwnd, 20_000.0);
    // Enough bytes, or an RTT at target, do not.
    for (bytes, rtt) in [(50_000, 20), (20_000, 18)] {
        let mut calm = flow_with(&lossy, 100_000.0, |_| ());
        calm.on_ack(at_us(100), &ack(MTU, 20, true));
        calm.on_ack(at_us(119), &ack(bytes, rtt, true));
        assert_near(calm.cwnd, 100_000.0);
    }
}

#[test]
fn timeouts_subtract_a_packet_except_after_quick_adapt() {
    let lost = LossSample { bytes: MTU, in_flight: 0, expiries: 1 };
    let mut cc = flow(100_000.0);
    cc.on_timeout(at_us(90), &lost);
    assert_near(cc.cwnd, 95_840.0);
    cc.on_ack(at_us(100), &ack(MTU, 17, true));
    cc.on_nack(at_us(105), &trim());
    cc.on_ack(at_us(118), &ack(20_000, 17, true));
    cc.on_timeout(at_us(119), &lost);
    assert_near(cc.cwnd, 20_000.0);
}

#[test]
fn time_in_hosts_widens_the_largest_window_up_to_that_of_the_network_rtt() {
    let mut cc = flow(100_000.0);
    cc.on_ack(at_us(10), &AckSample { rtt: Some(Span::from_us(3)), ..ack(MTU, 12, false) });
    let largest = |cc: &Smartt| cc.loop_rtt::<true>() * cc.shared.max_window_per_ps;
    let idle = largest(&cc);
    let hosts = HostReport { local_rx_delay: Span::from_us(500), ..HostReport::default() }.if_any();
    for n in 0..200 {
        cc.on_ack(at_us(11 + n), &AckSample { hosts, ..ack(MTU, 12, false) });
    }
    assert_near(largest(&cc), 4.0 * idle);
    assert_eq!(cc.snapshot().base_rtt, Span::from_us(3));
}

#[test]
fn a_flow_is_small() {
    assert!(size_of::<Smartt>() <= 64, "{} bytes", size_of::<Smartt>());
}
