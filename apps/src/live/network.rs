//! What endpoints are told of the network between them, and the endpoints themselves.

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

/// What endpoints are told of the network between them. In simulation it follows from the topology; here
/// each kind of port has its own.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// What congestion control takes for the round-trip time while nothing waits anywhere. Together with the
    /// link's rate it sets the largest windows.
    pub(crate) rtt: Span,
    /// What it takes for the rate of a host's link.
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

/// A host of the workload, and where it takes part.
#[derive(Debug)]
pub(crate) struct End<P> {
    /// The workload's number of the host.
    pub(crate) host: u32,
    /// What frames call it.
    pub(crate) place: HostAddr,
    /// Its port, through which the others are reached.
    pub(crate) port: P,
}

/// A run that cannot be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LiveError {
    /// There is nothing to do.
    #[error("the workload has no flows")]
    NoFlows,
    /// Endpoints cannot be configured so.
    #[error(transparent)]
    Endpoint(#[from] ConfigError),
    /// Ends that cannot be told apart.
    #[error(transparent)]
    Ends(#[from] BookError),
    /// A port that does not suit the endpoint.
    #[error(transparent)]
    Port(#[from] WorkerError),
}

impl Network {
    /// The endpoints' configuration: `config`'s, but for what depends on the network.
    fn endpoint(&self, config: &RunConfig) -> FepConfig {
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
        FepConfig { lb: config.lb.clone(), paths: self.paths, pdc, ..base }
    }
}

/// An endpoint at each end, which knows all others. Its address is its end's place in the list.
pub(super) fn workers<P: Port>(
    config: &RunConfig,
    network: &Network,
    ends: Vec<End<P>>,
    clock: Clock,
) -> Result<Vec<Worker<P>>, LiveError> {
    let endpoint = Arc::new(network.endpoint(config));
    let places: Vec<HostAddr> = ends.iter().map(|end| end.place).collect();
    let one = |(own, end)| make(config.seed, &endpoint, end, own, &places, clock);
    (0..).zip(ends).map(one).collect()
}

/// The endpoint at the end that has address `own`, which knows that all ends are at `places`.
///
/// # Errors
/// See [`LiveError`].
pub(crate) fn worker<P: Port>(
    config: &RunConfig,
    network: &Network,
    end: End<P>,
    own: u32,
    places: &[HostAddr],
    clock: Clock,
) -> Result<Worker<P>, LiveError> {
    make(config.seed, &Arc::new(network.endpoint(config)), end, own, places, clock)
}

fn make<P: Port>(
    seed: u64,
    endpoint: &Arc<FepConfig>,
    end: End<P>,
    own: u32,
    places: &[HostAddr],
    clock: Clock,
) -> Result<Worker<P>, LiveError> {
    let rng = Rng::new(seed, u64::from(end.host));
    let fep = Fep::new(Addr(own), endpoint.clone(), rng, clock.now())?;
    let mut book = AddressBook::new(Addr(own), end.place, places.len(), Strangers::Refuse)?;
    for (addr, place) in (0..).zip(places) {
        book.insert(Addr(addr), *place)?;
    }
    Ok(Worker::new(fep, end.port, book, LinkConfig::default(), clock)?)
}
