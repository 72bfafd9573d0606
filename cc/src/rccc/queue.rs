//! Queues of senders in which peers take turns, and the senders of each. Their links lie in senders and peers themselves, so
//! that one that leaves is taken out in one step, however many wait.

use super::Sender;
use crate::SenderId;

/// The neighbours of a sender or a peer in the queue that it is in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Links {
    before: Option<u32>,
    behind: Option<u32>,
}

/// A sender or a peer, which keeps the links of its own place in a queue. Queues name it by its index.
trait Linked {
    fn links(&mut self) -> &mut Links;
}

impl Linked for Sender {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// A peer of which senders wait, or may wait.
#[derive(Clone, Debug, Default)]
struct Peer {
    /// Its senders that wait.
    senders: Queue,
    links: Links,
}

impl Linked for Peer {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// Senders that wait for their turns. A sender is in one of the sets once at most.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    /// The peers of which senders wait.
    order: Queue,
    peers: Vec<Peer>,
}

impl Turns {
    pub(super) fn is_empty(&self) -> bool {
        self.order.first.is_none()
    }

    /// Gives the room for peers back if no sender waits. A queue that runs empty keeps it otherwise: senders come back soon.
    pub(super) fn release(&mut self) {
        if self.is_empty() {
            self.peers = Vec::new();
        }
    }

    /// Number of peers that there is room for.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.peers.capacity()
    }

    /// The sender whose turn it is.
    pub(super) fn first(&self) -> Option<SenderId> {
        self.peers[self.order.first? as usize].senders.first.map(SenderId)
    }

    /// Appends `id`, which waits nowhere, to the senders of its peer.
    pub(super) fn push_back(&mut self, senders: &mut [Sender], id: SenderId) {
        let peer = senders[id.0 as usize].peer;
        if peer as usize >= self.peers.len() {
            self.peers.resize_with(peer as usize + 1, Peer::default);
        }
        if self.peers[peer as usize].senders.first.is_none() {
            self.order.push_back(&mut self.peers, peer);
        }
        self.peers[peer as usize].senders.push_back(senders, id.0);
    }

    /// Takes the sender whose turn it is. Its peer waits for the next turn if it has others.
    pub(super) fn pop_front(&mut self, senders: &mut [Sender]) -> Option<SenderId> {
        let peer = self.order.first?;
        let id = self.peers[peer as usize].senders.first?;
        self.peers[peer as usize].senders.remove(senders, id);
        self.order.remove(&mut self.peers, peer);
        if self.peers[peer as usize].senders.first.is_some() {
            self.order.push_back(&mut self.peers, peer);
        }
        Some(SenderId(id))
    }

    /// Takes out `id`, which is in here.
    pub(super) fn remove(&mut self, senders: &mut [Sender], id: SenderId) {
        let peer = senders[id.0 as usize].peer;
        self.peers[peer as usize].senders.remove(senders, id.0);
        if self.peers[peer as usize].senders.first.is_none() {
            self.order.remove(&mut self.peers, peer);
        }
    }
}

/// A queue of senders or of peers. Its calls get all of them as `nodes`, in which the links are kept.
#[derive(Clone, Debug, Default)]
struct Queue {
    first: Option<u32>,
    last: Option<u32>,
}

impl Queue {
    /// Appends `id`, which is in no queue.
    fn push_back(&mut self, nodes: &mut [impl Linked], id: u32) {
        *nodes[id as usize].links() = Links { before: self.last, behind: None };
        match self.last {
            Some(last) => nodes[last as usize].links().behind = Some(id),
            None => self.first = Some(id),
        }
        self.last = Some(id);
    }

    /// Takes out `id`, which is in this queue.
    fn remove(&mut self, nodes: &mut [impl Linked], id: u32) {
        let Links { before, behind } = std::mem::take(nodes[id as usize].links());
        match before {
            Some(before) => nodes[before as usize].links().behind = behind,
            None => self.first = behind,
        }
        match behind {
            Some(behind) => nodes[behind as usize].links().before = before,
            None => self.last = before,
        }
    }
}
