//! The command line.

use crate::doctor::DoctorArgs;
use crate::perf::PerfArgs;
use crate::serve::ServeArgs;
use crate::sweep::Shard;
use crate::testbed::{HostsBy, TestbedArgs};
use crate::units::{self, Ecn, Phantom, Queue, WireOverhead};
use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand, ValueEnum};
use serde::Serialize;
use std::ffi::OsString;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use weft_cc::{Rate, Span};
use weft_testbed::link_events::Degradation;

/// Userspace transport for lossy Ethernet fabrics: experiments and their results.
#[derive(Debug, Parser)]
#[command(name = "weft", version = env!("WEFT_VERSION"), about, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a workload over a fabric and report how it went.
    ///
    /// Exit status: 0 when every flow has completed, 3 when some have not (who waits for what is
    /// listed), 1 when the run could not be made, 2 for options that make no sense.
    Run(Box<RunArgs>),
    /// Make a grid of runs over all cores, and one table of their results.
    ///
    /// Interrupted at any moment, the same command goes on from there. Exit status: 0 when the table is
    /// written, 1 when runs have failed or the table could not be made, 2 for a sweep file that makes no
    /// sense, 130 when interrupted.
    Sweep(SweepArgs),
    /// One host of a run, in a process that ends with the run.
    #[command(hide = true)]
    RunHost {
        /// The process of the run.
        #[arg(long = "parent", value_name = "PID")]
        parent_process: u32,
        /// Which host.
        #[arg(long = "host", value_name = "N")]
        number: u32,
        #[command(flatten)]
        run: Box<RunArgs>,
    },
    /// One run of a sweep, in a process that ends with the sweep.
    #[command(hide = true)]
    SweepRun {
        /// The process of the sweep.
        #[arg(long, value_name = "PID")]
        parent: u32,
        /// Only find out whether it can be made.
        #[arg(long)]
        rehearse: bool,
        #[command(flatten)]
        run: Box<RunArgs>,
    },
    /// Measure throughput, message rate or latency between two endpoints, over any port.
    ///
    /// Exit status: 0 when the test was run, 1 when it could not be or data arrived wrong, 2 for options that
    /// make no sense, 130 or 143 when a signal ended it; a server without --once ends on SIGINT or SIGTERM with 0.
    #[command(args_override_self = true)]
    Perf(PerfArgs),
    /// Look at this machine, a port or a path, and say what to type to make them fit.
    ///
    /// Exit status: 0 when nothing is bad, 1 when something is or could not be looked at, 2 for options that make
    /// no sense.
    #[command(args_override_self = true)]
    Doctor(Box<DoctorArgs>),
    /// Own a port, and let applications of this host share it over rings in shared memory.
    ///
    /// Ends on SIGINT or SIGTERM. Exit status: 0 then, 1 when the port or the socket cannot be had, 2 for options
    /// that make no sense.
    #[command(args_override_self = true)]
    Serve(Box<ServeArgs>),
    /// A fabric of software switches in real time, to which hosts of this machine are attached.
    ///
    /// Exit status: 0 when it did what was asked, 1 when it could not, 2 for options or words that make no sense.
    Testbed(TestbedArgs),
    /// What can be chosen, with one line and the source of each.
    List {
        /// Of what.
        what: Catalogue,
        /// Only this one, with its parameters.
        name: Option<String>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Catalogue {
    /// Congestion control, for --cc.
    Cc,
    /// Load balancers, for --lb.
    Lb,
    /// Topology generators, for --topology.
    Topologies,
    /// Workload generators, for --workload.
    Workloads,
}

/// Options are left as given: what is absent gets its default where the run is set up, so that an
/// option without effect can be told from one not given, and refused.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["matrix", "workload"]))]
pub(crate) struct RunArgs {
    /// Connection matrix to run.
    #[arg(long, value_name = "FILE.cm")]
    pub(crate) matrix: Option<PathBuf>,
    /// Workload to generate: incast:N, permutation or all-to-all:K (K flows active per host).
    #[arg(long, value_name = "KIND")]
    pub(crate) workload: Option<String>,
    /// Bytes of each generated flow [default: 2MiB].
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, conflicts_with = "matrix", allow_negative_numbers = true)]
    pub(crate) size: Option<u64>,
    /// Number of hosts; overrides a matrix's node count [default: the matrix's, else the topology's, else
    /// N + 1 for an incast and 16 for other workloads].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) hosts: Option<u32>,
    /// A .topo file, leaf-spine:… or fat-tree:… (see `weft list topologies`) [default: a non-blocking
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
    /// Congestion control (see `weft list cc`) [default: nscc].
    #[arg(long, value_name = "NAME")]
    pub(crate) cc: Option<String>,
    /// A parameter of the congestion control (see `weft list cc NAME`); may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = units::key_value)]
    pub(crate) cc_set: Vec<(String, String)>,
    /// Load balancer (see `weft list lb`) [default: mixed].
    #[arg(long, value_name = "NAME")]
    pub(crate) lb: Option<String>,
    /// Number of entropies that the load balancer chooses from; with --on udp source ports of each host, at
    /// most 64 [default: 128, with --on udp 8].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16_384))]
    pub(crate) paths: Option<u16>,
    /// Whether switches trim packets that do not fit (or drop them) [default: on].
    #[arg(long, value_name = "on|off")]
    pub(crate) trim: Option<Switch>,
    /// Data queue of each switch port: 1bdp, 100pkt, 64KiB or bytes [default: the
    /// topology's, else 1bdp].
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub(crate) queue: Option<Queue>,
    /// Where ECN marking begins and where every packet is marked, as parts of the queue's default size,
    /// the bandwidth-delay product [default: 0.2,0.8].
    #[arg(long, value_name = "LOW,HIGH", allow_hyphen_values = true)]
    pub(crate) ecn: Option<Ecn>,
    /// Phantom queues beside the data queues of switch ports: the part of the link's rate at which they drain, and
    /// thresholds of their own [default: none; the thresholds of --ecn].
    #[arg(long, value_name = "DRAIN[,LOW,HIGH]", allow_hyphen_values = true)]
    pub(crate) phantom: Option<Phantom>,
    /// Changes of links during the run, one a line: TIME (tier=T switch=S link=L | host=N) (fail | restore |
    /// rate=RATE | drop=P | corrupt=P), with probabilities P from 0 to 1.
    #[arg(long, value_name = "FILE")]
    pub(crate) link_events: Option<PathBuf>,
    /// A change of a link, such as '100us host=7 fail', after those of --link-events; may be repeated.
    #[arg(long, value_name = "LINE")]
    pub(crate) link_event: Vec<String>,
    /// Slow the first N links up from every switch of tier T to P % of their rate, both ways, and shrink
    /// their queues and ECN thresholds with it; may be repeated [default of rate: 25%].
    #[arg(long, value_name = "tier=T,links=N,rate=P%")]
    pub(crate) degrade: Vec<Degradation>,
    /// Payload: only its length, or real bytes that the receiver compares [default: virtual; real elsewhere
    /// than in a simulation].
    #[arg(long, value_name = "virtual|real")]
    pub(crate) payload: Option<Payload>,
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
    /// Write the results as JSON; with - to standard output, which then carries nothing else.
    #[arg(long, value_name = "FILE|-")]
    pub(crate) json: Option<PathBuf>,
    /// Write one line for each flow.
    #[arg(long, value_name = "FILE.csv")]
    pub(crate) flows: Option<PathBuf>,
    /// Take samples of all ports and flows, so often in virtual time; they go to FILE.ports.parquet and
    /// FILE.flows.parquet.
    #[arg(long, value_name = "TIME", value_parser = units::span, allow_negative_numbers = true)]
    pub(crate) sample: Option<Span>,
    /// Where samples go [default: samples].
    #[arg(long, value_name = "FILE", requires = "sample")]
    pub(crate) sample_file: Option<PathBuf>,
}

