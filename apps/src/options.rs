//! The options of `weft run`, which a sweep and a testbed take from their files as well, and the platforms on which
//! each has an effect.

use crate::Failure;
use crate::choices::{HostsBy, Payload, Platform, Switch, WindowsOf};
use crate::ranks::RankArgs;
use crate::trace::TraceArgs;
use crate::units::{self, ByClass, Ecn, Phantom, Queue, WireOverhead};
use clap::{ArgGroup, Args, FromArgMatches};
use std::path::{Path, PathBuf};
use weft_cc::{Rate, Span};
use weft_stack::fep::BusyTimeout;
use weft_testbed::link_events::Degradation;
use weft_testbed::sim::HostModel;
use weft_testbed::switch::Routing;
use weft_testbed::workload::WorkloadSpec;

/// Options are left as given: what is absent gets its default where the run is set up, so that an
/// option without effect can be told from one not given, and refused.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["matrix", "workload"]))]
pub(crate) struct RunArgs {
    /// Connection matrix to run.
    #[arg(long, value_name = "FILE.cm")]
    pub(crate) matrix: Option<PathBuf>,
    /// Workload to generate, such as incast:N, permutation, all-to-all:K or poisson:load=0.6,sizes=WebSearch,duration=10ms
    /// (see `weft list workloads`); may be repeated: workloads are laid over one another. Or goal:FILE, alone: a GOAL
    /// program for ranks on the hosts.
    #[arg(long, value_name = "KIND")]
    pub(crate) workload: Vec<String>,
    /// Bytes of each generated flow, where the workload does not say it [default: 2MiB].
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, conflicts_with = "matrix", allow_negative_numbers = true)]
    pub(crate) size: Option<u64>,
    /// Number of hosts; overrides a matrix's node count [default: the matrix's, else the topology's, else
    /// N + 1 for an incast and 16 for other workloads].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) hosts: Option<u32>,
    /// A .topo or .graph file, or leaf-spine:…, fat-tree:…, two-dc:…, dumbbell:… or parking-lot:… (see `weft list topologies`) [default: a non-blocking
    /// three-tier fat tree of just enough hosts, link latency 1 µs, switch latency 0; with --on soft
    /// leaf-spine:hosts=16,leaves=4,spines=4].
    #[arg(long, value_name = "TOPOLOGY")]
    pub(crate) topology: Option<String>,
    /// Speed of every link [default: the topology's, else 100G].
    #[arg(long, value_name = "RATE", value_parser = units::rate, allow_negative_numbers = true)]
    pub(crate) link: Option<Rate>,
    /// Run the fabric in slow motion: rates divided and delays multiplied by N, so that windows and queues hold as
    /// many packets [default: 1; with --on soft as much as two cores need, 500 for 16 hosts at 100G, and four times that
    /// with --processes].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) slow: Option<u32>,
    /// Payload bytes per packet, 64 to 16383 (14 bits on the wire) [default: 4096].
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(64..=16_383))]
    pub(crate) mtu: Option<u32>,
    /// Bytes that each packet costs besides its payload: auto (the true headers, preamble and gap) or a
    /// number, which is then also the size of control packets and trimmed headers [default: auto].
    #[arg(long, value_name = "auto|BYTES", allow_negative_numbers = true)]
    pub(crate) wire_overhead: Option<WireOverhead>,
    /// Congestion control: a sender, a receiver, SENDER+RECEIVER, or median(SENDER) for a sender (see `weft list cc`);
    /// where there is a fabric, one for each zone is possible: intra=NAME for hosts of the sender's own pod (in a fabric
    /// of two tiers, its leaf), inter=NAME for all others [default: nscc].
    #[arg(long, value_name = "NAME|ZONE=NAME,…")]
    pub(crate) cc: Option<String>,
    /// A parameter of the congestion control (see `weft list cc NAME`), in all zones or in one; may be repeated.
    #[arg(long, value_name = "[ZONE.]KEY=VALUE", value_parser = units::key_value)]
    pub(crate) cc_set: Vec<(String, String)>,
    /// Load balancer (see `weft list lb`), or one for each zone as with --cc [default: mixed].
    #[arg(long, value_name = "NAME|ZONE=NAME,…")]
    pub(crate) lb: Option<String>,
    /// A parameter of the load balancer (see `weft list lb NAME`), in all zones or in one; may be repeated.
    #[arg(long, value_name = "[ZONE.]KEY=VALUE", value_parser = units::key_value)]
    pub(crate) lb_set: Vec<(String, String)>,
    /// Whether all flows of a pair of hosts share a window, or each flow has its own [default: pair].
    #[arg(long, value_name = "pair|flow")]
    pub(crate) windows: Option<WindowsOf>,
    /// Number of entropies that the load balancer chooses from; with --on udp source ports of each host, at
    /// most 64 [default: 128, with --on udp 8].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16_384))]
    pub(crate) paths: Option<u16>,
    /// Whether switches trim packets that do not fit (or drop them) [default: on].
    #[arg(long, value_name = "on|off")]
    pub(crate) trim: Option<Switch>,
    /// Data queue of each switch port: 1bdp, 100pkt, 64KiB or bytes; or of the ports of one class, such as
    /// 1bdp,tor-up=2bdp (see docs/topologies.md) [default: the topology's, else 1bdp].
    #[arg(long, value_name = "SIZE|CLASS=SIZE,…", allow_negative_numbers = true)]
    pub(crate) queue: Option<ByClass<Queue>>,
    /// Where ECN marking begins and where every packet is marked: parts of the queue's default size, the
    /// bandwidth-delay product, or packets (9pkt,36pkt), or bytes (40KB,150KB); or for one class of ports, as with
    /// --queue [default: the topology's, else 0.2,0.8].
    #[arg(long, value_name = "LOW,HIGH|CLASS=LOW,HIGH,…", allow_hyphen_values = true)]
    pub(crate) ecn: Option<ByClass<Ecn>>,
    /// Phantom queues beside the data queues of switch ports: the part of the link's rate at which they drain, and
    /// thresholds of their own; or for one class of ports, as with --queue [default: none; the thresholds of --ecn].
    #[arg(long, value_name = "DRAIN[,LOW,HIGH]|CLASS=DRAIN[,LOW,HIGH],…", allow_hyphen_values = true)]
    pub(crate) phantom: Option<ByClass<Phantom>>,
    /// Priorities that switches tell apart, 1 to 8: each port has a data queue for each, and sends what has a higher one
    /// first. Flows have the priority that their workload says [default: as many as the workload has].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) priorities: Option<u8>,
    /// Whether `prio` in the matrix says the priority of its flows, or is ignored, as `htsim_uec` does [default: on].
    #[arg(long, value_name = "on|off", requires = "matrix")]
    pub(crate) prio: Option<Switch>,
    /// How switches choose among equal ports: ecmp, by a hash of addresses and entropy; adaptive:least-queue or
    /// adaptive:quantised, by the length of their queues, for each packet or, with sticky=TIME, for each part of a flow
    /// after a longer gap; exact, by the entropy as the number of a path [default: ecmp].
    #[arg(long, value_name = "ecmp|adaptive:MEASURE[,sticky=TIME]|exact")]
    pub(crate) routing: Option<Routing>,
    /// Changes of links during the run, one a line: TIME (tier=T switch=S link=L | host=N | link=A-B) [dir=up | dir=down] (fail |
    /// restore | rate=RATE | delay=TIME | drop=P | corrupt=P | gilbert=P,R[,BAD[,GOOD]] | block-loss=N:P1[,P2…] | trim=P …), with
    /// probabilities from 0 to 1; see docs/link-events.md.
    #[arg(long, value_name = "FILE")]
    pub(crate) link_events: Option<PathBuf>,
    /// A change of a link, such as '100us host=7 fail', after those of --link-events; may be repeated.
    #[arg(long, value_name = "LINE")]
    pub(crate) link_event: Vec<String>,
    /// Slow the first N links up from every switch of tier T, or from one, to P % of their rate, both ways or one way
    /// (up: away from the hosts), and shrink their queues and ECN thresholds with it; may be repeated [default of rate:
    /// 25%].
    #[arg(long, value_name = "tier=T[,switch=S],links=N[,dir=up|down][,rate=P%]")]
    pub(crate) degrade: Vec<Degradation>,
    /// Payload: only its length, or real bytes that the receiver compares [default: virtual; real elsewhere
    /// than in a simulation].
    #[arg(long, value_name = "virtual|real")]
    pub(crate) payload: Option<Payload>,
    /// Bytes of data after which a receiver acknowledges; with 1 it acknowledges each packet. Packets that are marked or
    /// that ask for an answer, such as the last of a window, are acknowledged at once in any case [default: 16KiB].
    #[arg(long, value_name = "BYTES", value_parser = units::ack_every, allow_negative_numbers = true)]
    pub(crate) ack_every: Option<u32>,
    /// Receive processing of each host: its rate in bits a second of packets on the wire, its time for each packet, and the
    /// bytes that may wait for it (further packets are dropped); at least one of rate and per-packet [default: no time;
    /// queue=1MiB].
    #[arg(long, value_name = "rate=RATE,per-packet=TIME,queue=BYTES", value_parser = units::host)]
    pub(crate) host: Option<HostModel>,
    /// How long a flow may make no progress while its receiver answers that it is busy, grants no credit, or gets short
    /// packets only [default: 10000ms].
    #[arg(long, value_name = "TIME|endless", value_parser = units::busy_timeout, allow_negative_numbers = true)]
    pub(crate) busy_timeout: Option<BusyTimeout>,
    /// Seed of everything random.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Threads that share the work of a simulation, at most one for each ToR; the results are the same for any
    /// number [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Time at which the run ends, done or not: virtual time in a simulation, else real
    /// time [default: when nothing is left to do].
    #[arg(long, value_name = "TIME", value_parser = units::span, allow_negative_numbers = true)]
    pub(crate) until: Option<Span>,
    /// Where to run: sim, in virtual time; loopback, in this process over a pair of DPDK net_ring
    /// devices, with the flows between the first flow's source and destination, there and back; udp, in
    /// this process over kernel UDP sockets on 127.0.0.1, with all flows, of at most 64 hosts; or soft, in this
    /// process over software switches, beside what the simulator says of the same fabric.
    #[arg(long, value_name = "sim|loopback|udp|soft", default_value = "sim")]
    pub(crate) on: Platform,
    /// With --on soft: each host a process of its own, attached by kernel UDP, by memif, or, as root, by veth in a
    /// network namespace of its own [default without KIND: udp].
    #[arg(long, value_name = "KIND", num_args = 0..=1, require_equals = true, default_missing_value = "udp")]
    pub(crate) processes: Option<HostsBy>,
    /// Packets end with a CRC-32C, which their receivers verify.
    #[arg(long)]
    pub(crate) crc: bool,
    /// Write the results as JSON; with - to standard output, which then carries nothing else.
    #[arg(long, value_name = "FILE|-")]
    pub(crate) json: Option<PathBuf>,
    /// Write one line for each flow, as CSV, or as Parquet if the name ends with .parquet.
    #[arg(long, value_name = "FILE")]
    pub(crate) flows: Option<PathBuf>,
    /// Write one line for each link, with its queue over time, and what was trimmed, dropped and marked there; and one
    /// for each switch.
    #[arg(long, value_name = "FILE.csv")]
    pub(crate) links: Option<PathBuf>,
    /// Take samples of all ports and flows, so often in virtual time; they go to FILE.ports.parquet and
    /// FILE.flows.parquet.
    #[arg(long, value_name = "TIME", value_parser = units::span, allow_negative_numbers = true)]
    pub(crate) sample: Option<Span>,
    /// Where samples go [default: samples].
    #[arg(long, value_name = "FILE", requires = "sample")]
    pub(crate) sample_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) ranks: RankArgs,
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
    /// Trace the events of these hosts only [default: all].
    #[arg(long, value_name = "N[,N…]", value_delimiter = ',', requires = "trace")]
    pub(crate) trace_host: Vec<u32>,
}

