//! The socket addresses of peers.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::net::{IpAddr, SocketAddr};

use rustc_hash::FxHasher;

use super::system::RawAddr;
use super::{Peer, UdpError};
use crate::spray::Entropy;
use crate::wire::udp::entropy_to_port;

type Map<K, V> = HashMap<K, V, BuildHasherDefault<FxHasher>>;

/// The peers that have other addresses and ports than those in frames.
pub(super) struct Peers {
    port: u16,
    places: Map<IpAddr, RawAddr>,
    /// By address and source port: the address and source port that frames show.
    names: Map<SocketAddr, (IpAddr, u16)>,
}

impl Peers {
    /// Peers that are all at `port` until they are entered.
    pub(super) fn new(port: u16) -> Peers {
        Peers { port, places: Map::default(), names: Map::default() }
    }

    pub(super) fn insert(&mut self, peer: &Peer) -> Result<(), UdpError> {
        let from = |port: &u16| SocketAddr::new(peer.socket.ip(), *port);
        let known = peer.sources.iter().any(|port| self.names.contains_key(&from(port)));
        if known || self.places.contains_key(&peer.ip) {
            return Err(UdpError::PeerTaken { ip: peer.ip, socket: peer.socket });
        }
        self.places.insert(peer.ip, RawAddr::new(peer.socket));
        for (entropy, port) in (0..).zip(&peer.sources) {
            self.names.insert(from(port), (peer.ip, entropy_to_port(Entropy(entropy))));
        }
        Ok(())
    }

    /// The address and port to which datagrams for `ip` are sent.
    #[inline]
    pub(super) fn place(&self, ip: IpAddr) -> RawAddr {
        let entered = if self.places.is_empty() { None } else { self.places.get(&ip) };
        entered.copied().unwrap_or_else(|| RawAddr::new(SocketAddr::new(ip, self.port)))
    }

    /// The address and source port that frames from `from` get.
    #[inline]
    pub(super) fn name(&self, from: SocketAddr) -> (IpAddr, u16) {
        let as_it_is = (from.ip(), from.port());
        if self.names.is_empty() {
            return as_it_is;
        }
        // The scope of a link-local sender is the interface that its datagram came through, not a part of its identity.
        self.names.get(&SocketAddr::new(from.ip(), from.port())).copied().unwrap_or(as_it_is)
    }
}
