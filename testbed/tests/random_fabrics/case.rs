//! What a run is made of: fabric, flows, algorithms, timers and faults, as they are drawn.

use core::num::NonZeroU16;
use proptest::prelude::*;
use proptest::sample::select;

use weft_cc::registry::all_names;
use weft_cc::{CcChoice, Rate, Span, Time};
use weft_stack::fep::Windows;
use weft_stack::rng::Rng;
use weft_stack::spray::LbChoice;
use weft_stack::spray::registry::BALANCERS;
use weft_stack::wire::class::Priority;
use weft_stack::wire::pds::DeliveryMode;
use weft_testbed::sim::{
    BlockLosses, CorrelatedLoss, FaultPlan, GilbertElliott, HostModel, LinkChange, LinkDirections, LinkEvent,
    LinkFaults, PayloadMode, PhantomQueues, RunConfig, Thresholds, Timers,
};
use weft_testbed::switch::{Adaptive, QueueMeasure, Routing};
use weft_testbed::topology::{HostId, PortId, Topology, TopologySpec, parse_graph};
use weft_testbed::workload::{
    Connection, Flow, Setting, Start, Trigger, TriggerIdx, TriggerKind, Workload, WorkloadSpec,
};

/// Time limit of a run: an hour. With production timers a run of the worst faults takes minutes.
pub(crate) const LIMIT: Span = Span::from_ms(3_600_000);

/// Bytes of the shortest packet on the wire.
const SHORTEST: u64 = 84;

/// The retransmission timeout of production, between threads that share processors.
const PRODUCTION_RTO: Span = Span::from_ms(100);

/// Short limits on busy and idle peers, in retransmission timeouts that include the delays of links. This is more
/// than the 63 timeouts of silence after which a peer is given up.
const SHORT_BOUND: u64 = 200;

/// A fabric, a workload and faults, as they are drawn.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// A description, or the text of a `.graph` file.
    pub(crate) topology: String,
    /// Pairs of hosts, modulo the number of hosts.
    pub(crate) pairs: Vec<(u32, u32)>,
    pub(crate) flows: Vec<FlowCase>,
    /// The description of a workload in place of `flows`. Those stand in where a fabric has no zones for its `intra`.
    pub(crate) generated: Option<String>,
    pub(crate) cc: &'static str,
    pub(crate) lb: &'static str,
    pub(crate) paths: u16,
    pub(crate) trim: bool,
    pub(crate) mode: DeliveryMode,
    pub(crate) windows: Windows,
    pub(crate) mtu: u32,
    /// Queue size in packets; `None`: one BDP.
    pub(crate) queue_packets: Option<u64>,
    pub(crate) ecn: bool,
    pub(crate) ack_every: u32,
    /// Whether endpoints have the timers of production; otherwise those that fit the fabric.
    pub(crate) production_timers: bool,
    /// What hosts need for received packets.
    pub(crate) host: Option<HostModel>,
    pub(crate) routing: Routing,
    /// Number of priorities of switches. Flows have different ones.
    pub(crate) priorities: u8,
    pub(crate) faults: FaultCase,
    pub(crate) seed: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct FlowCase {
    /// Index of the pair, modulo the number of pairs.
    pub(crate) pair: usize,
    pub(crate) size: Size,
    pub(crate) begin: Begin,
}

/// A flow size relative to the MTU.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Size {
    Bytes(u64),
    /// A number of full packets, plus or minus some bytes.
    Packets(u64, i64),
}

