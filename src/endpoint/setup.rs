//! An endpoint's configuration and worker, decided from settings and from facts about its port.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use weft_stack::cc::{CcChoice, CcParams, Delays, Rate, Span};
use weft_stack::fep::{BusyTimeout, Fep, FepConfig, Limits, Windows, ZoneId, ZoneMap, ZoneTable};
use weft_stack::packet::Addr;
use weft_stack::pdc::PdcConfig;
use weft_stack::port::Port;
use weft_stack::rng::Rng;
use weft_stack::spray::LbChoice;
use weft_stack::worker::{
    AddressBook, Clock, HostAddr, IpPrefix, LinkConfig, PrefixZones, Strangers, Worker,
};

use super::error::BuildError;
use super::zone::ZoneSettings;
use crate::port::{AnyPort, OpenPort, PeerAddress, PeerSpec, PortFacts, PortInfo};

/// Payload of a full packet where the port carries it, bytes.
const PAYLOAD: u32 = 4096;
/// The round-trip time of the idle network if nobody says it.
pub(super) const GUESSED_RTT: Span = Span::from_us(100);
/// Entries of an endpoint's address book: peers that it can know, and itself.
pub const BOOK: usize = 4096;

/// How an endpoint works, where the port does not decide it.
#[derive(Clone)]
pub struct Settings {
    /// Payload of a full packet, bytes; 4096 if nothing is said, or as much as the port's MTU leaves.
    pub payload: Option<u32>,
    /// Congestion control; nscc.
    pub cc: CcChoice,
    /// Load balancing; mixed.
    pub lb: LbChoice,
    /// Which connections share a congestion context; all of a pair of endpoints.
    pub windows: Windows,
    /// Whether the fabric trims packets; it does not.
    pub trimming: bool,
    /// Number of priorities that switches tell apart, 1 to 8; 1. A connection's traffic class is its priority
    /// ([`FepConfig::priorities`]).
    pub priorities: u8,
    /// The rate of the link, for congestion control; the port's if nothing is said, and where that is unknown 100 Gbit/s, or
    /// 800 Gbit/s over memif.
    pub link: Option<Rate>,
    /// The round-trip time of the idle network, for congestion control. If nothing is said it begins with 100 µs, and
    /// algorithms with targets of delay measure what they can reach.
    pub rtt: Option<Span>,
    /// The first retransmission timeout: longer than the system may take the processor away; if nothing is said, what
    /// fits the kind of port ([`PortFacts::rto`]).
    pub rto: Option<Span>,
    /// Expiries of one packet's timer after which its connection fails, the timeout doubling with each; if nothing is
    /// said, what fits the kind of port ([`PortFacts::max_retries`]).
    pub max_retries: Option<u8>,
    /// Packets that a connection may have in flight: a multiple of 128; 2048, which is enough for short ones in a network
    /// RTT of this stack.
    pub mp_range: u32,
    /// Peers whose IP addresses begin with these prefixes are zones with settings of their own; the longest prefix that fits
    /// decides.
    pub zones: Vec<(IpPrefix, ZoneSettings)>,
    /// Bytes that are received before they are acknowledged, packets below 1 KiB counted as such; 16 KiB.
    pub ack_every: u32,
    /// Silence of a peer after which it is asked whether it is there; after as much again it is given up; 10 s.
    pub idle_timeout: Span,
    /// How long a connection may be without progress while its peer answers; 10 s.
    pub busy_timeout: BusyTimeout,
    /// The limits on what the endpoint's user may use up.
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            payload: None,
            cc: CcChoice::default(),
            lb: LbChoice::default(),
            windows: Windows::default(),
            trimming: false,
            priorities: 1,
            link: None,
            rtt: None,
            rto: None,
            max_retries: None,
            mp_range: 2048,
            zones: Vec::new(),
            ack_every: 16 << 10,
            idle_timeout: Span::from_ms(10_000),
            busy_timeout: BusyTimeout::default(),
            limits: Limits::default(),
        }
    }
}

/// Which delays are known where `rtt` is what was said of the network's.
pub(super) fn delays(rtt: Option<Span>) -> Delays {
    match rtt {
        Some(_) => Delays::HostsUnknown,
        None => Delays::Unknown,
    }
}

impl Settings {
    /// Whether credit is in use towards any peer.
    pub fn uses_credit(&self) -> bool {
        self.cc.uses_credit() || self.zones.iter().any(|(_, zone)| zone.cc.uses_credit())
    }
}

/// The rate that congestion control assumes for the link, and the source of that figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkRate {
    /// The settings say so.
    Set(Rate),
    /// The port says so.
    OfPort(Rate),
    /// Nobody knows the rate.
    Assumed(Rate),
}

