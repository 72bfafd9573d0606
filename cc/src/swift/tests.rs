//! Swift against the formulas of its paper.

use super::*;
use crate::{HostReport, Rate};

const PARAMS: CcParams = CcParams {
    mtu: 1_000,
    overhead: 0,
    link_rate: Rate::from_gbps(50),
    network_rtt: Span::from_us(20),
    trimming: true,
    delays: Delays::Known,
};

/// A fixed target of 50 µs, unless `set` changes it.
fn swift(set: impl FnOnce(&mut SwiftConfig)) -> Swift {
    let mut config = SwiftConfig {
        base_target: Some(us(50)),
        flow_scaling: false,
        initial_window: Some(10_000),
        ..SwiftConfig::default()
    };
    set(&mut config);
    Swift::new(Arc::new(config.shared(&PARAMS, Variant::Swift)))
}

fn us(us: u64) -> Span {
    Span::from_us(us)
}

fn at(us: u64) -> Time {
    Time::ZERO + Span::from_us(us)
}

fn ack(rtt_us: u64) -> AckSample {
    AckSample {
        newly_received: 1_000,
        trigger_bytes: 1_000,
        rtt: Some(us(rtt_us)),
        ecn: false,
        in_flight: 10_000,
        out_of_order: 0,
        hosts: None,
    }
}

fn queued(remote_us: u64) -> Option<HostReport> {
    HostReport { remote_queueing: us(remote_us), ..HostReport::default() }.if_any()
}

fn nack(cause: NackCause) -> NackSample {
    NackSample { bytes: 1_000, cause, ecn: false, rtt: None, in_flight: 0 }
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs()
}

#[test]
fn the_target_follows_the_formula() {
    let target = Target::new(us(2), Some((us(100), 0.1, 100.0)));
    let us_of = |cwnd: f64, hops| target.of(us(25), cwnd, hops).as_us_f64();
    assert!((us_of(0.1, 0) - 125.0).abs() < 1e-5, "the whole range");
    assert!((us_of(0.001, 0) - 125.0).abs() < 1e-5, "and no more");
    assert!((us_of(100.0, 3) - 31.0).abs() < 1e-5, "nothing but what switches add");
    assert!((us_of(1e6, 3) - 31.0).abs() < 1e-5, "and no less");
    let (min, max) = (0.1_f64.sqrt(), 10.0);
    let alpha = 100.0 / (1.0 / min - 1.0 / max);
    assert!((us_of(4.0, 1) - (27.0 + alpha / 2.0 - alpha / max)).abs() < 1e-5);
    assert!(us_of(0.3, 0) > us_of(0.4, 0));
}

#[test]
fn settings_without_a_curve_leave_the_target_as_it_is() {
    let target = Target::new(Span::ZERO, Some((us(100), 5.0, 5.0)));
    assert_eq!([0.01, 5.0, 100.0].map(|cwnd| target.of(us(25), cwnd, 9)), [us(25); 3]);
}

#[test]
fn an_rtt_of_acks_below_the_target_adds_one_increment() {
    let mut swift = swift(|config| config.ai = 0.5);
    for n in 0..10 {
        swift.on_ack(at(n), &ack(49));
    }
    let grown = swift.fabric.packets - 10.0;
    assert!((0.48..0.5).contains(&grown), "{grown}: the window grows while it is acknowledged");
    // An ACK for several packets counts for all of them.
    let before = swift.fabric.packets;
    swift.on_ack(at(11), &AckSample { newly_received: 4_000, ..ack(49) });
    assert!(close(swift.fabric.packets, before + 0.5 * 4.0 / before));
}

#[test]
fn below_one_packet_each_acknowledged_packet_adds_the_whole_increment() {
    let mut swift = swift(|config| config.ai = 0.01);
    swift.fabric.packets = 0.25;
    swift.on_ack(at(0), &ack(49));
    assert!(close(swift.fabric.packets, 0.26));
}

