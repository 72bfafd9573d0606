//! Where endpoints are, and so how their names look: each at UDP ports of its own, or at a port or server that a text names,
//! such as `serve:/run/weft.sock`, which several endpoints share (`FI_WEFT_PORT`, or the name of a domain).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::{Duration, Instant};

use weft::core::port::udp::UdpPort;
use weft::core::worker::session::{Client, JoinError, ServerFacts, SessionConfig};
use weft::port::{AnyPort, longest_payload_at};
use weft::{Addr, Builder, BusyTimeout, Endpoint, Error, JobId, Limits, MAX_PROCESS, PeerError, Source};

use crate::addresses::Addresses;
use crate::error::FiError;
use crate::kind::Kind;
use crate::params::Params;
use crate::rdm::{DEPTH, PART_OF_ONE, RECEIVES, RESERVED_TAG, is_key_of_notes};

/// Prefixes of the names of ports and servers.
const SCHEMES: [&str; 4] = ["serve:", "memif:", "udp:", DEVICE];
/// That of ports of DPDK.
const DEVICE: &str = "dpdk:";
/// Connections of an endpoint of a server: what a `weft serve` lets an application have unless it is told otherwise.
const CONNECTIONS: u32 = 512;
/// Peers that an endpoint of a server may add to that one's address book: as many as a `weft serve` permits.
const PEERS: u32 = 256;
/// How long a server may take to say how long datagrams may be.
const ANSWER: Duration = Duration::from_secs(1);
/// How long a call waits until a server has entered a host that is new, which takes it microseconds.
const ENTRY: Duration = Duration::from_millis(250);
/// How long a server that has not done so is left alone: as long as this first, and twice as long each time, up to the other.
const PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(16)];
/// Bytes of the longest IP packet over memif, and over DPDK's devices as far as that is known before one is opened.
const OVER_MEMIF: u16 = 9_000;
const OVER_DEVICES: u16 = 1_500;
/// Bytes that an endpoint without a server keeps of each peer's messages that have met no receive, as senders there count on.
const KEPT: u64 = 128 << 20;
/// The process of the only endpoint of a port. 0 would be no name: libfabric's programs take port 0 for none.
const ALONE: u16 = 1;

/// The limits of an endpoint without a server. A program may have as many kinds of receives as it has receives. Its process shares the
/// room for unexpected messages with one other at most, which process 0 is while it ends.
pub(crate) fn limits_without_a_server() -> Limits {
    Limits {
        receive_kinds: RECEIVES,
        processes: 2,
        unexpected_messages: 1 << 21,
        unexpected_bytes_per_peer: KEPT,
        ..Limits::default()
    }
}

/// Where the endpoints of a domain are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// Each at consecutive UDP ports of the kernel, which are nobody else's. Its name is its address and the first port.
    #[default]
    OwnPorts,
    /// At a port, or in a server, that a text names. The name of an endpoint is the IP address there and its process.
    Named(String),
}

/// The properties of a port or server that is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The most bytes of a datagram there.
    pub(crate) longest_datagram: u32,
    /// How many endpoints there may be.
    pub(crate) endpoints: usize,
    /// The IP address of all of them, as far as it is known.
    pub(crate) ip: Option<IpAddr>,
}

impl Place {
    /// The place that `FI_WEFT_PORT` names.
    pub(crate) fn parse(text: &str) -> Place {
        if text == "udp" { Place::OwnPorts } else { Place::Named(text.to_owned()) }
    }

    /// The place that the name of a domain names, if it is not that of an interface.
    pub(crate) fn of_domain(name: &str) -> Option<Place> {
        SCHEMES.iter().any(|scheme| name.starts_with(scheme)).then(|| Place::Named(name.to_owned()))
    }

    /// The properties of the port or server that a text names, as far as they are known without an endpoint.
    ///
    /// # Errors
    /// A server does not say: [`FiError::AGAIN`] if it is there and too busy to answer within a second.
    pub(crate) fn facts(&self, params: &Params) -> Result<Facts, FiError> {
        let Place::Named(spec) = self else { return Err(FiError::NO_DATA) };
        if let Some(socket) = self.socket() {
            let asked = Client::facts_at(Path::new(socket), ANSWER);
            let facts = asked.map_err(|error| match &error {
                JoinError::System(_, why) if is_late(why) => {
                    crate::log::warn(&format!(
                        "{spec}: no endpoint for datagrams is offered, as the server is busy and has not said within {} s how \
                         long they may be: {error}",
                        ANSWER.as_secs()
                    ));
                    FiError::AGAIN
                }
                _ => {
                    crate::log::info(&format!("{spec}: no endpoint for datagrams is offered: {error}"));
                    FiError::NO_DATA
                }
            })?;
            let ServerFacts { longest_datagram, applications, host: ip } = facts;
            return Ok(Facts { longest_datagram, endpoints: applications.into(), ip });
        }
        let address = spec.strip_prefix("udp:").and_then(|rest| rest.split(',').next()?.parse().ok());
        let mtu = match spec.split_once(':') {
            // That of its interface.
            _ if address.is_some() => params.mtu,
            Some(("memif", _)) => params.mtu.or(Some(OVER_MEMIF)),
            _ => params.mtu.or(Some(OVER_DEVICES)),
        };
        let longest_datagram = longest_payload_at(address.unwrap_or(Ipv4Addr::LOCALHOST.into()), mtu);
        // An endpoint has the port for itself.
        let named = || spec.split(',').find_map(|part| part.strip_prefix("ip=")?.parse().ok());
        Ok(Facts { longest_datagram, endpoints: 1, ip: address.or_else(named) })
    }

