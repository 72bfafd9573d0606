//! The endpoints of a run in real time, and their configuration.

use std::sync::Arc;

use weft::BuildError;
use weft::core::{Attachment, LinkRate, Settings, Setup};
use weft::port::PortFacts;
use weft_cc::Span;
use weft_stack::fep::{CallError, FepConfig};
use weft_stack::packet::Addr;
use weft_stack::port::Port;
use weft_stack::rng::Rng;
use weft_stack::worker::{Clock, HostAddr, LinkConfig, Strangers, Worker};
use weft_testbed::sim::RunConfig;

/// A host of the workload that takes part.
#[derive(Debug)]
pub(crate) struct LiveHost<P> {
    /// The workload's number of the host.
    pub(crate) number: u32,
    /// Its addresses in frames.
    pub(crate) host: HostAddr,
    /// The host's port, through which it reaches the other hosts.
    pub(crate) port: P,
}

/// A run that cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LiveError {
    /// There is nothing to do.
    #[error("the workload has no flows")]
    NoFlows,
    /// An endpoint cannot be had.
    #[error(transparent)]
    Endpoint(#[from] BuildError),
    /// An endpoint has no room for the ranks of its host.
    #[error(transparent)]
    Ranks(#[from] CallError),
}

/// The endpoints' configuration over ports with this many paths: what `network` says of the network, and the rest as
/// `config` says. In simulation all of it follows from the topology; here each kind of port has its own network.
///
/// # Errors
/// Packets that have no payload.
pub(crate) fn configure(
    config: &RunConfig,
    paths: u16,
    network: Settings,
) -> Result<Arc<FepConfig>, BuildError> {
    let settings = Settings {
        payload: Some(config.mtu),
        cc: config.cc.clone(),
        lb: config.lb.clone(),
        windows: config.windows,
        ack_every: config.ack_every,
        busy_timeout: config.busy_timeout,
        ..network
    };
    let port = PortFacts {
        longest_payload: config.mtu,
        overhead: config.data_overhead(),
        paths,
        link: LinkRate::OfPort(config.topology.host_rate()),
        // The system may take the processor away for so long.
        rto: Span::from_ms(100),
        max_retries: 5,
        crc: config.crc,
    };
    Ok(Setup::new(&settings, &port)?.config)
}

/// The endpoint of `host`, which has address `own` and knows that all hosts are at `places`, by address.
///
/// # Errors
/// See [`Attachment::worker`].
pub(crate) fn endpoint<P: Port>(
    seed: u64,
    config: &Arc<FepConfig>,
    host: LiveHost<P>,
    own: u32,
    places: &[HostAddr],
    clock: Clock,
) -> Result<Worker<P>, BuildError> {
    let LiveHost { number, host, port } = host;
    let known = (0..).map(Addr).zip(places.iter().copied());
    let rng = Rng::new(seed, u64::from(number));
    let at = Attachment { port, host, link: LinkConfig::default(), prefixes: Vec::new() };
    at.worker(config, Addr(own), known, Strangers::Refuse, clock, rng)
}
