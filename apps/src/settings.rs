//! Every setting of a run as it was resolved: the JSON report's `config`, which says together with the seed how to
//! repeat the run, and the first line of the table.

use crate::choices::Platform;
use crate::options::RunArgs;
use crate::{live, loopback};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use weft_stack::fep::{BusyTimeout, Windows};
use weft_testbed::goal::Job;
use weft_testbed::sim::{Overhead, RunConfig};
use weft_testbed::topology::PortId;

/// The settings of a run.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// In the order of the report.
    rows: Vec<(&'static str, Value)>,
    headline: String,
}

impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.rows.iter().map(|(key, value)| (key, value)))
    }
}

impl Settings {
    /// The settings that `args` have come to in `config`, whose fabric is `slow` times slower than described.
    pub(crate) fn new(args: &RunArgs, config: &RunConfig, slow: u32) -> Settings {
        let network = Network::of(args.on, config);
        let topology = &config.topology;
        // A topology's file may say it for each tier or link, and options for each class of ports.
        let shared = match args.on.has_fabric() {
            true => Shared::of(config, switch_ports(config)),
            false => Shared { queue: None, ..Shared::usual(config) },
        };
        let file = |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| path.display().to_string());
        // A matrix says it for each flow.
        let size = args.takes_size().then(|| args.size());
        let workload = match &args.workload[..] {
            [] => Value::Null,
            [one] => json!(one),
            several => json!(several.join(" ")),
        };
        let fixed = matches!(config.wire_overhead, Overhead::Fixed(_));
        let mut rows = vec![
            ("version", json!(env!("CARGO_PKG_VERSION"))),
            ("on", json!(args.on)),
            ("matrix", json!(file(&args.matrix))),
            ("workload", json!(workload)),
        ];
        rows.extend(network.pair.map(|pair| ("pair", json!(pair))));
        rows.extend([
            ("size_bytes", json!(size)),
            ("hosts", json!(config.workload.hosts())),
            ("topology", json!(network.name)),
            ("topology_hosts", json!(network.hosts)),
            ("link_bps", json!(topology.host_rate().as_bps())),
        ]);
        rows.extend(config.job.iter().flat_map(|job| ranks(job)));
        rows.extend((slow > 1).then(|| ("slow", json!(slow))));
        rows.extend([
            ("mtu_bytes", json!(config.mtu)),
            ("wire_overhead_bytes", json!(config.data_overhead())),
            ("wire_overhead", json!(if fixed { "fixed" } else { "auto" })),
            ("cc", json!(cc_name(config))),
            ("cc_set", set(&args.cc_set)),
            ("lb", json!(lb_name(config))),
            ("lb_set", set(&args.lb_set)),
            ("windows", json!(args.windows.unwrap_or_default())),
            ("paths", json!(config.paths)),
            ("trim", json!(config.trim)),
        ]);
        let [queue, ecn_low, ecn_high, phantom @ ..] = shared.rows();
        rows.extend([queue, ecn_low, ecn_high]);
        rows.push(("routing", json!(args.on.has_fabric().then(|| config.routing.to_string()))));
        rows.extend(phantom);
        rows.extend((config.priorities > 1).then(|| ("priorities", json!(config.priorities))));
        if args.on.has_fabric() && !shared.is_complete() {
            rows.push(("port_classes", port_classes(config)));
        }
        rows.extend([
            ("link_events", json!(file(&args.link_events))),
            ("link_event", json!(args.link_event)),
            ("degrade", json!(args.degrade.iter().map(ToString::to_string).collect::<Vec<_>>())),
        ]);
        rows.extend(config.host.map(|host| {
            let rate = host.rate.map(|rate| rate.as_bps());
            let per_packet = host.per_packet.as_us_f64();
            let host =
                json!({"rate_bps": rate, "per_packet_us": per_packet, "queue_bytes": host.queue_bytes});
            ("host", host)
        }));
        rows.extend([
            ("payload", json!(args.payload())),
            ("ack_every_bytes", json!(config.ack_every)),
            ("busy_timeout_us", busy_timeout(config.busy_timeout)),
            ("until_us", json!(config.until.map(|time| time.as_us_f64()))),
        ]);
        Settings { rows, headline: headline(args, config, &network, slow) }
    }

    /// The run in a line.
    pub(crate) fn headline(&self) -> &str {
        &self.headline
    }
}

/// The drain of a phantom queue and its marking thresholds, bytes.
type Phantom = (f64, (u64, u64));

/// What some switch ports have in common; `None` where they differ.
struct Shared {
    queue: Option<u64>,
    ecn: Option<(u64, u64)>,
    phantom: Option<Option<Phantom>>,
}

impl Shared {
    /// What is said where nothing is said for some ports.
    fn usual(config: &RunConfig) -> Shared {
        let phantom = config.phantom.map(|phantom| phantom.drain).zip(config.phantom_bytes());
        Shared { queue: Some(config.queue_bytes()), ecn: Some(config.ecn_bytes()), phantom: Some(phantom) }
    }

    fn of(config: &RunConfig, mut ports: impl Iterator<Item = PortId>) -> Shared {
        let Some(first) = ports.next() else { return Shared::usual(config) };
        let (queue, ecn, phantom) = (config.queue_of(first), config.ecn_of(first), config.phantom_of(first));
        let mut shared = Shared { queue: Some(queue), ecn: Some(ecn), phantom: Some(phantom) };
        for port in ports {
            shared.queue = shared.queue.filter(|queue| *queue == config.queue_of(port));
            shared.ecn = shared.ecn.filter(|ecn| *ecn == config.ecn_of(port));
            shared.phantom = shared.phantom.filter(|phantom| *phantom == config.phantom_of(port));
        }
        shared
    }

