//! How an endpoint is put together.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use weft_stack::cc::{CcChoice, Rate, Span};
use weft_stack::fep::{BusyTimeout, JobId, Limits, Windows};
use weft_stack::packet::Addr;
use weft_stack::ses::MAX_SEGMENT;
use weft_stack::spray::LbChoice;
use weft_stack::wire::ethernet::{MacAddr, VlanTag};
use weft_stack::worker::session::{Client, SessionConfig};
use weft_stack::worker::{Checksum, Idle, IpPrefix, Strangers, Worker};

use super::direct::Direct;
use super::error::{BuildError, PeerError};
use super::memory::Memory;
use super::remote::Remote;
use super::setup::{Settings, Setup};
use super::thread::WorkerThread;
use super::zone::ZoneSettings;
use super::{Backend, Endpoint};
use crate::port::{AnyPort, PeerSpec, PortInfo, PortOptions, PortSpec, SpecError, split_ip};

/// The endpoint's own address in its book. Peers have others.
const OWN: Addr = Addr(0);
/// How long a server may take to let an application in.
const JOIN: Duration = Duration::from_secs(5);
/// Options that a process which joins a server has no say in: they are the server's.
const OF_SERVER: &str = "the server that owns the port decides it";

/// Builds an [`Endpoint`]. Every option has a default, with which endpoints work over kernel UDP on a machine that
/// other programs use as well.
///
/// ```
/// use weft::{Endpoint, Span};
///
/// let endpoint = Endpoint::builder("udp:127.20.0.3")
///     .cc("swift")
///     .lb("reps")
///     .rtt(Span::from_us(20))
///     .process(3)
///     .build()?;
/// assert_eq!(endpoint.process(), 3);
///
/// let error = Endpoint::builder("udp:127.20.0.4").cc("cubic").build().unwrap_err();
/// println!("{error}"); // names the congestion controls that there are
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Builder {
    spec: String,
    port: PortOptions,
    settings: Settings,
    /// Whether full packets are as long as the port permits.
    fills_packets: bool,
    cc: Option<String>,
    cc_set: Vec<(String, String)>,
    lb: Option<String>,
    lb_set: Vec<(String, String)>,
    peers: Vec<Result<PeerSpec, PeerError>>,
    learn: bool,
    idle: Idle,
    memory: u32,
    process: Process,
    thread: Option<Option<usize>>,
    session: SessionConfig,
    job: Option<JobId>,
    /// The options that were set, by the methods' names.
    set: Vec<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    Number(u16),
    Any,
}

/// Where the worker is.
enum Place {
    Port(PortSpec),
    Server(PathBuf),
}

impl Builder {
    pub(super) fn new(spec: String) -> Builder {
        Builder {
            spec,
            port: PortOptions::default(),
            settings: Settings::default(),
            fills_packets: false,
            cc: None,
            cc_set: Vec::new(),
            lb: None,
            lb_set: Vec::new(),
            peers: Vec::new(),
            learn: true,
            idle: Idle::ADAPTIVE,
            memory: 0,
            process: Process::Number(0),
            thread: None,
            session: SessionConfig::default(),
            job: None,
            set: Vec::new(),
        }
    }

    fn with(mut self, option: &'static str, set: impl FnOnce(&mut Builder)) -> Builder {
        set(&mut self);
        self.set.push(option);
        self
    }

    /// The endpoint's own IP address: needed with `memif:` and `dpdk:` whose name does not end with `,ip=ADDRESS`, while
    /// `udp:ADDRESS` names it.
    #[must_use]
    pub fn ip(self, ip: IpAddr) -> Builder {
        self.with("ip", |b| b.port.ip = Some(ip))
    }

    /// The Ethernet address that frames leave with. Default: the device's.
    #[must_use]
    pub fn mac(self, mac: MacAddr) -> Builder {
        self.with("mac", |b| b.port.mac = Some(mac))
    }

    /// The VLAN tag that frames leave with. Default: none.
    #[must_use]
    pub fn vlan(self, vlan: VlanTag) -> Builder {
        self.with("vlan", |b| b.port.vlan = Some(vlan))
    }

    /// The longest IP packet, bytes; both ends should have the same. Default: 9000, or what the device or the interface
    /// of a `udp:` port takes, if that is less.
    #[must_use]
    pub fn mtu(self, mtu: u16) -> Builder {
        self.with("mtu", |b| b.port.mtu = Some(mtu))
    }

