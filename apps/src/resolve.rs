//! From options to a run: defaults, files, and the refusal of what makes no sense.

use crate::cli::{Payload, Platform, RunArgs, Switch};
use crate::testbed::{HostsBy, UDP_ENTROPIES};
use crate::units::{Ecn, Queue, WireOverhead};
use crate::{Failure, loopback, sample, soft, text, udp};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{self, Path, PathBuf};
use weft_cc::CcChoice;
use weft_stack::rng::Rng;
use weft_stack::spray::LbChoice;
use weft_testbed::link_events::parse_link_events;
use weft_testbed::sim::{FaultPlan, Overhead, PayloadMode, PhantomQueues, RunConfig};
use weft_testbed::topology::{Topology, TopologySpec, parse_topo};
use weft_testbed::workload::{CmOptions, CmReader, Workload, WorkloadSpec, WorkloadSpecError};

const DEFAULT_SIZE: u64 = 2 << 20;
const DEFAULT_HOSTS: u32 = 16;
const DEFAULT_ECN: Ecn = Ecn { low: 0.2, high: 0.8 };
/// The generator's stream that draws the workload; the engine uses others.
const WORKLOAD_STREAM: u64 = u64::MAX;

/// A run, ready to start.
pub(crate) struct Plan {
    pub(crate) config: RunConfig,
    pub(crate) faults: FaultPlan,
    /// How many times slower the fabric is than described.
    pub(crate) slow: u32,
    pub(crate) settings: Settings,
}

/// Every setting as it was resolved, under the names of the JSON report's `config`. Together with
/// the seed it says how to repeat the run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Settings {
    version: &'static str,
    on: Platform,
    matrix: Option<String>,
    workload: Option<String>,
    /// The two hosts between which a loopback runs the workload's flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pair: Option<[u32; 2]>,
    /// None where the matrix says it for each flow.
    size_bytes: Option<u64>,
    hosts: u32,
    topology: String,
    topology_hosts: u32,
    link_bps: u64,
    /// How many times slower the fabric is than its description, where that is more than once.
    #[serde(skip_serializing_if = "Option::is_none")]
    slow: Option<u32>,
    mtu_bytes: u32,
    /// What each data packet costs besides its payload.
    wire_overhead_bytes: u32,
    wire_overhead: &'static str,
    cc: String,
    cc_set: BTreeMap<String, String>,
    lb: String,
    paths: u16,
    trim: bool,
    /// None where the topology's file says it for each tier.
    queue_bytes: Option<u64>,
    ecn_low_bytes: u64,
    ecn_high_bytes: u64,
    phantom_drain: Option<f64>,
    phantom_low_bytes: Option<u64>,
    phantom_high_bytes: Option<u64>,
    link_events: Option<String>,
    link_event: Vec<String>,
    degrade: Vec<String>,
    payload: Payload,
    ack_every_bytes: u32,
    until_us: Option<f64>,
}

impl Settings {
    /// The run in a line.
    pub(crate) fn headline(&self) -> String {
        let what = self.workload.as_deref().or(self.matrix.as_deref()).unwrap_or_default();
        if let Some([a, b]) = self.pair {
            return format!(
                "{what}: the flows between hosts {a} and {b}, over {} in real time, {} with {} over {} paths",
                self.topology, self.cc, self.lb, self.paths
            );
        }
        if self.on == Platform::Udp {
            return format!(
                "{what}: {} hosts over {} in real time, {} with {} over {} paths",
                self.topology_hosts, self.topology, self.cc, self.lb, self.paths
            );
        }
        let trim = if self.trim { "" } else { ", no trimming" };
        let real = if self.on == Platform::Soft { " in real time" } else { "" };
        let slow =
            self.slow.map(|slow| format!(", {slow} times slower{real},")).unwrap_or(format!("{real},"));
        format!(
            "{what} on {} hosts of {}{slow} {} with {} over {} paths{trim}",
            self.hosts, self.topology, self.cc, self.lb, self.paths
        )
    }
}

