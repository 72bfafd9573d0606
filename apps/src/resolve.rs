//! From options to a run: defaults, files, and the refusal of what makes no sense.

use crate::choices::{HostsBy, Payload, Platform, Switch, UDP_ENTROPIES};
use crate::options::RunArgs;
use crate::settings::Settings;
use crate::units::{Ecn, Phantom, Queue, WireOverhead};
use crate::zones::AlgorithmOptions;
use crate::{Failure, loopback, ranks, sample, soft, text, udp};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use weft_stack::rng::Rng;
use weft_testbed::goal::Job;
use weft_testbed::link_events::parse_link_events;
use weft_testbed::sim::{
    Algorithms, FaultPlan, Overhead, PayloadMode, PhantomQueues, PortClass, RunConfig, Thresholds,
};
use weft_testbed::topology::{PortId, Reach, Topology, TopologySpec, parse_graph, parse_topo};
use weft_testbed::workload::{
    CmOptions, CmReader, MAX_MESSAGE_BYTES, Setting, Workload, WorkloadSpec, WorkloadSpecError,
};

const DEFAULT_HOSTS: u32 = 16;
const DEFAULT_ECN: Ecn = Ecn::Bdp(0.2, 0.8);
/// The zones of a fabric: hosts of the sender's own group, and all others.
const ZONES: [&str; 2] = ["intra", "inter"];
/// The generator's stream that draws the first workload; further ones have the streams below. The engine uses other
/// streams.
const WORKLOAD_STREAM: u64 = u64::MAX;

/// A run, ready to start.
pub(crate) struct Plan {
    pub(crate) config: RunConfig,
    pub(crate) faults: FaultPlan,
    /// How many times slower the fabric is than described.
    pub(crate) slow: u32,
    pub(crate) on: Platform,
    pub(crate) settings: Settings,
}

/// Works out what `args` ask for. Reads the files that they name.
pub(crate) fn resolve(args: &RunArgs) -> Result<Plan, Failure> {
    check_outputs(args)?;
    args.check_effects()?;
    check_paths(args)?;
    let (Algorithms { cc, lb }, intra) = algorithms(args)?;
    let given = args.topology.as_deref().map(|text| topology(text, args)).transpose()?;
    let source = Source::read(args, given.as_ref())?;
    let hosts = source.hosts();
    let topology = match given {
        Some(topology) => topology,
        None if args.on == Platform::Soft => small(hosts, args)?,
        None => with_link(just_enough(hosts, args)?, args),
    };
    if let Some(host) = args.trace_host.iter().find(|host| **host >= hosts) {
        let most = hosts - 1;
        return Err(usage("--trace-host", format_args!("there is no host {host}; expected 0 to {most}")));
    }
    let slow = slow(&topology, args);
    let topology = if slow > 1 { topology.slowed(slow) } else { topology };
    if topology.hosts() < hosts {
        return Err(Failure::Usage(format!(
            "--topology: {} has {} hosts, the workload needs {}; expected a larger one (or fewer --hosts)",
            topology.name(),
            topology.hosts(),
            hosts
        )));
    }
    let (workload, job) = source.workload(args, &topology, slow)?;
    check_sizes(args, &workload)?;
    let priorities = priorities(args, &workload)?;
    let defaults = RunConfig::new(topology, workload);
    let config = RunConfig {
        job: job.map(|job| Arc::new(job.slowed(slow))),
        cc,
        lb,
        intra,
        windows: args.windows.unwrap_or_default().into(),
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
        payload: match args.payload() {
            Payload::Real => PayloadMode::Real,
            Payload::Virtual => PayloadMode::Virtual,
        },
        ack_every: args.ack_every.unwrap_or(defaults.ack_every),
        busy_timeout: args.busy_timeout.unwrap_or_default(),
        priorities,
        routing: args.routing.unwrap_or_default().slowed(slow),
        host: args.host.map(|host| host.slowed(slow)),
        crc: args.crc,
        seed: args.seed,
        until: args.until,
        ..defaults
    };
    let config = with_thresholds(config, args)?;
    let faults = faults(&config.topology, args)?;
    match args.on {
        Platform::Udp => udp::check_hosts(&config)?,
        Platform::Loopback => loopback::check_hosts(&config)?,
        Platform::Sim | Platform::Soft => {}
    }
    let settings = Settings::new(args, &config, slow);
    Ok(Plan { config, faults, slow, on: args.on, settings })
}

fn usage(option: &str, error: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("{option}: {error}"))
}