    /// Which IPv4 packets leave with a UDP checksum. Default: [`Checksum::WhereNeeded`].
    #[must_use]
    pub fn checksum(self, checksum: Checksum) -> Builder {
        self.with("checksum", |b| b.port.checksum = checksum)
    }

    /// Whether packets end with a CRC-32C; then packets that arrive must have a correct one. All endpoints of a network
    /// need the same setting: they do not tell each other. Default: false.
    #[must_use]
    pub fn crc(self, crc: bool) -> Builder {
        self.with("crc", |b| b.port.crc = crc)
    }

    /// Whether DPDK takes its memory from huge pages; for PCI devices it always does. Default: false.
    #[must_use]
    pub fn huge_pages(self, huge_pages: bool) -> Builder {
        self.with("huge_pages", |b| b.port.huge_pages = huge_pages)
    }

    /// All options of the port at once. They replace those that were set before.
    #[must_use]
    pub fn port_options(self, options: PortOptions) -> Builder {
        self.with("port_options", |b| b.port = options)
    }

    /// A peer that is known from the beginning, such as `192.0.2.2` or `192.0.2.2/02:00:00:00:00:02`. The first one has
    /// address 1, the next one 2, and so on. [`Endpoint::peer`] adds others later.
    #[must_use]
    pub fn peer<P>(mut self, peer: P) -> Builder
    where
        P: TryInto<PeerSpec>,
        PeerError: From<P::Error>,
    {
        self.peers.push(peer.try_into().map_err(PeerError::from));
        self
    }

    /// Whether packets of unknown peers are accepted, and their senders entered into the address book. Default: true.
    /// Anybody who can send packets here can then fill the address book, which has 4,096 entries.
    #[must_use]
    pub fn learn_peers(self, learn: bool) -> Builder {
        self.with("learn_peers", |b| b.learn = learn)
    }

    /// Congestion control, by its name (`weft list cc`), such as `nscc+rccc` or `median(nscc)`. Default: `nscc`. Both
    /// ends need the same one if it uses credit.
    #[must_use]
    pub fn cc(self, name: &str) -> Builder {
        self.with("cc", |b| b.cc = Some(name.to_owned()))
    }

    /// A parameter of the congestion control, by its name (`weft list cc NAME`).
    #[must_use]
    pub fn cc_set(self, key: &str, value: &str) -> Builder {
        self.with("cc_set", |b| b.cc_set.push((key.to_owned(), value.to_owned())))
    }

    /// A congestion control that was made elsewhere, such as one of the caller's own.
    #[must_use]
    pub fn cc_choice(self, cc: CcChoice) -> Builder {
        self.with("cc_choice", |b| b.settings.cc = cc)
    }

    /// The load balancer, by its name (`weft list lb`). Default: `mixed`.
    #[must_use]
    pub fn lb(self, name: &str) -> Builder {
        self.with("lb", |b| b.lb = Some(name.to_owned()))
    }

    /// A parameter of the load balancer, by its name (`weft list lb NAME`).
    #[must_use]
    pub fn lb_set(self, key: &str, value: &str) -> Builder {
        self.with("lb_set", |b| b.lb_set.push((key.to_owned(), value.to_owned())))
    }

    /// A load balancer that was made elsewhere, such as one of the caller's own.
    #[must_use]
    pub fn lb_choice(self, lb: LbChoice) -> Builder {
        self.with("lb_choice", |b| b.settings.lb = lb)
    }

    /// Makes the peers whose IP addresses begin with `prefix`, such as those of another data centre, a zone with
    /// settings of its own. The builder's other settings hold for peers in no zone. If several prefixes fit a peer, the
    /// longest one decides.
    #[must_use]
    pub fn zone(self, prefix: IpPrefix, zone: ZoneSettings) -> Builder {
        self.with("zone", |b| b.settings.zones.push((prefix, zone)))
    }

    /// Which connections share a congestion context, and with it a window. Default: all connections of a pair of
    /// endpoints.
    #[must_use]
    pub fn windows(self, windows: Windows) -> Builder {
        self.with("windows", |b| b.settings.windows = windows)
    }

    /// Payload of a full packet, bytes. Default: 4096, or as much as the port's MTU leaves if that is less.
    #[must_use]
    pub fn payload(self, bytes: u32) -> Builder {
        self.with("payload", |b| (b.settings.payload, b.fills_packets) = (Some(bytes), false))
    }

