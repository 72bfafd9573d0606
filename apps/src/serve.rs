//! `weft serve`: one process owns a port, and applications of this host share it.
//!
//! The worker's thread does everything except sleep on the sockets of applications, which the listener's thread does
//! for it, and print, which the speaker's thread does.

mod limits;
mod memory;
mod speaker;

use crate::Failure;
use crate::perf::{EndArgs, EndSetup, PortArgs, ZoneArgs, open, pin};
use crate::port_spec::PeerSpec;
use crate::trace::{self, TraceArgs};
use crate::units;
use clap::Args;
use rustix::process::Signal;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use speaker::Speaker;
use std::path::PathBuf;
use std::sync::Arc;
use weft_stack::fep::{FepConfig, Limits};
use weft_stack::packet::Addr;
use weft_stack::worker::session::{Ended, ServerEvent, SessionConfig, SessionServer};
use weft_stack::worker::{Strangers, Waker};

/// `weft serve`.
#[derive(Debug, Args)]
// `weft perf` has the same option with another meaning, so this command states its own help.
#[command(mut_arg("patience", |arg| arg.help(
    "Silence of a peer after which it is asked whether it is there; after as much again it is given up"
)))]
pub(crate) struct ServeArgs {
    /// Unix socket where applications come in. Only this user's and root's are let in.
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    #[command(flatten)]
    port: PortArgs,
    #[command(flatten)]
    end: EndArgs,
    /// A host that applications may reach; may be repeated. They call it 1, 2, … in this order; this endpoint is 0.
    #[arg(long = "peer", value_name = "IP[/MAC]")]
    peers: Vec<PeerSpec>,
    #[command(flatten)]
    zone: ZoneArgs,
    /// Priorities that the network's switches tell apart, 1 to 8: data has the priority of the traffic class that an
    /// application gives its connection.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    priorities: u8,
    /// Applications at a time.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4095))]
    applications: u16,
    /// Bytes of memory that an application may ask for.
    #[arg(long, value_name = "BYTES", value_parser = units::bytes, default_value = "256MiB")]
    memory: u64,
    /// Bytes of memory that all applications may have together, their rings included: half of the host's unless set.
    #[arg(long, value_name = "BYTES", value_parser = units::bytes)]
    memory_total: Option<u64>,
    /// Bytes of messages without a receive that the endpoint keeps, and as many of packets of ordered connections that are early,
    /// 1GiB or more. Unless set, each is an eighth of the host's memory, 4 GiB at most, and the first 1 GiB at least.
    #[arg(long, value_name = "BYTES", value_parser = unexpected_total)]
    unexpected_total: Option<u64>,
    /// Messages and receives that an application may have posted. The endpoint has as many for each of --applications.
    #[arg(long, value_name = "N", default_value_t = 1 << 16, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    operations: u32,
    /// Connections that an application may have. The endpoint has 65535: one that asks for more than are left is refused.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    connections: u32,
    /// Print what the server has of each resource, who may have how much of it and what happens beyond that, and end.
    #[arg(long)]
    limits: bool,
    #[command(flatten)]
    trace: TraceArgs,
    /// End with the process that has started this one.
    #[arg(long, value_name = "PID", hide = true)]
    with_parent: Option<u32>,
}

/// This endpoint's address in its book.
const OWN: Addr = Addr(0);
/// Peers that one application may add to the address book.
const PEERS: u32 = 256;

/// The least that messages without a receive may have together, bytes: senders of libfabric count on 64 MiB at each of their peers,
/// in which room that is reserved for many applications must not leave too little (decision 0120).
const LEAST_UNEXPECTED: u64 = 1 << 30;

/// Stored responses of all peers have one part of so many of the host's memory. They are errors of some 56 bytes, 512 in each PDC at
/// most, and take up to twice as much.
const RESPONSES: u64 = 32;

fn unexpected_total(text: &str) -> Result<u64, units::ValueError> {
    let bytes = units::bytes(text)?;
    (bytes >= LEAST_UNEXPECTED).then_some(bytes).ok_or_else(|| units::ValueError::expected("1GiB or more"))
}