/// Works out what `args` ask for. Reads the files that they name.
pub(crate) fn resolve(args: &RunArgs) -> Result<Plan, Failure> {
    check_outputs(args)?;
    check_processes(args)?;
    match args.on {
        Platform::Sim => {}
        Platform::Loopback => check_without_fabric(args, "a loopback")?,
        Platform::Udp => check_udp(args)?,
        Platform::Soft => check_soft(args)?,
    }
    let cc = congestion_control(args)?;
    let lb = LbChoice::parse(args.lb.as_deref().unwrap_or("mixed")).map_err(|e| usage("--lb", e))?;
    let given = args.topology.as_deref().map(|text| topology(text, args)).transpose()?;
    let workload = workload(args, given.as_ref())?;
    let topology = match given {
        Some(topology) => topology,
        None if args.on == Platform::Soft => small(workload.hosts(), args)?,
        None => with_link(just_enough(workload.hosts(), args)?, args),
    };
    let slow = slow(&topology, args);
    let topology = if slow > 1 { topology.slowed(slow) } else { topology };
    if topology.hosts() < workload.hosts() {
        return Err(Failure::Usage(format!(
            "--topology: {} has {} hosts, the workload needs {}; expected a larger one (or fewer --hosts)",
            topology.name(),
            topology.hosts(),
            workload.hosts()
        )));
    }
    let defaults = RunConfig::new(topology, workload);
    let config = RunConfig {
        cc,
        lb,
        paths: args.paths.unwrap_or(match args.on {
            Platform::Udp => udp::DEFAULT_PATHS,
            Platform::Soft if args.processes == Some(HostsBy::Udp) => UDP_ENTROPIES,
            Platform::Sim | Platform::Loopback | Platform::Soft => defaults.paths,
        }),
        mtu: args.mtu.unwrap_or(defaults.mtu),
        wire_overhead: match args.wire_overhead.unwrap_or(WireOverhead::Auto) {
            WireOverhead::Auto => Overhead::Auto,
            WireOverhead::Bytes(n) => Overhead::Fixed(n),
        },
        // The kernel drops what does not fit.
        trim: args.trim != Some(Switch::Off) && args.on != Platform::Udp,
        payload: match payload(args) {
            Payload::Real => PayloadMode::Real,
            Payload::Virtual => PayloadMode::Virtual,
        },
        seed: args.seed,
        until: args.until,
        ..defaults
    };
    let config = with_thresholds(config, args)?;
    let faults = faults(&config.topology, args)?;
    let settings = match args.on {
        Platform::Sim | Platform::Soft => settings(&config, slow, args),
        Platform::Loopback => on_loopback(settings(&config, slow, args), &config),
        Platform::Udp => on_udp(settings(&config, slow, args), udp::endpoints(&config)?),
    };
    Ok(Plan { config, faults, slow, settings })
}

fn usage(option: &str, error: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("{option}: {error}"))
}

fn check_outputs(args: &RunArgs) -> Result<(), Failure> {
    if args.flows.as_deref() == Some(Path::new("-")) {
        return Err(usage("--flows", "expected a file name; only --json can go to standard output"));
    }
    let mut taken: Vec<(&str, PathBuf)> = Vec::new();
    for (option, path) in files(args) {
        let place = place(&path);
        if place.exists() && !place.is_file() {
            continue; // what goes to a device or a pipe overwrites nothing
        }
        if let Some((other, _)) = taken.iter().find(|(_, taken)| *taken == place) {
            return Err(usage(option, format_args!("expected another file than that of {other}")));
        }
        taken.push((option, place));
    }
    Ok(())
}

/// The files that a run reads line by line, and those that it writes, with the options that name them.
fn files(args: &RunArgs) -> Vec<(&'static str, PathBuf)> {
    let json = args.json.as_ref().filter(|path| path.as_os_str() != "-");
    let named = [
        ("--matrix", args.matrix.as_ref()),
        ("--link-events", args.link_events.as_ref()),
        ("--json", json),
        ("--flows", args.flows.as_ref()),
    ];
    let mut files: Vec<_> =
        named.into_iter().filter_map(|(option, path)| Some((option, path?.clone()))).collect();
    if args.sample.is_some() {
        files.extend(sample::paths(args.sample_path()).map(|path| ("--sample-file", path)));
    }
    files
}

