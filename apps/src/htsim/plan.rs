//! From the options of `htsim_uec` to a run of weft.

use super::options::{HEADER, Options, Sender};
use crate::Failure;
use crate::options::RunArgs;
use crate::resolve::{Plan, resolve};
use std::path::Path;
use weft_cc::{Rate, Span};
use weft_testbed::link_events::{Degradation, SlowDirection};
use weft_testbed::sim::{RunConfig, Share, Thresholds};
use weft_testbed::topology::{Topology, TopologySpec};

/// The share of its rate that a link slowed by `-failed` keeps, in millionths.
const SLOW: u64 = 250_000;
/// The queue of switches that drop, in bandwidth-delay products.
const DROPPING_QUEUE: u32 = 5;
/// First window in bandwidth-delay products.
const FIRST_WINDOW: f64 = 1.5;
/// The gap after which a flow may change its port with `-ar_granularity flow`, picoseconds.
const STICKY: u64 = 10_000_000;
/// The setting of `rccc` that leaves its control of oversubscribed fabrics the whole range of rates.
const ANY_OVERSUBSCRIPTION: f64 = 100.0;

/// A run as `htsim_uec` would make it.
pub(super) struct HtsimPlan {
    plan: Plan,
    words: Words,
}

impl HtsimPlan {
    /// Reads the files that `options` name.
    ///
    /// # Errors
    /// A file cannot be read or is wrong, or options do not fit it.
    pub(super) fn new(options: &Options) -> Result<HtsimPlan, Failure> {
        let mut words = Words::default();
        words.fabric(options)?;
        words.control(options);
        let args = RunArgs::parse(words.0.iter().cloned())?;
        let mut plan = resolve(&args)?;
        check(options, &plan.config)?;
        if let Some(spec) = tree(options, plan.config.workload.hosts())? {
            plan.config.topology = spec.build().map_err(|error| refuse("-nodes", error))?;
            words.add("topology", plan.config.topology.name());
        }
        size_queues(options, &mut plan, &mut words)?;
        size_windows(options, &mut plan, &mut words)?;
        slow_links(options, &mut plan, &mut words)?;
        Ok(HtsimPlan { plan, words })
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The words that follow `weft run` for the same run, and its plan.
    pub(super) fn into_run(self) -> (Vec<String>, Plan) {
        (self.words.0, self.plan)
    }

    /// The words that follow `weft run` for the same run, as a shell takes them.
    pub(super) fn command(&self) -> String {
        let quoted = self.words.0.iter().map(|word| {
            let plain = |c: char| c.is_alphanumeric() || "-_=./:,%+".contains(c);
            if word.chars().all(plain) { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) }
        });
        quoted.collect::<Vec<_>>().join(" ")
    }
}

fn refuse(option: &str, what: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("{option}: {what}"))
}

/// Words of `weft run`.
#[derive(Default)]
struct Words(Vec<String>);

impl Words {
    fn add(&mut self, option: &str, value: impl std::fmt::Display) {
        self.0.push(format!("--{option}={value}"));
    }

    fn path(&mut self, option: &str, given: &str, path: &Path) -> Result<(), Failure> {
        let text = path.to_str();
        let text =
            text.ok_or_else(|| refuse(given, format_args!("{}: expected a name in UTF-8", path.display())))?;
        self.add(option, text);
        Ok(())
    }

    fn fabric(&mut self, options: &Options) -> Result<(), Failure> {
        let matrix = options.matrix.as_deref().unwrap_or(Path::new("/dev/stdin"));
        self.path("matrix", "-tm", matrix)?;
        // The program reads the word and does not use it.
        self.add("prio", "off");
        if let Some(topology) = &options.topology {
            if topology.to_str().is_some_and(TopologySpec::looks_like_one) {
                return Err(refuse("-topo", "expected the name of a file"));
            }
            self.path("topology", "-topo", topology)?;
        }
        self.add("mtu", options.mtu - HEADER);
        self.add("wire-overhead", HEADER);
        if !options.trim {
            self.add("trim", "off");
        }
        if let Some((low, high)) = options.ecn.filter(|_| !options.mark_above_half) {
            self.add("ecn", format_args!("{low}pkt,{high}pkt"));
        }
        if options.adaptive {
            let gap = Span::from_ps(options.sticky.unwrap_or(STICKY));
            let sticky = if options.flowlets { format!(",sticky={gap:#}") } else { String::new() };
            self.add("routing", format_args!("adaptive:quantised{sticky}"));
        }
        self.add("seed", options.seed);
        self.add("until", format_args!("{}us", options.end));
        Ok(())
    }