#[test]
fn a_decrease_follows_the_excess_once_an_rtt() {
    let mut swift = swift(|_| {});
    swift.on_ack(at(1_000), &ack(60));
    let once = 10.0 * (1.0 - 0.8 * 10.0 / 60.0);
    assert!(close(swift.fabric.packets, once));
    // Not again within this packet's RTT, even if many ACKs come.
    for n in 1..60 {
        swift.on_ack(at(1_000 + n), &ack(60));
    }
    assert!(close(swift.fabric.packets, once));
    // Never by more than half.
    swift.on_ack(at(1_500), &ack(500));
    assert!(close(swift.fabric.packets, once / 2.0));
}

#[test]
fn at_the_target_the_window_shrinks_by_nothing() {
    let mut swift = swift(|_| {});
    swift.on_ack(at(1_000), &ack(50));
    assert_eq!((swift.fabric.packets, swift.fabric.decreased_at), (10.0, None));
}

#[test]
fn the_windows_of_fabric_and_hosts_have_targets_of_their_own_and_the_smaller_one_rules() {
    let mut swift = swift(|config| config.max_window = Some(20_000));
    assert_eq!(swift.window(), Window(10_000));
    // The hosts take 200 µs, twice their target; the fabric is idle. The average follows slowly.
    for n in 0..10 {
        swift.on_ack(at(1_000 * n), &AckSample { hosts: queued(200), ..ack(20) });
    }
    assert!(swift.fabric.packets > 10.5, "{:?}", swift.fabric);
    assert!(swift.endpoint.packets < 10.0, "{:?}", swift.endpoint);
    assert_eq!(swift.window().0, (swift.endpoint.packets * 1_000.0) as u64);
    assert_eq!((swift.snapshot().phase, swift.rtt), ("endpoint", us(220)));
    // The other way round.
    let mut swift = self::swift(|_| {});
    swift.on_ack(at(0), &ack(400));
    assert_eq!((swift.window(), swift.snapshot().phase), (Window(5_000), "fabric"));
}

#[test]
fn without_a_window_for_hosts_one_target_is_for_the_whole_delay() {
    let mut swift = swift(|config| config.endpoint_window = false);
    swift.on_ack(at(0), &AckSample { hosts: queued(29), ..ack(20) });
    assert!(swift.fabric.packets > 10.0);
    let before = swift.fabric.packets;
    swift.on_ack(at(100), &AckSample { hosts: queued(80), ..ack(20) });
    assert!(close(swift.fabric.packets, before * (1.0 - 0.8 * 50.0 / 100.0)));
    assert_eq!((swift.snapshot().phase, swift.rtt), ("fabric", us(100)));
}

#[test]
fn the_delay_of_hosts_is_averaged() {
    let mut swift = swift(|_| {});
    for _ in 0..3 {
        swift.on_ack(at(0), &AckSample { hosts: queued(80), ..ack(20) });
    }
    let expected = 80e6 * (1.0 - 0.875_f64.powi(3));
    assert!((swift.endpoint_delay - expected).abs() < 1.0, "{}", swift.endpoint_delay);
}

#[test]
fn one_long_delay_of_a_host_does_not_close_the_window() {
    let mut swift = swift(|config| config.max_window = Some(10_000));
    swift.on_ack(at(0), &AckSample { hosts: queued(100_000), ..ack(20) });
    // The average needs 36 ACKs to fall below the target. A window of one packet hears one ACK an RTT.
    let (mut now, mut least) = (200_000_f64, f64::MAX);
    for _ in 0..100 {
        swift.on_ack(at(now as u64), &ack(20));
        now += 20.0 / swift.cwnd();
        least = least.min(swift.cwnd());
    }
    assert!(least > 0.5, "{least}: the window shrinks on and on");
    assert!(swift.cwnd() > 2.0, "{}", swift.cwnd());
}

#[test]
fn below_one_packet_departures_are_an_rtt_over_the_window_apart() {
    let mut swift = swift(|_| {});
    let packet = SentPacket { bytes: 1_000, in_flight: 1_000, retransmission: false, app_limited: false };
    swift.on_send(at(100), &packet);
    swift.on_ack(at(140), &ack(40));
    assert_eq!(swift.next_departure(), None, "ACKs clock a window of {:?}", swift.window());
    swift.fabric.packets = 0.5;
    assert_eq!(swift.next_departure(), Some(at(180)), "twice the RTT after the last packet");
    swift.fabric.packets = 0.005;
    assert_eq!(swift.next_departure(), Some(at(8_100)), "200 RTTs");
    swift.fabric.packets = 0.001;
    assert_eq!(swift.next_departure(), Some(at(40_100)));
    assert_eq!((swift.window(), swift.snapshot().phase), (Window(1), "paced"));
}

