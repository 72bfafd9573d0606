//! What a process leaves behind when it is closed: there may be tens of thousands of receives and hundreds of thousands of
//! messages, which are dropped bit by bit.

use super::{Destination, HAND_OVER, Incoming, Kept, MessageName, Receives, Wait};
use crate::ses::Room;
use crate::ses::posted::PostedQueue;
use crate::table::Key;
use crate::wire::pds::PdcId;

/// What dropping a message counts for of which `bytes` were kept, in bytes touched: their pages go back, and nobody reads them.
pub(super) fn dropping(bytes: u64) -> u64 {
    HAND_OVER + bytes / 16
}

/// What looking at a slot counts for, which may have no message any more: its first cache line.
const LOOK_AT_SLOT: i64 = 64;

/// The memory of the table of messages goes back in blocks: of so many bytes the system gets one back while another is touched.
const GIVE_BACK: i64 = 4;

/// Messages and receives of a process that is closed.
#[derive(Debug)]
pub struct LeftBehind {
    /// The messages, for which there are no receives.
    receives: Receives,
    /// The receives, which no message meets any more.
    posted: PostedQueue,
    /// Those in slots before this one are dropped.
    next: u32,
}

impl Receives {
    /// From now on no message meets any of the receives.
    pub fn close(mut self) -> LeftBehind {
        let posted = std::mem::take(&mut self.posted);
        let receives = Receives { many: Default::default(), gathering: None, ..self };
        LeftBehind { receives, posted, next: 0 }
    }
}

impl LeftBehind {
    /// The messages that are still there, for which there are no receives.
    pub fn messages(&self) -> &Receives {
        &self.receives
    }

    /// Bytes of heap allocated for the receives, without their memory.
    pub(crate) fn posted_bytes(&self) -> u64 {
        self.posted.heap_bytes()
    }

    /// Bytes of the memory of receives and messages.
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.posted.payload_bytes() + self.receives.payload_bytes()
    }

    /// Drops receives and messages until that has touched `budget` bytes, which are taken from it. Hands the names of messages
    /// that have not arrived in full to `refuse`. Returns whether nothing is left.
    pub fn drop_some(
        &mut self,
        room: &mut Room,
        budget: &mut i64,
        mut refuse: impl FnMut(MessageName),
    ) -> bool {
        if !self.posted.drop_some(budget) {
            return false;
        }
        while self.receives.is_copying() && *budget > 0 {
            let Some((delivery, cost)) = self.receives.take_first_copy(room) else { break };
            drop(delivery);
            *budget -= (HAND_OVER + cost) as i64;
        }
        while !self.receives.messages.is_empty() || self.receives.is_copying() {
            if *budget <= 0 {
                return false;
            }
            let key = self.receives.messages.at(self.next).map(|(key, _)| key);
            self.next += 1;
            *budget -= LOOK_AT_SLOT;
            if let Some(message) = key.and_then(|key| self.take_out(room, key)) {
                *budget -= self.give_back(room, &message) as i64;
                if !message.is_complete() {
                    message.end_incomplete(room);
                    refuse(message.name);
                }
            }
        }
        loop {
            if *budget <= 0 {
                return false;
            }
            match self.receives.messages.give_back_some() as i64 / GIVE_BACK {
                0 => return true,
                touched => *budget -= touched,
            }
        }
    }

    fn take_out(&mut self, room: &mut Room, key: Key) -> Option<Incoming> {
        self.receives.unlist(room, key);
        self.receives.take_by_name(key)
    }

    /// Gives back what a message had that is dropped. Returns what dropping it costs, in bytes touched.
    fn give_back(&mut self, room: &mut Room, message: &Incoming) -> u64 {
        let receives = &mut self.receives;
        let (keeps, wait) = match &message.destination {
            Destination::Own { wait, buffer } => (buffer.is_some(), Some(*wait)),
            Destination::Partly(_) => (true, None),
            Destination::Receive { .. } | Destination::Nowhere => return dropping(0),
        };
        let bytes = if keeps { message.total.into() } else { 0 };
        if let Some(Wait::Receive(_)) = wait {
            // Nobody looks for it, so that the order does not matter in which they go.
            receives.unexpected.remove_any();
        }
        let unexpected = u32::from(wait.is_some_and(|wait| wait != Wait::Turn));
        receives.release(room, message.source, Kept { unexpected, bytes });
        dropping(bytes)
    }

    /// Forgets the incomplete messages of `pdc`, which is no more.
    pub fn forget(&mut self, room: &mut Room, pdc: PdcId) {
        // No receive is left that one of them could have met.
        drop(self.receives.abandon(room, pdc));
    }

    /// Whether packets of the message `name` may be missing.
    pub fn lacks(&self, name: MessageName) -> bool {
        self.receives.find(name).is_some()
    }
}
