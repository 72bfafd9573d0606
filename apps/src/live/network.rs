//! The network as endpoints are configured for it, and the endpoints themselves.

use std::sync::Arc;

use weft_cc::{CcParams, Rate, Span};
use weft_stack::fep::{ConfigError, Fep, FepConfig};
use weft_stack::packet::Addr;
use weft_stack::pdc::PdcConfig;
use weft_stack::port::Port;
use weft_stack::rng::Rng;
use weft_stack::worker::{
    AddressBook, BookError, Clock, HostAddr, LinkConfig, Strangers, Worker, WorkerError,
};
use weft_testbed::sim::RunConfig;

/// The network between endpoints, as they are configured for it. In simulation it follows from the topology; here
/// each kind of port has its own.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// The round-trip time of the idle network, as congestion control takes it. Together with the link's rate it sets
    /// the largest windows.
    pub(crate) rtt: Span,
    /// The rate of a host's link, as congestion control takes it.
    pub(crate) link_rate: Rate,
    /// Whether switches trim; where they do not, senders infer losses.
    pub(crate) trims: bool,
    /// The first retransmission timeout.
    pub(crate) rto: Span,
    /// Expiries of one packet's timer after which its connection fails; the timeout doubles with each.
    pub(crate) max_retries: u8,
    /// Packets that a connection may have outstanding: a multiple of 128.
    pub(crate) mp_range: u32,
    /// Entropies that lead to different paths.
    pub(crate) paths: u16,
}

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
    /// The endpoints' configuration is refused.
    #[error(transparent)]
    Endpoint(#[from] ConfigError),
    /// Two hosts have the same addresses.
    #[error(transparent)]
    Ends(#[from] BookError),
    /// A port does not suit the endpoint.
    #[error(transparent)]
    Port(#[from] WorkerError),
}

impl Network {
    /// The endpoints' configuration: `config`'s, except for what depends on the network.
    pub(crate) fn settings(&self, config: &RunConfig) -> Arc<FepConfig> {
        let params = CcParams {
            network_rtt: self.rtt,
            link_rate: self.link_rate,
            trimming: self.trims,
            ..config.cc_params()
        };
        let base = FepConfig::new(&config.cc, &params);
        let pdc = PdcConfig {
            mp_range: self.mp_range,
            rto_init: self.rto,
            max_retries: self.max_retries,
            ack_bytes: config.ack_every,
            ..base.pdc
        };
        Arc::new(FepConfig { lb: config.lb.clone(), paths: self.paths, pdc, ..base })
    }
}

/// The endpoint of `host`, which has address `own` and knows that all hosts are at `places`, by address.
///
/// # Errors
/// See [`LiveError`].
pub(crate) fn endpoint<P: Port>(
    seed: u64,
    settings: &Arc<FepConfig>,
    host: LiveHost<P>,
    own: u32,
    places: &[HostAddr],
    clock: Clock,
) -> Result<Worker<P>, LiveError> {
    let rng = Rng::new(seed, u64::from(host.number));
    let fep = Fep::new(Addr(own), settings.clone(), rng, clock.now())?;
    let mut book = AddressBook::new(Addr(own), host.host, places.len(), Strangers::Refuse)?;
    for (addr, place) in (0..).zip(places) {
        book.insert(Addr(addr), *place)?;
    }
    Ok(Worker::new(fep, host.port, book, LinkConfig::default(), clock)?)
}