#[test]
fn a_loss_halves_the_window_once_an_rtt_and_trims_spare_that_of_the_hosts() {
    let mut swift = swift(|config| config.max_window = Some(20_000));
    swift.on_nack(at(1_000), &nack(NackCause::Trimmed));
    swift.on_nack(at(1_001), &nack(NackCause::TrimmedLastHop));
    assert_eq!((swift.fabric.packets, swift.endpoint.packets), (5.0, 20.0));
    swift.on_nack(at(1_010), &nack(NackCause::InferredLoss));
    assert_eq!((swift.fabric.packets, swift.endpoint.packets), (5.0, 10.0));
    swift.on_nack(at(1_030), &nack(NackCause::InferredLoss));
    assert_eq!((swift.fabric.packets, swift.endpoint.packets), (2.5, 5.0));
}

#[test]
fn a_hole_counts_as_a_loss_once_until_what_was_in_flight_has_been_received() {
    let mut swift = swift(|config| config.ai = 0.0);
    let hole = |beyond| AckSample { out_of_order: beyond, ..ack(20) };
    (1..=2).for_each(|beyond| swift.on_ack(at(1_000), &hole(beyond)));
    assert_eq!(swift.fabric.packets, 10.0, "packets may overtake each other a little");
    swift.on_ack(at(1_001), &hole(3));
    assert_eq!(swift.fabric.packets, 5.0);
    (4..=12).for_each(|beyond| swift.on_ack(at(2_000), &hole(beyond)));
    assert_eq!(swift.fabric.packets, 5.0, "the same recovery, a long time later");
    swift.on_ack(at(2_001), &hole(13));
    assert_eq!(swift.fabric.packets, 2.5);
}

#[test]
fn lswift_ignores_holes_and_acts_on_the_fifth_loss_within_an_rtt() {
    let config = LswiftConfig { initial_window: Some(10_000), ai: 0.0, ..LswiftConfig::default() };
    let mut lswift = Swift::new(Arc::new(config.shared(&PARAMS, Variant::Lswift)));
    (0..50).for_each(|n| lswift.on_ack(at(n), &AckSample { out_of_order: 100, ..ack(20) }));
    (0..4).for_each(|n| lswift.on_nack(at(100 + n), &nack(NackCause::Trimmed)));
    // The fifth comes more than an RTT after the first.
    lswift.on_nack(at(121), &nack(NackCause::Trimmed));
    assert_eq!(lswift.fabric.packets, 10.0);
    (0..4).for_each(|n| lswift.on_nack(at(122 + n), &nack(NackCause::Trimmed)));
    assert_eq!(lswift.fabric.packets, 5.0);
}

#[test]
fn expiries_halve_the_window_and_too_many_in_a_row_reset_it() {
    let mut swift = swift(|_| {});
    let lost = |expiries| LossSample { bytes: 1_000, in_flight: 0, expiries };
    for expiries in 1..=4 {
        swift.on_timeout(at(1_000 * u64::from(expiries)), &lost(expiries));
    }
    assert_eq!(swift.fabric.packets, 10.0 / 16.0);
    swift.on_timeout(at(4_001), &lost(5));
    assert_eq!((swift.fabric.packets, swift.endpoint.packets), (0.001, 0.001));
}

#[test]
fn a_window_shrinks_again_after_any_time() {
    let mut swift = swift(|config| config.losses = 2);
    swift.on_ack(at(0), &ack(1_000));
    let before = swift.fabric.packets;
    // Longer than the time over which instants are in order.
    let later = at(0) + Span::from_ps(1 << 63) + Span::from_us(1);
    swift.on_ack(later, &ack(1_000));
    assert!(swift.fabric.packets < before, "{}", swift.fabric.packets);
    swift.on_nack(at(0), &nack(NackCause::Trimmed));
    swift.on_nack(later, &nack(NackCause::Trimmed));
    assert_eq!(swift.lost, 1, "the two losses are not within an RTT");
}

