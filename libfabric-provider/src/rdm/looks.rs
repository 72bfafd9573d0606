//! How receives that wait here for a server's memory find their messages.
//!
//! Such a receive looks for its message again and again, and claims it. It gets the one that it would have got
//! from the server: all receives there that take the same message were posted before it, and a claimed message goes to the
//! first receive here that takes it.

use std::time::{Duration, Instant};

use weft::{Claim, Error, Found, Matching, ReceiveOptions, Source, Waiting};

use super::State;
use super::backlog::Backlog;
use crate::error::FiError;

/// The context of looks at messages that wait. No operation has this number.
pub(super) const LOOK: u64 = u64::MAX;
/// How long a server takes at most to answer a command.
const ANSWER: Duration = Duration::from_secs(1);
/// How long after the end of a round of looks the next one begins, if nothing has ended meanwhile.
const PAUSE: Duration = Duration::from_micros(200);

/// The messages that a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) from: Option<Source>,
    pub(super) matching: Matching,
}

impl Filter {
    /// Whether there can be a message that both take.
    pub(super) fn meets(self, other: Filter) -> bool {
        let senders = match (self.from, other.from) {
            (Some(one), Some(two)) => one == two,
            _ => true,
        };
        let tags = match (self.matching, other.matching) {
            (Matching::Untagged, Matching::Untagged) => true,
            (Matching::Tagged { tag, ignore }, Matching::Tagged { tag: their, ignore: theirs }) => {
                (tag ^ their) & !(ignore | theirs) == 0
            }
            _ => false,
        };
        senders && tags
    }

    pub(super) fn takes(self, message: &Waiting) -> bool {
        let matching = match message.tag {
            None => Matching::Untagged,
            Some(tag) => Matching::Tagged { tag, ignore: 0 },
        };
        self.meets(Filter { from: Some(message.source), matching })
    }

    pub(super) fn options(self) -> ReceiveOptions {
        let mut options = ReceiveOptions::default();
        (options.matching, options.from) = (self.matching, self.from);
        options
    }
}

/// A look for a message of a receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    filter: Filter,
    found: Found,
}

impl Backlog {
    /// The receive to look for next, and how. Receives with the filter of an earlier one need no look of their own.
    fn next_look(&mut self) -> Option<Look> {
        while let Some(receive) = self.receives.get(self.next) {
            let earlier = self.receives.range(..self.next).map(|earlier| earlier.filter);
            let filter = receive.filter;
            self.next += 1;
            if earlier.clone().any(|other| other == filter) {
                continue;
            }
            // What an earlier one takes as well is not claimed in its stead.
            let shared = earlier.clone().any(|other| other.meets(filter));
            return Some(Look { filter, found: if shared { Found::Stays } else { Found::IsClaimed } });
        }
        None
    }

    /// Whether the next round of looks is due.
    fn may_look(&self) -> bool {
        // A claimed message that waits for memory lets no other one be claimed.
        self.look.is_none()
            && self.others == 0
            && !self.yields
            && !self.receives.is_empty()
            && self.claimed.is_empty()
            && (self.next > 0 || self.rests.is_none_or(|since| since.elapsed() >= PAUSE))
    }
}

impl State {
    /// Works until no look of a receive is under way, so that one of the application can begin.
    ///
    /// # Errors
    /// [`FiError::AGAIN`] if that lasts for longer than the server's answer to one command.
    pub(super) fn end_looks(&mut self, names_source: bool) -> Result<(), FiError> {
        let begin = Instant::now();
        self.backlog.yields = true;
        let mut worked = Ok(());
        while worked.is_ok() && self.backlog.look.is_some() {
            worked = if begin.elapsed() < ANSWER { self.work(names_source) } else { Err(FiError::AGAIN) };
        }
        self.backlog.yields = false;
        worked
    }

    /// Looks for the message of the next receive, if that is due.
    pub(super) fn look(&mut self) -> Result<(), FiError> {
        if !self.backlog.may_look() {
            return Ok(());
        }
        match self.backlog.next_look() {
            Some(look) => self.begin_look(look),
            None => {
                (self.backlog.next, self.backlog.rests) = (0, Some(Instant::now()));
                Ok(())
            }
        }
    }

