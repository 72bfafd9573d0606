//! Random small fabrics whose links lose, corrupt, duplicate and reorder packets, fail and recover: every
//! message arrives once and unchanged, nothing leaks, and the run ends.
//!
//! The cases are the same in every run. `WEFT_FABRIC_CASES` sets the number of cases of each kind,
//! `WEFT_FABRIC_SEED` draws other cases.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use weft_cc::registry::all_names;
use weft_cc::{CcChoice, Span, Time};
use weft_stack::spray::LbChoice;
use weft_stack::spray::registry::BALANCERS;
use weft_stack::wire::pds::DeliveryMode;
use weft_testbed::sim::{
    FaultPlan, LinkChange, LinkDirections, LinkEvent, LinkFaults, Options, PayloadMode, PhantomQueues,
    RunConfig, RunReport, run_with,
};
use weft_testbed::topology::{HostId, PortId, Topology, TopologySpec};
use weft_testbed::workload::{Connection, Flow, Start, Trigger, TriggerIdx, TriggerKind, Workload};

/// Time limit of a run. No run here needs a hundredth of it.
const LIMIT: Span = Span::from_ms(2_000);

/// A fabric, a workload and faults, as they are drawn.
#[derive(Clone, Debug)]
struct Case {
    topology: String,
    /// Pairs of hosts, modulo the number of hosts.
    pairs: Vec<(u32, u32)>,
    flows: Vec<FlowCase>,
    cc: &'static str,
    lb: &'static str,
    paths: u16,
    trim: bool,
    mode: DeliveryMode,
    mtu: u32,
    /// Queue size in packets; `None`: one BDP.
    queue_packets: Option<u64>,
    ecn: bool,
    ack_every: u32,
    faults: FaultCase,
    seed: u64,
}

#[derive(Clone, Debug)]
struct FlowCase {
    /// Index of the pair, modulo the number of pairs.
    pair: usize,
    size: Size,
    begin: Begin,
}

/// A flow size relative to the MTU.
#[derive(Clone, Copy, Debug)]
enum Size {
    Bytes(u64),
    /// A number of full packets, plus or minus some bytes.
    Packets(u64, i64),
}

#[derive(Clone, Debug)]
enum Begin {
    AtNs(u64),
    /// When an earlier flow has been sent; its index is modulo their number.
    AfterSent(usize),
    /// When an earlier flow has been received.
    AfterReceived(usize),
}

#[derive(Clone, Debug)]
struct FaultCase {
    /// Probability that a packet or its answer is lost or corrupted on the longest path.
    loss: f64,
    corrupt: f64,
    duplicate: f64,
    reorder: f64,
    delay_ns: u64,
    outages: Vec<Outage>,
}

/// A link that fails and recovers.
#[derive(Clone, Debug)]
struct Outage {
    /// Index of the port, modulo the number of ports.
    port: usize,
    /// Time of the failure, in initial retransmission timeouts.
    begin: f64,
    /// Length of the outage, in initial retransmission timeouts.
    length: f64,
}

impl Case {
    fn config(&self) -> RunConfig {
        let topology = self.topology.parse::<TopologySpec>().unwrap().build().unwrap();
        let workload = self.workload(&topology);
        let mut config = RunConfig {
            cc: CcChoice::parse(self.cc).unwrap(),
            lb: LbChoice::parse(self.lb).unwrap(),
            paths: self.paths,
            mtu: self.mtu,
            trim: self.trim,
            ecn: self.ecn.then_some((0.2, 0.8)),
            phantom: self.seed.is_multiple_of(4).then_some(PhantomQueues { drain: 0.9, ecn: (0.2, 0.8) }),
            payload: PayloadMode::Real,
            seed: self.seed,
            until: Some(LIMIT),
            ack_every: self.ack_every,
            mode: self.mode,
            ..RunConfig::new(topology, workload)
        };
        config.queue_bytes = self.queue_packets.map(|packets| packets * config.wire_mtu());
        config
    }

