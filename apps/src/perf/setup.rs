//! The setup of the endpoint that a test runs on, made from options.

use super::args::EndArgs;
use crate::Failure;
use crate::choices::Switch;
use crate::port_spec::{AnyPort, OpenPort, PeerSpec};
use crate::zones::{AlgorithmOptions, PrefixZone};
use std::net::IpAddr;
use weft::core::{LinkRate, Settings, Setup, ZoneSettings};
use weft::{Endpoint, Memory};
use weft_cc::{CcChoice, Span};
use weft_stack::packet::Addr;
use weft_stack::worker::neighbours::ResolveError;
use weft_stack::worker::{IpPrefix, Strangers, Worker};
use weft_testbed::sim::Algorithms;

/// How an end works, decided from its options and its port.
pub(crate) struct EndSetup {
    pub(crate) setup: Setup,
    /// Congestion control towards peers in no zone.
    cc: CcChoice,
    /// Congestion control towards the peers of zones.
    zones: Vec<(IpPrefix, CcChoice)>,
}

impl EndSetup {
    /// The setup of an end at `open` as `args` describe it, which treats the peers of `zones` differently.
    ///
    /// # Errors
    /// Names and values that do not exist, and packets that the port does not carry.
    pub(crate) fn new(args: &EndArgs, zones: &[PrefixZone], open: &OpenPort) -> Result<EndSetup, Failure> {
        let names: Vec<&str> = zones.iter().map(|zone| zone.name.as_str()).collect();
        let options = AlgorithmOptions::new((&args.cc, &args.cc_set), (&args.lb, &args.lb_set), &names)?;
        let Algorithms { cc, lb } = options.of("")?;
        let of_prefix = |zone: &PrefixZone| -> Result<_, Failure> {
            let Algorithms { cc, lb } = options.of(&zone.name)?;
            let trimming = zone.trim.unwrap_or(args.trim) == Switch::On;
            Ok((zone.prefix, ZoneSettings { cc, lb, trimming, rtt: zone.rtt, rto: zone.rto }))
        };
        let settings = Settings {
            payload: args.payload,
            cc: cc.clone(),
            lb,
            trimming: args.trim == Switch::On,
            link: args.link,
            rtt: args.rtt,
            rto: args.rto,
            zones: zones.iter().map(of_prefix).collect::<Result<_, _>>()?,
            windows: args.windows.into(),
            ack_every: args.ack_every,
            busy_timeout: args.busy_timeout,
            ..Settings::default()
        };
        let setup = Setup::new(&settings, &open.facts(&settings)).map_err(|e| usage("--payload", e))?;
        let zones = settings.zones.into_iter().map(|(prefix, zone)| (prefix, zone.cc)).collect();
        Ok(EndSetup { setup, cc, zones })
    }

    /// Congestion control towards the peer at `ip`.
    pub(super) fn cc_towards(&self, ip: IpAddr) -> &CcChoice {
        IpPrefix::longest(&self.zones, ip).unwrap_or(&self.cc)
    }

    /// A worker for the endpoint `own` at `open`, which knows `peers`, and others as `strangers` says.
    pub(crate) fn worker(
        &self,
        open: OpenPort,
        own: Addr,
        peers: &[(Addr, PeerSpec)],
        strangers: Strangers,
    ) -> Result<Worker<AnyPort>, Failure> {
        let made = self.setup.worker(open, own, peers, strangers);
        made.map(|(worker, _)| worker).map_err(|error| Failure::Run(error.to_string()))
    }

    /// Notes on the end and its worker: the clock that it reads, the rate that it takes for that of the link, and
    /// the work that the port leaves to the worker.
    pub(crate) fn notices(&self, worker: &Worker<AnyPort>) -> Vec<String> {
        let clock = format!("time is read from the {}", worker.clock().source());
        let rate = match self.setup.link {
            LinkRate::Set(rate) => format!("{rate}, says --link"),
            LinkRate::OfPort(rate) => format!("{rate}, says the port"),
            LinkRate::Assumed(rate) => {
                format!("unknown: congestion control begins with {rate} (see --link)")
            }
        };
        let rate = format!("the rate of the link is {rate}");
        [clock, rate].into_iter().chain(worker.port().notices()).collect()
    }
}

/// Memory for `bytes` of messages, from which `port` sends.
///
/// # Errors
/// There is not so much.
pub(super) fn memory(bytes: usize, port: &mut AnyPort) -> Result<Memory, Failure> {
    Memory::for_port(bytes, port).map_err(|error| Failure::Run(error.to_string()))
}

/// The endpoint that `worker` drives, and that has `memory`.
///
/// # Errors
/// The system refuses what it needs.
pub(super) fn endpoint(worker: Worker<AnyPort>, memory: Memory) -> Result<Endpoint, Failure> {
    Endpoint::from_worker(worker, memory).map_err(|error| Failure::Run(error.to_string()))
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
