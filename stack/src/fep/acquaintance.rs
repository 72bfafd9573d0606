//! What an endpoint would lose if its address book forgot a peer.
//!
//! Only the owner of an address book that forgets needs to know: others do not [watch](Fep::watch_peers).

use super::core::Core;
use super::{Fep, Map};
use crate::heap;
use crate::packet::Addr;

/// What would be lost if a peer was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Nothing. Anybody can have sent its packets: it has not shown that it gets what is sent to it, though it was asked if
    /// it opened a PDC.
    Unproven,
    /// Only that it was there: it has answered once, and has neither PDC nor connection now.
    Proven,
    /// Perhaps a connection: it has opened a PDC, has not named it by the PDCID that it got from here, and was not asked.
    Unasked,
    /// A connection, one way or the other, or the memory of one that has just been closed.
    InUse,
}

impl Standing {
    /// Whether the peer has a connection, or perhaps one.
    pub fn may_be_in_use(self) -> bool {
        self >= Standing::Unasked
    }
}

/// The peers of an endpoint whose address book forgets.
#[derive(Default)]
pub(super) struct Acquaintances {
    /// Peers of which nothing is to be said have no entry.
    peers: Map<Addr, Acquaintance>,
    /// Whether peers that have never shown that they are there are asked when they open a PDC.
    wary: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Acquaintance {
    /// Connections to it.
    connections: u32,
    /// PDCs that it has opened and named.
    proven_pdcs: u32,
    /// Half-open PDCs of it whose initiator is not asked.
    unasked_pdcs: u32,
    /// Whether it has ever named a PDC.
    proven: bool,
}

/// The state of a PDC that a peer has opened, as far as it tells something of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Its initiator has named it by the PDCID that it got from here.
    Given,
    /// Its initiator was asked when it was opened.
    Asked,
    /// Neither.
    None,
}

impl Acquaintances {
    fn change(&mut self, peer: Addr, change: impl FnOnce(&mut Acquaintance)) {
        let entry = self.peers.entry(peer).or_default();
        change(entry);
        if *entry == Acquaintance::default() {
            self.peers.remove(&peer);
        }
    }

    /// Whether the initiator of a new PDC of `peer` is to be asked whether it is there.
    pub(super) fn asks(&self, peer: Addr) -> bool {
        self.wary && !self.peers.get(&peer).is_some_and(|peer| peer.proven)
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        size_of::<Acquaintances>() as u64 + heap::of_map(&self.peers)
    }
}

impl Core {
    #[inline]
    fn note(&mut self, peer: Addr, change: impl FnOnce(&mut Acquaintance)) {
        if let Some(acquaintances) = &mut self.acquaintances {
            acquaintances.change(peer, change);
        }
    }

    /// A connection to `peer` was opened.
    pub(super) fn note_connected(&mut self, peer: Addr) {
        self.note(peer, |peer| peer.connections += 1);
    }

    /// A connection to `peer` is no more.
    pub(super) fn note_disconnected(&mut self, peer: Addr) {
        self.note(peer, |peer| peer.connections = peer.connections.saturating_sub(1));
    }

    /// `peer` has opened a PDC.
    pub(super) fn note_opened(&mut self, peer: Addr, proof: Proof) {
        self.note(peer, |peer| peer.unasked_pdcs += u32::from(proof == Proof::None));
    }

    /// `peer` has named a PDC of its own for the first time.
    #[cold]
    pub(super) fn note_proven(&mut self, peer: Addr, before: Proof) {
        self.note(peer, |peer| {
            peer.proven = true;
            peer.proven_pdcs += 1;
            peer.unasked_pdcs = peer.unasked_pdcs.saturating_sub(u32::from(before == Proof::None));
        });
    }

    /// A PDC that `peer` had opened is no more. The peer may have been forgotten meanwhile.
    pub(super) fn note_closed(&mut self, peer: Addr, proof: Proof) {
        self.note(peer, |peer| match proof {
            Proof::Given => peer.proven_pdcs = peer.proven_pdcs.saturating_sub(1),
            Proof::None => peer.unasked_pdcs = peer.unasked_pdcs.saturating_sub(1),
            Proof::Asked => {}
        });
    }
}

impl Fep {
    /// Keeps account of what peers would lose if they were forgotten ([`Fep::standing`]): for the owner of an address book
    /// that forgets, before there are packets and connections.
    pub fn watch_peers(&mut self) {
        self.core.acquaintances.get_or_insert_default();
    }

    /// What would be lost if `peer` was forgotten. Everything, unless the endpoint [watches](Fep::watch_peers) its peers.
    pub fn standing(&self, peer: Addr) -> Standing {
        let Some(acquaintances) = &self.core.acquaintances else { return Standing::InUse };
        let Some(known) = acquaintances.peers.get(&peer) else { return Standing::Unproven };
        // Until a closed PDC is forgotten, late copies of its packets must not open it again.
        let remembers = known.proven && self.target.pdcs.usage.remembers(peer);
        if known.connections > 0 || known.proven_pdcs > 0 || remembers {
            Standing::InUse
        } else if known.unasked_pdcs > 0 {
            Standing::Unasked
        } else if known.proven {
            Standing::Proven
        } else {
            Standing::Unproven
        }
    }

    /// The address book has forgotten `peer`, which was not [in use](Standing::InUse): another gets its place, under another
    /// address. Half-open PDCs of the peer end as those of a host that is not there, and it gets no more credit without a PDC.
    pub fn forget_peer(&mut self, peer: Addr) {
        if let Some(acquaintances) = &mut self.core.acquaintances {
            acquaintances.peers.remove(&peer);
        }
        if let Some(granter) = &mut self.target.granter {
            granter.forget(peer);
        }
    }

    /// Whether peers that have never shown that they are there are asked as soon as they open a PDC, as they may be
    /// forgotten soon if they do not.
    pub fn ask_new_peers(&mut self, wary: bool) {
        if let Some(acquaintances) = &mut self.core.acquaintances {
            acquaintances.wary = wary;
        }
    }
}
