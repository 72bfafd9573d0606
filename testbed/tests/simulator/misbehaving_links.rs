//! Links with an extra delay, and links that lose packets in bursts, in one direction or in both.

use weft_cc::{Span, Time};
use weft_stack::wire::pds::DeliveryMode;
use weft_testbed::sim::RunError;
use weft_testbed::sim::{
    BlockLosses, CorrelatedLoss, FaultPlan, GilbertElliott, LinkChange, LinkDirections, LinkEvent, Options,
    RunConfig, RunReport, run_with,
};
use weft_testbed::topology::{HostId, TopologySpec};
use weft_testbed::workload::{CmOptions, parse_cm};

/// One flow of `bytes` bytes from host 0 to host 3.
fn one_flow(bytes: u64) -> RunConfig {
    let matrix = format!("Nodes 4\nConnections 1\n0->3 id 1 start 0 size {bytes}\n");
    let workload = parse_cm("one.cm", &matrix, CmOptions::default()).unwrap();
    let topology = "leaf-spine:hosts=4,leaves=2,spines=1,link=100G,latency=1us".parse::<TopologySpec>();
    RunConfig::new(topology.unwrap().build().unwrap(), workload)
}

fn run(config: &RunConfig, events: &[(u64, LinkDirections, LinkChange)], threads: usize) -> RunReport {
    let event = |&(us, link, change)| LinkEvent { at: Time::ZERO + Span::from_us(us), link, change };
    let faults = FaultPlan { events: events.iter().map(event).collect(), ..FaultPlan::default() };
    let report = run_with(config, Options { faults, threads, ..Options::default() }).unwrap();
    assert!(report.is_complete(), "{:?}", report.stuck);
    report
}

fn fct(report: &RunReport) -> Span {
    report.flows[0].end.unwrap().since(report.flows[0].start.unwrap())
}

#[test]
fn an_extra_delay_adds_to_a_flow_what_its_packets_and_answers_wait() {
    let config = one_flow(1_000);
    let up = config.topology.nic(HostId(0));
    let alone = fct(&run(&config, &[], 1));
    let delay = Span::from_ns(12_345);
    for (link, times) in [
        (LinkDirections::From(up), 1),
        (LinkDirections::From(config.topology.port(up).reverse), 1),
        (LinkDirections::Both(up), 2),
    ] {
        let late = run(&config, &[(0, link, LinkChange::Delay(delay))], 1);
        assert_eq!(fct(&late), alone + delay.times(times), "{link:?}");
        // The delay is over before the flow begins, or is set only after its end.
        let over = run(&config, &[(0, link, LinkChange::Delay(delay)), (0, link, LinkChange::Restore)], 1);
        let later = run(&config, &[(500, link, LinkChange::Delay(delay))], 1);
        assert_eq!((fct(&over), fct(&later)), (alone, alone));
    }
}

#[test]
fn a_delay_that_ends_during_a_flow_does_not_reorder_it() {
    // In this mode a packet that has been overtaken is sent again.
    let config = RunConfig { mode: DeliveryMode::Rod, ..one_flow(4 << 20) };
    let up = LinkDirections::From(config.topology.nic(HostId(0)));
    let delay = LinkChange::Delay(Span::from_us(30));
    let changes = [(0, up, delay), (100, up, LinkChange::Restore), (200, up, delay)];
    let report = run(&config, &changes, 1);
    assert_eq!((report.packets.retransmitted, report.timeouts), (0, 0));
    assert_eq!(run(&config, &changes, 2), report);
}

#[test]
fn bursts_of_losses_hit_the_direction_that_they_are_set_for() {
    let config = one_flow(4 << 20);
    let up = config.topology.nic(HostId(0));
    let gilbert = GilbertElliott { to_bad: 0.1, to_good: 0.5, loss_bad: 1.0, loss_good: 0.0 };
    let blocks = BlockLosses::new(10, &[0.2, 0.1, 0.05]).unwrap();
    for (model, rate) in [
        (CorrelatedLoss::GilbertElliott(gilbert), gilbert.loss_rate()),
        (CorrelatedLoss::Blocks(blocks), blocks.loss_rate()),
    ] {
        let change = LinkChange::Correlated(model);
        let forth = run(&config, &[(0, LinkDirections::From(up), change)], 1);
        let sent = forth.packets.data + forth.packets.retransmitted;
        let lost = forth.faults.lost as f64 / sent as f64;
        assert!((lost / rate - 1.0).abs() < 0.4, "{model:?}: {lost} instead of {rate}");
        assert_eq!(run(&config, &[(0, LinkDirections::From(up), change)], 2), forth);

        let reverse = LinkDirections::From(config.topology.port(up).reverse);
        let back = run(&config, &[(0, reverse, change)], 1);
        assert!(back.faults.lost < forth.faults.lost, "only acknowledgements return: {:?}", back.faults);
    }
}

#[test]
fn a_switch_trims_the_packets_that_chance_chooses_and_they_are_sent_again() {
    let config = one_flow(4 << 20);
    let down = LinkDirections::From(config.topology.port(config.topology.nic(HostId(3))).reverse);
    let trims = |p| run(&config, &[(0, down, LinkChange::Trim(p))], 1);
    let plain = trims(0.0);
    assert_eq!((plain.packets.trimmed, plain.packets.retransmitted), (0, 0));
    for p in [0.01, 0.2] {
        let report = trims(p);
        let arrived = report.packets.data + report.packets.retransmitted;
        let share = report.packets.trimmed as f64 / arrived as f64;
        assert!((share / p - 1.0).abs() < 0.6, "{share} instead of {p}");
        assert_eq!((report.packets.retransmitted, report.timeouts), (report.packets.trimmed, 0));
        assert_eq!(run(&config, &[(0, down, LinkChange::Trim(p))], 2), report);
    }
    let over = run(&config, &[(0, down, LinkChange::Trim(0.5)), (0, down, LinkChange::Restore)], 1);
    assert_eq!(over.flows, plain.flows);
}

#[test]
fn packets_cannot_be_trimmed_where_nobody_trims() {
    let config = one_flow(1_000);
    let nic = config.topology.nic(HostId(0));
    let refused = |config: &RunConfig, link| {
        let events = vec![LinkEvent { at: Time::ZERO, link, change: LinkChange::Trim(0.1) }];
        let faults = FaultPlan { events, ..FaultPlan::default() };
        run_with(config, Options { faults, ..Options::default() }).err()
    };
    assert_eq!(
        refused(&config, LinkDirections::From(nic)),
        Some(RunError::NobodyTrims),
        "a host sends there"
    );
    assert_eq!(refused(&config, LinkDirections::Both(nic)), None);
    let drops = RunConfig { trim: false, ..config };
    assert_eq!(refused(&drops, LinkDirections::Both(nic)), Some(RunError::NobodyTrims));
}