    fn control(&mut self, options: &Options) {
        let sender = options.sender_algorithm.name();
        let cc = match (options.sender, options.receiver) {
            (true, false) => sender.to_owned(),
            (false, _) => "rccc".to_owned(),
            (true, true) => format!("{sender}+rccc"),
        };
        if options.accurate_base_rtt {
            self.add("cc", format_args!("intra={cc},inter={cc}"));
        } else {
            self.add("cc", cc);
        }
        let numbers = [("qa_gate", options.qa_gate)];
        for (key, number) in numbers {
            if let Some(number) = number {
                self.set(key, number);
            }
        }
        if let Some(target) = options.target {
            self.set("target", format_args!("{:#}", Span::from_ps(target)));
        }
        if !options.base_rtt_from_nack {
            self.set("base_rtt_from_nack", false);
        }
        self.add("lb", options.balancer);
        self.add("paths", options.paths);
        // A connection has a window of its own there.
        self.add("windows", "flow");
        self.add("ack-every", options.sack_threshold);
    }

    fn set(&mut self, key: &str, value: impl std::fmt::Display) {
        self.add("cc-set", format_args!("{key}={value}"));
    }
}

/// Refuses options that do not fit the files.
fn check(options: &Options, config: &RunConfig) -> Result<(), Failure> {
    let hosts = config.workload.hosts();
    if let Some(nodes) = options.nodes.filter(|nodes| *nodes != hosts) {
        return Err(refuse("-nodes", format_args!("`{nodes}`, but the matrix has {hosts} hosts")));
    }
    if let Some(file) = &options.topology {
        let (name, present) = (file.display(), config.topology.hosts());
        if present != hosts {
            return Err(refuse(
                "-topo",
                format_args!("{name} has {present} hosts, but the matrix has {hosts}"),
            ));
        }
        let (rate, given) = (config.topology.host_rate(), Rate::from_bps(options.linkspeed * 1_000_000));
        if rate != given {
            return Err(refuse(
                "-linkspeed",
                format_args!("the hosts of {name} have links of {rate}; expected the same, not {given}"),
            ));
        }
    }
    let message = config.workload.flows().iter().find(|flow| flow.message.is_some());
    match message.filter(|_| !options.connection_reuse) {
        Some(flow) => Err(refuse(
            "-tm",
            format_args!(
                "flow {} is a message (`msg`) of a connection; expected -conn_reuse with it",
                flow.id
            ),
        )),
        None => Ok(()),
    }
}

/// The fat tree that takes the place of the usual one of `hosts` hosts, if options ask for another.
fn tree(options: &Options, hosts: u32) -> Result<Option<TopologySpec>, Failure> {
    let two_tiers = options.tiers == Some(2);
    let usual = options.hop_latency.or(options.switch_latency).is_none() && options.linkspeed == 100_000;
    if options.topology.is_some() || (usual && !two_tiers) {
        return Ok(None);
    }
    let shape = if two_tiers {
        // As many leaves as a switch has ports, and hosts on half of these.
        let ports = (2..=u32::from(u16::MAX)).step_by(2).find(|ports| ports * (ports / 2) >= hosts);
        let ports = ports.filter(|ports| ports * (ports / 2) == hosts).ok_or_else(|| {
            refuse("-tiers", format_args!("{hosts} hosts; expected K²/2 with an even K, such as 128"))
        })?;
        format!("leaf-spine:hosts={hosts},leaves={ports},spines={}", ports / 2)
    } else {
        format!("fat-tree:hosts={hosts}")
    };
    let latency = Span::from_ps(options.hop_latency.unwrap_or(1_000_000));
    let switch_latency = Span::from_ps(options.switch_latency.unwrap_or(0));
    let text =
        format!("{shape},link={}M,latency={latency:#},switch-latency={switch_latency:#}", options.linkspeed);
    text.parse().map(Some).map_err(|error| refuse("-nodes", error))
}

/// Queues are whole packets: those asked for, or so many times the bandwidth-delay product, rounded up.
fn size_queues(options: &Options, plan: &mut Plan, words: &mut Words) -> Result<(), Failure> {
    let config = &mut plan.config;
    let packet = config.wire_mtu();
    let default = if options.trim { 1 } else { DROPPING_QUEUE };
    let packets = options
        .queue
        .map(u64::from)
        .unwrap_or_else(|| config.bdp().div_ceil(packet) * u64::from(options.queue_bdps.unwrap_or(default)));
    config.queue_bytes = Some(packets * packet);
    words.add("queue", format_args!("{packets}pkt"));
    if options.mark_above_half {
        let half = packets * packet / 2;
        config.ecn = Some(Thresholds::Bytes(half, half));
        words.add("ecn", format_args!("{half}B,{half}B"));
    }
    let (_, high) = config.ecn_bytes();
    if high > packets * packet {
        let high = high.div_ceil(packet);
        let what = format!("every packet is marked from {high} packets on, beyond the queue of {packets}");
        return Err(refuse("-ecn", format_args!("{what}; expected thresholds within the queue")));
    }
    Ok(())
}