/// Where `path` leads, whether a file is there or not: the same for all names of one place.
fn place(path: &Path) -> PathBuf {
    let beside = || {
        let path = path::absolute(path).ok()?;
        Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(beside).unwrap_or_else(|| path.to_owned())
}

fn check_processes(args: &RunArgs) -> Result<(), Failure> {
    match args.processes {
        Some(_) if args.on != Platform::Soft => Err(usage("--processes", "expected --on soft with it")),
        Some(HostsBy::Udp) if args.paths.is_some_and(|paths| paths > UDP_ENTROPIES) => Err(usage(
            "--paths",
            format_args!(
                "expected at most {UDP_ENTROPIES} with --processes=udp: a host has as many source ports"
            ),
        )),
        _ => Ok(()),
    }
}

/// Between ports of one process there is no fabric to describe.
fn check_without_fabric(args: &RunArgs, place: &str) -> Result<(), Failure> {
    let without_effect = [
        ("--topology", args.topology.is_some()),
        ("--link", args.link.is_some()),
        ("--slow", args.slow.is_some()),
        ("--wire-overhead", args.wire_overhead.is_some()),
        ("--trim", args.trim.is_some()),
        ("--queue", args.queue.is_some()),
        ("--ecn", args.ecn.is_some()),
        ("--phantom", args.phantom.is_some()),
        ("--link-events", args.link_events.is_some()),
        ("--link-event", !args.link_event.is_empty()),
        ("--degrade", !args.degrade.is_empty()),
        ("--payload", args.payload == Some(Payload::Virtual)),
        ("--sample", args.sample.is_some()),
        ("--threads", args.threads.is_some()),
    ];
    match without_effect.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(usage(option, format_args!("has no effect on {place}; expected --on sim"))),
        None => Ok(()),
    }
}

/// Software switches carry real frames.
fn check_soft(args: &RunArgs) -> Result<(), Failure> {
    let without_effect = [
        ("--wire-overhead", args.wire_overhead.is_some()),
        ("--payload", args.payload == Some(Payload::Virtual)),
        ("--sample", args.sample.is_some()),
        ("--threads", args.threads.is_some()),
    ];
    match without_effect.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(usage(option, "has no effect on software switches; expected --on sim")),
        None => Ok(()),
    }
}

fn check_udp(args: &RunArgs) -> Result<(), Failure> {
    check_without_fabric(args, "kernel UDP")?;
    match args.paths.filter(|paths| *paths > udp::MAX_PATHS) {
        Some(paths) => Err(usage(
            "--paths",
            format_args!("{paths} source ports for each host; expected at most {}", udp::MAX_PATHS),
        )),
        None => Ok(()),
    }
}

fn congestion_control(args: &RunArgs) -> Result<CcChoice, Failure> {
    let mut cc = CcChoice::parse(args.cc.as_deref().unwrap_or("nscc")).map_err(|e| usage("--cc", e))?;
    let mut seen = BTreeMap::new();
    for (key, value) in &args.cc_set {
        if seen.insert(key, value).is_some() {
            return Err(usage("--cc-set", format_args!("{key} is given twice; expected each key once")));
        }
        cc.set(key, value).map_err(|e| usage("--cc-set", e))?;
    }
    Ok(cc)
}

fn topology(text: &str, args: &RunArgs) -> Result<Topology, Failure> {
    if !TopologySpec::looks_like_one(text) {
        let topology = parse_topo(text, &read(text)?).map_err(|e| Failure::Run(e.to_string()))?;
        return Ok(with_link(topology, args));
    }
    if args.link.is_some() && (text.contains("link=")) {
        return Err(usage("--link", format_args!("expected no link speeds in --topology {text} as well")));
    }
    let spec: TopologySpec = text.parse().map_err(|e| usage("--topology", e))?;
    Ok(with_link(spec.build().map_err(|e| usage("--topology", e))?, args))
}

/// The usual fabric of software switches.
fn small(hosts: u32, args: &RunArgs) -> Result<Topology, Failure> {
    if hosts > soft::DEFAULT_HOSTS {
        return Err(usage(
            "--topology",
            format_args!(
                "{hosts} hosts on software switches; expected a topology, such as leaf-spine:hosts={},leaves=4",
                hosts.next_multiple_of(4)
            ),
        ));
    }
    let spec: TopologySpec = soft::DEFAULT_TOPOLOGY.parse().map_err(|e| usage("--topology", e))?;
    Ok(with_link(spec.build().map_err(|e| usage("--topology", e))?, args))
}

fn in_processes(args: &RunArgs) -> bool {
    args.processes.is_some()
}