    fn workload(&self, topology: &Topology) -> Workload {
        let hosts = topology.hosts();
        let pairs: Vec<(HostId, HostId)> = self.pairs.iter().map(|&(a, b)| distinct(hosts, a, b)).collect();
        let mut triggers = Vec::new();
        let mut flows: Vec<Flow> = Vec::new();
        let mut connections: Vec<Connection> = Vec::new();
        for case in &self.flows {
            let pair = case.pair % pairs.len();
            let id = pair as u32 + 1;
            let (src, dst) = pairs[pair];
            let known = connections.iter().position(|c| c.id == id);
            let connection = known.unwrap_or_else(|| {
                connections.push(Connection { id, src, dst });
                connections.len() - 1
            });
            let start = begin(&case.begin, &mut flows, &mut triggers);
            flows.push(Flow {
                id,
                connection: connection as u32,
                src,
                dst,
                bytes: case.size.bytes(self.mtu),
                start,
                on_sent: None,
                on_received: None,
                message: None,
            });
        }
        Workload::new(hosts, flows, connections, triggers, Vec::new()).unwrap()
    }

    fn fault_plan(&self, config: &RunConfig) -> FaultPlan {
        // Both directions of the path.
        let links = f64::from(2 * config.topology.diameter_hops());
        let rto = config.endpoint().zones.longest_rto();
        let ports = config.topology.ports().len();
        let mut events = Vec::new();
        for outage in &self.faults.outages {
            let link = LinkDirections::Both(PortId((outage.port % ports) as u32));
            let down = Time::ZERO + rto.mul_f64(outage.begin);
            let up = down + rto.mul_f64(outage.length);
            events.push(LinkEvent { at: down, link, change: LinkChange::Fail });
            events.push(LinkEvent { at: up, link, change: LinkChange::Restore });
        }
        let all_links = LinkFaults {
            loss: self.faults.loss / links,
            corrupt: self.faults.corrupt / links,
            duplicate: self.faults.duplicate,
            reorder: self.faults.reorder,
            delay: Span::from_ns(self.faults.delay_ns),
            ..LinkFaults::default()
        };
        FaultPlan { all_links, events, ..FaultPlan::default() }
    }

    fn run(&self) -> RunReport {
        let config = self.config();
        let faults = self.fault_plan(&config);
        let run = |threads| {
            let options = Options { faults: faults.clone(), threads, ..Options::default() };
            run_with(&config, options).unwrap()
        };
        let report = run(1);
        if self.seed.is_multiple_of(16) {
            // Only in some cases, because threads that wait for each other on busy processors are slow.
            assert_eq!(report, run(2), "with two threads");
        }
        report
    }
}

/// Two different hosts.
fn distinct(hosts: u32, a: u32, b: u32) -> (HostId, HostId) {
    let src = a % hosts;
    let dst = (src + 1 + b % (hosts - 1)) % hosts;
    (HostId(src), HostId(dst))
}

/// The start of a flow. Adds a trigger to the flow that it waits for if that has none yet.
fn begin(begin: &Begin, flows: &mut [Flow], triggers: &mut Vec<Trigger>) -> Start {
    let (earlier, sent) = match begin {
        _ if flows.is_empty() => return Start::At(Time::ZERO),
        Begin::AtNs(ns) => return Start::At(Time::ZERO + Span::from_ns(*ns)),
        Begin::AfterSent(earlier) => (*earlier, true),
        Begin::AfterReceived(earlier) => (*earlier, false),
    };
    let flow = &mut flows[earlier % flows.len()];
    let place = if sent { &mut flow.on_sent } else { &mut flow.on_received };
    let trigger = *place.get_or_insert_with(|| {
        triggers.push(Trigger { id: triggers.len() as u32 + 1, kind: TriggerKind::Oneshot });
        TriggerIdx::new(triggers.len() as u32 - 1).unwrap()
    });
    Start::Trigger(trigger)
}

impl Size {
    fn bytes(self, mtu: u32) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Packets(packets, more) => (packets * u64::from(mtu)).saturating_add_signed(more),
        }
    }
}

