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
use weft_testbed::sim::{Overhead, PortClass, RunConfig, Thresholds};
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
        let (ecn_low, ecn_high) = config.ecn_bytes();
        let (phantom_low, phantom_high) = config.phantom_bytes().unzip();
        let file = |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| path.display().to_string());
        // A topology's file may say it for each tier or link, and options for each class of ports.
        let one_queue = args.on.has_fabric() && one_queue(config);
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
            ("queue_bytes", json!(one_queue.then(|| config.queue_bytes()))),
            ("ecn_low_bytes", json!(ecn_low)),
            ("ecn_high_bytes", json!(ecn_high)),
            ("routing", json!(args.on.has_fabric().then(|| config.routing.to_string()))),
            ("phantom_drain", json!(config.phantom.map(|phantom| phantom.drain))),
            ("phantom_low_bytes", json!(phantom_low)),
            ("phantom_high_bytes", json!(phantom_high)),
        ]);
        rows.extend((!config.port_classes.is_empty()).then(|| ("port_classes", port_classes(config))));
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

/// Whether all switch ports have a queue of the size that ports have where nothing is said.
fn one_queue(config: &RunConfig) -> bool {
    let ports = config.topology.hosts()..config.topology.ports().len() as u32;
    ports.map(PortId).all(|port| config.queue_of(port) == config.queue_bytes())
}

/// What options say for classes of ports.
fn port_classes(config: &RunConfig) -> Value {
    let thresholds = |of: Option<Thresholds>| match of {
        None => Value::Null,
        Some(Thresholds::Bdp(low, high)) => json!([low, high]),
        Some(Thresholds::Bytes(low, high)) => json!([low, high]),
    };
    let bytes = |of: Option<Thresholds>| matches!(of, Some(Thresholds::Bytes(..)));
    let row = |class: &PortClass| {
        let phantom = class.phantom;
        json!({
            "class": class.name,
            "queue_bytes": class.queue_bytes,
            "ecn": thresholds(class.ecn),
            "ecn_in_bytes": bytes(class.ecn),
            "phantom_drain": phantom.map(|phantom| phantom.drain),
            "phantom_ecn": thresholds(phantom.map(|phantom| phantom.ecn)),
        })
    };
    json!(config.port_classes.iter().map(row).collect::<Vec<_>>())
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
            Platform::Udp => ("kernel UDP on 127.0.0.1", live::hosts(workload).len() as u32, None),
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
    let real = if args.on == Platform::Soft { " in real time" } else { "" };
    let slow = if slow > 1 { format!(", {slow} times slower{real}") } else { real.to_owned() };
    format!("{what} on {} hosts of {name}{slow}, {how}{trim}", config.workload.hosts())
}