#[derive(Clone, Debug)]
pub(crate) enum Begin {
    AtNs(u64),
    /// When an earlier flow has been sent; its index is modulo their number.
    AfterSent(usize),
    /// When an earlier flow has been received.
    AfterReceived(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct FaultCase {
    /// Probability that a packet or its answer is lost or corrupted on the longest path.
    pub(crate) loss: f64,
    pub(crate) corrupt: f64,
    pub(crate) duplicate: f64,
    pub(crate) reorder: f64,
    pub(crate) delay_ns: u64,
    pub(crate) outages: Vec<Outage>,
}

/// A link that fails, in part or altogether, and perhaps recovers.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    /// Index of the port, modulo the number of ports.
    pub(crate) port: usize,
    /// Whether only the direction in which this port sends fails.
    pub(crate) one_way: bool,
    pub(crate) change: LinkChange,
    /// Time of the failure, in initial retransmission timeouts.
    pub(crate) begin: f64,
    /// Length of the outage, in initial retransmission timeouts; `None`: the link never recovers.
    pub(crate) length: Option<f64>,
}

impl Case {
    pub(crate) fn config(&self) -> RunConfig {
        let topology = match self.topology.contains('\n') {
            true => parse_graph("drawn.graph", &self.topology).unwrap(),
            false => self.topology.parse::<TopologySpec>().unwrap().build().unwrap(),
        };
        let workload = self.workload(&topology);
        let mut config = RunConfig {
            cc: CcChoice::parse(self.cc).unwrap(),
            lb: LbChoice::parse(self.lb).unwrap(),
            windows: self.windows,
            paths: self.paths,
            mtu: self.mtu,
            trim: self.trim,
            ecn: self.ecn.then_some(Thresholds::Bdp(0.2, 0.8)),
            phantom: self
                .seed
                .is_multiple_of(4)
                .then_some(PhantomQueues { drain: 0.9, ecn: Some(Thresholds::Bdp(0.2, 0.8)) }),
            payload: PayloadMode::Real,
            seed: self.seed,
            until: Some(LIMIT),
            ack_every: self.ack_every,
            mode: self.mode,
            host: self.host,
            routing: self.routing,
            priorities: self.priorities,
            ..RunConfig::new(topology, workload)
        };
        config.queue_bytes = self.queue_packets.map(|packets| packets * config.wire_mtu());
        config.timers = match self.production_timers {
            true => Timers { rto_init: Some(PRODUCTION_RTO), ..Timers::default() },
            false => {
                let rto = config.endpoint().zones.longest_rto() + self.longest_delay(&config.topology);
                let bound = rto.times(SHORT_BOUND);
                config.busy_timeout = bound.into();
                Timers { idle_timeout: Some(bound), ..Timers::default() }
            }
        };
        config
    }

    /// The longest time that the links of a path, both ways, hold a packet and its answer up.
    pub(crate) fn longest_delay(&self, topology: &Topology) -> Span {
        let random = Span::from_ns(self.faults.delay_ns).times(u64::from(2 * topology.diameter_hops()));
        let extra = self.faults.outages.iter().filter_map(|outage| match outage.change {
            LinkChange::Delay(delay) => Some(delay.times(2)),
            _ => None,
        });
        // Full queues of the shortest packets at both ends.
        let in_hosts = self.host.map_or(Span::ZERO, |host| host.longest_wait(SHORTEST).times(2));
        extra.fold(random + in_hosts, |sum, delay| sum + delay)
    }

    /// Whether some link never recovers.
    pub(crate) fn has_lasting_faults(&self) -> bool {
        self.faults.outages.iter().any(|outage| outage.length.is_none())
    }

    fn workload(&self, topology: &Topology) -> Workload {
        self.generated(topology).unwrap_or_else(|| self.drawn(topology))
    }

    /// The workload that `generated` describes.
    fn generated(&self, topology: &Topology) -> Option<Workload> {
        let text = format!("{},priority={}", self.generated.as_ref()?, self.priorities - 1);
        let read = |_: &str| Ok(SIZES.to_owned());
        let setting =
            Setting { hosts: topology.hosts(), topology: Some(topology), bytes: 5_000, slow: 1, read: &read };
        match WorkloadSpec::build_all(&[text.parse().unwrap()], &setting, |_| Rng::new(self.seed, 0)) {
            Ok(workload) => Some(workload),
            Err((_, error)) => {
                assert!(error.to_string().starts_with("intra: "), "{text}: {error}");
                None
            }
        }
    }

