//! The requirements on every sender's algorithm: one suite over the whole registry.

mod bottleneck;

use bottleneck::{Bottleneck, sample};
use proptest::prelude::*;
use weft_cc::registry::{Needs, WindowBounds, all_names};
use weft_cc::{
    AckSample, CcChoice, CcParams, Delays, FlowControl, HostReport, LossSample, NackCause, NackSample, Rate,
    SenderAlgorithm, SenderCc, SentPacket, Span, Time, Window,
};

const NETWORK: CcParams = CcParams {
    mtu: 4096,
    overhead: 64,
    link_rate: Rate::from_gbps(100),
    network_rtt: Span::from_us(12),
    trimming: true,
    delays: Delays::Known,
};

/// Just before the clock wraps: every test below runs across the wrap.
const NEAR_THE_END: Time = Time::from_ps(u64::MAX - 30_000_000);

fn choices() -> impl Iterator<Item = CcChoice> {
    all_names().into_iter().map(|name| CcChoice::parse(&name).unwrap())
}

/// Checks what must hold after every call.
fn check(choice: &CcChoice, cc: &SenderAlgorithm, params: &CcParams) {
    let name = choice.name();
    let Window(window) = cc.window();
    let snapshot = cc.snapshot();
    assert_eq!(snapshot.cwnd, window, "{name}: the snapshot shows the window");
    assert!(!snapshot.phase.is_empty(), "{name}: a phase has a name");
    assert!(cc.expected_rtt() >= snapshot.base_rtt, "{name}: {:?} below {snapshot:?}", cc.expected_rtt());
    assert!(snapshot.base_rtt <= params.network_rtt.max(Span::from_ps(1)), "{name}: {snapshot:?}");
    assert!(window >= 1, "{name}");
    if let &Needs { window: Some(WindowBounds { least_packets, most_bdp }), .. } = choice.needs() {
        let least = (params.wire_mtu() as f64 * least_packets) as u64;
        let most = (params.network_bdp() as f64 * most_bdp) as u64;
        assert!(window >= least, "{name}: {window} is below {least_packets} packets ({least})");
        assert!(
            window <= most.saturating_add(2).max(least),
            "{name}: {window} is above {most_bdp} BDP ({most})"
        );
    }
}

#[derive(Clone, Copy, Debug)]
enum Input {
    Send(SentPacket),
    Ack(AckSample),
    Nack(NackSample),
    Timeout(LossSample),
}

fn apply(cc: &mut SenderAlgorithm, now: Time, input: &Input) {
    match input {
        Input::Send(packet) => cc.on_send(now, packet),
        Input::Ack(ack) => {
            cc.on_hops((ack.newly_received % 9) as u8);
            cc.on_ack(now, ack);
        }
        Input::Nack(nack) => cc.on_nack(now, nack),
        Input::Timeout(lost) => cc.on_timeout(now, lost),
    }
}

/// Mostly amounts that occur, sometimes impossible ones.
fn amount() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..70_000_u64,
        1 => Just(0),
        1 => Just(u64::from(u32::MAX)),
        1 => Just(u64::MAX),
        1 => any::<u64>(),
    ]
}

fn rtt() -> impl Strategy<Value = Option<Span>> {
    prop_oneof![
        5 => (8_000_000..60_000_000_u64).prop_map(Some),
        1 => Just(None),
        1 => Just(Some(0)),
        1 => Just(Some(u64::MAX)),
        1 => any::<u64>().prop_map(Some),
    ]
    .prop_map(|ps| ps.map(Span::from_ps))
}

fn flow_control() -> impl Strategy<Value = FlowControl> {
    prop_oneof![
        8 => Just(FlowControl::Off),
        1 => any::<u8>().prop_map(FlowControl::Penalty),
        1 => Just(FlowControl::Restore),
    ]
}

/// What one acknowledgement can say of, bytes.
fn received() -> impl Strategy<Value = u32> {
    amount().prop_map(|bytes| bytes.min(u64::from(u32::MAX)) as u32)
}

/// Most hosts do not measure how long packets wait in them.
fn waited() -> impl Strategy<Value = Span> {
    prop_oneof![6 => Just(0), 1 => 0..60_000_000_u64, 1 => any::<u64>()].prop_map(Span::from_ps)
}

fn ack() -> impl Strategy<Value = AckSample> {
    (received(), rtt(), any::<bool>(), amount(), any::<u16>(), flow_control(), waited()).prop_map(
        |(newly_received, rtt, ecn, in_flight, out_of_order, flow_control, waited)| AckSample {
            newly_received,
            trigger_bytes: newly_received,
            rtt,
            ecn,
            in_flight,
            out_of_order,
            hosts: HostReport { remote_queueing: waited, local_rx_delay: waited, flow_control }.if_any(),
        },
    )
}

