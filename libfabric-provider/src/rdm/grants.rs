//! How much senders at ports of their own may have here that nobody has received: what a target without a server grants those that
//! ask, so that all of them together never fill it
//! ([decision 0142](../../../docs/decisions/0142-what-is-ahead-at-ports-of-ones-own-is-bounded-in-number.md)).
//!
//! [Budgets](super::budgets) through servers are the same idea. There a receiver counts what it takes of each sender; here its own stack
//! counts what it keeps, and that is told beside the grant.

use std::collections::HashMap;

use weft::Source;

/// Bytes that each sender may have here without a grant: 512 MiB of 4,096 senders, as many as an endpoint knows. Grants are multiples of
/// it.
pub(super) const FIRST: u64 = 128 << 10;
/// The largest grant.
pub(super) const MOST: u64 = 48 << 20;
/// Bytes of all grants. A target keeps 2 GiB: these, the [`FIRST`] of each sender, 1 GiB for short messages and stand-ins, and as much as
/// one sender may have at most, since a stack lets none have more than it leaves.
pub(super) const ALL: u64 = 384 << 20;
/// A sender that asks gets this part of what the others leave, so that those that ask again and again come to have the same.
const PART: u64 = ALL / MOST;
/// How many ticks of 2 s a sender relies on a grant.
pub(super) const VALID: u64 = 5;
/// How many a target reserves it: those, as many for the answer's way, and for clocks that tick at different times.
pub(super) const RESERVED: u64 = 2 * VALID;

/// What a target tells a sender that asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    /// What it keeps of the sender's messages that nobody has received.
    pub(super) bytes: u64,
    pub(super) messages: u64,
    /// Bytes that it may keep of them.
    pub(super) granted: u64,
}

/// Units in which a note says them, and how many bits it has for each.
const UNITS: [u64; 3] = [2 << 10, 2 << 10, FIRST];
const BITS: [u32; 3] = [17, 6, 9];

impl Answer {
    /// As a note says it, in 32 bits: no less of what is kept, and no more of what is granted.
    pub(super) fn noted(self) -> u64 {
        let Answer { bytes, messages, granted } = self;
        let units = [bytes.div_ceil(UNITS[0]), messages.div_ceil(UNITS[1]), granted / UNITS[2]];
        let parts = units.into_iter().zip(BITS).rev();
        parts.fold(0, |said, (unit, bits)| said << bits | unit.min((1 << bits) - 1))
    }

    pub(super) fn of_note(mut said: u64) -> Answer {
        let [bytes, messages, granted] = [0, 1, 2].map(|n| {
            let unit = said & ((1 << BITS[n]) - 1);
            said >>= BITS[n];
            unit * UNITS[n]
        });
        Answer { bytes, messages, granted }
    }
}

/// What is granted to senders beyond [`FIRST`].
#[derive(Debug, Default)]
pub(super) struct Grants {
    of: HashMap<Source, Grant>,
    /// The bytes of all.
    all: u64,
    /// How many ticks there were.
    now: u64,
}

#[derive(Debug)]
struct Grant {
    /// What is reserved: the grant, or what is kept of the sender's messages if that is more.
    bytes: u64,
    since: u64,
}

impl Grants {
    /// Grants `sender`, of whose messages `kept` bytes are kept, as much as the others leave.
    pub(super) fn grant(&mut self, sender: Source, kept: u64) -> u64 {
        self.all -= self.of.remove(&sender).map_or(0, |before| before.bytes);
        let left = ALL.saturating_sub(self.all);
        let granted = ((left / PART).min(MOST) / FIRST * FIRST).max(FIRST);
        self.reserve(sender, granted.max(kept));
        granted
    }

    fn reserve(&mut self, sender: Source, bytes: u64) {
        let bytes = bytes.min(MOST);
        if bytes > FIRST {
            self.all += bytes;
            self.of.insert(sender, Grant { bytes, since: self.now });
        }
    }

