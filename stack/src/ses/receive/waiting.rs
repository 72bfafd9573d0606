//! Messages that wait for receives, as applications see them: they may look at one, claim it for a later receive, or
//! discard it.

use super::dropping::dropping;
use super::{Destination, Incoming, Kept, Receives, Wait};
use crate::ses::{Delivery, Matching, Posted, Room, Source};
use crate::table::Key;

/// A message that waits for a receive. Parts of it may not have arrived yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The sender.
    pub source: Source,
    /// The tag, if the message has one.
    pub tag: Option<u64>,
    /// The sender's 64 bits of header data.
    pub header_data: u64,
    /// Length of the message, bytes.
    pub len: u32,
}

/// Names a message that was claimed, among those of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim(pub(crate) Key);

impl Claim {
    /// The claim as a number.
    pub fn to_bits(self) -> u64 {
        u64::from(self.0.index) | u64::from(self.0.generation) << 32
    }

    /// The claim with this number. One that nobody has made is refused where it is used.
    pub fn from_bits(bits: u64) -> Claim {
        Claim(Key { index: bits as u32, generation: (bits >> 32) as u32 })
    }
}

impl Receives {
    /// The first message that waits for a receive like this.
    #[inline]
    pub(super) fn first_waiting(&mut self, from: Option<Source>, matching: Matching) -> Option<Key> {
        self.unexpected.find(&self.messages, from, matching)
    }

    /// Looks for the first message that waits for a receive like this, until that has touched `budget` bytes, which are
    /// taken from it. Returns whether the search is over: if so, a receive or a look like this has little to do, and
    /// otherwise the next call goes on.
    pub fn look_ahead(&mut self, from: Option<Source>, matching: Matching, budget: &mut i64) -> bool {
        self.unexpected.look_ahead(from, matching, budget)
    }

    /// The first message that waits for a receive like this. It stays where it is.
    ///
    /// If the packet with its header data has not arrived, there is none yet: those behind it are not looked at, since it
    /// is the one that a receive would get.
    pub fn peek(&mut self, from: Option<Source>, matching: Matching) -> Option<Waiting> {
        self.first_known(from, matching).map(|(_, waiting)| waiting)
    }

    fn first_known(&mut self, from: Option<Source>, matching: Matching) -> Option<(Key, Waiting)> {
        let key = self.first_waiting(from, matching)?;
        let message = self.messages.get(key).filter(|message| message.has_header_data)?;
        let Incoming { source, tag, header_data, total: len, .. } = *message;
        Some((key, Waiting { source, tag, header_data, len }))
    }

    /// As [`Receives::peek`]; no other receive gets the message from now on. It keeps what it has of its sender's room.
    pub fn claim(&mut self, from: Option<Source>, matching: Matching) -> Option<(Claim, Waiting)> {
        let (key, waiting) = self.first_known(from, matching)?;
        let message = self.messages.get_mut(key)?;
        if let Destination::Own { wait, .. } = &mut message.destination
            && let Wait::Receive(arrival) = std::mem::replace(wait, Wait::Claimed)
        {
            let places = message.places;
            self.unexpected.remove(&mut self.messages, places, arrival, waiting.source, waiting.tag);
        }
        Some((Claim(key), waiting))
    }

    /// Whether the message of `claim` is still there: it is not once it was received or discarded, or its sender was lost
    /// in the middle of it.
    pub fn is_claimed(&self, claim: Claim) -> bool {
        let message = self.messages.get(claim.0);
        message.is_some_and(|m| matches!(m.destination, Destination::Own { wait: Wait::Claimed, .. }))
    }

    /// Gives a message that was claimed to a receive. Returns it if it is complete, unless it is to be copied in pieces.
    ///
    /// # Errors
    /// It is not there any more.
    pub fn receive_claimed(
        &mut self,
        room: &mut Room,
        claim: Claim,
        posted: Posted,
    ) -> Result<Option<Delivery>, Posted> {
        match self.is_claimed(claim) {
            true => Ok(self.hand_over_to(room, claim.0, posted)),
            false => Err(posted),
        }
    }

    /// Drops a message that was claimed, also what has not arrived of it. False if it is not there any more.
    pub fn discard(&mut self, room: &mut Room, claim: Claim) -> bool {
        if !self.is_claimed(claim) {
            return false;
        }
        let Some(message) = self.messages.get_mut(claim.0) else { return false };
        let kept = matches!(message.destination, Destination::Own { buffer: Some(_), .. });
        let share = Kept { unexpected: 1, bytes: if kept { message.total.into() } else { 0 } };
        let (source, complete) = (message.source, message.is_complete());
        message.destination = Destination::Nowhere;
        room.touched += dropping(share.bytes);
        self.release(room, source, share);
        if complete {
            // It has met no receive, so that nothing is delivered.
            let _ = self.finish(room, claim.0);
        }
        true
    }
}
