//! Queues of senders whose links lie in the senders themselves, so that one that leaves is taken out in one step, however
//! many wait.

use super::Sender;
use crate::SenderId;

/// The neighbours of a sender in the queue that it is in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Links {
    before: Option<SenderId>,
    behind: Option<SenderId>,
}

/// A queue of senders. A sender is in one queue at most.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    first: Option<SenderId>,
    last: Option<SenderId>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn first(&self) -> Option<SenderId> {
        self.first
    }

    /// Appends `id`, which is in no queue.
    pub(super) fn push_back(&mut self, senders: &mut [Sender], id: SenderId) {
        senders[id.0 as usize].links = Links { before: self.last, behind: None };
        match self.last {
            Some(last) => senders[last.0 as usize].links.behind = Some(id),
            None => self.first = Some(id),
        }
        self.last = Some(id);
    }

    pub(super) fn pop_front(&mut self, senders: &mut [Sender]) -> Option<SenderId> {
        let id = self.first?;
        self.remove(senders, id);
        Some(id)
    }

    /// Takes out `id`, which is in this queue.
    pub(super) fn remove(&mut self, senders: &mut [Sender], id: SenderId) {
        let Links { before, behind } = std::mem::take(&mut senders[id.0 as usize].links);
        match before {
            Some(before) => senders[before.0 as usize].links.behind = behind,
            None => self.first = behind,
        }
        match behind {
            Some(behind) => senders[behind.0 as usize].links.before = before,
            None => self.last = before,
        }
    }
}
