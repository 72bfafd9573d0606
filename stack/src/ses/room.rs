//! The room for messages that have met no receive: what an endpoint has of it, and what each process and peer may take.

use super::Map;
use crate::heap;
use crate::ledger::Shares;
use crate::packet::Addr;

/// What there is and what is taken of it, of all processes of an endpoint together.
#[derive(Clone, Debug)]
pub struct Room {
    /// Bytes of payload kept of one sender's messages to one process.
    pub(super) bytes_per_peer: u64,
    /// Number of one sender's messages to one process.
    pub(super) messages_per_peer: u32,
    /// Messages of all senders, by process.
    pub(super) messages: Shares<u16>,
    /// Bytes of payload of all senders' messages, by process.
    pub(super) bytes: Shares<u16>,
    /// Places reserved for each peer's early messages, and for those before them, which may be for any process.
    pub(super) early: Map<Addr, u32>,
    /// The sum of these.
    pub(super) all_early: u32,
    /// What handing messages over to receives that came later, and dropping messages, has cost so far, in bytes touched.
    pub(super) touched: u64,
}

impl Room {
    /// Room for so many messages and bytes of up to `processes` processes, and for those of one peer to one process.
    pub fn new(processes: usize, all: (usize, u64), per_peer: (u32, u64)) -> Room {
        let ((messages, bytes), processes) = (all, processes as u64);
        Room {
            bytes_per_peer: per_peer.1,
            messages_per_peer: per_peer.0,
            messages: Shares::new(messages as u64, processes),
            bytes: Shares::new(bytes, processes),
            early: Map::default(),
            all_early: 0,
            touched: 0,
        }
    }

    /// Whether `peer`, of whom `process` has `unexpected` messages already, may have so many `more` there.
    pub(super) fn has_messages(&self, process: u16, peer: Addr, unexpected: u32, more: u32) -> bool {
        let wanted = u64::from(unexpected) + u64::from(self.early_of(peer)) + u64::from(more);
        wanted <= self.messages_per_peer.into() && is_fair(&self.messages, process, wanted, more.into())
    }

    /// Takes `more` bytes for a message of `peer`, of whom `process` has `kept` bytes already. False, and nothing
    /// changes, if it may not have them.
    pub(super) fn take_bytes(&mut self, process: u16, kept: u64, more: u64) -> bool {
        let fits = kept.checked_add(more).is_some_and(|wanted| {
            wanted <= self.bytes_per_peer && is_fair(&self.bytes, process, wanted, more)
        });
        fits && self.bytes.take(process, more)
    }

    fn early_of(&self, peer: Addr) -> u32 {
        self.early.get(&peer).copied().unwrap_or(0)
    }

    /// Reserves `places` for early messages of `peer`. False, and nothing changes, if others would have too few left.
    pub(crate) fn reserve(&mut self, peer: Addr, places: u32) -> bool {
        let may = u64::from(places) <= self.messages.rest(self.all_early.into());
        if may && places > 0 {
            self.messages.take_of_rest(places.into());
            self.all_early += places;
            *self.early.entry(peer).or_default() += places;
        }
        may
    }

    /// Gives reserved places back.
    pub(crate) fn give_back(&mut self, peer: Addr, places: u32) {
        let Some(early) = self.early.get_mut(&peer).filter(|_| places > 0) else { return };
        *early -= places;
        if *early == 0 {
            self.early.remove(&peer);
        }
        self.all_early -= places;
        self.messages.give_back_of_rest(places.into());
    }

    /// What it has cost so far to hand messages over to receives that came later, and to drop messages, in bytes touched.
    pub(crate) fn touched(&self) -> u64 {
        self.touched
    }

    /// Checks the accounts of room for so many messages and bytes of up to `processes` processes.
    #[cfg(test)]
    pub(crate) fn check(&self, processes: usize, all: (usize, u64)) {
        self.messages.check(all.0 as u64, processes as u64, self.all_early.into());
        self.bytes.check(all.1, processes as u64, 0);
        assert_eq!(self.early.values().sum::<u32>(), self.all_early);
    }

    /// What the processes have together: messages, bytes, and places reserved for early messages.
    #[cfg(test)]
    pub(crate) fn used(&self) -> (u64, u64, u32) {
        (self.messages.used_by_all(), self.bytes.used_by_all(), self.all_early)
    }

    /// Bytes of heap allocated.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.messages.heap_bytes() + self.bytes.heap_bytes() + heap::of_map(&self.early)
    }
}

/// Whether a peer may have `more`, and `wanted` with it, of what `process` may have: it takes no more than it leaves,
/// rounded up.
fn is_fair(shares: &Shares<u16>, process: u16, wanted: u64, more: u64) -> bool {
    let available = shares.available(process);
    more <= available && wanted <= available - more + 1
}