impl RunArgs {
    /// What the names of files of samples begin with.
    pub(crate) fn sample_path(&self) -> &Path {
        self.sample_file.as_deref().unwrap_or(Path::new("samples"))
    }
}

#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// What to run: a table [run] of options that all runs share, and a table [vary] of lists. Files that
    /// it names are found from where it is.
    #[arg(value_name = "FILE.toml")]
    pub(crate) file: PathBuf,
    /// Table to write: a JSON object a line, one for each run [default: FILE.jsonl beside FILE.toml].
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) out: Option<PathBuf>,
    /// Runs at a time [default: one for each core].
    #[arg(long, value_name = "N")]
    pub(crate) jobs: Option<NonZero<usize>>,
    /// Begin anew: discard the table and what was done of it.
    #[arg(long)]
    pub(crate) force: bool,
    /// Make only the I-th of N parts of the runs, beside others who make the other parts.
    #[arg(long, value_name = "I/N", conflicts_with_all = ["force", "merge", "slurm"])]
    pub(crate) shard: Option<Shard>,
    /// Make no run, but write the table when all parts are done.
    #[arg(long, conflicts_with_all = ["force", "slurm"])]
    pub(crate) merge: bool,
    /// Submit the runs to Slurm: an array job of parts, and a job that merges them.
    #[arg(long)]
    pub(crate) slurm: bool,
    /// Number of tasks in the array job [default: one for each run, 1000 at most].
    #[arg(long, value_name = "N", requires = "slurm")]
    pub(crate) tasks: Option<NonZero<usize>>,
    /// An option for sbatch, such as --sbatch=--time=1:00:00; may be repeated.
    #[arg(long, value_name = "OPTION", requires = "slurm", allow_hyphen_values = true)]
    pub(crate) sbatch: Vec<String>,
    /// Print what would be submitted to Slurm.
    #[arg(long, requires = "slurm", conflicts_with = "force")]
    pub(crate) dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Payload {
    Virtual,
    Real,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Platform {
    Sim,
    Loopback,
    Udp,
    Soft,
}

/// What to type for the help on the command that these words begin with.
pub(crate) fn help(words: impl Iterator<Item = OsString>) -> String {
    let (all, mut path) = (Cli::command(), "weft".to_owned());
    let mut command = &all;
    for word in words {
        let Some(inner) = command.find_subcommand(&word) else { break };
        path = format!("{path} {}", inner.get_name());
        command = inner;
    }
    path + " --help"
}

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
        let line = ["weft", "run"].iter().chain(args);
        one_line(&Cli::try_parse_from(line).expect_err("it must be refused"))
    }

    #[test]
    fn what_is_appended_to_a_line_for_an_end_overrides_what_stands_there() {
        for (words, more) in [
            (&["perf", "server"][..], &["--rto", "100ms", "--rto", "300ms"][..]),
            (&["perf", "client", "127.0.0.2"], &["--rto", "100ms", "--rto", "300ms"]),
            (&["perf", "pair"], &["--rto", "100ms", "--rto", "300ms"]),
            (&["serve", "--socket", "s", "--socket", "t"], &["--rto", "100ms", "--rto", "300ms"]),
            (&["doctor"], &[]),
        ] {
            let port = match words[1..].first() {
                Some(&"pair") => ["--port", "ring", "--port", "memory"],
                _ => ["--port", "udp:127.0.0.1", "--port", "udp:127.0.0.3"],
            };
            let line =
                [&["weft"], words, &port, &["--port-mtu", "1500", "--port-mtu", "4184"], more].concat();
            let matches =
                Cli::command().try_get_matches_from(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
            let mut innermost = &matches;
            while let Some((_, next)) = innermost.subcommand() {
                innermost = next;
            }
            let mtu = innermost.get_raw("mtu").and_then(|mut values| values.next_back());
            assert_eq!(mtu, Some("4184".as_ref()), "{line:?}");
            if !more.is_empty() {
                assert_eq!(innermost.get_one::<Span>("rto"), Some(&Span::from_ms(300)), "{line:?}");
            }
        }
        let peers = ["weft", "perf", "server", "--port", "udp:127.0.0.1", "--peer", "::1", "--peer", "::2"];
        let matches = Cli::command().get_matches_from(peers);
        let server = matches.subcommand_matches("perf").and_then(|perf| perf.subcommand_matches("server"));
        let count = server.and_then(|server| server.get_raw("peers")).map(Iterator::count);
        assert_eq!(count, Some(2), "what may be repeated is kept");
    }

    #[test]
    fn help_is_that_of_the_command_that_was_typed() {
        let help = |words: &str| help(words.split(' ').map(OsString::from));
        assert_eq!(help("perf client --cout 3"), "weft perf client --help");
        assert_eq!(help("list ccs"), "weft list --help");
        assert_eq!(help("prf client"), "weft --help");
        assert_eq!(help("--port perf"), "weft --help");
    }

    #[test]
    fn the_command_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn refusals_name_the_option_and_what_was_expected() {
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
}