/// Checks the properties that every run must have.
fn check(case: &Case, report: &RunReport) -> Result<(), TestCaseError> {
    let unfinished: Vec<_> = report.flows.iter().filter(|flow| flow.end.is_none()).collect();
    let complaints = report.stuck.len() + report.payload_errors.len() + report.leaks.len() + unfinished.len();
    prop_assert!(
        complaints == 0 && report.is_complete() && report.end.is_before(Time::ZERO + LIMIT),
        "ended at {:?}\nstuck: {:#?}\npayload: {:#?}\nleaks: {:#?}\nunfinished: {:#?}\npackets: {:?}\nflows: {:?}",
        report.end,
        report.stuck,
        report.payload_errors,
        report.leaks,
        unfinished,
        report.packets,
        case.flows.iter().map(|flow| flow.size.bytes(case.mtu)).collect::<Vec<_>>(),
    );
    Ok(())
}

fn topologies(trim: bool) -> impl Strategy<Value = String> {
    // Rates of the links to hosts and between switches. If congestion drops packets, slow uplinks and random
    // losses together could use up five retries.
    let mut rates = vec![
        ("1G", "1G"),
        ("10G", "25G"),
        ("25G", "100G"),
        ("100G", "100G"),
        ("400G", "400G"),
        ("800G", "400G"),
        ("800G", "800G"),
    ];
    if trim {
        rates.extend([("400G", "100G"), ("100G", "10G")]);
    }
    let rates = select(rates);
    let latencies = prop_oneof![Just(0u64), 1u64..5_000];
    let common = (rates, latencies, prop_oneof![Just(0u64), 0u64..1_000]);
    let leaf_spine = (1u32..=4, 1u32..=4, 1u32..=4);
    prop_oneof![
        3 => (leaf_spine, common.clone()).prop_map(|((leaves, per_leaf, spines), ((link, uplink), ns, switch))| {
            let hosts = (leaves * per_leaf).max(2).next_multiple_of(leaves);
            format!(
                "leaf-spine:hosts={hosts},leaves={leaves},spines={spines},link={link},uplink={uplink},latency={ns}ns,switch-latency={switch}ns"
            )
        }),
        1 => (2u32..=16, common).prop_map(|(hosts, ((link, _), ns, switch))| {
            format!("fat-tree:hosts={hosts},link={link},latency={ns}ns,switch-latency={switch}ns")
        }),
    ]
}

fn sizes() -> impl Strategy<Value = Size> {
    prop_oneof![
        1 => select(vec![0u64, 1]).prop_map(Size::Bytes),
        2 => (1u64..4, -1i64..=1).prop_map(|(packets, more)| Size::Packets(packets, more)),
        2 => (0u64..20_000).prop_map(Size::Bytes),
        1 => (20_000u64..=200_000).prop_map(Size::Bytes),
    ]
}

fn flows() -> impl Strategy<Value = FlowCase> {
    let begin = prop_oneof![
        4 => prop_oneof![Just(0u64), 0u64..200_000].prop_map(Begin::AtNs),
        1 => (0usize..64).prop_map(Begin::AfterSent),
        1 => (0usize..64).prop_map(Begin::AfterReceived),
    ];
    (0usize..64, sizes(), begin).prop_map(|(pair, size, begin)| FlowCase { pair, size, begin })
}

/// Losses of up to 10 % of the exchanges, or outages of up to a few timeouts. Five retries with doubled
/// timeouts survive either, but not the maximum of both.
fn faults() -> impl Strategy<Value = FaultCase> {
    let chance = |most: f64| prop_oneof![Just(0.0), 0.0..most];
    let outage =
        (0usize..64, 0.0..3.0, 0.1..2.0).prop_map(|(port, begin, length)| Outage { port, begin, length });
    let lossy = (chance(0.07), chance(0.03), Just(Vec::new()));
    let failing = (chance(0.005), chance(0.005), prop::collection::vec(outage, 1..3));
    let delay = prop_oneof![0u64..2_000, 0u64..100_000];
    (prop_oneof![lossy.boxed(), failing.boxed()], chance(0.2), chance(0.3), delay).prop_map(
        |((loss, corrupt, outages), duplicate, reorder, delay_ns)| FaultCase {
            loss,
            corrupt,
            duplicate,
            reorder,
            delay_ns,
            outages,
        },
    )
}