    /// Full packets are as long as the port's MTU permits, up to 16,383 bytes of payload.
    #[must_use]
    pub fn longest_payload(self) -> Builder {
        self.with("payload", |b| b.fills_packets = true)
    }

    /// Whether switches trim packets for which they have no room. Default: false.
    #[must_use]
    pub fn trimming(self, trimming: bool) -> Builder {
        self.with("trimming", |b| b.settings.trimming = trimming)
    }

    /// The rate of the link, for congestion control; see [`Settings::link`].
    #[must_use]
    pub fn link_rate(self, rate: Rate) -> Builder {
        self.with("link_rate", |b| b.settings.link = Some(rate))
    }

    /// Number of priorities that the network's switches tell apart, 1 to 8. Default: 1. Data of a connection then has
    /// the priority of its traffic class ([`ConnectOptions::class`](weft_stack::fep::ConnectOptions::class)), or the
    /// highest one if there are not so many. The DSCP of a packet carries it.
    #[must_use]
    pub fn priorities(self, priorities: u8) -> Builder {
        self.with("priorities", |b| b.settings.priorities = priorities)
    }

    /// The round-trip time of the idle network, for congestion control. Default: congestion control begins with 100 µs,
    /// and algorithms with a target of delay measure which delay they can reach.
    #[must_use]
    pub fn rtt(self, rtt: Span) -> Builder {
        self.with("rtt", |b| b.settings.rtt = Some(rtt))
    }

    /// The first retransmission timeout. It should be longer than the time for which the system may take the processor
    /// away. Default: 100 ms, or 10 ms over a network card of DPDK.
    #[must_use]
    pub fn rto(self, rto: Span) -> Builder {
        self.with("rto", |b| b.settings.rto = Some(rto))
    }

    /// Number of bytes received after which they are acknowledged. Default: 16 KiB.
    #[must_use]
    pub fn ack_every(self, bytes: u32) -> Builder {
        self.with("ack_every", |b| b.settings.ack_every = bytes)
    }

    /// Silence of a peer after which it is asked whether it is there. After as long again it is given up. Default: 10
    /// s. (`weft serve` has 5 s, its `--patience`.)
    #[must_use]
    pub fn idle_timeout(self, silence: Span) -> Builder {
        self.with("idle_timeout", |b| b.settings.idle_timeout = silence)
    }

    /// How long a connection may be without progress while its peer answers, for example because the application there
    /// posts no receives: a [`Span`], after which the connection fails, or [`BusyTimeout::Endless`]. Default: 10 s. The
    /// peer's silence ends a connection in any case.
    #[must_use]
    pub fn busy_timeout(self, timeout: impl Into<BusyTimeout>) -> Builder {
        self.with("busy_timeout", |b| b.settings.busy_timeout = timeout.into())
    }

    /// The limits on what this application and its peers may use: messages, receives, connections, memory. Default:
    /// [`Limits::default`].
    #[must_use]
    pub fn limits(self, limits: Limits) -> Builder {
        self.with("limits", |b| b.settings.limits = limits)
    }

    /// How the worker, and an application that waits for it in [`Endpoint::wait`], behave when there is nothing to do.
    /// Default: [`Idle::ADAPTIVE`].
    #[must_use]
    pub fn idle(self, idle: Idle) -> Builder {
        self.with("idle", |b| b.idle = idle)
    }

    /// Bytes of registered memory for messages; see [`Endpoint::memory`]. Default: none, or 16 MiB if the worker runs
    /// in another thread or process, because all messages pass through this memory then.
    #[must_use]
    pub fn memory(self, bytes: u32) -> Builder {
        self.with("memory", |b| {
            b.memory = bytes;
            b.session.memory = bytes;
        })
    }

    /// The process number, 0 to 4095, under which peers reach this endpoint, and which they see as the sender of its
    /// messages ([`Source`](crate::Source)). Default: 0; with `serve:` a number from 1 on that the server chooses.
    /// [`Endpoint::connect`] opens connections to process 0, so an application of a server that peers are to reach by
    /// it has to ask for 0.
    #[must_use]
    pub fn process(self, number: u16) -> Builder {
        self.with("process", |b| b.process = Process::Number(number))
    }