/// Serves until a signal comes.
///
/// # Errors
/// The port or the socket cannot be had.
pub(crate) fn serve(args: &ServeArgs) -> Result<(), Failure> {
    if args.limits {
        let printed = crate::print(limits::table(args).as_bytes());
        return printed.map_err(|error| Failure::Run(error.to_string()));
    }
    args.with_parent.map_or(Ok(()), |parent| crate::parent::end_with(parent, Signal::TERM))?;
    let failed = |error: &dyn std::fmt::Display| Failure::Run(error.to_string());
    let trace = args.trace.begin(&[])?;
    let open = open(&args.port)?;
    let mut endpoint = EndSetup::new(&args.end, &args.zone.zones, &open)?;
    endpoint.setup.config = Arc::new(FepConfig {
        idle_timeout: args.end.patience,
        limits: args.limits(),
        priorities: args.priorities,
        ..(*endpoint.setup.config).clone()
    });
    let (ip, mtu, place) = (open.info.host.ip, open.mtu(), open.info.place_peers());
    let peers: Vec<_> = (1..).map(Addr).zip(args.peers.iter().copied()).collect();
    let mut worker = endpoint.worker(open, OWN, &peers, Strangers::Refuse)?;
    trace::attach(trace.as_ref(), &mut worker, OWN.0);
    worker.set_idle(args.end.idle.into());
    let waker = Waker::new().map_err(|error| failed(&error))?;
    let mut server = SessionServer::new(&mut worker, args.applications.into(), waker.clone());
    if let Some(place) = place {
        server.place_peers(place);
    }
    server.limit_memory(args.memory_of_applications(memory::of_host()));
    server.listen(&args.socket, args.most()).map_err(|error| failed(&error))?;
    stop_on_signals(waker).map_err(|error| failed(&error))?;
    let mut speaker = Speaker::start().map_err(|error| failed(&error))?;
    for notice in endpoint.notices(&worker) {
        speaker.say(notice);
    }
    if let Some(warning) = args.shortage_on(memory::of_host()) {
        speaker.say(warning);
    }
    speaker.say(format!("serving {ip} ({}, MTU {mtu}) at {}", args.port.spec, args.socket.display()));
    pin(&args.end, 0)?;
    server.run(worker, |event| speaker.say(describe(event)));
    speaker.finish();
    trace::end(trace, Ok(()))
}

impl ServeArgs {
    /// The limits of the endpoint: enough messages and connections that as many applications as can come each get what one
    /// may ask for, except connections beyond what PDCIDs can number. What peers can make it keep depends on the host's memory unless an
    /// option says otherwise.
    fn limits(&self) -> Limits {
        self.limits_on(memory::of_host())
    }

    /// The same on a host with so many bytes of memory.
    fn limits_on(&self, memory: u64) -> Limits {
        let sends = usize::from(self.applications) * self.operations as usize;
        let limits = Limits::default();
        let connections = usize::from(u16::MAX);
        let kept =
            |most: u64, least: u64| self.unexpected_total.unwrap_or_else(|| most.min(least.max(memory / 8)));
        Limits {
            connections,
            sends: sends.max(limits.sends),
            processes: self.applications.into(),
            unexpected_bytes: kept(limits.unexpected_bytes, LEAST_UNEXPECTED),
            reorder_bytes: kept(limits.reorder_bytes, 0),
            // Nothing of it is data of others: no process exposes memory here.
            response_bytes: limits.response_bytes.min(memory / RESPONSES),
            ..limits
        }
    }

    /// The memory that all applications together may share with the server, in bytes, on a host with `memory` bytes.
    fn memory_of_applications(&self, memory: u64) -> u64 {
        self.memory_total.unwrap_or(memory / 2)
    }