    /// The bits of tags that applications have.
    pub(crate) fn tag_format(&self) -> u64 {
        if self.socket().is_some() { !RESERVED_TAG } else { u64::MAX }
    }

    /// The longest message that a receive for many messages takes there, if that is less than any other receive takes: the server divides
    /// the room of such a receive, so that its messages cannot be fetched.
    pub(crate) fn longest_of_many(&self, params: &Params) -> Option<u64> {
        self.socket().map(|_| u64::from(params.memory / PART_OF_ONE))
    }

    /// Whether endpoints there have memory of their own under this key.
    pub(crate) fn reserves(&self, key: u64) -> bool {
        self.socket().is_none() && is_key_of_notes(key)
    }

    /// Whether there may be endpoints: a server's socket is there.
    pub(crate) fn exists(&self) -> bool {
        let is_socket = |socket| std::fs::metadata(socket).is_ok_and(|data| data.file_type().is_socket());
        self.socket().is_none_or(is_socket)
    }

    /// Whether this provider was built with what endpoints there need.
    pub(crate) fn is_built(&self) -> bool {
        !matches!(self, Place::Named(spec) if spec.starts_with(DEVICE)) || weft::version().dpdk.is_some()
    }

    fn socket(&self) -> Option<&str> {
        match self {
            Place::Named(spec) => spec.strip_prefix("serve:"),
            Place::OwnPorts => None,
        }
    }

    /// Whether an endpoint there can have this name.
    pub(crate) fn is_name(&self, name: &SocketAddr) -> bool {
        let has_port = match self {
            Place::OwnPorts => name.port() != 0,
            Place::Named(_) => (1..=MAX_PROCESS).contains(&name.port()),
        };
        has_port && !name.ip().is_unspecified()
    }

    /// An endpoint of a job, with this name, of which the port may be 0 for any, and at a named place the address as well.
    ///
    /// # Errors
    /// There can be none; a warning says why.
    pub(crate) fn open(
        &self,
        kind: Kind,
        name: SocketAddr,
        job: JobId,
        params: &Params,
    ) -> Result<Endpoint, FiError> {
        let (spec, builder) = match self {
            Place::OwnPorts => {
                let mut spec = format!("udp:{},shared=on,entropies={}", name.ip(), params.entropies());
                if name.port() != 0 {
                    spec += &format!(",port={}", name.port());
                }
                (spec.clone(), Endpoint::builder(spec))
            }
            Place::Named(spec) => (spec.clone(), self.named(spec, name.port())?),
        };
        let refused = |error: &weft::BuildError| {
            crate::log::warn(&format!("{spec}: {error}"));
            FiError::from(error)
        };
        let endpoint = self.set(builder, kind, params).job(job).build().map_err(|error| refused(&error))?;
        if let (Place::Named(_), false) = (self, name.ip().is_unspecified())
            && endpoint.ip() != Some(name.ip())
        {
            crate::log::warn(&format!("{spec}: endpoints there are not at {}", name.ip()));
            return Err(FiError::NO_ADDRESS);
        }
        Ok(endpoint)
    }

    fn named(&self, spec: &str, process: u16) -> Result<Builder, FiError> {
        if process > MAX_PROCESS {
            crate::log::warn(&format!("{spec}: expected a process from 1 to {MAX_PROCESS}, not {process}"));
            return Err(FiError::INVALID);
        }
        let builder = Endpoint::builder(spec);
        Ok(match (self.socket(), process) {
            (Some(_), 0) => builder,
            (None, 0) => builder.process(ALONE),
            (_, process) => builder.process(process),
        })
    }