fn check_outputs(args: &RunArgs) -> Result<(), Failure> {
    if args.flows.as_deref() == Some(Path::new("-")) {
        return Err(usage("--flows", "expected a file name; only --json can go to standard output"));
    }
    if args.links.as_deref() == Some(Path::new("-")) {
        return Err(usage("--links", "expected a file name; only --json can go to standard output"));
    }
    let mut taken: Vec<(&str, PathBuf)> = Vec::new();
    for (option, path) in files(args) {
        let place = place(&path);
        if place.exists() && !place.is_file() {
            continue; // writing to a device or a pipe overwrites nothing
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
        ("--links", args.links.as_ref()),
        ("--trace", args.trace.trace.as_ref()),
    ];
    let mut files: Vec<_> =
        named.into_iter().filter_map(|(option, path)| Some((option, path?.clone()))).collect();
    if args.sample.is_some() {
        files.extend(sample::paths(args.sample_path()).map(|path| ("--sample-file", path)));
    }
    files
}

/// The absolute path of the file that `path` names, whether it exists or not: the same for all names of one file.
fn place(path: &Path) -> PathBuf {
    let beside = || {
        let path = path::absolute(path).ok()?;
        Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(beside).unwrap_or_else(|| path.to_owned())
}

/// Elsewhere than in a simulation, a flow is one message, whose bytes are in memory at both ends.
fn check_sizes(args: &RunArgs, workload: &Workload) -> Result<(), Failure> {
    let large = workload.flows().iter().find(|flow| flow.bytes > MAX_MESSAGE_BYTES);
    let Some(flow) = large.filter(|_| args.on != Platform::Sim) else { return Ok(()) };
    let option = if args.matrix.is_some() { "--matrix" } else { "--size" };
    let (id, bytes, on) = (flow.id, flow.bytes, args.on);
    Err(usage(
        option,
        format_args!("flow {id} has {bytes} bytes; expected at most {MAX_MESSAGE_BYTES} on {on}"),
    ))
}

/// The priorities that switches tell apart: those that are asked for, or those that flows have.
fn priorities(args: &RunArgs, workload: &Workload) -> Result<u8, Failure> {
    let needed = workload.priorities();
    let option = if args.matrix.is_some() { "--matrix" } else { "--workload" };
    if needed > 1 && !args.on.has_fabric() {
        let on = args.on;
        return Err(usage(
            option,
            format_args!(
                "flows have priorities, but there are no switches on {on}; expected --on sim or soft"
            ),
        ));
    }
    if !workload.backgrounds().is_empty() && !args.on.has_fabric() {
        let on = args.on;
        return Err(usage(
            option,
            format_args!("there is no path to pin background traffic to on {on}; expected --on sim or soft"),
        ));
    }
    if args.on != Platform::Sim && workload.connections().iter().any(|connection| connection.pool.get() > 1) {
        return Err(usage(
            option,
            "messages take the least loaded of several connections in simulations only",
        ));
    }
    match args.priorities {
        Some(present) if present < needed => Err(usage(
            "--priorities",
            format_args!("{present}, but flows have priority {}; expected at least {needed}", needed - 1),
        )),
        present => Ok(present.unwrap_or(needed)),
    }
}

/// Each path over kernel UDP is a source port of every host.
fn check_paths(args: &RunArgs) -> Result<(), Failure> {
    let Some(paths) = args.paths else { return Ok(()) };
    if args.processes == Some(HostsBy::Udp) && paths > UDP_ENTROPIES {
        let most =
            format!("expected at most {UDP_ENTROPIES} with --processes=udp: a host has as many source ports");
        return Err(usage("--paths", most));
    }
    if args.on == Platform::Udp && paths > udp::MAX_PATHS {
        let most = format!("{paths} source ports for each host; expected at most {}", udp::MAX_PATHS);
        return Err(usage("--paths", most));
    }
    Ok(())
}

/// The algorithms towards hosts in general, and towards those of the sender's own group if options tell these apart.
fn algorithms(args: &RunArgs) -> Result<(Algorithms, Option<Algorithms>), Failure> {
    let (cc, lb) = (args.cc.as_deref().unwrap_or("nscc"), args.lb.as_deref().unwrap_or("mixed"));
    let options = AlgorithmOptions::new((cc, &args.cc_set), (lb, &args.lb_set), &ZONES)?;
    let [intra, inter] = ZONES;
    match options.names_zones() {
        None => Ok((options.of(inter)?, None)),
        Some(option) if !args.on.has_fabric() => Err(usage(
            option,
            format_args!(
                "there are no pods on {}, so zones have no effect; expected one value for all, or --on sim or soft",
                args.on
            ),
        )),
        Some(_) => Ok((options.of(inter)?, Some(options.of(intra)?))),
    }
}

fn topology(text: &str, args: &RunArgs) -> Result<Topology, Failure> {
    if !TopologySpec::looks_like_one(text) {
        let content = read(text)?;
        let topology = match Path::new(text).extension().is_some_and(|end| end == "graph") {
            true => parse_graph(text, &content).map_err(|e| Failure::Run(e.to_string()))?,
            false => parse_topo(text, &content).map_err(|e| Failure::Run(e.to_string()))?,
        };
        return Ok(with_link(topology, args));
    }
    if args.link.is_some() && (text.contains("link=") || text.contains("bottleneck=")) {
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

/// How many times slower than described the fabric runs: in real time as much as two cores need.
fn slow(topology: &Topology, args: &RunArgs) -> u32 {
    args.slow.unwrap_or_else(|| match args.on {
        Platform::Soft => {
            let mtu = args.mtu.unwrap_or(soft::DEFAULT_MTU);
            soft::slow_motion(topology, mtu, args.processes.is_some())
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

/// Where the flows come from.
enum Source {
    Matrix(Workload),
    /// Descriptions, over so many hosts.
    Generated(Vec<WorkloadSpec>, u32),
    /// There are none: ranks execute a program.
    Ranks(Box<Job>),
}

impl Source {
    /// Reads the matrix, or the descriptions. Without a number of hosts, these are for those of `topology` or for as
    /// many as they need.
    fn read(args: &RunArgs, topology: Option<&Topology>) -> Result<Source, Failure> {
        if let Some(job) = ranks::job(args)? {
            return Ok(Source::Ranks(Box::new(job)));
        }
        if let Some(matrix) = &args.matrix {
            let ignore_prio = args.prio == Some(Switch::Off);
            let options = CmOptions { hosts: args.hosts, ignore_prio, ..CmOptions::default() };
            return Ok(Source::Matrix(read_matrix(matrix, options)?));
        }
        let parse = |text: &String| text.parse().map_err(|e| usage("--workload", e));
        let specs: Vec<WorkloadSpec> = args.workload.iter().map(parse).collect::<Result<_, _>>()?;
        if args.size.is_some() && !specs.iter().any(WorkloadSpec::has_default_size) {
            return Err(usage("--size", "has no effect: the workload says the sizes of its flows"));
        }
        let needed = |spec: &WorkloadSpec| {
            let least = u32::try_from(spec.hosts_needed()).unwrap_or(u32::MAX);
            spec.default_hosts().unwrap_or(least.max(DEFAULT_HOSTS))
        };
        let default = || specs.iter().map(needed).max().unwrap_or(DEFAULT_HOSTS);
        let hosts = args.hosts.or(topology.map(Topology::hosts)).unwrap_or_else(default);
        Ok(Source::Generated(specs, hosts))
    }

    fn hosts(&self) -> u32 {
        match self {
            Source::Matrix(workload) => workload.hosts(),
            Source::Generated(_, hosts) => *hosts,
            Source::Ranks(job) => job.hosts(),
        }
    }

    /// The flows, or the ranks and a workload without flows.
    fn workload(
        self,
        args: &RunArgs,
        topology: &Topology,
        slow: u32,
    ) -> Result<(Workload, Option<Job>), Failure> {
        let (specs, hosts) = match self {
            Source::Matrix(workload) => return Ok((workload, None)),
            Source::Ranks(job) => {
                let none = Workload::new(job.hosts(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
                return none.map(|none| (none, Some(*job))).map_err(|error| usage("--workload", error));
            }
            Source::Generated(specs, hosts) => (specs, hosts),
        };
        let read = |name: &str| read(name).map_err(|failure| failure.to_string());
        let setting = Setting { hosts, topology: Some(topology), bytes: args.size(), slow, read: &read };
        let rng = |i: usize| Rng::new(args.seed, WORKLOAD_STREAM - i as u64);
        let workload = WorkloadSpec::build_all(&specs, &setting, rng);
        workload.map(|workload| (workload, None)).map_err(|(i, e)| match e {
            WorkloadSpecError::Workload(_) => usage("--size", e),
            WorkloadSpecError::TooFewHosts { .. } if args.hosts.is_some() => usage("--hosts", e),
            WorkloadSpecError::TooFewHosts { .. } => usage("--workload", e),
            _ => usage("--workload", format_args!("{}: {e}", specs[i])),
        })
    }
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

/// The faults of links: the file's events come before those of the command line.
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
    let ports = PortOptions { config: &config, args };
    ports.check_classes()?;
    let queue = args.queue.as_ref().and_then(|queue| queue.others);
    let queue_bytes = queue.map(|queue| ports.queue(queue, Reach::Network)).transpose()?;
    let ecn = args.ecn.as_ref().and_then(|ecn| ecn.others).unwrap_or(DEFAULT_ECN);
    let phantom = args.phantom.as_ref().and_then(|phantom| phantom.others);
    let phantom = phantom.map(|phantom| ports.phantom(phantom));
    let port_classes = ports.classes()?;
    let ecn = Some(ports.thresholds(ecn));
    Ok(RunConfig { queue_bytes, ecn, phantom, port_classes, ..config })
}

/// The options that say something of switch ports.
struct PortOptions<'a> {
    config: &'a RunConfig,
    args: &'a RunArgs,
}

impl PortOptions<'_> {
    /// Refuses classes that the topology does not have.
    fn check_classes(&self) -> Result<(), Failure> {
        let known = self.config.topology.classes();
        let args = self.args;
        let queue = args.queue.iter().flat_map(|queue| &queue.named).map(|(class, _)| ("--queue", class));
        let ecn = args.ecn.iter().flat_map(|ecn| &ecn.named).map(|(class, _)| ("--ecn", class));
        let phantom = args.phantom.iter().flat_map(|phantom| &phantom.named);
        let phantom = phantom.map(|(class, _)| ("--phantom", class));
        match queue.chain(ecn).chain(phantom).find(|(_, class)| !known.contains(&class.as_str())) {
            None => Ok(()),
            Some((option, class)) => {
                let known = known.join(", ");
                Err(usage(
                    option,
                    format_args!("there are no ports of class '{class}'; expected one of: {known}"),
                ))
            }
        }
    }

    /// The settings of each class that has its own. In a graph, what is said for all ports is said for each class: it
    /// takes the place of what the file says, and parts of the BDP are those of the group where ports stay in one.
    fn classes(&self) -> Result<Vec<PortClass>, Failure> {
        let (topology, args) = (&self.config.topology, self.args);
        let of_all = topology.is_graph();
        let mut reach = vec![Reach::Group; topology.classes().len()];
        for port in (0..topology.ports().len() as u32).map(PortId) {
            if let (Some(class), Reach::Network) = (topology.class_of(port), topology.reach_of(port)) {
                reach[class] = Reach::Network;
            }
        }
        let mut classes = Vec::new();
        for (name, reach) in topology.classes().into_iter().zip(reach) {
            let queue = args.queue.as_ref().and_then(|q| q.of(name).or(q.others.as_ref().filter(|_| of_all)));
            let ecn = args.ecn.as_ref().and_then(|e| e.of(name).or(e.others.as_ref().filter(|_| of_all)));
            let phantom = args.phantom.as_ref().and_then(|phantom| phantom.of(name));
            let class = PortClass {
                name: name.to_owned(),
                queue_bytes: queue.map(|queue| self.queue(*queue, reach)).transpose()?,
                ecn: ecn.map(|ecn| self.thresholds(*ecn)),
                phantom: phantom.map(|phantom| self.phantom(*phantom)),
            };
            if class != (PortClass { name: name.to_owned(), ..PortClass::default() }) {
                classes.push(class);
            }
        }
        Ok(classes)
    }

    /// The size of a queue in bytes. Parts of the BDP are whole packets, as where nothing is given.
    fn queue(&self, queue: Queue, reach: Reach) -> Result<u64, Failure> {
        let packet = self.config.wire_mtu();
        let bytes = match queue {
            Queue::Bdp(n) => ((self.config.bdp_of(reach) as f64 * n).ceil() as u64).div_ceil(packet) * packet,
            Queue::Packets(n) => packet * u64::from(n),
            Queue::Bytes(n) => n,
        };
        if bytes < packet {
            let overhead = self.config.data_overhead();
            return Err(usage(
                "--queue",
                format_args!(
                    "{bytes} bytes never hold a packet; expected at least {packet} ({} of payload, {overhead} of overhead)",
                    self.config.mtu
                ),
            ));
        }
        Ok(bytes)
    }

    fn thresholds(&self, ecn: Ecn) -> Thresholds {
        let packet = self.config.wire_mtu();
        match ecn {
            Ecn::Bdp(low, high) => Thresholds::Bdp(low, high),
            Ecn::Packets(low, high) => Thresholds::Bytes(packet * u64::from(low), packet * u64::from(high)),
            Ecn::Bytes(low, high) => Thresholds::Bytes(low, high),
        }
    }

    fn phantom(&self, phantom: Phantom) -> PhantomQueues {
        PhantomQueues { drain: phantom.drain, ecn: phantom.ecn.map(|ecn| self.thresholds(ecn)) }
    }
}