    /// Whether the ports differ in nothing.
    fn is_complete(&self) -> bool {
        self.queue.is_some() && self.ecn.is_some() && self.phantom.is_some()
    }

    fn rows(&self) -> [(&'static str, Value); 6] {
        let (ecn_low, ecn_high) = self.ecn.unzip();
        let (drain, phantom) = self.phantom.flatten().unzip();
        let (phantom_low, phantom_high) = phantom.unzip();
        [
            ("queue_bytes", json!(self.queue)),
            ("ecn_low_bytes", json!(ecn_low)),
            ("ecn_high_bytes", json!(ecn_high)),
            ("phantom_drain", json!(drain)),
            ("phantom_low_bytes", json!(phantom_low)),
            ("phantom_high_bytes", json!(phantom_high)),
        ]
    }
}

fn switch_ports(config: &RunConfig) -> impl Iterator<Item = PortId> + Clone {
    (config.topology.hosts()..config.topology.ports().len() as u32).map(PortId)
}

/// What the ports of each class have in common.
fn port_classes(config: &RunConfig) -> Value {
    let topology = &config.topology;
    let row = |(index, name): (usize, &str)| {
        let ports = switch_ports(config).filter(|port| topology.class_of(*port) == Some(index));
        let class = [("class", json!(name))].into_iter().chain(Shared::of(config, ports).rows());
        Value::Object(class.map(|(key, value)| (key.to_owned(), value)).collect())
    };
    json!(topology.classes().into_iter().enumerate().map(row).collect::<Vec<_>>())
}

/// The ranks, and what they cost as the fabric runs.
fn ranks(job: &Job) -> [(&'static str, Value); 8] {
    let costs = job.costs();
    [
        ("ranks", json!(job.ranks())),
        ("ranks_per_host", json!(job.ranks_per_host())),
        ("placement", json!(job.placement().to_string())),
        ("eager_bytes", json!(costs.eager)),
        ("compute_scale", json!(costs.compute.to_string())),
        ("rank_overhead_us", json!(costs.overhead.as_us_f64())),
        ("memory_latency_us", json!(costs.memory_latency.as_us_f64())),
        ("memory_bps", json!(costs.memory_rate.as_bps())),
    ]
}

/// A time in µs, or the word `endless`.
fn busy_timeout(timeout: BusyTimeout) -> Value {
    timeout.bound().map_or(json!("endless"), |bound| json!(bound.as_us_f64()))
}

/// Parameters that were set, by name.
fn set(settings: &[(String, String)]) -> Value {
    json!(settings.iter().cloned().collect::<BTreeMap<String, String>>())
}

/// The network that carries the packets.
struct Network {
    name: String,
    hosts: u32,
    /// The two hosts between which a loopback runs the workload's flows.
    pair: Option<[u32; 2]>,
}

impl Network {
    fn of(platform: Platform, config: &RunConfig) -> Network {
        let (topology, workload) = (&config.topology, &config.workload);
        let (name, hosts, pair) = match platform {
            Platform::Sim | Platform::Soft => (topology.name(), topology.hosts(), None),
            Platform::Loopback => ("a DPDK net_ring pair", 2, loopback::first_pair(workload)),
            Platform::Udp => ("kernel UDP on 127.0.0.1", live::hosts(config).len() as u32, None),
        };
        Network { name: name.to_owned(), hosts, pair }
    }
}

/// The congestion control, of each zone if there are several, as `--cc` takes it.
fn cc_name(config: &RunConfig) -> String {
    let inter = config.cc.name();
    config.intra.as_ref().map_or(inter.into(), |intra| format!("intra={},inter={inter}", intra.cc.name()))
}

/// The load balancer, of each zone if they differ, as `--lb` takes it.
fn lb_name(config: &RunConfig) -> String {
    let inter = config.lb.name();
    let intra = config.intra.as_ref().map(|intra| intra.lb.name()).filter(|intra| *intra != inter);
    intra.map_or(inter.into(), |intra| format!("intra={intra},inter={inter}"))
}

fn headline(args: &RunArgs, config: &RunConfig, network: &Network, slow: u32) -> String {
    let what = match &args.matrix {
        Some(path) => path.display().to_string(),
        None => match &config.job {
            Some(job) => format!("{}: {} ranks", args.workload.join(" and "), job.ranks()),
            None => args.workload.join(" and "),
        },
    };
    let (cc, lb, paths) = (cc_name(config), lb_name(config), config.paths);
    let windows = if config.windows == Windows::Flow { ", a window for each flow" } else { "" };
    let how = format!("{cc} with {lb} over {paths} paths{windows}");
    let name = &network.name;
    if let Some([a, b]) = network.pair {
        return format!("{what}: the flows between hosts {a} and {b}, over {name} in real time, {how}");
    }
    if args.on == Platform::Udp {
        return format!("{what}: {} hosts over {name} in real time, {how}", network.hosts);
    }
    let trim = if config.trim { "" } else { ", no trimming" };
    let real = if args.on == Platform::Sim { "" } else { " in real time" };
    let slow = if slow > 1 { format!(", {slow} times slower{real}") } else { real.to_owned() };
    format!("{what} on {} hosts of {name}{slow}, {how}{trim}", config.workload.hosts())
}