    /// A warning if what applications and peers may use together is more than so many bytes of memory. The tables, which are
    /// smaller, are not counted.
    fn shortage_on(&self, memory: u64) -> Option<String> {
        let limits = self.limits_on(memory);
        let parts = [
            self.memory_of_applications(memory),
            limits.unexpected_bytes,
            limits.reorder_bytes,
            limits.response_bytes.saturating_mul(2),
        ];
        let all = parts.into_iter().fold(0, u64::saturating_add);
        let [all_mib, memory_mib] = [all, memory].map(|bytes| bytes >> 20);
        (all > memory).then(|| {
            format!(
                "warning: applications and peers may use {all_mib} MiB of memory together, and there are {memory_mib} MiB: \
                 set --memory-total to less, or give the server more"
            )
        })
    }

    /// The most resources that one application may ask for.
    fn most(&self) -> SessionConfig {
        let memory = u32::try_from(self.memory).unwrap_or(u32::MAX);
        SessionConfig {
            commands: 1 << 16,
            reports: 1 << 16,
            operations: self.operations,
            connections: self.connections,
            memory,
            peers: PEERS,
            ..SessionConfig::default()
        }
    }
}

fn describe(event: ServerEvent) -> String {
    match event {
        ServerEvent::Joined { process } => format!("process {process}: come"),
        ServerEvent::Ended { process, how: Ended::Left } => format!("process {process}: left"),
        ServerEvent::Ended { process, how: Ended::Died } => format!("process {process}: died"),
        ServerEvent::Ended { process, how: Ended::Broken(broken) } => {
            format!("process {process}: dismissed: {broken}")
        }
        ServerEvent::Ended { process, how: Ended::Closed } => format!("process {process}: dismissed"),
        ServerEvent::ClockChanged { source } => format!("time is read from the {source} from now on"),
    }
}