fn input() -> impl Strategy<Value = Input> {
    let cause =
        prop::sample::select(vec![NackCause::Trimmed, NackCause::TrimmedLastHop, NackCause::InferredLoss]);
    let nack = (amount(), cause, any::<bool>(), rtt(), amount())
        .prop_map(|(bytes, cause, ecn, rtt, in_flight)| NackSample { bytes, cause, ecn, rtt, in_flight });
    let lost = (amount(), amount(), any::<u32>()).prop_map(|(bytes, in_flight, expiries)| LossSample {
        bytes,
        in_flight,
        expiries,
    });
    let sent = (amount(), amount(), any::<bool>()).prop_map(|(bytes, in_flight, retransmission)| {
        SentPacket { bytes, in_flight, retransmission, app_limited: in_flight % 2 == 0 }
    });
    prop_oneof![
        2 => sent.prop_map(Input::Send),
        8 => ack().prop_map(Input::Ack),
        2 => nack.prop_map(Input::Nack),
        1 => lost.prop_map(Input::Timeout),
    ]
}

fn any_network() -> impl Strategy<Value = CcParams> {
    let rate = prop_oneof![Just(0), 1..2_000_000_000_000_u64, Just(u64::MAX)];
    let rtt = prop_oneof![Just(0), 1..1_000_000_u64, 1_000_000..30_000_000_000_u64, Just(u64::MAX)];
    (0..70_000_u32, 0..200_u32, rate, rtt, any::<bool>()).prop_map(|(mtu, overhead, rate, rtt, trimming)| {
        CcParams {
            mtu,
            overhead,
            link_rate: Rate::from_bps(rate),
            network_rtt: Span::from_ps(rtt),
            trimming,
            delays: Delays::Known,
        }
    })
}

/// Steps of the clock: bursts, RTTs, pauses of months.
fn pause() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(0), 6 => 0..20_000_000_u64, 1 => 0..1_u64 << 63, 1 => any::<u64>()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_sequence_of_inputs_keeps_the_window_in_bounds(
        start in prop_oneof![Just(0), Just(u64::MAX - 1_000_000), any::<u64>()],
        inputs in prop::collection::vec((pause(), input()), 1..120),
    ) {
        for choice in choices() {
            let mut cc = choice.sender(&NETWORK);
            let mut now = Time::from_ps(start);
            check(&choice, &cc, &NETWORK);
            for (pause, input) in &inputs {
                now += Span::from_ps(*pause);
                apply(&mut cc, now, input);
                check(&choice, &cc, &NETWORK);
            }
        }
    }

    #[test]
    fn no_description_of_a_network_leads_to_an_empty_window(
        params in any_network(),
        inputs in prop::collection::vec((pause(), input()), 1..30),
    ) {
        for choice in choices() {
            let mut cc = choice.sender(&params);
            let mut now = NEAR_THE_END;
            for (pause, input) in &inputs {
                now += Span::from_ps(*pause);
                apply(&mut cc, now, input);
                let snapshot = cc.snapshot();
                prop_assert!(snapshot.cwnd >= 1, "{}: {snapshot:?}", choice.name());
                prop_assert!(snapshot.cwnd == u64::MAX || snapshot.cwnd <= u64::MAX / 2);
            }
        }
    }

    #[test]
    fn the_epoch_of_the_clock_does_not_matter(
        epoch in any::<u64>(),
        inputs in prop::collection::vec((0..20_000_000_u64, input()), 1..120),
    ) {
        for choice in choices() {
            let mut here = choice.sender(&NETWORK);
            let mut there = choice.sender(&NETWORK);
            let mut passed = Span::ZERO;
            for (pause, input) in &inputs {
                passed = passed + Span::from_ps(*pause);
                apply(&mut here, Time::from_ps(1) + passed, input);
                apply(&mut there, Time::from_ps(epoch) + passed, input);
                prop_assert_eq!(here.snapshot(), there.snapshot(), "{}", choice.name());
            }
        }
    }
}

#[test]
fn neither_queries_nor_transmissions_change_the_window() {
    for choice in choices() {
        let mut cc = choice.sender(&NETWORK);
        let before = cc.snapshot();
        for i in 0..1_000 {
            let packet = SentPacket {
                bytes: 4_160,
                in_flight: 4_160 * i,
                retransmission: i % 2 == 0,
                app_limited: i % 3 == 0,
            };
            cc.on_send(NEAR_THE_END + Span::from_ns(i), &packet);
            let _ = (cc.window(), cc.next_departure(), cc.snapshot());
        }
        assert_eq!(cc.snapshot(), before, "{}", choice.name());
    }
}

#[test]
fn empty_acknowledgements_do_not_shrink_the_window() {
    for choice in choices() {
        let mut cc = choice.sender(&NETWORK);
        let before = cc.window();
        for i in 0..1_000 {
            cc.on_ack(NEAR_THE_END + Span::from_ns(i * 300), &sample(0, Span::from_us(12), false, 0));
        }
        assert!(cc.window() >= before, "{}", choice.name());
    }
}