impl LinkRate {
    /// The rate, if somebody knows it.
    pub fn known(self) -> Option<Rate> {
        match self {
            LinkRate::Set(rate) | LinkRate::OfPort(rate) => Some(rate),
            LinkRate::Assumed(_) => None,
        }
    }

    /// The rate.
    pub fn rate(self) -> Rate {
        match self {
            LinkRate::Set(rate) | LinkRate::OfPort(rate) | LinkRate::Assumed(rate) => rate,
        }
    }
}

/// The configuration of an endpoint for a port.
pub struct Setup {
    /// The endpoint's configuration.
    pub config: Arc<FepConfig>,
    /// Payload of a full packet, bytes.
    pub payload: u32,
    /// Payload of the longest packet that the port takes, bytes.
    pub longest_payload: u32,
    /// Bytes that a data packet costs on the wire beyond its payload.
    pub overhead: u32,
    /// The rate of the link.
    pub link: LinkRate,
    /// The zones of peers, by the prefixes of their IP addresses.
    prefixes: Vec<(IpPrefix, ZoneId)>,
}

impl Setup {
    /// The configuration that `settings` ask for at a port of which `port` is known.
    ///
    /// # Errors
    /// [`BuildError::Payload`] for packets that the port does not carry; [`ConfigError::Zones`](weft_stack::fep::ConfigError::Zones) for too many zones.
    pub fn new(settings: &Settings, port: &PortFacts) -> Result<Setup, BuildError> {
        let &PortFacts { longest_payload, overhead, paths, .. } = port;
        let payload = settings.payload.unwrap_or(PAYLOAD.min(longest_payload));
        if payload > longest_payload || longest_payload == 0 {
            return Err(BuildError::Payload { payload, longest: longest_payload });
        }
        let link = settings.link.map_or(port.link, LinkRate::Set);
        let params = CcParams {
            mtu: payload,
            overhead,
            link_rate: link.rate(),
            network_rtt: settings.rtt.unwrap_or(GUESSED_RTT),
            trimming: settings.trimming,
            delays: delays(settings.rtt),
        };
        let mut base = FepConfig::new(&settings.cc, &params).with_zones(|zone| {
            (zone.lb, zone.paths) = (settings.lb.clone(), paths);
            zone.pdc = PdcConfig {
                mp_range: settings.mp_range,
                rto_init: settings.rto.unwrap_or(port.rto),
                max_retries: settings.max_retries.unwrap_or(port.max_retries),
                ack_bytes: settings.ack_every,
                ..zone.pdc
            };
        });
        let mut prefixes = Vec::with_capacity(settings.zones.len());
        for (prefix, zone) in &settings.zones {
            let zone = zone.zone(settings, port, &base.zones.default);
            prefixes.push((*prefix, base.zones.add(zone)?));
        }
        let &Settings { windows, priorities, idle_timeout, busy_timeout, limits, .. } = settings;
        let crc = port.crc;
        let config =
            Arc::new(FepConfig { windows, priorities, crc, idle_timeout, busy_timeout, limits, ..base });
        Ok(Setup { config, payload, longest_payload, overhead, link, prefixes })
    }

    /// A worker for the endpoint `own` at `open`, who knows `peers`, and others as `strangers` says; and what is known of
    /// the port.
    ///
    /// # Errors
    /// A peer that cannot be reached or entered, or parts that do not fit each other.
    pub fn worker(
        &self,
        mut open: OpenPort,
        own: Addr,
        peers: &[(Addr, PeerSpec)],
        strangers: Strangers,
    ) -> Result<(Worker<AnyPort>, PortInfo), BuildError> {
        let (mut known, mut to_be_asked) = (Vec::new(), Vec::new());
        for (addr, peer) in peers {
            match open.meet(peer)? {
                PeerAddress::Known(host) => known.push((*addr, host)),
                PeerAddress::ToBeAsked(ip) => to_be_asked.push((*addr, ip)),
            }
        }
        let OpenPort { port, info } = open;
        // Packets of an earlier process at this address must not pass for this one's.
        let seed = RandomState::new().build_hasher().finish();
        let (host, link) = (info.host, info.link_config());
        let at = Attachment { port, host, link, prefixes: self.prefixes.clone() };
        let mut worker = at.worker(&self.config, own, known, strangers, Clock::new(), Rng::new(seed, 0))?;
        if let Some(called) = info.called {
            worker.book_mut().set_called(called)?;
        }
        for (addr, ip) in to_be_asked {
            worker.meet(addr, ip, None)?;
        }
        Ok((worker, info))
    }
}