    /// The job that this endpoint belongs to. Messages and accesses of peers of other jobs are answered with
    /// BAD_JOB_ID, and the endpoint's own carry the job. Default: no job; then messages and accesses of any job are
    /// accepted.
    #[must_use]
    pub fn job(self, job: JobId) -> Builder {
        self.with("job", |b| b.job = Some(job))
    }

    /// Asks for a process number that nobody else has, for one of several applications of a server.
    /// [`Endpoint::process`] returns it.
    #[must_use]
    pub fn any_process(self) -> Builder {
        self.with("any_process", |b| b.process = Process::Any)
    }

    /// Runs the worker on a thread of its own, pinned to processor `core` if one is given. Default: it runs in the
    /// caller's thread.
    #[must_use]
    pub fn on_thread(self, core: Option<usize>) -> Builder {
        self.with("on_thread", |b| b.thread = Some(core))
    }

    /// How many operations, connections and ring slots the application has at a worker in another thread or process,
    /// and how much memory, unless [`Builder::memory`] is called later.
    #[must_use]
    pub fn session(self, session: SessionConfig) -> Builder {
        self.with("session", |b| b.session = session)
    }

    /// Opens the port or joins the server, and returns the endpoint.
    ///
    /// # Errors
    /// [`BuildError`]: the name names no port, an option is wrong or has no effect, the port cannot be opened, or the
    /// server cannot be joined.
    pub fn build(mut self) -> Result<Endpoint, BuildError> {
        let peers = std::mem::take(&mut self.peers);
        let peers = peers.into_iter().collect::<Result<Vec<_>, _>>().map_err(BuildError::from)?;
        let backend = match self.place()? {
            Place::Server(socket) => Backend::Remote(Box::new(self.join(socket)?)),
            Place::Port(spec) => self.open(&spec)?,
        };
        let mut endpoint = Endpoint { backend };
        for peer in peers {
            endpoint.peer(peer)?;
        }
        Ok(endpoint)
    }