    fn drawn(&self, topology: &Topology) -> Workload {
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
                let priority = Priority::new((id % u32::from(self.priorities)) as u8).unwrap();
                // Some are pools of three.
                let pool = NonZeroU16::new(if id.is_multiple_of(3) { 3 } else { 1 }).unwrap();
                connections.push(Connection { priority, pool, ..Connection::new(id, src, dst) });
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

    pub(crate) fn fault_plan(&self, config: &RunConfig) -> FaultPlan {
        // Both directions of the path.
        let links = f64::from(2 * config.topology.diameter_hops());
        let rto = config.endpoint().zones.longest_rto();
        let mut events = Vec::new();
        for outage in &self.faults.outages {
            let link = outage.link(&config.topology);
            let down = Time::ZERO + rto.mul_f64(outage.begin);
            events.push(LinkEvent { at: down, link, change: outage.change });
            if let Some(length) = outage.length {
                let up = down + rto.mul_f64(length);
                events.push(LinkEvent { at: up, link, change: LinkChange::Restore });
            }
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
}

impl Outage {
    pub(crate) fn link(&self, topology: &Topology) -> LinkDirections {
        let port = PortId((self.port % topology.ports().len()) as u32);
        // Hosts do not trim: of their direction alone such a change is refused.
        let one_way = self.one_way && !matches!(self.change, LinkChange::Trim(_));
        if one_way { LinkDirections::From(port) } else { LinkDirections::Both(port) }
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
        // Every other one starts its flow after a computation.
        let delay = Span::from_ns(1_500 * (triggers.len() as u64 % 2));
        triggers.push(Trigger { delay, ..Trigger::new(triggers.len() as u32 + 1, TriggerKind::Oneshot) });
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

/// A connected graph of switches, in which each switch has a link to an earlier one, and further links join any two. Some
/// switches have groups.
fn graphs() -> impl Strategy<Value = String> {
    let link = (any::<u32>(), any::<u32>(), select(vec!["10G", "25G", "100G"]), 0u64..20_000, 1u32..=3);
    let links = prop::collection::vec(link, 1..=8);
    (1u32..=5, links, prop::collection::vec(0u32..5, 2..=8)).prop_map(|(switches, links, hosts)| {
        let mut text = String::from("default latency=500ns switch-latency=100ns\n");
        for switch in 0..switches {
            let group = if switch % 3 == 2 { String::new() } else { format!(" group=g{}", switch % 2) };
            text += &format!("switch s{switch}{group}\n");
        }
        for (host, at) in hosts.iter().enumerate() {
            text += &format!("host h{host}\nlink h{host} s{}\n", at % switches);
        }
        let drawn = links.len() as u32;
        for (number, (a, b, rate, ns, count)) in (1..).zip(links) {
            // The first links join each switch to an earlier one.
            let (a, b) = if number < switches { (number, b % number) } else { (a % switches, b % switches) };
            if a != b {
                text += &format!("link s{a} s{b} rate={rate} latency={ns}ns count={count}\n");
            }
        }
        // Where too few links are drawn to join all switches.
        for switch in drawn + 1..switches {
            text += &format!("link s{switch} s0\n");
        }
        text
    })
}

fn topologies() -> impl Strategy<Value = String> {
    // Rates of the links to hosts and between switches.
    let rates = select(vec![
        ("1G", "1G"),
        ("10G", "25G"),
        ("25G", "100G"),
        ("100G", "100G"),
        ("100G", "10G"),
        ("400G", "100G"),
        ("400G", "400G"),
        ("800G", "400G"),
        ("800G", "800G"),
    ]);
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
        1 => graphs(),
        1 => select(vec![
            "two-dc:k=2,border-links=2,border-latency=50us".to_owned(),
            "dumbbell:hosts=3,bottleneck=25G,delay=20us".to_owned(),
            "parking-lot:hops=2,bottleneck=40G".to_owned(),
        ]),
    ]
}

fn sizes() -> impl Strategy<Value = Size> {
    prop_oneof![
        4 => select(vec![0u64, 1]).prop_map(Size::Bytes),
        8 => (1u64..4, -1i64..=1).prop_map(|(packets, more)| Size::Packets(packets, more)),
        8 => (0u64..20_000).prop_map(Size::Bytes),
        4 => (20_000u64..=200_000).prop_map(Size::Bytes),
        1 => (200_000u64..=1_000_000).prop_map(Size::Bytes),
    ]
}

/// A distribution of flow sizes, in bytes and per cent.
const SIZES: &str = "0 5\n100 30\n5000 70\n20000 95\n100000 100\n";

/// Descriptions of workloads of few and small flows that any two hosts can carry out.
fn workloads() -> impl Strategy<Value = String> {
    let pool = prop_oneof![Just(String::new()), (1u32..=3).prop_map(|n| format!(",connections={n}"))];
    let intra = prop_oneof![
        3 => Just(String::new()),
        1 => (0u32..=4).prop_map(|quarters| format!(",intra={}", f64::from(quarters) / 4.0)),
    ];
    let sizes = select(vec!["sizes.txt", "GoogleRPC2008", "3000"]);
    let open = (select(vec!["0.1", "0.6", "2"]), sizes, 1u32..=20, intra, pool.clone());
    let open = open.prop_map(|(load, sizes, flows, intra, pool)| {
        format!("load={load},sizes={sizes},flows={flows}{intra}{pool}")
    });
    let spread = (0u32..=20).prop_map(|tenths| f64::from(tenths) / 10.0);
    let response = (select(vec!["0", "64", "sizes.txt"]), 0u64..5_000);
    let bursts = (1u64..20_000, 1u32..=6, 0u64..2_000, select(vec!["periodic", "poisson"]), pool);
    let operation = select(vec![
        "all-reduce:ring",
        "all-reduce:tree",
        "all-reduce:recursive-doubling,ranks=2",
        "all-to-all:1",
    ]);
    let rounds = (0u64..10_000, 1u32..=3, 0u64..20_000, select(vec!["hosts", "random"]));
    prop_oneof![
        2 => open.clone().prop_map(|open| format!("poisson:{open}")),
        1 => (open.clone(), spread).prop_map(|(open, sigma)| format!("lognormal:{open},sigma={sigma}")),
        2 => (open, response).prop_map(|(open, (response, ns))| {
            format!("rpc:{open},response={response},service={ns}ns")
        }),
        1 => bursts.prop_map(|(every, bursts, jitter, arrivals, pool)| {
            format!("bursts:senders=1,every={every}ns,bursts={bursts},jitter={jitter}ns,arrivals={arrivals}{pool}")
        }),
        2 => (operation, rounds).prop_map(|(operation, (bytes, iterations, ns, order))| {
            format!("{operation},size={bytes},iterations={iterations},compute={ns}ns,order={order}")
        }),
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

/// What can happen to a link. Acknowledgements have about 100 bytes.
/// `trim` says whether switches trim.
fn changes(trim: bool) -> impl Strategy<Value = LinkChange> {
    prop_oneof![
        3 => Just(LinkChange::Fail),
        2 => (200u32..9_000).prop_map(LinkChange::DropOver),
        1 => (0.3..1.0).prop_map(LinkChange::Drop),
        1 => (1e-6..1e-3).prop_map(LinkChange::BitErrors),
        1 => (0.3..1.0).prop_map(LinkChange::Corrupt),
        u32::from(trim) => (0.0..0.5).prop_map(LinkChange::Trim),
        1 => (0u64..50_000).prop_map(|ns| LinkChange::Delay(Span::from_ns(ns))),
        1 => (0.001..1.0, 0.001..1.0, 0.3..1.0, 0.0..0.2).prop_map(|(to_bad, to_good, loss_bad, loss_good)| {
            let model = GilbertElliott { to_bad, to_good, loss_bad, loss_good };
            LinkChange::Correlated(CorrelatedLoss::GilbertElliott(model))
        }),
        1 => (8u8..=64, prop::collection::vec(0.0..0.125, 1..=8)).prop_filter_map(
            "the chances exclude each other",
            |(packets, chances)| {
                let blocks = BlockLosses::new(packets, &chances)?;
                Some(LinkChange::Correlated(CorrelatedLoss::Blocks(blocks)))
            }
        ),
    ]
}

fn outages(trim: bool, length: impl Strategy<Value = Option<f64>>) -> impl Strategy<Value = Outage> {
    let begin = prop_oneof![Just(0.0), 0.0..3.0, 0.0..40.0];
    (0usize..64, any::<bool>(), changes(trim), begin, length)
        .prop_map(|(port, one_way, change, begin, length)| Outage { port, one_way, change, begin, length })
}

/// Losses of up to 30 % of the exchanges; or outages, together far shorter than the silence after which peers are
/// given up; or links that never recover.
fn faults(trim: bool) -> impl Strategy<Value = FaultCase> {
    let chance = |most: f64| prop_oneof![Just(0.0), 0.0..most];
    let outage = outages(trim, (0.1..20.0).prop_map(Some));
    let lossy = (chance(0.2), chance(0.1), Just(Vec::new()));
    let failing = (chance(0.005), chance(0.005), prop::collection::vec(outage, 1..3));
    let lasting = (chance(0.05), chance(0.05), prop::collection::vec(outages(trim, Just(None)), 1..4));
    let delay = prop_oneof![0u64..2_000, 0u64..100_000];
    let kinds = prop_oneof![lossy.boxed(), failing.boxed(), lasting.boxed()];
    (kinds, chance(0.2), chance(0.3), delay).prop_map(
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

fn routings() -> impl Strategy<Value = Routing> {
    let measure = select(vec![QueueMeasure::LeastQueue, QueueMeasure::Quantised]);
    let sticky = proptest::option::of((1u64..100_000).prop_map(Span::from_ns));
    prop_oneof![
        3 => Just(Routing::Ecmp),
        1 => Just(Routing::Exact),
        2 => (measure, sticky).prop_map(|(measure, sticky)| Routing::Adaptive(Adaptive { measure, sticky })),
    ]
}

fn priorities() -> impl Strategy<Value = u8> {
    prop_oneof![2 => Just(1u8), 1 => 2u8..=8]
}

/// Hosts that take no time; or hosts slower or faster than their links, with room for some packets at least.
fn host_models() -> impl Strategy<Value = Option<HostModel>> {
    let rate = proptest::option::of((1u64..400).prop_map(Rate::from_gbps));
    let model = (rate, 0u64..1_000, 40_000u64..400_000).prop_map(|(rate, ns, queue_bytes)| {
        Some(HostModel { rate, per_packet: Span::from_ns(ns), queue_bytes })
    });
    prop_oneof![2 => Just(None), 1 => model]
}

pub(crate) fn algorithms() -> Vec<&'static str> {
    all_names().into_iter().map(|name| &*name.leak()).collect()
}

pub(crate) fn cases(trim: bool) -> impl Strategy<Value = Case> {
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
        (select(vec![Windows::Pair, Windows::Flow]), any::<bool>(), host_models(), routings(), priorities()),
    );
    let pairs = prop::collection::vec((0u32..16, 0u32..16), 1..6);
    let flows = (prop::collection::vec(flows(), 1..=12), proptest::option::weighted(0.3, workloads()));
    (topologies(), pairs, flows, network, faults(trim), any::<u64>()).prop_map(
        move |(topology, pairs, (flows, generated), network, faults, seed)| {
            let (cc, lb, paths, mode, mtu, queue_packets, ecn, ack_every, more) = network;
            let (windows, production_timers, host, routing, priorities) = more;
            Case {
                topology,
                pairs,
                flows,
                generated,
                cc,
                lb,
                paths,
                trim,
                mode,
                windows,
                mtu,
                queue_packets,
                ecn,
                ack_every,
                production_timers,
                host,
                routing,
                priorities,
                faults,
                seed,
            }
        },
    )
}
