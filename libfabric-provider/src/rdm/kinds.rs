//! The kinds of receives that a server has of this endpoint: masks of ignored bits of tags, with or without a sender. It looks a
//! message up once for each, and so takes a limited number of them; receives of further kinds wait in the provider, as those do
//! that wait for memory.

use std::collections::HashMap;

use weft::Matching;

use super::looks::Filter;

/// Kinds that the server has at most: two fewer than it takes, which are those of requests and answers.
const MOST: usize = 62;

/// A kind: whether receives of it name their sender, and the bits of tags that they ignore; none for those without tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    pub(super) from_one: bool,
    pub(super) ignore: Option<u64>,
}

/// Which of the tags of receives that ignore the same bits a filter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tags {
    None,
    /// At most this tag; `None` stands for messages without a tag.
    One(Option<u64>),
    Several,
}

impl Filter {
    pub(super) fn kind(self) -> Kind {
        let ignore = match self.matching {
            Matching::Untagged => None,
            Matching::Tagged { ignore, .. } => Some(ignore),
        };
        Kind { from_one: self.from.is_some(), ignore }
    }

    /// The tag, without the bits that are ignored.
    pub(super) fn tag(self) -> Option<u64> {
        match self.matching {
            Matching::Untagged => None,
            Matching::Tagged { tag, ignore } => Some(tag & !ignore),
        }
    }

    /// Which tags it takes of receives that ignore these bits; none for those without tags.
    pub(super) fn tags_of(self, ignore: Option<u64>) -> Tags {
        match (self.matching, ignore) {
            (Matching::Untagged, None) => Tags::One(None),
            (Matching::Tagged { tag, ignore: own }, Some(ignore)) if own & !ignore == 0 => {
                Tags::One(Some(tag & !ignore))
            }
            (Matching::Tagged { .. }, Some(_)) => Tags::Several,
            _ => Tags::None,
        }
    }
}

/// How many receives of each kind the server has.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    each: HashMap<Kind, u32>,
    total: usize,
}

impl Kinds {
    /// Whether one of this kind has to wait.
    pub(super) fn is_full_for(&self, kind: Kind) -> bool {
        self.each.len() >= MOST && !self.each.contains_key(&kind)
    }

    /// Receives of all kinds.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.each.len()
    }

    pub(super) fn begin(&mut self, kind: Kind) {
        *self.each.entry(kind).or_default() += 1;
        self.total += 1;
    }

    pub(super) fn end(&mut self, kind: Kind) {
        if let Some(count) = self.each.get_mut(&kind) {
            *count -= 1;
            self.total -= 1;
            if *count == 0 {
                self.each.remove(&kind);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(ignore: u64) -> Kind {
        Filter { from: None, matching: Matching::Tagged { tag: 0, ignore } }.kind()
    }

    #[test]
    fn there_is_room_for_a_kind_when_the_last_receive_of_another_has_ended() {
        let mut kinds = Kinds::default();
        for ignore in 0..MOST as u64 {
            assert!(!kinds.is_full_for(kind(ignore)));
            (0..2).for_each(|_| kinds.begin(kind(ignore)));
        }
        assert!(!kinds.is_full_for(kind(3)) && kinds.is_full_for(kind(99)));
        kinds.end(kind(5));
        assert!(kinds.is_full_for(kind(99)));
        assert_eq!(kinds.total(), 2 * MOST - 1);
        kinds.end(kind(5));
        kinds.end(kind(5));
        assert_eq!(kinds.total(), 2 * MOST - 2, "one that is not there ends");
        assert!(!kinds.is_full_for(kind(99)));
        kinds.begin(kind(99));
        assert!(kinds.is_full_for(Filter { from: None, matching: Matching::Untagged }.kind()));
    }
}
