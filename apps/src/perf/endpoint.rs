//! The endpoint that a test runs on, made from options.

use super::args::EndArgs;
use crate::Failure;
use crate::choices::Switch;
use crate::port_spec::{AnyPort, OpenPort, PeerSpec, Place};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use weft_cc::{CcChoice, CcParams, Rate, Span};
use weft_stack::fep::{Fep, FepConfig};
use weft_stack::packet::Addr;
use weft_stack::pdc::PdcConfig;
use weft_stack::rng::Rng;
use weft_stack::spray::LbChoice;
use weft_stack::worker::neighbours::ResolveError;
use weft_stack::worker::{AddressBook, Clock, Strangers, Worker};

/// Payload of a full packet where the port carries it.
const PAYLOAD: u32 = 4096;
/// What congestion control takes for the rate of a link that nobody knows.
const UNKNOWN_LINK: Rate = Rate::from_gbps(100);
/// The same over memif: more than processors copy, so that the window is left to the rings. NSCC, for one, holds it to
/// 1.5 BDP of the least RTT seen, which is that of a lone packet, and processes that work in bursts of 32 need several
/// times that.
const MEMORY_LINK: Rate = Rate::from_gbps(800);
/// Preamble, frame check sequence and gap.
const ETHERNET_EXTRA: u32 = 8 + 4 + 12;
/// Packets in flight on a connection: enough for short ones in a network RTT of this stack.
const MP_RANGE: u32 = 2048;
/// Others that a server remembers.
const BOOK: usize = 4096;

/// How an end works, decided.
pub(crate) struct Endpoint {
    pub(crate) config: Arc<FepConfig>,
    /// Payload bytes of a full packet.
    pub(crate) payload: u32,
    /// Payload bytes of the longest packet that the port takes.
    pub(crate) room: u32,
    /// Bytes that a data packet costs on the wire beyond its payload.
    pub(crate) overhead: u32,
    pub(crate) cc: CcChoice,
    pub(crate) link: Option<Rate>,
    /// What congestion control takes for the rate of the link, and who says so.
    rate: String,
}

impl Endpoint {
    /// What `args` say for an endpoint at `open`.
    ///
    /// # Errors
    /// Names and values that do not exist, and packets that the port does not carry.
    pub(crate) fn new(args: &EndArgs, open: &OpenPort) -> Result<Endpoint, Failure> {
        let mut cc = CcChoice::parse(&args.cc).map_err(|e| usage("--cc", e))?;
        for (key, value) in &args.cc_set {
            cc.set(key, value).map_err(|e| usage("--cc-set", e))?;
        }
        let lb = LbChoice::parse(&args.lb).map_err(|e| usage("--lb", e))?;
        let longest = open.longest_payload();
        let payload = args.payload.unwrap_or(PAYLOAD.min(longest));
        if payload > longest || longest == 0 {
            let room = format!("the port's MTU leaves {longest} bytes, and packets shall have {payload}");
            return Err(Failure::Usage(format!("--payload: {room}")));
        }
        let credit = cc.uses_credit();
        let overhead = ETHERNET_EXTRA + open.headers() - if credit { 0 } else { 4 };
        let link = args.link.or(open.link);
        let unknown = if matches!(open.port, AnyPort::Memif(_)) { MEMORY_LINK } else { UNKNOWN_LINK };
        let taken = link.unwrap_or(unknown);
        let rate = match (args.link, open.link) {
            (Some(_), _) => format!("{taken}, says --link"),
            (None, Some(_)) => format!("{taken}, says the port"),
            (None, None) => format!("unknown: congestion control begins with {taken} (see --link)"),
        };
        let params = CcParams {
            mtu: payload,
            overhead,
            link_rate: taken,
            network_rtt: args.rtt,
            trimming: args.trim == Switch::On,
        };
        let base = FepConfig::new(&cc, &params);
        let pdc = PdcConfig { mp_range: MP_RANGE, rto_init: args.rto, ack_bytes: args.ack_every, ..base.pdc };
        let config = Arc::new(FepConfig { lb, paths: open.paths, pdc, ..base });
        Ok(Endpoint { config, payload, room: longest, overhead, cc, link, rate })
    }

    /// A worker for the endpoint `own` at `open`, who knows `peers`, and others too if they may come.
    pub(crate) fn worker(
        &self,
        mut open: OpenPort,
        own: Addr,
        peers: &[(Addr, PeerSpec)],
        strangers: Strangers,
    ) -> Result<Worker<AnyPort>, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::Run(error.to_string());
        let places = peers.iter().map(|(addr, peer)| open.meet(peer).map(|place| (*addr, place)));
        let places = places.collect::<Result<Vec<_>, _>>().map_err(|e| failed(&e))?;
        let clock = Clock::new();
        // Packets of an earlier process at this address must not pass for this one's.
        let seed = RandomState::new().build_hasher().finish();
        let fep =
            Fep::new(own, self.config.clone(), Rng::new(seed, 0), clock.now()).map_err(|e| failed(&e))?;
        let book = AddressBook::new(own, open.host, BOOK, strangers).map_err(|e| failed(&e))?;
        let link = open.link_config();
        let mut worker = Worker::new(fep, open.port, book, link, clock).map_err(|e| failed(&e))?;
        for (addr, place) in places {
            let entered = match place {
                Place::Known(host) => worker.book_mut().insert(addr, host),
                Place::ToBeAsked(ip) => worker.meet(addr, ip, None),
            };
            entered.map_err(|e| failed(&e))?;
        }
        Ok(worker)
    }

    /// What is worth knowing about the endpoint and its worker: which clock that reads, what is taken for the rate of the
    /// link, and what the port leaves to the worker.
    pub(crate) fn notices(&self, worker: &Worker<AnyPort>) -> Vec<String> {
        let clock = format!("time is read from the {}", worker.clock().source());
        let rate = format!("the rate of the link is {}", self.rate);
        [clock, rate].into_iter().chain(worker.port().notices()).collect()
    }
}

/// Waits until there is a way to `peer`, whom `spec` names.
///
/// # Errors
/// Nobody answers for it, or not within `limit`.
pub(crate) fn reach(
    worker: &mut Worker<AnyPort>,
    peer: Addr,
    spec: &PeerSpec,
    limit: Span,
) -> Result<(), Failure> {
    let Err(error) = worker.resolve(peer, limit) else { return Ok(()) };
    let why = match (error, worker.is_reachable(peer)) {
        (ResolveError::TimedOut(_), Err(why)) => format!("{why} (waited for {limit})"),
        _ => error.to_string(),
    };
    let ip = spec.ip;
    Err(Failure::Run(format!(
        "{ip}: {why}; expected a port of weft with this address on the same link and VLAN. Start that end first, \
         look at cable and addresses, or name the Ethernet address of the way there: {ip}/MAC"
    )))
}

fn usage(option: &str, error: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("{option}: {error}"))
}
