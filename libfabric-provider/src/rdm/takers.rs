//! Receives and looks of the application that wait in the provider, in the order of the calls. They may be as many as receives are, so
//! what most turns ask, whether there is a look or one that was cancelled, is answered without going through all.

use std::collections::VecDeque;
use std::ops::Deref;

use weft::Found;

use super::backlog::Space;
use super::looks::Filter;

/// A receive, or a look of the application, that waits for its message or for its turn.
#[derive(Debug)]
pub(super) struct Taker {
    pub(super) number: usize,
    pub(super) filter: Filter,
    pub(super) kind: TakerKind,
    /// It ends unless a message is found for it just now.
    cancelled: bool,
}

#[derive(Debug)]
pub(super) enum TakerKind {
    Receive(Space),
    /// A look of the application, which ends if it finds nothing, and what it does with its message.
    Look(Found),
}

impl Taker {
    pub(super) fn new(number: usize, filter: Filter, kind: TakerKind) -> Taker {
        Taker { number, filter, kind, cancelled: false }
    }

    pub(super) fn is_look(&self) -> bool {
        matches!(self.kind, TakerKind::Look(_))
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled
    }
}

/// Those that wait, the first one first.
#[derive(Debug, Default)]
pub(super) struct Takers {
    all: VecDeque<Taker>,
    /// How many of them are looks, and how many were cancelled.
    looks: usize,
    cancelled: usize,
}

impl Deref for Takers {
    type Target = VecDeque<Taker>;

    fn deref(&self) -> &VecDeque<Taker> {
        &self.all
    }
}

impl Takers {
    fn count(&mut self, taker: &Taker) {
        self.looks += usize::from(taker.is_look());
        self.cancelled += usize::from(taker.cancelled);
    }

    pub(super) fn push_back(&mut self, taker: Taker) {
        self.count(&taker);
        self.all.push_back(taker);
    }

    pub(super) fn push_front(&mut self, taker: Taker) {
        self.count(&taker);
        self.all.push_front(taker);
    }

    pub(super) fn remove(&mut self, at: usize) -> Option<Taker> {
        let taker = self.all.remove(at)?;
        self.looks -= usize::from(taker.is_look());
        self.cancelled -= usize::from(taker.cancelled);
        Some(taker)
    }

    /// The receive with this number is to end. Returns whether it waits.
    pub(super) fn cancel(&mut self, number: usize) -> bool {
        let Some(receive) = self.all.iter_mut().find(|taker| taker.number == number && !taker.is_look())
        else {
            return false;
        };
        self.cancelled += usize::from(!std::mem::replace(&mut receive.cancelled, true));
        true
    }

    pub(super) fn has_looks(&self) -> bool {
        self.looks > 0
    }

    /// The place of the first look.
    pub(super) fn first_look(&self) -> Option<usize> {
        if self.looks > 0 { self.all.iter().position(Taker::is_look) } else { None }
    }

    /// The place of the first one that was cancelled.
    pub(super) fn first_cancelled(&self) -> Option<usize> {
        if self.cancelled > 0 { self.all.iter().position(Taker::is_cancelled) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use weft::Matching;

    use super::*;

    #[test]
    fn looks_and_receives_that_were_cancelled_are_found_until_they_are_removed() {
        let filter = Filter { from: None, matching: Matching::Untagged };
        let receive = |number| Taker::new(number, filter, TakerKind::Receive(Space::Several(9)));
        let look = |number| Taker::new(number, filter, TakerKind::Look(Found::Stays));
        let mut all = Takers::default();
        [receive(1), look(2), receive(3), look(4)].into_iter().for_each(|taker| all.push_back(taker));
        all.push_front(receive(0));
        assert!(all.has_looks() && all.first_look() == Some(2) && all.first_cancelled().is_none());
        // Looks are not cancelled, and nothing is twice.
        assert!(all.cancel(3) && all.cancel(3) && !all.cancel(2) && !all.cancel(9));
        assert_eq!(all.first_cancelled(), Some(3));
        assert_eq!(all.remove(2).map(|taker| taker.number), Some(2));
        assert_eq!((all.first_look(), all.first_cancelled()), (Some(3), Some(2)));
        let cancelled = all.remove(2).unwrap();
        assert!(cancelled.is_cancelled() && all.first_cancelled().is_none());
        all.push_back(cancelled);
        assert_eq!((all.first_look(), all.first_cancelled()), (Some(2), Some(3)));
        assert_eq!(all.remove(2).map(|taker| taker.number), Some(4));
        assert!(!all.has_looks() && all.first_look().is_none() && all.remove(3).is_none());
    }
}