#[test]
fn persistent_congestion_shrinks_the_window_and_its_end_restores_it() {
    for choice in choices() {
        let mut cc = choice.sender(&NETWORK);
        if choice.needs().window.is_none() {
            continue;
        }
        let (first, mut now) = (cc.window().0, NEAR_THE_END);
        for _ in 0..2_000 {
            now += Span::from_ns(332);
            cc.on_ack(now, &sample(4_160, Span::from_us(30), true, cc.window().0));
        }
        let congested = cc.window().0;
        assert!(congested < first / 4, "{}: {first} shrank only to {congested}", choice.name());
        for _ in 0..2_000 {
            now += Span::from_ns(332);
            cc.on_ack(now, &sample(4_160, Span::from_us(12), false, cc.window().0));
        }
        let recovered = cc.window().0;
        assert!(recovered > first / 2, "{}: {congested} grew only to {recovered}", choice.name());
    }
}

#[test]
fn flows_share_one_bottleneck_fairly_and_keep_it_busy() {
    for choice in choices() {
        if choice.name().starts_with("constant") {
            // Constant windows have no reason to be fair: without randomness the same flows are always trimmed.
            continue;
        }
        for flows in [2, 8, 24] {
            let mut net = Bottleneck::new(&choice, &NETWORK, flows, NEAR_THE_END);
            // Flows start one after the other, so that they have to reach fairness, not just keep it.
            for flow in 0..flows {
                net.run_until(Span::from_us(40 * flow as u64));
                net.start(flow);
            }
            net.run_until(Span::from_ms(8));
            net.clear_counts();
            net.run_until(Span::from_ms(16));
            let (jain, used) = (net.fairness(), net.utilisation(Span::from_ms(8)));
            assert!(jain >= 0.9, "{} with {flows} flows: Jain {jain:.3}", choice.name());
            assert!(used >= 0.9, "{} with {flows} flows: {used:.3} used", choice.name());
        }
    }
}

#[test]
fn controlled_flows_stop_trimming_where_a_constant_window_does_not() {
    let discarded = |name: &str| {
        let mut net = Bottleneck::new(&CcChoice::parse(name).unwrap(), &NETWORK, 8, NEAR_THE_END);
        (0..8).for_each(|flow| net.start(flow));
        net.run_until(Span::from_ms(2));
        net.clear_counts();
        net.run_until(Span::from_ms(6));
        net.discarded
    };
    let uncontrolled = discarded("constant");
    assert!(uncontrolled > 1_000, "the network of this test must be able to congest: {uncontrolled}");
    for name in all_names().iter().filter(|name| *name != "constant") {
        let trims = discarded(name);
        assert!(trims * 100 < uncontrolled, "{name}: {trims} trims, constant {uncontrolled}");
    }
}

#[test]
fn remaining_flows_take_the_bandwidth_of_finished_flows() {
    for choice in choices() {
        let mut net = Bottleneck::new(&choice, &NETWORK, 8, NEAR_THE_END);
        (0..8).for_each(|flow| net.start(flow));
        net.run_until(Span::from_ms(4));
        (1..8).for_each(|flow| net.stop(flow));
        net.run_until(Span::from_us(4_500));
        net.clear_counts();
        net.run_until(Span::from_us(5_500));
        let used = net.utilisation(Span::from_ms(1));
        assert!(used >= 0.9, "{}: {used:.3} of the link half a millisecond later", choice.name());
    }
}

#[test]
fn flows_share_a_bottleneck_without_trimming_too() {
    let lossy = CcParams { trimming: false, ..NETWORK };
    for name in ["nscc", "smartt"] {
        let mut net = Bottleneck::new(&CcChoice::parse(name).unwrap(), &lossy, 16, NEAR_THE_END);
        (0..16).for_each(|flow| net.start(flow));
        net.run_until(Span::from_ms(4));
        net.clear_counts();
        net.run_until(Span::from_ms(8));
        let (jain, used) = (net.fairness(), net.utilisation(Span::from_ms(4)));
        assert!(jain >= 0.9 && used >= 0.9, "{name}: Jain {jain:.3}, {used:.3} used");
    }
}

#[test]
fn flows_tolerate_the_loss_of_credit_messages() {
    for choice in choices().filter(CcChoice::uses_credit) {
        let name = choice.name();
        let mut net = Bottleneck::new(&choice, &NETWORK, 8, NEAR_THE_END);
        net.credit_loss = 64;
        (0..8).for_each(|flow| net.start(flow));
        net.run_until(Span::from_ms(2));
        net.clear_counts();
        net.run_until(Span::from_ms(4));
        let (jain, used) = (net.fairness(), net.utilisation(Span::from_ms(2)));
        assert!(jain >= 0.9 && used >= 0.85, "{name}: Jain {jain:.3}, {used:.3} used");
    }
}