fn stop_on_signals(waker: Waker) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new().name("weft-signals".to_owned()).spawn(move || {
        if signals.forever().next().is_some() {
            waker.stop();
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use weft::core::{BYTES_PER_PACKET, INCOMPLETE_PER_PDC, Settings};
    use weft_stack::buffer::Buffer;
    use weft_stack::cc::{CcChoice, CcParams, Delays};
    use weft_stack::fep::{ConnectOptions, Fep, Receive, Send};
    use weft_stack::packet::Payload;
    use weft_stack::rng::Rng;
    use weft_stack::ses::Matching;
    use weft_stack::wire::pds::{Destination, Pds};
    use weft_stack::wire::ses::{Placement, Ses};
    use weft_stack::worker::session::BYTES_PER_OPERATION;
    use weft_stack::{Rate, Span, Time};

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        serve: ServeArgs,
    }

    pub(super) fn serve(options: &[&str]) -> ServeArgs {
        let fixed = ["serve", "--socket", "/nonexistent", "--port", "udp:127.0.0.1"];
        Command::try_parse_from(fixed.iter().chain(options)).expect("the options are right").serve
    }

    const GIB: u64 = 1 << 30;

    fn endpoint(addr: u32) -> Fep {
        let network = CcParams {
            mtu: 4096,
            overhead: 64,
            link_rate: Rate::from_gbps(100),
            network_rtt: Span::from_us(10),
            trimming: true,
            delays: Delays::Known,
        };
        let mut config = FepConfig::new(&CcChoice::default(), &network);
        config.zones.default.pdc.mp_range = Settings::default().mp_range;
        Fep::new(Addr(addr), Arc::new(config), Rng::new(1, addr.into()), Time::ZERO).expect("it is valid")
    }

    /// The bytes that `work`, which makes `count` things, adds to the state of `fep` for each of them.
    fn grows(fep: &mut Fep, count: u64, work: impl FnOnce(&mut Fep)) -> u64 {
        let before = fep.footprint().state();
        work(fep);
        (fep.footprint().state() - before).div_ceil(count)
    }

    /// Bytes that the state of an endpoint has for each of some things.
    #[derive(Debug)]
    struct Costs {
        /// A message that is posted, or a receive.
        operation: u64,
        /// A connection with a message, and a PDC of a peer with a message that waits.
        connection: u64,
        pdc: u64,
        /// A message that waits, and one of which the last packet of a window has arrived first.
        message: u64,
        partial: u64,
    }

    fn costs() -> Costs {
        const MANY: u64 = 20_000;
        const CONNECTIONS: u64 = 2_000;
        let (mut sender, mut target) = (endpoint(0), endpoint(1));
        let connect = |fep: &mut Fep| fep.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
        let message =
            |context| Send { buffer: Buffer::Virtual(1), tag: Some(context), header_data: 0, context };
        let receive = |context| {
            let matching = Matching::Tagged { tag: context, ignore: 0 };
            Receive { buffer: Buffer::Virtual(1), from: None, matching, context }
        };
        let send = grows(&mut endpoint(2), MANY, |fep| {
            let connection = connect(fep);
            for n in 0..MANY {
                fep.post_send(connection, message(n)).unwrap();
            }
        });
        let receives = grows(&mut endpoint(3), MANY, |fep| {
            for n in 0..MANY {
                fep.post_receive(receive(n)).unwrap();
            }
        });
        // Messages that wait at their target, of which `each` are sent over each of so many connections.
        let mut arrive = |connections: u64, each: u64| {
            let connection = grows(&mut sender, connections, |fep| {
                for _ in 0..connections {
                    let connection = connect(fep);
                    for n in 0..each {
                        fep.post_send(connection, message(n)).unwrap();
                    }
                }
            });
            let (count, mut now) = (connections * each, Time::ZERO);
            let before = target.counters().data_received;
            let target_grows = grows(&mut target, connections, |target| {
                while target.counters().data_received < before + count {
                    now += Span::from_us(5);
                    while let Some(sent) = sender.poll_transmit(now) {
                        target.on_packet(now, &sent.packet, Payload::Virtual(sent.packet.payload_len));
                    }
                    while let Some(sent) = target.poll_transmit(now) {
                        sender.on_packet(now, &sent.packet, Payload::EMPTY);
                    }
                    while sender.poll_completion().is_some() {}
                }
            });
            (connection, target_grows)
        };
        let (connection, pdc) = arrive(CONNECTIONS, 1);
        let (_, all) = arrive(1, MANY);
        Costs { operation: send.max(receives), connection, pdc, message: all / MANY, partial: partial() }
    }

    /// The state of a message of which the packet has arrived that is as far ahead of the first missing one as can be.
    fn partial() -> u64 {
        const MANY: u16 = 1_000;
        let (mut sender, mut target) = (endpoint(0), endpoint(1));
        let connection = sender.connect(Time::ZERO, Addr(1), ConnectOptions::default()).unwrap();
        let message = Send { buffer: Buffer::Virtual(1), tag: Some(0), header_data: 0, context: 0 };
        sender.post_send(connection, message).unwrap();
        let template = sender.poll_transmit(Time::ZERO).unwrap().packet;
        grows(&mut target, MANY.into(), |target| {
            for n in 0..MANY {
                let mut packet = template;
                let (Pds::Request(request), Ses::Standard(header)) = (&mut packet.pds, &mut packet.ses)
                else {
                    panic!("{template:?} is no message")
                };
                request.psn = request.psn.plus(n.into());
                request.destination = Destination::Syn { use_reserved: false, psn_offset: n };
                let window = Settings::default().mp_range;
                header.msg_id = header.msg_id.wrapping_add(n);
                header.placement = Placement::Continue { payload_len: 1, msg_offset: window - 1 };
                header.request_length = 2 * window;
                target.on_packet(Time::ZERO, &packet, Payload::Virtual(1));
                while target.poll_transmit(Time::ZERO).is_some() {}
            }
            assert_eq!((target.counters().ignored, target.counters().nacks_sent), (0, 0));
        })
    }

    /// All that a server with these options can be made to hold on a host with so much memory, bytes.
    fn most_of(options: &[&str], memory: u64, costs: &Costs) -> u64 {
        let args = serve(options);
        let limits = args.limits_on(memory);
        let shared = args.memory_of_applications(memory);
        // Each operation may end with a report that waits. A deque has room for up to twice what is in it.
        let operations = limits.sends as u64 * (costs.operation + BYTES_PER_OPERATION);
        let pdcs = limits.pdcs as u64;
        let connections = u64::from(args.applications) * u64::from(args.connections);
        let packets = connections * u64::from(Settings::default().mp_range);
        // Messages of which a part has arrived.
        let partial = limits.unexpected_messages as u64 + pdcs * u64::from(INCOMPLETE_PER_PDC);
        shared
            + limits.unexpected_bytes
            + limits.reorder_bytes
            + 2 * limits.response_bytes
            + operations
            + limits.connections as u64 * costs.connection
            + packets * BYTES_PER_PACKET
            + pdcs * costs.pdc
            + limits.unexpected_messages as u64 * costs.message
            + partial * costs.partial
    }

    /// The memory that peers can make a server use, and that applications share with it.
    #[test]
    fn a_host_with_little_memory_has_limits_that_fit_into_it() {
        let costs = costs();
        let little: &[&str] = &["--operations", "16384", "--connections", "128", "--memory-total", "3GiB"];
        let middle: &[&str] = &["--connections", "128", "--memory-total", "7GiB"];
        let hosts: [(u64, &[&str]); 4] =
            [(8 * GIB, little), (16 * GIB, middle), (30 * GIB, &[]), (1024 * GIB, &[])];
        for (memory, options) in hosts {
            let most = most_of(options, memory, &costs);
            assert!(most <= memory, "{most} of {memory} with {options:?}: {costs:?}");
        }
        for memory in [8 * GIB, 16 * GIB, 31 * GIB] {
            let limits = serve(&[]).limits_on(memory);
            assert_eq!((limits.unexpected_bytes, limits.reorder_bytes), (memory / 8, memory / 8));
        }
        // Senders of libfabric rely on what messages without a receive have.
        for memory in [GIB / 2, 4 * GIB] {
            let limits = serve(&[]).limits_on(memory);
            assert_eq!((limits.unexpected_bytes, limits.reorder_bytes), (GIB, memory / 8));
        }
        let large = serve(&[]).limits_on(1024 * GIB);
        assert_eq!((large.unexpected_bytes, large.reorder_bytes), (4 * GIB, 4 * GIB));
        let set = serve(&["--unexpected-total", "3GiB"]).limits_on(GIB);
        assert_eq!((set.unexpected_bytes, set.reorder_bytes), (3 * GIB, 3 * GIB));
    }

    #[test]
    fn a_server_warns_if_more_may_be_used_than_there_is() {
        let warns = |options: &[&str], memory| serve(options).shortage_on(memory).is_some();
        let little = ["--memory-total", "256MiB"];
        let cases = [GIB, 2 * GIB, 3 * GIB, 4 * GIB, u64::MAX].map(|memory| warns(&[], memory));
        assert_eq!(cases, [true, true, true, false, false]);
        assert_eq!([GIB, 2 * GIB].map(|memory| warns(&little, memory)), [true, false]);
        let warning = serve(&[]).shortage_on(GIB).unwrap();
        assert!(warning.contains("may use 1728 MiB of memory together, and there are 1024 MiB"), "{warning}");
    }

    #[test]
    fn messages_without_a_receive_have_no_less_than_senders_of_libfabric_count_on() {
        let set = |total: &str| unexpected_total(total).map_err(|error| error.to_string());
        assert_eq!(set("1023MiB"), Err("expected 1GiB or more".to_owned()));
        assert_eq!(set("1GiB"), Ok(1 << 30));
        let (limits, peers) = (serve(&[]).limits_on(0), 2);
        // Two peers take all that they may of what an application may have when all others have only their parts.
        let may_have = limits.unexpected_bytes / 4 / (peers + 1);
        assert!(may_have >= limits.unexpected_bytes_per_peer, "{may_have}");
    }
}