    /// The settings that an endpoint there takes. Those of the environment that it does not take fail when it is built.
    fn set(&self, builder: Builder, kind: Kind, params: &Params) -> Builder {
        let (builder, default) = match self.socket() {
            Some(_) => (builder.session(session(kind, params)), None),
            None => {
                // A program takes its own time.
                (builder.longest_payload().limits(limits_without_a_server()), Some(BusyTimeout::Endless))
            }
        };
        let builder = params.busy_timeout.or(default).into_iter().fold(builder, Builder::busy_timeout);
        let builder = params.cc.iter().fold(builder, |builder, cc| builder.cc(cc));
        let builder = params.lb.iter().fold(builder, |builder, lb| builder.lb(lb));
        params.mtu.into_iter().fold(builder, Builder::mtu)
    }
}

/// The resources that an endpoint asks its server for when it joins.
fn session(kind: Kind, params: &Params) -> SessionConfig {
    SessionConfig {
        commands: 1 << 12,
        reports: 1 << 13,
        // Sends, receives that do not wait in the provider, and requests to add peers.
        operations: 4 * DEPTH as u32,
        // Datagrams need none, but a session has one at least.
        connections: if kind == Kind::Rdm { CONNECTIONS } else { 1 },
        memory: params.memory,
        peers: PEERS,
        only_datagrams: kind == Kind::Datagram,
        ..SessionConfig::default()
    }
}

/// The name of an endpoint, and what is known of its peers' names.
#[derive(Debug)]
pub(crate) struct Names {
    own: SocketAddr,
    /// Whether the endpoint has UDP ports of its own, as its peers have.
    own_ports: bool,
    /// The hosts that endpoints at named places are at; empty for endpoints at ports of their own.
    hosts: HashMap<Ipv4Addr, Addr>,
    ips: HashMap<Addr, Ipv4Addr>,
    /// Hosts that the server has refused. Only a call that needs such a host names it to the server again, or all are named again
    /// after an address was removed.
    refused: HashSet<Ipv4Addr>,
    /// Until when the server is not asked for hosts, as it has not answered, and how long it is left alone then.
    late: Option<Late>,
    /// The version of the address vector whose hosts are known.
    met: u64,
    /// The peers at ports of their own that the endpoint keeps.
    kept: HashMap<SocketAddr, Addr>,
    /// How many addresses had been removed from the vector when peers were let go last.
    removals: u64,
}

impl Names {
    /// # Errors
    /// It has no name of IPv4.
    pub(crate) fn new(endpoint: &Endpoint, place: &Place) -> Result<Names, FiError> {
        let own_ports = *place == Place::OwnPorts;
        let own = match port_of(endpoint) {
            Some(port) if own_ports => port.local(),
            _ => match endpoint.ip() {
                Some(ip @ IpAddr::V4(_)) => (ip, endpoint.process()).into(),
                ip => {
                    crate::log::warn(&format!("expected an endpoint at an IPv4 address, not at {ip:?}"));
                    return Err(FiError::NO_ADDRESS);
                }
            },
        };
        Ok(Names {
            own,
            own_ports,
            hosts: HashMap::new(),
            ips: HashMap::new(),
            refused: HashSet::new(),
            late: None,
            met: 0,
            kept: HashMap::new(),
            removals: 0,
        })
    }

    pub(crate) fn own(&self) -> SocketAddr {
        self.own
    }

    /// Makes hosts whose addresses are in the vector known, so that a server lets their packets in. One that cannot be
    /// reached is an error of those who send to it. While the server does not answer, the rest is left for later calls. Returns whether
    /// addresses were removed since the last call.
    pub(crate) fn meet(&mut self, endpoint: &mut Endpoint, addresses: &Addresses) -> Result<bool, FiError> {
        let version = addresses.version();
        if self.met == version || self.is_late() {
            return Ok(false);
        }
        let removals = addresses.removals();
        let were_removed = std::mem::replace(&mut self.removals, removals) != removals;
        if self.own_ports {
            self.met = version;
            if were_removed {
                self.let_go(endpoint, addresses)?;
            }
            return Ok(were_removed);
        }
        if were_removed {
            self.refused.clear();
        }
        let hosts: BTreeSet<Ipv4Addr> = addresses.hosts()?;
        for ip in hosts {
            if !self.refused.contains(&ip) && self.host(endpoint, ip) == Err(FiError::AGAIN) {
                return Ok(were_removed);
            }
        }
        self.met = version;
        Ok(were_removed)
    }

    /// Lets peers go that are not in the vector any more, so that there is room for others.
    fn let_go(&mut self, endpoint: &mut Endpoint, addresses: &Addresses) -> Result<(), FiError> {
        for (name, peer) in std::mem::take(&mut self.kept) {
            match addresses.find(&name)? {
                Some(_) => _ = self.kept.insert(name, peer),
                None => endpoint.let_go(peer),
            }
        }
        Ok(())
    }