/// A port and the addresses of the endpoint there.
#[derive(Debug)]
pub struct Attachment<P> {
    /// The port.
    pub port: P,
    /// Its addresses in frames.
    pub host: HostAddr,
    /// How frames leave.
    pub link: LinkConfig,
    /// The zones of peers, by the prefixes of their IP addresses. The configuration has those zones.
    pub prefixes: Vec<(IpPrefix, ZoneId)>,
}

impl<P: Port> Attachment<P> {
    /// A worker for the endpoint `own` of `config`, who knows the endpoints `known` and their addresses in frames, and
    /// others as `strangers` says. Everything random in it comes from `rng`.
    ///
    /// # Errors
    /// A configuration that cannot work, an endpoint that cannot be entered, or parts that do not fit each other.
    pub fn worker(
        self,
        config: &Arc<FepConfig>,
        own: Addr,
        known: impl IntoIterator<Item = (Addr, HostAddr)>,
        strangers: Strangers,
        clock: Clock,
        rng: Rng,
    ) -> Result<Worker<P>, BuildError> {
        let mut config = config.clone();
        let mut book = AddressBook::new(own, self.host, BOOK, strangers)?;
        if !self.prefixes.is_empty() {
            let table = Arc::new(ZoneTable::new(BOOK));
            Arc::make_mut(&mut config).zones.map = ZoneMap::Table(table.clone());
            book = book.with_zones(PrefixZones::new(self.prefixes, table));
        }
        let fep = Fep::new(own, config, rng, clock.now())?;
        for (addr, host) in known {
            book.insert(addr, host)?;
        }
        Ok(Worker::new(fep, self.port, book, self.link, clock)?)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Endpoint, ZoneSettings};
    use weft_stack::cc::{Delays, Span};

    #[test]
    fn the_rtt_of_the_network_is_known_if_somebody_says_it_and_the_delay_of_hosts_never() {
        let builder = || Endpoint::builder("udp:127.44.1.5").peer("127.44.1.6");
        let known = |builder: crate::Builder| {
            let (_, _, setup) = builder.build_worker().unwrap();
            let params = |zone: &weft_stack::fep::Zone| *zone.cc.params();
            setup.config.zones.iter().map(params).map(|p| (p.network_rtt, p.delays)).collect::<Vec<_>>()
        };
        let guess = (Span::from_us(100), Delays::Unknown);
        assert_eq!(known(builder()), [guess]);
        assert_eq!(known(builder().rtt(Span::from_us(100))), [(Span::from_us(100), Delays::HostsUnknown)]);
        let far = ZoneSettings { rtt: Some(Span::from_ms(30)), ..ZoneSettings::default() };
        let zone = |settings| builder().zone("127.45.0.0/16".parse().unwrap(), settings);
        assert_eq!(known(zone(far)), [guess, (Span::from_ms(30), Delays::HostsUnknown)]);
        let near = zone(ZoneSettings::default()).rtt(Span::from_us(20));
        assert_eq!(known(near), [(Span::from_us(20), Delays::HostsUnknown); 2], "as to other peers");
    }

    #[test]
    fn settings_say_how_many_priorities_switches_tell_apart() {
        let builder = || Endpoint::builder("udp:127.44.1.3").peer("127.44.1.4");
        let priorities = |builder: crate::Builder| {
            let built = builder.build_worker();
            built.map(|(worker, ..)| worker.fep().config().priorities).map_err(|error| error.to_string())
        };
        assert_eq!(priorities(builder()), Ok(1));
        assert_eq!(priorities(builder().priorities(8)), Ok(8));
        assert_eq!(priorities(builder().priorities(9)).unwrap_err(), "priorities is 9; there can be 1 to 8");
    }

    #[test]
    fn full_packets_are_as_long_as_they_are_asked_to_be() {
        let payload = |mtu, with: fn(crate::Builder) -> crate::Builder| {
            let builder = Endpoint::builder("udp:127.44.1.7").mtu(mtu);
            let (.., setup) = with(builder).build_worker().unwrap();
            (setup.payload, setup.payload == setup.longest_payload)
        };
        assert_eq!(payload(9000, |builder| builder), (4096, false));
        assert_eq!(payload(9000, |builder| builder.payload(1000)), (1000, false));
        let (longest, is_longest) = payload(9000, crate::Builder::longest_payload);
        assert!(is_longest && longest > 8800, "{longest}");
        assert_eq!(payload(60_000, crate::Builder::longest_payload), (16_383, false));
    }
}
