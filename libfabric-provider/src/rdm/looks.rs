//! How receives that wait here for a server's memory find their messages, and how looks of the application that may not
//! overtake them do ([decision 0104](../../../docs/decisions/0104-looks-wait-behind-receives.md)).
//!
//! Each message belongs to the first that waits here and takes it: all receives in the server that take it were posted before
//! those. A look of its own finds the first message of one that waits. If that belongs to an earlier one, that is looked for next.
//! If it does not, it is claimed by its sender and tag, so that whatever is claimed belongs to the same one.

use std::time::{Duration, Instant};

use weft::{Claim, Found, Matching, ReceiveOptions, Source, Waiting};

use super::State;
use super::backlog::{Backlog, Way};
use super::takers::{Taker, TakerKind};
use crate::error::FiError;

/// The context of looks for what waits here. No operation has this number.
pub(super) const LOOK: u64 = u64::MAX;
/// How long after the end of a round of looks the next one begins, if nothing has ended meanwhile.
const PAUSE: Duration = Duration::from_micros(200);

/// The messages that a receive takes, or a look finds.
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

    /// What takes messages of the sender and the tag of `message` only.
    fn like(message: &Waiting) -> Filter {
        let matching = match message.tag {
            None => Matching::Untagged,
            Some(tag) => Matching::Tagged { tag, ignore: 0 },
        };
        Filter { from: Some(message.source), matching }
    }

    pub(super) fn options(self) -> ReceiveOptions {
        let mut options = ReceiveOptions::default();
        (options.matching, options.from) = (self.matching, self.from);
        options
    }
}

/// A look for a message of the one that waits with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    number: usize,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Which one is its first?
    Seeks,
    /// It is claimed, or discarded.
    Takes,
}

impl Backlog {
    /// The number of the next to look for. Receives with the filter of an earlier one need no look of their own.
    pub(super) fn next_look(&mut self) -> Option<usize> {
        if let Some(due) = self.due.take()
            && self.takers.get(due).is_some()
        {
            return Some(due);
        }
        // The application waits for the end of its looks.
        if let Some(number) = self.takers.first_look() {
            return Some(number);
        }
        while let Some((place, number, is_first)) = self.takers.from(self.next) {
            self.next = place + 1;
            if is_first {
                return Some(number);
            }
        }
        None
    }

    /// Whether the next look is due.
    fn may_look(&self) -> bool {
        let rests = self.next == 0 && self.rests.is_some_and(|since| since.elapsed() < PAUSE);
        self.look.is_none()
            && !self.takers.is_empty()
            && !rests
            // While a claimed message waits for memory, others are claimed only if a look of the application waits for that.
            && (self.claimed.is_empty() || self.takers.has_looks())
    }

    /// The number of the one to which a message belongs.
    fn owner_of(&self, message: &Waiting) -> Option<usize> {
        self.takers.owner_of(Filter::like(message))
    }

    /// What the one with this number does with its message; none if it does not wait.
    fn wants(&self, number: usize) -> Option<Found> {
        let taker = self.takers.get(number)?;
        Some(if let TakerKind::Look(found) = taker.kind { found } else { Found::IsClaimed })
    }
}

impl State {
    /// Looks for the message of the next that waits, if that is due.
    pub(super) fn look(&mut self) -> Result<(), FiError> {
        if !self.backlog.may_look() {
            return Ok(());
        }
        let next = self.backlog.next_look().and_then(|number| self.backlog.takers.get(number));
        match next.map(|taker| (taker.number, taker.filter)) {
            Some((number, filter)) => {
                self.begin_look(Look { number, stage: Stage::Seeks }, filter, Found::Stays)
            }
            None => {
                (self.backlog.next, self.backlog.rests) = (0, Some(Instant::now()));
                Ok(())
            }
        }
    }

    fn begin_look(&mut self, look: Look, filter: Filter, found: Found) -> Result<(), FiError> {
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        match endpoint.peek(filter.options().context(LOOK), found) {
            Ok(_) => self.backlog.look = Some(look),
            Err(error) if error.is_back_pressure() => self.backlog.next = 0,
            Err(error) => return Err(FiError::from(&error)),
        }
        Ok(())
    }