fn algorithms() -> Vec<&'static str> {
    all_names().into_iter().map(|name| &*name.leak()).collect()
}

fn cases(trim: bool) -> impl Strategy<Value = Case> {
    let algorithms = select(algorithms());
    let balancers = select(BALANCERS.iter().map(|b| b.name).collect::<Vec<_>>());
    let modes = prop_oneof![2 => Just(DeliveryMode::Rud), 1 => Just(DeliveryMode::Rod)];
    // A fabric that drops needs queues for the packets that congestion control sends before it reacts.
    let queues = if trim { 2u64..40 } else { 16u64..80 };
    let network = (
        algorithms,
        balancers,
        1u16..=256,
        modes,
        select(vec![1_000u32, 1_024, 4_096, 8_192]),
        proptest::option::of(queues),
        any::<bool>(),
        select(vec![1u32, 4_096, 16_384, 65_536]),
    );
    let pairs = prop::collection::vec((0u32..16, 0u32..16), 1..6);
    (topologies(trim), pairs, prop::collection::vec(flows(), 1..=12), network, faults(), any::<u64>())
        .prop_map(move |(topology, pairs, flows, network, faults, seed)| {
            let (cc, lb, paths, mode, mtu, queue_packets, ecn, ack_every) = network;
            Case {
                topology,
                pairs,
                flows,
                cc,
                lb,
                paths,
                trim,
                mode,
                mtu,
                queue_packets,
                ecn,
                ack_every,
                faults,
                seed,
            }
        })
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect(variable))
}

/// Runs many cases, each drawn from `salt` and the seed.
fn explore(trim: bool) {
    let mut seed = [u8::from(trim); 32];
    seed[8..16].copy_from_slice(&number("WEFT_FABRIC_SEED", 0).to_le_bytes());
    let config = Config {
        cases: number("WEFT_FABRIC_CASES", 1_000) as u32,
        failure_persistence: None,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    if let Err(error) = runner.run(&cases(trim), |case| check(&case, &case.run())) {
        panic!("{error}");
    }
}

#[test]
fn every_message_arrives_once_over_fabrics_that_trim() {
    explore(true);
}

#[test]
fn every_message_arrives_once_over_fabrics_that_drop() {
    explore(false);
}

/// An incast and its reverse, with a low rate of every fault.
fn small_case(cc: &'static str, lb: &'static str, trim: bool, mode: DeliveryMode) -> Case {
    let pairs = vec![(1, 6), (2, 5), (3, 4), (0, 2), (6, 0)];
    let size = |i: usize| match i {
        0 => Size::Bytes(0),
        1 => Size::Packets(1, 1),
        _ => Size::Bytes(20_000),
    };
    let flows = (0..10).map(|i| FlowCase {
        pair: i,
        size: size(i),
        begin: if i < 7 { Begin::AtNs(0) } else { Begin::AfterReceived(i - 7) },
    });
    Case {
        topology: "leaf-spine:hosts=8,leaves=2,spines=2,link=100G,latency=500ns".to_owned(),
        flows: flows.collect(),
        pairs,
        cc,
        lb,
        paths: 16,
        trim,
        mode,
        mtu: 1_024,
        queue_packets: Some(if trim { 8 } else { 64 }),
        ecn: true,
        ack_every: 16_384,
        faults: FaultCase {
            loss: 0.02,
            corrupt: 0.01,
            duplicate: 0.05,
            reorder: 0.1,
            delay_ns: 3_000,
            outages: vec![Outage { port: 20, begin: 0.05, length: 1.0 }],
        },
        seed: 7,
    }
}

#[test]
fn every_algorithm_works_with_every_balancer_and_switch() {
    for algorithm in algorithms() {
        for balancer in BALANCERS {
            for trim in [true, false] {
                for mode in [DeliveryMode::Rud, DeliveryMode::Rod] {
                    let case = small_case(algorithm, balancer.name, trim, mode);
                    if let Err(error) = check(&case, &case.run()) {
                        panic!("{error}\n{case:#?}");
                    }
                }
            }
        }
    }
}