/// The first window, and the control of oversubscribed fabrics, depend on the fabric.
fn size_windows(options: &Options, plan: &mut Plan, words: &mut Words) -> Result<(), Failure> {
    let config = &plan.config;
    let mut settings = Vec::new();
    if options.sender {
        let packets = options.cwnd.map(|packets| u64::from(packets) * config.wire_mtu());
        let bytes = |bytes: u64| format!("{bytes}B");
        let of_bdp = || bytes((config.bdp() as f64 * FIRST_WINDOW) as u64);
        match (options.sender_algorithm, packets) {
            // Its own default is that of the program.
            (Sender::Nscc, None) => {}
            (Sender::Nscc, Some(packets)) => settings.push(("-cwnd", "initial_window", bytes(packets))),
            (Sender::Dctcp, packets) => {
                settings.push(("-cwnd", "initial_window", packets.map_or_else(of_bdp, bytes)));
            }
            (Sender::Constant, packets) => {
                settings.push(("-cwnd", "window", packets.map_or_else(of_bdp, bytes)));
            }
        }
    }
    let ratio = oversubscription(options, &config.topology);
    if let Some(ratio) = ratio {
        settings.push(("-oversubscribed_cc", "oversubscription", ratio.to_string()));
    }
    let control = [
        ("-Ai", "fabric_increase", options.increase),
        ("-Md", "fabric_decrease", options.decrease),
        ("-alpha", "fabric_gain", options.gain),
    ];
    for (option, key, value) in control {
        let Some(value) = value else { continue };
        if ratio.is_none() {
            return Err(refuse(
                option,
                "has no effect without the receivers' control of oversubscribed fabrics",
            ));
        }
        settings.push((option, key, value.to_string()));
    }
    for (option, key, value) in settings {
        for algorithms in [Some(&mut plan.config.cc), plan.config.intra.as_mut().map(|intra| &mut intra.cc)] {
            let Some(cc) = algorithms else { continue };
            cc.set(key, &value).map_err(|error| refuse(option, error))?;
        }
        words.set(key, value);
    }
    Ok(())
}

/// The ratio for which receivers control bottlenecks inside the fabric, if they do: by themselves where senders have no
/// control and the fabric is oversubscribed. Beyond [`ANY_OVERSUBSCRIPTION`] the least rate there is the same.
fn oversubscription(options: &Options, topology: &Topology) -> Option<f64> {
    let tiers = 0..topology.tiers().len() as u8;
    let ratio: f64 = tiers.map(|tier| topology.oversubscription(tier)).product();
    let by_itself = !options.sender && !options.never_oversubscribed && ratio > 1.0;
    match (options.receiver, by_itself, options.oversubscribed) {
        (false, ..) | (_, false, false) => None,
        (true, true, _) => Some(ratio.min(ANY_OVERSUBSCRIPTION)),
        (true, false, true) => Some(ANY_OVERSUBSCRIPTION),
    }
}

/// The links of `-failed`. In three tiers link `l` up from aggregation switch `a` is slow, towards the hosts only, if
/// `l + a · (aggregation switches of a pod)` is below the number. In two tiers all links to that many upper switches are
/// slow, both ways.
fn slow_links(options: &Options, plan: &mut Plan, words: &mut Words) -> Result<(), Failure> {
    let (topology, failed) = (&plan.config.topology, options.failed);
    let share = Share::from_millionths(SLOW).unwrap_or(Share::WHOLE);
    let mut slow = Vec::new();
    match topology.tiers() {
        [tor, top] if failed > 0 => {
            let upper = tor.radix_up / top.bundle.max(1);
            let links = failed.min(upper) * top.bundle.max(1);
            let direction = SlowDirection::Both;
            slow.push(Degradation { tier: 0, switch: None, links, direction, share });
        }
        [_, agg, _] if failed > 0 => {
            let in_pod = topology.switches_in(1) / topology.pods().max(1);
            for switch in 0..topology.switches_in(1) {
                let links = failed.saturating_sub(switch.saturating_mul(in_pod)).min(agg.radix_up);
                if links == 0 {
                    break;
                }
                let direction = SlowDirection::Down;
                slow.push(Degradation { tier: 1, switch: Some(switch), links, direction, share });
            }
        }
        _ if failed > 0 => {
            let what = format!("`{failed}`, but {} is neither of two nor of three tiers", topology.name());
            return Err(refuse("-failed", format_args!("{what}; expected such a fabric, or no slow links")));
        }
        _ => {}
    }
    for degradation in slow {
        let ports = degradation.ports(topology).map_err(|error| refuse("-failed", error))?;
        plan.faults.slow.extend(ports);
        words.add("degrade", degradation);
    }
    Ok(())
}