/// Bytes of a generated flow where nothing is said.
const DEFAULT_SIZE: u64 = 2 << 20;

impl RunArgs {
    /// Parses words as they follow `weft run`.
    ///
    /// # Errors
    /// An option or value that clap refuses, in one line.
    pub(crate) fn parse(words: impl IntoIterator<Item = String>) -> Result<RunArgs, Failure> {
        let command = RunArgs::augment_args(clap::Command::new("weft run").no_binary_name(true));
        let matches = command.try_get_matches_from(words);
        let args = matches.and_then(|matches| RunArgs::from_arg_matches(&matches));
        args.map_err(|error| Failure::Usage(one_line(&error)))
    }

    /// The prefix of the names of sample files.
    pub(crate) fn sample_path(&self) -> &Path {
        self.sample_file.as_deref().unwrap_or(Path::new("samples"))
    }

    /// Bytes of each generated flow.
    pub(crate) fn size(&self) -> u64 {
        self.size.unwrap_or(DEFAULT_SIZE)
    }

    /// Whether the workload has flows whose size [`RunArgs::size`] says.
    pub(crate) fn takes_size(&self) -> bool {
        let specs = self.workload.iter().filter_map(|text| text.parse::<WorkloadSpec>().ok());
        specs.into_iter().any(|spec| spec.has_default_size())
    }