    /// The peer with this name.
    ///
    /// # Errors
    /// It cannot be reached; a warning says why.
    pub(crate) fn peer(&mut self, endpoint: &mut Endpoint, name: SocketAddr) -> Result<Source, FiError> {
        if self.own_ports {
            let peer = endpoint.peer(name).map_err(|error| unreachable(&name, &error))?;
            self.kept.insert(name, peer);
            return Ok(peer.into());
        }
        let IpAddr::V4(ip) = name.ip() else { return Err(FiError::INVALID) };
        Ok(Source { peer: self.host(endpoint, ip)?, process: name.port() })
    }

    /// The name of a sender, unless nothing is known of it.
    pub(crate) fn of(&self, endpoint: &Endpoint, source: Source) -> Option<SocketAddr> {
        if self.own_ports {
            let alias = endpoint.worker()?.book().ip(source.peer)?;
            return port_of(endpoint)?.socket_of(alias);
        }
        self.ips.get(&source.peer).map(|ip| (*ip, source.process).into())
    }

    fn host(&mut self, endpoint: &mut Endpoint, ip: Ipv4Addr) -> Result<Addr, FiError> {
        if let Some(addr) = self.hosts.get(&ip) {
            return Ok(*addr);
        }
        if self.is_late() {
            return Err(FiError::AGAIN);
        }
        match endpoint.peer_within(IpAddr::V4(ip), ENTRY) {
            Ok(addr) => {
                self.late = None;
                self.refused.remove(&ip);
                self.hosts.insert(ip, addr);
                self.ips.insert(addr, ip);
                Ok(addr)
            }
            Err(PeerError::Endpoint(Error::NoReply(_))) => {
                self.late = Some(Late::after(self.late.as_ref(), Instant::now()));
                Err(FiError::AGAIN)
            }
            Err(PeerError::Endpoint(error)) if error.is_back_pressure() => Err(FiError::AGAIN),
            Err(error) => {
                self.refused.insert(ip);
                Err(unreachable(&ip, &error))
            }
        }
    }

    fn is_late(&self) -> bool {
        self.late.as_ref().is_some_and(|late| Instant::now() < late.until)
    }
}

/// A server that has not answered.
#[derive(Debug)]
struct Late {
    until: Instant,
    pause: Duration,
}

impl Late {
    /// It has not answered `now`, nor the last time it was asked if that was `before`.
    fn after(before: Option<&Late>, now: Instant) -> Late {
        let [first, longest] = PAUSES;
        let pause = before.map_or(first, |late| (2 * late.pause).min(longest));
        Late { until: now + pause, pause }
    }
}

/// The port over kernel UDP of an endpoint that has one.
fn port_of(endpoint: &Endpoint) -> Option<&UdpPort> {
    match endpoint.worker()?.port() {
        AnyPort::Udp(port) => Some(port),
        _ => None,
    }
}

/// Whether that is why there is no answer yet.
fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

fn unreachable(name: &dyn std::fmt::Display, error: &weft::PeerError) -> FiError {
    crate::log::warn(&format!("{name}: {error}"));
    FiError::from(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_port_or_a_process() {
        let (own, named) = (Place::parse("udp"), Place::parse("serve:/run/weft"));
        let name = |port| SocketAddr::from(([192, 0, 2, 1], port));
        assert_eq!([0, 1, 4095, 4096].map(|port| own.is_name(&name(port))), [false, true, true, true]);
        assert_eq!([0, 1, 4095, 4096].map(|port| named.is_name(&name(port))), [false, true, true, false]);
        assert!(!named.is_name(&([0, 0, 0, 0], 1).into()));
    }

    #[test]
    fn a_server_that_does_not_answer_is_asked_less_and_less_often() {
        let (begin, mut late) = (Instant::now(), None);
        let pauses = [(); 9].map(|()| {
            let next = Late::after(late.as_ref(), begin);
            let pause = next.until.duration_since(begin).as_millis();
            late = Some(next);
            pause
        });
        assert_eq!(pauses, [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 16_000, 16_000]);
    }

    #[test]
    fn a_server_that_is_busy_is_told_from_one_that_is_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let place = Place::Named(format!("serve:{}", socket.display()));
        let asked = || place.facts(&Params::unset());
        assert_eq!(asked(), Err(FiError::NO_DATA));
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(asked(), Err(FiError::AGAIN));
        drop(listener);
        // The socket stays, and nobody answers there.
        assert!(place.exists());
        assert_eq!(asked(), Err(FiError::NO_DATA));
    }

    #[test]
    fn names_of_domains_are_places_or_interfaces() {
        assert_eq!(Place::of_domain("eth0"), None);
        for name in ["serve:/x", "dpdk:net_tap0"] {
            assert_eq!(Place::of_domain(name), Some(Place::Named(name.to_owned())));
        }
        assert!(!Place::parse("serve:/nowhere/at/all").exists());
        let formats = ["serve:/x", "memif:/x"].map(|place| Place::parse(place).tag_format());
        assert_eq!(formats, [u64::MAX >> 1, u64::MAX]);
    }
}