    /// The worker of an endpoint in the caller's thread, and what is known of its port: for programs that drive it
    /// themselves.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn build_worker(mut self) -> Result<(Worker<AnyPort>, PortInfo, Setup), BuildError> {
        let Place::Port(spec) = self.place()? else {
            return Err(self.no_effect("build_worker", "the worker runs in the server"));
        };
        for (option, why) in [("memory", "the caller registers it"), ("on_thread", "the caller runs it")] {
            if self.set.contains(&option) {
                return Err(self.no_effect(option, why));
            }
        }
        let peers = std::mem::take(&mut self.peers);
        let peers = peers.into_iter().collect::<Result<Vec<_>, _>>().map_err(BuildError::from)?;
        self.worker(&spec, &peers).map(|(worker, info, setup, _)| (worker, info, setup))
    }

    fn place(&mut self) -> Result<Place, BuildError> {
        if let Some(socket) = self.spec.strip_prefix("serve:") {
            return Ok(Place::Server(socket.into()));
        }
        if self.spec == "udp" {
            let ip = self.port.ip.unwrap_or_else(|| crate::port::own_address().unwrap_or(LOOPBACK));
            self.spec = format!("udp:{ip}");
        }
        if !matches!(self.spec.split_once(':'), Some(("udp" | "memif" | "dpdk", _))) {
            return Err(SpecError::expected(format!(
                "udp, udp:ADDRESS, memif:SOCKET,role=server|client, dpdk:DEVICE[,ARGUMENTS] or serve:SOCKET \
                 instead of {:?}",
                self.spec
            ))
            .into());
        }
        if !self.spec.starts_with("udp:") {
            let (spec, ip) = split_ip(&self.spec)?;
            if ip.is_some() && self.port.ip.is_some() {
                return Err(self.no_effect("ip", "the name says it"));
            }
            (self.spec, self.port.ip) = (spec, ip.or(self.port.ip));
        }
        Ok(Place::Port(self.spec.parse()?))
    }

    /// What is asked for from the session's server.
    fn asked(&self) -> SessionConfig {
        SessionConfig { job: self.job.unwrap_or(self.session.job), ..self.session }
    }

    fn no_effect(&self, option: &'static str, why: &'static str) -> BuildError {
        BuildError::NoEffect { option, spec: self.spec.clone(), why }
    }

    fn join(self, socket: PathBuf) -> Result<Remote, BuildError> {
        const EFFECTIVE: [&str; 6] = ["idle", "job", "memory", "process", "any_process", "session"];
        if let Some(option) = self.set.iter().copied().find(|option| !EFFECTIVE.contains(option)) {
            return Err(self.no_effect(option, OF_SERVER));
        }
        let process = match self.process {
            Process::Any => None,
            // Unless a number is asked for, any will do: processes that join a server are many.
            Process::Number(number) => self.set.contains(&"process").then_some(number),
        };
        let client = Client::join(&socket, &self.asked(), process, JOIN)?;
        Ok(Remote::new(client, self.idle, None))
    }

    fn open(self, spec: &PortSpec) -> Result<Backend, BuildError> {
        if let Some(core) = self.thread {
            let session = self.asked();
            let (mut worker, info, ..) = self.worker(spec, &[])?;
            worker.set_idle(self.idle);
            let process = match self.process {
                Process::Number(number) => number,
                Process::Any => 0,
            };
            let (thread, client) = WorkerThread::spawn(worker, &info, &session, process, core)?;
            return Ok(Backend::Remote(Box::new(Remote::new(client, self.idle, Some(thread)))));
        }
        if self.set.contains(&"session") {
            return Err(self.no_effect("session", "the worker runs in the caller's thread"));
        }
        let (mut worker, info, _, memory) = self.worker(spec, &[])?;
        let process = match self.process {
            Process::Number(number) => number,
            Process::Any => 0,
        };
        if process != 0 {
            worker.fep_mut().close_process(0)?;
            worker.fep_mut().open_process(process)?;
        }
        worker.fep_mut().set_job(process, self.job.unwrap_or_default())?;
        let direct = Direct::new(worker, Some(info), process, memory);
        Ok(Backend::Direct(Box::new(direct.map_err(|error| system("a descriptor to wait for", error))?)))
    }

    fn worker(
        &self,
        spec: &PortSpec,
        peers: &[PeerSpec],
    ) -> Result<(Worker<AnyPort>, PortInfo, Setup, Memory), BuildError> {
        let mut settings = self.settings()?;
        if matches!(spec, PortSpec::Udp(udp) if udp.shared) && !settings.zones.is_empty() {
            return Err(self
                .no_effect("zone", "peers are told apart by UDP ports, and have no addresses of their own"));
        }
        let mut open = spec.open(&self.port)?;
        let facts = open.facts(&settings);
        if self.fills_packets {
            settings.payload = Some(facts.longest_payload.min(MAX_SEGMENT));
        }
        let setup = Setup::new(&settings, &facts)?;
        // A worker elsewhere takes messages from the memory of its session.
        let bytes = if self.thread.is_none() { self.memory as usize } else { 0 };
        let memory = Memory::for_port(bytes, &mut open.port)?;
        let strangers = if self.learn { Strangers::Learn } else { Strangers::Refuse };
        let peers: Vec<_> = (1..).map(Addr).zip(peers.iter().copied()).collect();
        let (mut worker, info) = setup.worker(open, OWN, &peers, strangers)?;
        worker.set_idle(self.idle);
        Ok((worker, info, setup, memory))
    }

    fn settings(&self) -> Result<Settings, BuildError> {
        let mut settings = self.settings.clone();
        if let Some(name) = &self.cc {
            settings.cc = CcChoice::parse(name).map_err(|e| BuildError::CongestionControl(e.to_string()))?;
        }
        for (key, value) in &self.cc_set {
            settings.cc.set(key, value).map_err(|e| BuildError::CongestionControl(e.to_string()))?;
        }
        if let Some(name) = &self.lb {
            settings.lb = LbChoice::parse(name).map_err(|e| BuildError::LoadBalancer(e.to_string()))?;
        }
        for (key, value) in &self.lb_set {
            settings.lb.set(key, value).map_err(|e| BuildError::LoadBalancer(e.to_string()))?;
        }
        Ok(settings)
    }
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

pub(super) fn system(what: &'static str, error: std::io::Error) -> BuildError {
    BuildError::System { what, error }
}

impl From<PeerError> for BuildError {
    fn from(error: PeerError) -> BuildError {
        match error {
            PeerError::Spec(error) => error.into(),
            PeerError::Port(error) => error.into(),
            PeerError::Book(error) => error.into(),
            PeerError::Endpoint(error) => BuildError::Peer(error),
        }
    }
}