    /// Whether messages have bytes: the choice, or the platform's default.
    pub(crate) fn payload(&self) -> Payload {
        self.payload.unwrap_or(match self.on {
            Platform::Sim => Payload::Virtual,
            Platform::Loopback | Platform::Udp | Platform::Soft => Payload::Real,
        })
    }

    /// Refuses the first option that has no effect on the platform.
    pub(crate) fn check_effects(&self) -> Result<(), Failure> {
        let idle = EFFECTS.iter().find(|effect| (effect.is_given)(self) && !effect.on.contains(&self.on));
        let Some(Effect { option, on, .. }) = idle else { return Ok(()) };
        Err(Failure::Usage(match on {
            [Platform::Soft] => format!("{option}: expected --on soft with it"),
            _ if on.contains(&Platform::Sim) => {
                format!("{option}: has no effect on {}; expected --on sim", self.on)
            }
            _ => format!("{option}: has no effect on {}, whose packets are no bytes", self.on),
        }))
    }
}

/// An option that has an effect on some platforms only.
struct Effect {
    option: &'static str,
    on: &'static [Platform],
    /// Whether the command line has it, with a value that it has not got without.
    is_given: fn(&RunArgs) -> bool,
}

const fn effect(option: &'static str, on: &'static [Platform], is_given: fn(&RunArgs) -> bool) -> Effect {
    Effect { option, on, is_given }
}