    /// Another tick: a grant is over after some, but what the sender had sent by then may be `kept` here.
    pub(super) fn tick(&mut self, kept: impl Fn(Source) -> u64) {
        self.now += 1;
        let is_over = |grant: &Grant| self.now - grant.since >= RESERVED;
        let over = self.of.iter().filter(|(_, grant)| is_over(grant));
        let over: Vec<Source> = over.map(|(sender, _)| *sender).collect();
        for sender in over {
            self.all -= self.of.remove(&sender).map_or(0, |before| before.bytes);
            self.reserve(sender, kept(sender));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn senders(count: u16) -> impl Iterator<Item = Source> + Clone {
        (0..count).map(|process| Source { peer: weft::Addr(1), process })
    }

    #[test]
    fn a_note_says_no_less_of_what_is_kept_and_no_more_of_what_is_granted() {
        for (bytes, messages, granted) in
            [(0, 0, FIRST), (1, 1, MOST), (128 * MIB, 1 << 16, 5 * MIB), (77_777, 4_000, 0)]
        {
            let answer = Answer { bytes, messages, granted };
            let said = answer.noted();
            let told = Answer::of_note(said);
            assert!(u32::try_from(said).is_ok() && told.granted == granted, "{answer:?}: {told:?}");
            assert!((bytes..bytes + UNITS[0]).contains(&told.bytes), "{answer:?}: {told:?}");
            assert!((messages..messages + UNITS[1]).contains(&told.messages), "{answer:?}: {told:?}");
            assert_eq!(Answer::of_note(told.noted()), told);
        }
        let most = Answer { bytes: u64::MAX, messages: u64::MAX, granted: u64::MAX };
        assert_eq!(most.noted(), u64::from(u32::MAX));
    }

    #[test]
    fn all_senders_together_are_granted_no_more_than_there_is() {
        let mut grants = Grants::default();
        assert_eq!(senders(3).map(|sender| grants.grant(sender, 0) / MIB).collect::<Vec<_>>(), [48, 42, 36]);
        let granted: Vec<u64> = senders(4_096).map(|sender| grants.grant(sender, 0)).collect();
        assert!(grants.all <= ALL && granted.iter().all(|granted| *granted >= FIRST));
        assert_eq!(granted[4_095], FIRST);
        assert!(granted.iter().sum::<u64>() <= ALL + 4_096 * FIRST);
    }

    #[test]
    fn senders_that_ask_again_come_to_have_the_same() {
        for count in [2u16, 16, 100] {
            let mut grants = Grants::default();
            let mut round = || senders(count).map(|sender| grants.grant(sender, 0)).collect::<Vec<_>>();
            let granted = (0..100).fold(Vec::new(), |_, _| round());
            let even = (ALL / (u64::from(count) + PART - 1)).min(MOST);
            let is_even = |granted: &u64| granted.abs_diff(even) <= 4 * FIRST;
            assert!(granted.iter().all(is_even), "{count}: {granted:?}, not {even}");
        }
    }

    #[test]
    fn what_is_granted_is_there_for_others_when_it_is_over_and_what_is_kept_is_not() {
        let mut grants = Grants::default();
        let all: Vec<Source> = senders(100).collect();
        all.iter().for_each(|sender| assert!(grants.grant(*sender, 0) >= FIRST));
        let reserved = grants.all;
        assert!(reserved > ALL - 8 * MIB);
        (1..RESERVED).for_each(|_| grants.tick(|_| 0));
        assert_eq!(grants.all, reserved);
        let kept = |sender: Source| if sender == all[0] { 30 * MIB } else { 0 };
        grants.tick(kept);
        assert_eq!((grants.all, grants.of.len()), (30 * MIB, 1));
        assert_eq!(grants.grant(all[1], 0) / MIB, 44);
        // What a sender has here counts, also if it is more than it may have by now.
        assert_eq!(grants.grant(all[1], 60 * MIB) / MIB, 44);
        assert_eq!(grants.all, 78 * MIB);
        (0..2 * RESERVED).for_each(|_| grants.tick(|_| 0));
        assert!(grants.of.is_empty() && grants.all == 0);
    }
}
