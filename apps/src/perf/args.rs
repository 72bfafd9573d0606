//! The options of `weft perf`.

use super::mode::Mode;
use crate::choices::{Switch, WindowsOf};
use crate::port_spec::{PeerSpec, PortOptions, PortSpec};
use crate::trace::TraceArgs;
use crate::units;
use crate::zones::PrefixZone;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use weft_cc::{Rate, Span};
use weft_stack::fep::BusyTimeout;
use weft_stack::worker::Idle;

/// The most bytes between two acknowledgements: with more, a sender hears too rarely to control congestion.
const MOST_ACK_BYTES: u32 = 1 << 20;

/// `weft perf`.
#[derive(Debug, Args)]
pub(crate) struct PerfArgs {
    #[command(subcommand)]
    pub(super) command: PerfCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum PerfCommand {
    /// Wait for clients, and run the tests that they ask for, one at a time.
    Server(Box<ServerArgs>),
    /// Run a test with a server.
    Client(Box<ClientArgs>),
    /// Run a test between two ends in this process.
    Pair(Box<PairArgs>),
}

#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    #[command(flatten)]
    pub(super) port: PortArgs,
    #[command(flatten)]
    pub(super) end: EndArgs,
    #[command(flatten)]
    pub(super) zone: ZoneArgs,
    /// A client that may use the server; may be repeated [default: any].
    #[arg(long = "peer", value_name = "IP[/MAC]")]
    pub(super) peers: Vec<PeerSpec>,
    /// End after one test.
    #[arg(long)]
    pub(super) once: bool,
    /// How long to wait for a client [default: for ever].
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    pub(super) wait: Option<Span>,
    /// Bytes of messages that a client may make the server hold.
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, default_value = "1GiB")]
    pub(super) memory: u64,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) trace: TraceArgs,
}

#[derive(Debug, Args)]
pub(super) struct ClientArgs {
    /// The server.
    #[arg(value_name = "IP[/MAC]")]
    pub(super) server: PeerSpec,
    #[command(flatten)]
    pub(super) port: PortArgs,
    #[command(flatten)]
    pub(super) test: TestArgs,
    #[command(flatten)]
    pub(super) end: EndArgs,
    #[command(flatten)]
    pub(super) zone: ZoneArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) trace: TraceArgs,
}

#[derive(Debug, Args)]
pub(super) struct PairArgs {
    /// The link between the two ends: memory; ring, two DPDK net_ring devices; or udp, the loopback interface.
    #[arg(long = "port", value_name = "memory|ring|udp", default_value = "memory")]
    pub(super) between: PairLink,
    /// Threads: one that drives both ends in turn, or one for each.
    #[arg(long, value_name = "1|2", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(super) threads: u8,
    /// The longest IP packet, bytes.
    #[arg(long = "port-mtu", value_name = "BYTES", default_value_t = 9000, value_parser = clap::value_parser!(u16).range(128..))]
    pub(super) mtu: u16,
    #[command(flatten)]
    pub(super) test: TestArgs,
    #[command(flatten)]
    pub(super) end: EndArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) trace: TraceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PairLink {
    Memory,
    Ring,
    Udp,
}

#[derive(Debug, Args)]
pub(crate) struct PortArgs {
    /// The port: udp:ADDRESS[,entropies=N], memif:SOCKET,role=server|client or dpdk:DEVICE[,ARGUMENTS].
    #[arg(long = "port", value_name = "PORT")]
    pub(crate) spec: PortSpec,
    #[command(flatten)]
    pub(crate) options: PortOptions,
}

/// The test.
#[derive(Debug, Args)]
pub(super) struct TestArgs {
    /// The figure to measure.
    #[arg(long, value_name = "MODE", default_value = "throughput")]
    pub(super) mode: Mode,
    /// Bytes of a message [default: 1MiB; 64 for rate and latency].
    #[arg(long, value_name = "BYTES", value_parser = units::bytes)]
    pub(super) size: Option<u64>,
    /// Number of messages, over all connections.
    #[arg(long, value_name = "N", conflicts_with = "duration")]
    pub(super) count: Option<u64>,
    /// How long messages are sent [default: 5000ms].
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    pub(super) duration: Option<Span>,
    /// Time at the beginning that is not measured; --duration begins after it [default: none].
    #[arg(long, value_name = "TIME", value_parser = units::span, conflicts_with = "count")]
    pub(super) warmup: Option<Span>,
    /// Number of connections.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) connections: u16,
    /// Messages under way on each connection [default: 4; 256 for rate; 1 for latency].
    #[arg(long, value_name = "N")]
    pub(super) depth: Option<u32>,
    /// Fill messages with a pattern, and check each byte that arrives.
    #[arg(long)]
    pub(super) verify: bool,
}

