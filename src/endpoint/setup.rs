//! An endpoint's configuration and worker, decided from settings and from facts about its port.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use weft_stack::cc::{CcChoice, CcParams, Rate, Span};
use weft_stack::fep::{Fep, FepConfig, Limits};
use weft_stack::packet::Addr;
use weft_stack::pdc::PdcConfig;
use weft_stack::rng::Rng;
use weft_stack::spray::LbChoice;
use weft_stack::worker::{AddressBook, Clock, Strangers, Worker};

use super::error::BuildError;
use crate::port::{AnyPort, OpenPort, PeerAddress, PeerSpec, PortInfo};

/// Payload of a full packet where the port carries it, bytes.
const PAYLOAD: u32 = 4096;
/// The rate of a link that nobody knows.
const UNKNOWN_LINK: Rate = Rate::from_gbps(100);
/// The same over memif: more than processors copy, so that the window is left to the rings. NSCC, for one, holds it to
/// 1.5 BDP of the least RTT seen, which is that of a lone packet, and processes that work in bursts of 32 need several
/// times that.
const MEMORY_LINK: Rate = Rate::from_gbps(800);
/// Preamble, frame check sequence and gap, bytes.
const ETHERNET_EXTRA: u32 = 8 + 4 + 12;
/// Packets in flight on a connection: enough for short ones in a network RTT of this stack.
const MP_RANGE: u32 = 2048;
/// Peers that an endpoint can know.
const BOOK: usize = 4096;

/// How an endpoint works, where the port does not decide it.
#[derive(Clone)]
pub struct Settings {
    /// Payload of a full packet, bytes; 4096 if nothing is said, or as much as the port's MTU leaves.
    pub payload: Option<u32>,
    /// Congestion control; nscc.
    pub cc: CcChoice,
    /// Load balancing; mixed.
    pub lb: LbChoice,
    /// Whether the fabric trims packets; it does not.
    pub trimming: bool,
    /// The rate of the link, for congestion control; the port's if nothing is said, and where that is unknown 100 Gbit/s, or
    /// 800 Gbit/s over memif.
    pub link: Option<Rate>,
    /// The round-trip time of the idle network, for congestion control; 100 µs.
    pub rtt: Span,
    /// The first retransmission timeout: longer than the system may take the processor away; 100 ms.
    pub rto: Span,
    /// Bytes that are received before they are acknowledged, packets below 1 KiB counted as such; 16 KiB.
    pub ack_every: u32,
    /// Silence of a peer after which it is asked whether it is there; after as much again it is given up; 10 s.
    pub idle_timeout: Span,
    /// The limits on what the endpoint's user may use up.
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            payload: None,
            cc: CcChoice::default(),
            lb: LbChoice::default(),
            trimming: false,
            link: None,
            rtt: Span::from_us(100),
            rto: Span::from_ms(100),
            ack_every: 16 << 10,
            idle_timeout: Span::from_ms(10_000),
            limits: Limits::default(),
        }
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
}

impl Setup {
    /// The configuration that `settings` ask for at the port `open`.
    ///
    /// # Errors
    /// [`BuildError::Payload`] for packets that the port does not carry.
    pub fn new(settings: &Settings, open: &OpenPort) -> Result<Setup, BuildError> {
        let longest = open.longest_payload();
        let payload = settings.payload.unwrap_or(PAYLOAD.min(longest));
        if payload > longest || longest == 0 {
            return Err(BuildError::Payload { payload, longest });
        }
        let credit = settings.cc.uses_credit();
        let overhead = ETHERNET_EXTRA + open.headers() - if credit { 0 } else { 4 };
        let unknown = if matches!(open.port, AnyPort::Memif(_)) { MEMORY_LINK } else { UNKNOWN_LINK };
        let link = match (settings.link, open.info.link) {
            (Some(set), _) => LinkRate::Set(set),
            (None, Some(rate)) => LinkRate::OfPort(rate),
            (None, None) => LinkRate::Assumed(unknown),
        };
        let params = CcParams {
            mtu: payload,
            overhead,
            link_rate: link.rate(),
            network_rtt: settings.rtt,
            trimming: settings.trimming,
        };
        let base = FepConfig::new(&settings.cc, &params);
        let pdc = PdcConfig {
            mp_range: MP_RANGE,
            rto_init: settings.rto,
            ack_bytes: settings.ack_every,
            ..base.pdc
        };
        let config = FepConfig {
            lb: settings.lb.clone(),
            paths: open.info.paths,
            pdc,
            idle_timeout: settings.idle_timeout,
            limits: settings.limits,
            ..base
        };
        Ok(Setup { config: Arc::new(config), payload, longest_payload: longest, overhead, link })
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
        let addresses = peers.iter().map(|(addr, peer)| open.meet(peer).map(|address| (*addr, address)));
        let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        let clock = Clock::new();
        // Packets of an earlier process at this address must not pass for this one's.
        let seed = RandomState::new().build_hasher().finish();
        let fep = Fep::new(own, self.config.clone(), Rng::new(seed, 0), clock.now())?;
        let book = AddressBook::new(own, open.info.host, BOOK, strangers)?;
        let mut worker = Worker::new(fep, open.port, book, open.info.link_config(), clock)?;
        for (addr, address) in addresses {
            match address {
                PeerAddress::Known(host) => worker.book_mut().insert(addr, host)?,
                PeerAddress::ToBeAsked(ip) => worker.meet(addr, ip, None)?,
            }
        }
        Ok((worker, open.info))
    }
}
