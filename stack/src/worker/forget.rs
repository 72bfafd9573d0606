//! Room in a full address book: a peer that nobody needs is forgotten.

use super::{AddressBook, BookError, Worker};
use crate::fep::Fep;
use crate::occurrences::is_logged;
use crate::packet::Addr;
use crate::port::Port;

impl<P: Port> Worker<P> {
    /// An address for one more peer. If the book is full, a peer is forgotten that the book [learnt](super::Strangers::Learn),
    /// or that applications of [sessions](super::session) have added and do not need any more: of those that have never
    /// shown that they get what is sent to them, the one that came first; only without any, one that has shown it, and has
    /// neither PDC nor connection.
    ///
    /// # Errors
    /// The book is full of peers that have to stay.
    pub fn free_addr(&mut self) -> Result<Addr, BookError> {
        match self.book.free() {
            Err(BookError::Full { .. }) if self.make_room() => self.book.free(),
            found => found,
        }
    }

    /// Forgets a peer, so that there is room for another. Returns whether one could be forgotten.
    #[cold]
    pub(super) fn make_room(&mut self) -> bool {
        let Some((peer, ip)) = self.book.forget_one(|peer| self.fep.standing(peer)) else { return false };
        self.fep.forget_peer(peer);
        self.neighbours.forget(peer);
        self.expected.forget(peer, ip);
        self.port.forget_peer(ip);
        self.counters.forgotten += 1;
        if is_logged(self.counters.forgotten) {
            let (count, peer) = (self.counters.forgotten, peer.0);
            tracing::info!(count, peer, %ip, "a peer was forgotten, to make room for another");
        }
        true
    }

    /// The stranger `peer` has just been entered in the book.
    #[cold]
    pub(super) fn welcome(port: &mut P, fep: &mut Fep, book: &AddressBook, peer: Addr) {
        if let Some(ip) = book.ip(peer) {
            port.keep_peer(ip);
        }
        fep.ask_new_peers(book.is_crowded());
    }
}