/// How many times slower than described the fabric runs: in real time as much as two cores need.
fn slow(topology: &Topology, args: &RunArgs) -> u32 {
    args.slow.unwrap_or_else(|| match args.on {
        Platform::Soft => {
            soft::slow_motion(topology, args.mtu.unwrap_or(soft::DEFAULT_MTU), in_processes(args))
        }
        Platform::Sim | Platform::Loopback | Platform::Udp => 1,
    })
}

fn just_enough(hosts: u32, args: &RunArgs) -> Result<Topology, Failure> {
    let spec: Result<TopologySpec, _> = format!("fat-tree:hosts={hosts}").parse();
    spec.and_then(|spec| spec.build()).map_err(|e| match (&args.hosts, &args.matrix) {
        (None, Some(file)) => Failure::Run(format!("{}: {e}", file.display())),
        (None, None) => usage("--workload", e),
        (Some(_), _) => usage("--hosts", e),
    })
}

fn with_link(topology: Topology, args: &RunArgs) -> Topology {
    match args.link {
        Some(rate) => topology.with_link_rate(rate),
        None => topology,
    }
}

fn workload(args: &RunArgs, topology: Option<&Topology>) -> Result<Workload, Failure> {
    if let Some(matrix) = &args.matrix {
        return read_matrix(matrix, CmOptions { hosts: args.hosts, ..CmOptions::default() });
    }
    let kind = args.workload.as_deref().unwrap_or_default();
    let spec: WorkloadSpec = kind.parse().map_err(|e| usage("--workload", e))?;
    let default = topology.map(Topology::hosts).or(spec.default_hosts()).unwrap_or(DEFAULT_HOSTS);
    let mut rng = Rng::new(args.seed, WORKLOAD_STREAM);
    spec.build(Some(args.hosts.unwrap_or(default)), args.size.unwrap_or(DEFAULT_SIZE), &mut rng).map_err(
        |e| match e {
            WorkloadSpecError::Workload(_) => usage("--size", e),
            WorkloadSpecError::TooFewHosts { .. } if args.hosts.is_some() => usage("--hosts", e),
            _ => usage("--workload", e),
        },
    )
}

fn payload(args: &RunArgs) -> Payload {
    args.payload.unwrap_or(match args.on {
        Platform::Sim => Payload::Virtual,
        Platform::Loopback | Platform::Udp | Platform::Soft => Payload::Real,
    })
}

/// Line by line: the text of a matrix may be larger than its flows.
fn read_matrix(path: &Path, options: CmOptions) -> Result<Workload, Failure> {
    let name = path.display().to_string();
    let failed = |e: io::Error| Failure::Run(format!("{name}: {e}"));
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    let mut reader = CmReader::new(&name, options);
    let (mut bytes, mut number) = (Vec::new(), 0u64);
    loop {
        number += 1;
        let more = text::next_line(&mut file, &mut bytes);
        if !more.map_err(|e| Failure::Run(format!("{name}:{number}: {e}")))? {
            break;
        }
        let line =
            str::from_utf8(&bytes).map_err(|_| Failure::Run(format!("{name}:{number}: not UTF-8 text")))?;
        reader.line(line).map_err(|e| Failure::Run(e.to_string()))?;
    }
    reader.finish().map_err(|e| Failure::Run(e.to_string()))
}

/// What goes wrong with links: the file's events before those of the command line.
fn faults(topology: &Topology, args: &RunArgs) -> Result<FaultPlan, Failure> {
    let mut plan = FaultPlan::default();
    for degradation in &args.degrade {
        plan.slow.extend(degradation.ports(topology).map_err(|e| usage("--degrade", e))?);
    }
    if let Some(path) = &args.link_events {
        let (name, text) = (path.display().to_string(), read(path)?);
        plan.events = parse_link_events(&name, &text, topology).map_err(|e| Failure::Run(e.to_string()))?;
    }
    for line in &args.link_event {
        let name = format!("--link-event '{line}'");
        let events = parse_link_events(&name, line, topology);
        plan.events.extend(events.map_err(|e| Failure::Usage(e.to_string()))?);
    }
    Ok(plan)
}

fn read(path: impl AsRef<Path>) -> Result<String, Failure> {
    let path = path.as_ref();
    let bytes = text::read(path).map_err(|e| Failure::Run(format!("{}: {e}", path.display())))?;
    String::from_utf8(bytes).map_err(|e| {
        let good = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = 1 + good.iter().filter(|&&byte| byte == b'\n').count();
        Failure::Run(format!("{}:{line}: not UTF-8 text", path.display()))
    })
}