/// Peers in different places.
#[derive(Clone, Debug, Args)]
pub(crate) struct ZoneArgs {
    /// Hosts whose IP addresses begin with PREFIX are a zone, with the RTT of the idle network to them, a first
    /// retransmission timeout, and whether their fabric trims (as other hosts if nothing is said); may be repeated. --cc,
    /// --lb, --cc-set and --lb-set can name it, as in --cc nscc,wan=smartt.
    #[arg(long = "zone", value_name = "ZONE=PREFIX[,rtt=TIME][,rto=TIME][,trim=on|off]")]
    pub(crate) zones: Vec<PrefixZone>,
}

/// Options of an end: its protocol and its worker.
#[derive(Clone, Debug, Args)]
pub(crate) struct EndArgs {
    /// Payload bytes of a full packet [default: 4096, or what the port's MTU leaves].
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(64..=16_383))]
    pub(crate) payload: Option<u32>,
    /// Congestion control (see `weft list cc`); both ends need the same if it uses credit.
    #[arg(long, value_name = "NAME", default_value = "nscc")]
    pub(crate) cc: String,
    /// A parameter of the congestion control (see `weft list cc NAME`); may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = units::key_value)]
    pub(crate) cc_set: Vec<(String, String)>,
    /// Load balancer (see `weft list lb`).
    #[arg(long, value_name = "NAME", default_value = "mixed")]
    pub(crate) lb: String,
    /// A parameter of the load balancer (see `weft list lb NAME`); may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = units::key_value)]
    pub(crate) lb_set: Vec<(String, String)>,
    /// Whether all connections of a pair of endpoints share a window, or each connection has its own.
    #[arg(long, value_name = "pair|flow", default_value = "pair")]
    pub(crate) windows: WindowsOf,
    /// Whether the fabric trims packets.
    #[arg(long, value_name = "on|off", default_value = "off")]
    pub(crate) trim: Switch,
    /// Rate of the link, for what is expected and for congestion control [default: the interface's or the
    /// card's, as far as known; else congestion control begins with 100G, over memif with 800G].
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub(crate) link: Option<Rate>,
    /// Round-trip time of the idle network, for congestion control [default: it begins with 100us, and algorithms with
    /// targets of delay measure what they can reach].
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    pub(crate) rtt: Option<Span>,
    /// First retransmission timeout: longer than the system may take the processor away [default: 100ms, over
    /// network cards of DPDK 10ms].
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    pub(crate) rto: Option<Span>,
    /// Bytes that this end receives before it acknowledges them, packets below 1 KiB counted as 1 KiB; a packet that
    /// asks for an acknowledgement gets it at once.
    #[arg(long, value_name = "BYTES", value_parser = ack_bytes, default_value = "16KiB")]
    pub(crate) ack_every: u32,
    /// How long a connection may make no progress while the other end answers: that it is busy, that it has no credit to
    /// give, or only to short packets.
    #[arg(long, value_name = "TIME|endless", value_parser = units::busy_timeout, default_value = "10000ms")]
    pub(crate) busy_timeout: BusyTimeout,
    /// Silence of the other end after which a test is given up.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "5000ms")]
    pub(crate) patience: Span,
    /// Pin the worker to this core; may be repeated for a pair with two threads.
    #[arg(long = "core", value_name = "N")]
    pub(crate) cores: Vec<usize>,
    /// The worker's behaviour when there is nothing to do: spin, on a core of its own, or adaptive, which gives
    /// way to others and then sleeps.
    #[arg(long, value_name = "spin|adaptive", default_value = "adaptive")]
    pub(crate) idle: IdleArg,
}

/// Bytes between two acknowledgements.
fn ack_bytes(text: &str) -> Result<u32, String> {
    let bytes = units::bytes(text).map_err(|error| error.to_string())?;
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| (1..=MOST_ACK_BYTES).contains(bytes))
        .ok_or_else(|| format!("expected 1 byte to {MOST_ACK_BYTES} instead of {text:?}"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IdleArg {
    Spin,
    Adaptive,
}

impl From<IdleArg> for Idle {
    fn from(arg: IdleArg) -> Idle {
        match arg {
            IdleArg::Spin => Idle::Spin,
            IdleArg::Adaptive => Idle::ADAPTIVE,
        }
    }
}

#[derive(Clone, Debug, Args)]
pub(super) struct OutputArgs {
    /// Write the results as JSON, an object a line for each test; with - to standard output, which then
    /// carries nothing else.
    #[arg(long, value_name = "FILE|-")]
    pub(super) json: Option<PathBuf>,
}