    fn begin_look(&mut self, look: Look) -> Result<(), FiError> {
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        match endpoint.peek(look.filter.options().context(LOOK), look.found) {
            Ok(_) => self.backlog.look = Some(look),
            Err(error) if error.is_back_pressure() => self.backlog.next = 0,
            Err(error) => return Err(FiError::from(&error)),
        }
        Ok(())
    }

    /// A look has ended.
    pub(super) fn looked(
        &mut self,
        found: Result<Option<Waiting>, Error>,
        claim: Option<Claim>,
    ) -> Result<(), FiError> {
        let Some(look) = self.backlog.look.take() else { return Ok(()) };
        match (found.ok().flatten(), claim) {
            (Some(message), Some(claim)) => {
                // The receives that it was found for are there: none goes while a look is under way.
                if !self.backlog.hand_over(&message, Some(claim), u64::MAX)
                    && let Some(endpoint) = &mut self.endpoint
                {
                    let _ = endpoint.discard(claim);
                }
                self.backlog.next = 0;
            }
            (Some(message), None) => {
                let first = self.backlog.receives.iter().find(|receive| receive.filter.takes(&message));
                if first.is_some_and(|receive| receive.filter == look.filter) {
                    return self.begin_look(Look { found: Found::IsClaimed, ..look });
                }
            }
            (None, _) => {}
        }
        self.end_cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::super::backlog::Space;
    use super::*;

    fn filter(from: Option<u16>, tag: u64, ignore: u64) -> Filter {
        let from = from.map(|process| Source { peer: weft::Addr(1), process });
        Filter { from, matching: Matching::Tagged { tag, ignore } }
    }

    #[test]
    fn filters_meet_if_a_message_fits_both() {
        let any = filter(None, 0, u64::MAX);
        assert!(any.meets(filter(Some(1), 7, 0)) && filter(Some(1), 7, 0).meets(any));
        assert!(!filter(Some(1), 7, 0).meets(filter(Some(2), 7, 0)));
        assert!(
            !filter(None, 7, 0).meets(filter(None, 8, 0)) && filter(None, 7, 0).meets(filter(None, 8, 15))
        );
        assert!(!any.meets(Filter { from: None, matching: Matching::Untagged }));
        let source = Source { peer: weft::Addr(1), process: 3 };
        let message = Waiting { source, tag: Some(0x17), header_data: 0, len: 5 };
        assert!(filter(Some(3), 0x10, 0xf).takes(&message) && !filter(Some(4), 0x10, 0xf).takes(&message));
    }

    #[test]
    fn receives_are_looked_for_once_and_what_earlier_ones_take_is_not_claimed() {
        let mut backlog = Backlog::default();
        let filters =
            [filter(Some(1), 5, 0), filter(Some(1), 5, 0), filter(None, 5, 0), filter(Some(2), 6, 0)];
        for (number, filter) in filters.into_iter().enumerate() {
            backlog.defer_receive(number, filter, Space::Several(9));
        }
        let looks: Vec<_> =
            std::iter::from_fn(|| backlog.next_look()).map(|look| (look.filter, look.found)).collect();
        let claims = |n: usize| (filters[n], Found::IsClaimed);
        assert_eq!(looks, [claims(0), (filters[2], Found::Stays), claims(3)]);
    }
    #[test]
    fn a_look_leaves_receives_where_they_are_and_minds_those_before_it_only() {
        let mut backlog = Backlog::default();
        backlog.defer_receive(0, filter(None, 5, 0), Space::Several(9));
        let source = Source { peer: weft::Addr(1), process: 3 };
        let message = Waiting { source, tag: Some(5), header_data: 0, len: 5 };
        assert!(!backlog.hand_over(&message, None, 0), "the look was there before the receive");
        assert!(backlog.hand_over(&message, None, backlog.deferred()) && backlog.looks());
    }
}