/// Platforms with switches and links to be described.
const FABRIC: &[Platform] = &[Platform::Sim, Platform::Soft];
/// The platform whose packets need not be bytes, whose threads may be several, and that can be sampled.
const SIM: &[Platform] = &[Platform::Sim];
/// Platforms whose packets are frames.
const FRAMES: &[Platform] = &[Platform::Loopback, Platform::Udp, Platform::Soft];

/// Options with an effect on some platforms only, in the order in which they are refused. All others have one
/// everywhere.
const EFFECTS: &[Effect] = &[
    effect("--processes", &[Platform::Soft], |args| args.processes.is_some()),
    effect("--crc", FRAMES, |args| args.crc),
    effect("--topology", FABRIC, |args| args.topology.is_some()),
    effect("--link", FABRIC, |args| args.link.is_some()),
    effect("--slow", FABRIC, |args| args.slow.is_some()),
    effect("--wire-overhead", SIM, |args| args.wire_overhead.is_some()),
    effect("--trim", FABRIC, |args| args.trim.is_some()),
    effect("--queue", FABRIC, |args| args.queue.is_some()),
    effect("--ecn", FABRIC, |args| args.ecn.is_some()),
    effect("--phantom", FABRIC, |args| args.phantom.is_some()),
    effect("--priorities", FABRIC, |args| args.priorities.is_some()),
    effect("--routing", FABRIC, |args| args.routing.is_some()),
    effect("--link-events", FABRIC, |args| args.link_events.is_some()),
    effect("--link-event", FABRIC, |args| !args.link_event.is_empty()),
    effect("--degrade", FABRIC, |args| !args.degrade.is_empty()),
    effect("--host", SIM, |args| args.host.is_some()),
    effect("--payload", SIM, |args| args.payload == Some(Payload::Virtual)),
    effect("--links", SIM, |args| args.links.is_some()),
    effect("--sample", SIM, |args| args.sample.is_some()),
    effect("--threads", SIM, |args| args.threads.is_some()),
];

/// A parser's complaint in one line: clap's own, without its hints on usage.
pub(crate) fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let head = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = head.split_whitespace().collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(args: &[&str]) -> String {
        RunArgs::parse(args.iter().map(|word| (*word).to_owned()))
            .expect_err("it must be refused")
            .to_string()
    }

    #[test]
    fn refusals_name_the_option_and_the_expected_value() {
        assert_eq!(
            refusal(&["--workload", "permutation", "--until", "10"]),
            "invalid value '10' for '--until <TIME>': expected a time in whole picoseconds with its unit \
             (ps, ns, us, ms or s, such as 10us or 1.5ms)"
        );
        assert_eq!(
            refusal(&["--workload", "permutation", "--matrix", "a.cm"]),
            "the argument '--workload <KIND>' cannot be used with '--matrix <FILE.cm>'"
        );
        assert_eq!(
            refusal(&["--matrix", "a.cm", "--size", "1MB"]),
            "the argument '--matrix <FILE.cm>' cannot be used with '--size <BYTES>'"
        );
        assert_eq!(
            refusal(&["--workload", "permutation", "--paths", "0"]),
            "invalid value '0' for '--paths <N>': 0 is not in 1..=16384"
        );
        let none = refusal(&[]);
        assert!(none.contains("--matrix") && none.contains("--workload") && !none.contains('\n'), "{none}");
        assert!(refusal(&["--workload", "permutation", "--ecn", "0.8,0.2"]).contains("LOW not above HIGH"));
        assert!(refusal(&["--workload", "permutation", "--size", "-5"]).contains("--size"));
    }

    #[test]
    fn options_with_an_effect_on_some_platforms_only_exist() {
        let command = RunArgs::augment_args(clap::Command::new("run"));
        let known: Vec<String> =
            command.get_arguments().filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect();
        for Effect { option, .. } in EFFECTS {
            assert!(known.iter().any(|name| name == option), "{option}");
        }
    }
}