/// A flow of default settings that knows what `delays` says, and its window once each of `rtts` has passed in turn, each
/// with an acknowledgement of all that the window had room for: the delays in the fabric and in the hosts, µs.
fn windows_after(delays: Delays, rtts: impl IntoIterator<Item = (u64, u64)>) -> Vec<f64> {
    let params = CcParams { delays, ..PARAMS };
    let mut swift = Swift::new(Arc::new(SwiftConfig::default().shared(&params, Variant::Swift)));
    let mut now = at(0);
    let mut pass = |(in_fabric, in_hosts)| {
        now += us(in_fabric + in_hosts);
        let packets = swift.cwnd().max(1.0) as u32;
        let hosts = queued(in_hosts);
        swift.on_ack(now, &AckSample { newly_received: packets * 1_000, hosts, ..ack(in_fabric) });
        swift.cwnd()
    };
    rtts.into_iter().map(&mut pass).collect()
}

fn last(windows: &[f64]) -> f64 {
    windows.last().copied().unwrap_or_default()
}

#[test]
fn a_path_much_longer_than_the_guessed_rtt_is_used() {
    let rtts = || vec![(10_000, 0); 100];
    let windows = windows_after(Delays::Unknown, rtts());
    assert!(last(&windows) > 80.0, "once it has found out, it grows with each RTT: {windows:?}");
    // The rule of the paper, if somebody has said that the RTT is 20 µs.
    assert!(last(&windows_after(Delays::Known, rtts())) < 0.01);
    assert!(last(&windows_after(Delays::HostsUnknown, rtts())) < 0.01);
}

#[test]
fn hosts_that_are_held_up_for_milliseconds_now_and_then_keep_a_window() {
    // Four of five packets wait for their host's processor, as on a busy machine.
    let rtts = || (0..2_000).map(|n| (20, [200, 4_000, 1_500, 11_000, 3_000][n % 5]));
    let least = |delays| {
        let windows = windows_after(delays, rtts());
        windows.iter().sum::<f64>() / windows.len() as f64
    };
    assert!(least(Delays::HostsUnknown) > 4.0, "{}", least(Delays::HostsUnknown));
    assert!(least(Delays::Unknown) > 4.0, "{}", least(Delays::Unknown));
    assert!(least(Delays::Known) < 1.5, "{}", least(Delays::Known));
}

#[test]
fn a_path_that_becomes_longer_is_used_again() {
    let rtts = [(1_000, 0)].repeat(50).into_iter().chain([(5_000, 0)].repeat(100));
    let windows = windows_after(Delays::Unknown, rtts);
    let least = windows.iter().copied().fold(f64::MAX, f64::min);
    assert!((1.0..2.0).contains(&least) && last(&windows) > 20.0, "{windows:?}");
}

#[test]
fn the_own_queue_is_kept_short_also_where_the_rtt_is_measured() {
    // The path holds ten packets in 1 ms; more than these queue.
    let params = CcParams { delays: Delays::Unknown, ..PARAMS };
    let mut swift = Swift::new(Arc::new(SwiftConfig::default().shared(&params, Variant::Swift)));
    let (mut now, mut longest) = (at(0), 0);
    for rtt in 0..5_000 {
        let packets = swift.cwnd().max(1.0) as u32;
        let delay = u64::from(packets.max(10)) * 100;
        now += us(delay);
        swift.on_ack(now, &AckSample { newly_received: packets * 1_000, ..ack(delay) });
        if rtt > 1_000 {
            longest = longest.max(delay);
            assert!(packets >= 8, "{packets}: the path is not full");
        }
    }
    assert!(longest <= 1_500, "{longest} µs: a queue of {} packets", longest / 100 - 10);
}

#[test]
fn targets_that_are_set_hold_whatever_is_measured() {
    let set = SwiftConfig {
        base_target: Some(us(50)),
        endpoint_target: Some(us(100)),
        min_cwnd: Some(0.001),
        ..SwiftConfig::default()
    };
    let params = CcParams { delays: Delays::Unknown, ..PARAMS };
    let (known, unknown) = (set.shared(&PARAMS, Variant::Swift), set.shared(&params, Variant::Swift));
    assert_eq!(SwiftShared { measures: false, ..unknown }, known);
}
