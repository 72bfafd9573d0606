use super::*;
use crate::{NackCause, Rate};

const PACKET: u64 = 1_000;

fn params() -> CcParams {
    CcParams {
        mtu: PACKET as u32,
        overhead: 0,
        link_rate: Rate::from_gbps(100),
        network_rtt: Span::from_us(12),
        trimming: false,
        delays: crate::Delays::Known,
    }
}

fn flow(window_packets: u64, alpha: f64) -> Dctcp {
    let initial_window = Some(window_packets * PACKET);
    let config = DctcpConfig { initial_window, initial_alpha: alpha, ..DctcpConfig::default() };
    Dctcp::new(Arc::new(DctcpShared::new(&config, &params())))
}

fn ack(packets: u64, ecn: bool, in_flight: u64) -> AckSample {
    AckSample {
        newly_received: (packets * PACKET) as u32,
        trigger_bytes: PACKET as u32,
        rtt: Some(Span::from_us(12)),
        ecn,
        in_flight,
        out_of_order: 0,
        hosts: None,
    }
}

/// Acknowledges the packets of one full window, one each, the last `marked` of them with a mark.
fn round(cc: &mut Dctcp, marked: u64) {
    let packets = (cc.cwnd / PACKET as f64) as u64;
    for n in 0..packets {
        let in_flight = cc.window().0.max(PACKET) - PACKET;
        cc.on_ack(Time::ZERO, &ack(1, n >= packets - marked.min(packets), in_flight));
    }
}

#[test]
fn alpha_follows_the_marked_share_with_gain_g() {
    let mut cc = flow(100, 0.0);
    cc.ssthresh = 0.0;
    round(&mut cc, 0);
    for _ in 0..200 {
        // Marks come before each window's last packet, so each window of data has a quarter of them.
        let packets = cc.window().0 / PACKET;
        for n in 0..packets {
            cc.cwnd = 100_000.0;
            cc.on_ack(Time::ZERO, &ack(1, n % 4 == 0, 99_000));
        }
    }
    assert!((cc.alpha() - 0.25).abs() < 0.01, "{}", cc.alpha());
}

#[test]
fn a_mark_counts_for_its_packet_and_not_for_all_that_its_ack_sums_up() {
    let mut cc = flow(100, 0.0);
    for n in 0..10_000 {
        cc.cwnd = 100_000.0;
        // An ACK for four packets: one in four ACKs is of a marked packet.
        cc.on_ack(Time::ZERO, &ack(4, n % 4 == 0, 96_000));
    }
    assert!((cc.alpha() - 0.25).abs() < 0.02, "{}", cc.alpha());
}

#[test]
fn the_window_is_reduced_once_per_window_of_data_by_half_of_alpha() {
    let mut cc = flow(100, 0.5);
    cc.on_ack(Time::ZERO, &ack(1, true, 99_000));
    let alpha = cc.alpha();
    assert_eq!(cc.window().0, (100_000.0 * (1.0 - alpha / 2.0)) as u64);
    let reduced = cc.window();
    for _ in 0..98 {
        cc.on_ack(Time::ZERO, &ack(1, true, 70_000));
        assert_eq!(cc.window(), reduced, "neither reduced again nor grown");
    }
    cc.on_ack(Time::ZERO, &ack(1, true, 70_000));
    assert!(cc.window() < reduced, "the next window of data");
}

#[test]
fn a_window_grows_by_a_packet_in_congestion_avoidance_and_doubles_in_slow_start() {
    let mut cc = flow(100, 0.0);
    cc.ssthresh = 0.0;
    round(&mut cc, 0);
    assert!((cc.cwnd - 101_000.0).abs() < 10.0, "{}", cc.cwnd);
    let mut cc = flow(10, 0.0);
    round(&mut cc, 0);
    assert_eq!(cc.window(), Window(20_000));
}

#[test]
fn a_window_that_is_not_full_does_not_grow() {
    let mut cc = flow(100, 0.0);
    (0..1_000).for_each(|_| cc.on_ack(Time::ZERO, &ack(1, false, 50_000)));
    assert_eq!(cc.window(), Window(100_000));
}

#[test]
fn losses_halve_once_per_window_and_an_expiry_leaves_one_packet() {
    let mut cc = flow(100, 0.1);
    let nack = NackSample {
        bytes: PACKET,
        cause: NackCause::InferredLoss,
        ecn: false,
        rtt: None,
        in_flight: 99_000,
    };
    (0..10).for_each(|_| cc.on_nack(Time::ZERO, &nack));
    assert_eq!(cc.window(), Window(50_000));
    let lost = LossSample { bytes: PACKET, in_flight: 40_000, expiries: 1 };
    (0..10).for_each(|_| cc.on_timeout(Time::ZERO, &lost));
    assert_eq!((cc.window(), cc.ssthresh), (Window(1_000), 25_000.0), "ten packets of one expiry");
}

/// SIGCOMM 2010 §3.3: N synchronised flows above a threshold oscillate around W* = (C·RTT + K)/N packets, with a marked
/// share of about sqrt(2/W*).
#[test]
fn the_sawtooth_has_the_marked_share_of_its_closed_form() {
    for threshold in [50_u64, 100, 200, 400] {
        let mut cc = flow(threshold, 1.0);
        cc.ssthresh = 0.0;
        let mut alphas = Vec::new();
        for turn in 0..3_000 {
            // All packets of a window above the threshold are marked.
            let above = cc.window().0 > threshold * PACKET;
            round(&mut cc, if above { u64::MAX } else { 0 });
            if turn > 1_000 {
                alphas.push(cc.alpha());
            }
        }
        let mean = alphas.iter().sum::<f64>() / alphas.len() as f64;
        let expected = (2.0 / threshold as f64).sqrt();
        assert!((mean / expected - 1.0).abs() < 0.2, "W* = {threshold}: {mean:.4}, expected {expected:.4}");
    }
}