/// Adds the queues' size and marking thresholds, which depend on the rest of the configuration.
fn with_thresholds(config: RunConfig, args: &RunArgs) -> Result<RunConfig, Failure> {
    let packet = config.wire_mtu();
    // Whole packets, as where nothing is given.
    let bdp = |n: f64| ((config.bdp() as f64 * n).ceil() as u64).div_ceil(packet) * packet;
    let queue_bytes = args.queue.map(|queue| match queue {
        Queue::Bdp(n) => bdp(n),
        Queue::Packets(n) => packet * u64::from(n),
        Queue::Bytes(n) => n,
    });
    if let Some(bytes) = queue_bytes.filter(|&bytes| bytes < packet) {
        let overhead = config.data_overhead();
        return Err(usage(
            "--queue",
            format_args!(
                "{bytes} bytes never hold a packet; expected at least {packet} ({} of payload, {overhead} of overhead)",
                config.mtu
            ),
        ));
    }
    let ecn = args.ecn.unwrap_or(DEFAULT_ECN);
    let phantom = args.phantom.map(|phantom| {
        let Ecn { low, high } = phantom.ecn.unwrap_or(ecn);
        PhantomQueues { drain: phantom.drain, ecn: (low, high) }
    });
    Ok(RunConfig { queue_bytes, ecn: Some((ecn.low, ecn.high)), phantom, ..config })
}

fn sets_queues(topology: &Topology) -> bool {
    topology.tiers().iter().any(|tier| tier.queue_down.is_some() || tier.queue_up.is_some())
}

/// Two ports joined back to back take the place of the fabric.
fn on_loopback(settings: Settings, config: &RunConfig) -> Settings {
    Settings {
        pair: loopback::first_pair(&config.workload),
        topology: "a DPDK net_ring pair".to_owned(),
        topology_hosts: 2,
        queue_bytes: None,
        ..settings
    }
}

/// Sockets take the place of the fabric.
fn on_udp(settings: Settings, endpoints: usize) -> Settings {
    Settings {
        topology: "kernel UDP on 127.0.0.1".to_owned(),
        topology_hosts: endpoints as u32,
        queue_bytes: None,
        ..settings
    }
}

fn settings(config: &RunConfig, slow: u32, args: &RunArgs) -> Settings {
    let (ecn_low_bytes, ecn_high_bytes) = config.ecn_bytes();
    Settings {
        version: env!("CARGO_PKG_VERSION"),
        on: args.on,
        matrix: args.matrix.as_ref().map(|p| p.display().to_string()),
        workload: args.workload.clone(),
        pair: None,
        size_bytes: args.workload.is_some().then(|| args.size.unwrap_or(DEFAULT_SIZE)),
        hosts: config.workload.hosts(),
        topology: config.topology.name().to_owned(),
        topology_hosts: config.topology.hosts(),
        link_bps: config.topology.host_rate().as_bps(),
        slow: (slow > 1).then_some(slow),
        mtu_bytes: config.mtu,
        wire_overhead_bytes: config.data_overhead(),
        wire_overhead: if matches!(config.wire_overhead, Overhead::Auto) { "auto" } else { "fixed" },
        cc: config.cc.name().to_owned(),
        cc_set: args.cc_set.iter().cloned().collect(),
        lb: config.lb.name().to_owned(),
        paths: config.paths,
        trim: config.trim,
        queue_bytes: (args.queue.is_some() || !sets_queues(&config.topology)).then(|| config.queue_bytes()),
        ecn_low_bytes,
        ecn_high_bytes,
        phantom_drain: config.phantom.map(|phantom| phantom.drain),
        phantom_low_bytes: config.phantom_bytes().map(|(low, _)| low),
        phantom_high_bytes: config.phantom_bytes().map(|(_, high)| high),
        link_events: args.link_events.as_ref().map(|p| p.display().to_string()),
        link_event: args.link_event.clone(),
        degrade: args.degrade.iter().map(ToString::to_string).collect(),
        payload: payload(args),
        ack_every_bytes: config.ack_every,
        until_us: config.until.map(|t| t.as_us_f64()),
    }
}