    /// A look has ended.
    pub(super) fn looked(
        &mut self,
        found: Result<Option<Waiting>, FiError>,
        claim: Option<Claim>,
        names_source: bool,
    ) -> Result<(), FiError> {
        let Some(Look { number, stage }) = self.backlog.look.take() else { return Ok(()) };
        match (stage, found) {
            (Stage::Seeks, Ok(Some(message))) => self.has_seen(number, &message, names_source)?,
            (Stage::Takes, Ok(Some(message))) => self.has_found(number, &message, claim, names_source)?,
            // Its sender was lost just now: there may be another one.
            (Stage::Takes, Ok(None)) => {}
            (_, found) => {
                if self.backlog.takers.get(number).is_some_and(Taker::is_look) {
                    self.backlog.takers.remove(number);
                    self.backlog.next = 0;
                    self.end_peek(number, found, None, names_source)?;
                }
            }
        }
        self.end_cancelled()
    }

    /// The first message of the one that waits with this number is there.
    fn has_seen(&mut self, number: usize, message: &Waiting, names_source: bool) -> Result<(), FiError> {
        let owner = self.backlog.owner_of(message);
        if owner != Some(number) {
            // Its own first message may be another one.
            self.backlog.due = owner;
            return Ok(());
        }
        match self.backlog.wants(number) {
            Some(Found::Stays) => self.has_found(number, message, None, names_source),
            Some(found) => {
                self.begin_look(Look { number, stage: Stage::Takes }, Filter::like(message), found)
            }
            None => Ok(()),
        }
    }

    /// The one that waits with this number has got its message.
    fn has_found(
        &mut self,
        number: usize,
        message: &Waiting,
        claim: Option<Claim>,
        names_source: bool,
    ) -> Result<(), FiError> {
        let Some(taker) = self.backlog.takers.remove(number) else { return Ok(()) };
        self.backlog.next = 0;
        match (taker.kind, claim) {
            (TakerKind::Receive(room), Some(claim)) => {
                let stands = self.is_stand_in(message);
                self.backlog.claim(number, room, claim, message, stands);
                Ok(())
            }
            // The stack claims what it was asked to claim.
            (TakerKind::Receive(_), None) => self.fail(number, Way::In, FiError::OTHER),
            (TakerKind::Look(_), claim) => self.end_peek(number, Ok(Some(*message)), claim, names_source),
        }
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
        let message = Filter::like(&message(3, 0x17));
        assert!(filter(Some(3), 0x10, 0xf).meets(message) && !filter(Some(4), 0x10, 0xf).meets(message));
    }

    fn message(process: u16, tag: u64) -> Waiting {
        let source = Source { peer: weft::Addr(1), process };
        Waiting { source, tag: Some(tag), header_data: 0, len: 5 }
    }

    #[test]
    fn receives_with_one_filter_are_looked_for_once_and_looks_of_the_application_first() {
        let mut backlog = Backlog::default();
        let filters =
            [filter(Some(1), 5, 0), filter(Some(1), 5, 0), filter(None, 5, 0), filter(Some(2), 6, 0)];
        for (number, filter) in filters.into_iter().enumerate() {
            backlog.defer_receive(number, filter, Space::Several(9));
        }
        assert!(std::iter::from_fn(|| backlog.next_look()).eq([0, 2, 3]));
        backlog.next = 0;
        assert_eq!(backlog.next_look(), Some(0));
        backlog.defer_look(4, filters[0], Found::Stays);
        assert_eq!([backlog.next_look(), backlog.next_look()], [Some(4); 2]);
        backlog.due = Some(1);
        assert_eq!([backlog.next_look(), backlog.next_look()], [Some(1), Some(4)]);
    }

    #[test]
    fn a_message_belongs_to_the_first_that_waits_and_takes_it() {
        let mut backlog = Backlog::default();
        backlog.defer_receive(10, filter(Some(3), 5, 0), Space::Several(9));
        backlog.defer_look(11, filter(None, 0, u64::MAX), Found::IsDiscarded);
        backlog.defer_receive(12, filter(None, 5, 0), Space::Several(9));
        let owners = [message(3, 5), message(4, 5), message(3, 6)].map(|message| backlog.owner_of(&message));
        assert_eq!(owners, [Some(10), Some(11), Some(11)]);
        assert_eq!(
            [10, 11, 13].map(|n| backlog.wants(n)),
            [Some(Found::IsClaimed), Some(Found::IsDiscarded), None]
        );
    }
}
