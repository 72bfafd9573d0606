//! Both ends of a link over one memory, without a socket between them, for tests.
#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;

use super::config::{MemifConfig, Role, SocketName};
use super::link::{Link, offer};
use super::link_layout::{LinkLayout, Offer, RingPlace};
use crate::region::{Region, SharedRegion};

/// Slots of each ring, as a power of two.
pub(super) const RING: u8 = 3;
/// Bytes of the longest frame.
pub(super) const MAX_FRAME: usize = 1000;
/// Bytes of registered memory: so many for each frame of a number.
pub(super) const REGISTERED: usize = 256 * MAX_FRAME;
/// Where the ring to the client begins in the memory of a [`Pair`].
pub(super) const TO_CLIENT: u32 = super::ring::ring_bytes(RING) as u32;

/// Both ends, and the memory between them as a stranger to both sees it.
pub(super) struct Pair {
    pub(super) client: Link,
    pub(super) server: Link,
    pub(super) memory: Region,
    /// The client's application's.
    pub(super) registered: Region,
}

pub(super) fn config(buffer_size: u32) -> MemifConfig {
    let config = MemifConfig::client(SocketName::parse("nowhere"));
    MemifConfig { log2_ring: RING, buffer_size: Some(buffer_size), ..config }
}

pub(super) fn event(of: &OwnedFd) -> OwnedFd {
    of.try_clone().expect("a descriptor")
}

/// A pair whose client has long buffers of this size.
pub(super) fn pair(buffer_size: u32) -> Pair {
    pair_with(buffer_size, |_| {})
}

/// A pair of which `prepare` sees first what the client offers.
pub(super) fn pair_with(buffer_size: u32, prepare: impl FnOnce(&Offer)) -> Pair {
    let config = config(buffer_size);
    let registered = SharedRegion::allocate(REGISTERED).expect("memory");
    let offer = offer(&config, std::slice::from_ref(&registered)).expect("memory");
    let registered = registered.region().clone();
    prepare(&offer);
    let map = |at: usize| Region::map(&offer.files[at], offer.layout.regions[at].len()).expect("memory");
    let place = |of: &RingPlace| RingPlace { event: event(&of.event), ..*of };
    let server = LinkLayout {
        role: Role::Server,
        regions: vec![map(0), map(1)],
        to_server: place(&offer.layout.to_server),
        to_client: place(&offer.layout.to_client),
        peer: String::new(),
    };
    let memory = map(0);
    let signals = super::event::means().expect("the system has what ports need");
    let client = Link::of(offer.layout, buffer_size, signals).expect("rings in their places");
    Pair { client, server: Link::of(server, 0, signals).expect("rings in their places"), memory, registered }
}
