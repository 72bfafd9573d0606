//! Queues of messages of which any may be taken back.
//!
//! A message knows its place, and leaves a gap where it was. The first and the last entry of a run of gaps say how long that is, so
//! that a run at either end of the queue goes at once, and one in the middle is passed in one step. While there are more gaps
//! than messages, each message that is taken back moves a few of the others together: no single one pays for all of them.

use std::collections::VecDeque;

use crate::ses::SendMessage;
use crate::table::{Key, Table};

/// The index of the key of a gap. No message has it.
const GAP: u32 = u32::MAX;

/// Gaps that a queue may have however short it is.
const FEW: u32 = 32;

/// Messages, or runs of gaps, that are looked at with each message that is taken back. With so many a round is over before a third
/// as many messages have been taken back as there were entries.
const LOOKS: u32 = 4;

/// An entry of a queue: that of a message, or a gap.
pub(super) trait Entry {
    /// The key of its message, or what [`gap`] has made.
    fn key(&self) -> Key;
    fn set_key(&mut self, key: Key);
}

impl Entry for Key {
    #[inline]
    fn key(&self) -> Key {
        *self
    }

    #[inline]
    fn set_key(&mut self, key: Key) {
        *self = key;
    }
}

/// What a queue knows of its gaps. None of them is at its front or its back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gaps {
    count: u32,
    /// Where a round of moving messages together has come: the place of the next message to look at.
    round: Option<u32>,
}

/// Stands for a message that was taken back: the first, or last, of a run of `len` gaps.
fn gap(len: u32) -> Key {
    Key { index: GAP, generation: len }
}

/// How many gaps there are in the run whose first or last one is at `at`; 0 if there is a message.
#[inline]
fn run_at<T: Entry>(entries: &VecDeque<T>, at: usize) -> u32 {
    match entries.get(at).map(Entry::key) {
        Some(Key { index: GAP, generation }) => generation,
        _ => 0,
    }
}

/// Makes one run of the `len` gaps from `start`, and of those around it. Returns where it begins, and its length.
fn join<T: Entry>(entries: &mut VecDeque<T>, start: usize, len: u32) -> (usize, u32) {
    let before = start.checked_sub(1).map_or(0, |at| run_at(entries, at));
    let after = run_at(entries, start + len as usize);
    let (start, len) = (start - before as usize, before + len + after);
    for at in [start, start + len as usize - 1] {
        if let Some(entry) = entries.get_mut(at) {
            entry.set_key(gap(len));
        }
    }
    (start, len)
}

/// Takes the first message out of `entries`, which nothing is appended to or taken back from any more, with the gaps behind it.
/// Messages that have ended since are still among them.
pub(super) fn take_first<T: Entry>(entries: &mut VecDeque<T>) -> Option<T> {
    let first = entries.pop_front();
    let run = run_at(entries, 0);
    entries.drain(..run as usize);
    first
}

impl Gaps {
    /// The place of a message that is appended to `entries`.
    #[inline(always)]
    pub(super) fn next_place<T: Entry>(entries: &VecDeque<T>, sends: &Table<SendMessage>) -> u32 {
        let last = entries.back().and_then(|last| sends.get(last.key()));
        last.map_or(0, |last| last.place.wrapping_add(1))
    }

    /// Takes out the first message.
    #[inline]
    pub(super) fn pop_front<T: Entry>(&mut self, entries: &mut VecDeque<T>) -> Option<T> {
        let first = entries.pop_front();
        if run_at(entries, 0) > 0 {
            self.trim_front(entries);
        }
        first
    }

    /// Takes message `key`, which has `place`, out of `entries`, if it is there. Returns whether it was.
    pub(super) fn withdraw<T: Entry>(
        &mut self,
        entries: &mut VecDeque<T>,
        sends: &mut Table<SendMessage>,
        key: Key,
        place: u32,
    ) -> bool {
        let first =
            entries.front().and_then(|first| sends.get(first.key())).map_or(place, |first| first.place);
        let at = place.wrapping_sub(first) as usize;
        let Some(entry) = entries.get_mut(at).filter(|entry| entry.key() == key) else { return false };
        entry.set_key(gap(1));
        self.count += 1;
        self.put_gaps(entries, first, at, 1);
        self.trim_front(entries);
        if self.round.is_none() && self.count > FEW && self.count as usize > entries.len() / 2 {
            let first = entries.front().and_then(|first| sends.get(first.key()));
            self.round = first.map(|first| first.place);
        }
        for _ in 0..LOOKS {
            #[cfg(test)]
            crate::steps::count(1);
            let Some(next) = self.round else { return true };
            self.look(entries, sends, next);
        }
        true
    }

    /// Looks at the message in place `next`: moves it to those before it, if there are gaps in between.
    fn look<T: Entry>(&mut self, entries: &mut VecDeque<T>, sends: &mut Table<SendMessage>, next: u32) {
        let first = entries.front().and_then(|first| sends.get(first.key())).map(|first| first.place);
        self.round = None;
        let Some(first) = first else { return };
        // Messages that have left before that are not looked at any more.
        let next = if (next.wrapping_sub(first) as i32) < 0 { first } else { next };
        let at = next.wrapping_sub(first) as usize;
        let Some(entry) = entries.get(at) else { return };
        let key = entry.key();
        if key.index == GAP {
            self.round = Some(next.wrapping_add(run_at(entries, at)));
            return;
        }
        self.round = Some(next.wrapping_add(1));
        let gaps = at.checked_sub(1).map_or(0, |before| run_at(entries, before));
        if gaps == 0 {
            return;
        }
        let to = at - gaps as usize;
        entries.swap(to, at);
        if let Some(message) = sends.get_mut(key) {
            message.place = next.wrapping_sub(gaps);
        }
        self.put_gaps(entries, first, to + 1, gaps);
    }

    /// There are `len` gaps from `start`, where the first entry has place `first`. Drops them, and those around them, if they are at
    /// the back.
    fn put_gaps<T: Entry>(&mut self, entries: &mut VecDeque<T>, first: u32, start: usize, len: u32) {
        let (start, len) = join(entries, start, len);
        let end = start + len as usize;
        let is_passed = |next: &u32| (start..end).contains(&(next.wrapping_sub(first) as usize));
        if self.round.as_ref().is_some_and(is_passed) {
            // Only the ends of a run say how long it is.
            self.round = Some(first.wrapping_add(end as u32));
        }
        if end == entries.len() {
            entries.truncate(start);
            self.count -= len;
        }
    }

    /// Drops the gaps at the front.
    #[cold]
    fn trim_front<T: Entry>(&mut self, entries: &mut VecDeque<T>) {
        let run = run_at(entries, 0);
        entries.drain(..run as usize);
        self.count -= run;
    }

    /// Checks the gaps of `entries`, and that all messages know their places.
    #[cfg(test)]
    pub(super) fn check<T: Entry>(&self, entries: &VecDeque<T>, sends: &Table<SendMessage>) {
        let first = entries.front().and_then(|first| sends.get(first.key())).map_or(0, |first| first.place);
        let (mut at, mut gaps, mut was_gap) = (0, 0, true);
        while at < entries.len() {
            let run = run_at(entries, at);
            if run > 0 {
                assert!(!was_gap, "gaps at the front, or two runs side by side");
                let last = at + run as usize - 1;
                assert!(last + 1 < entries.len() && run_at(entries, last) == run);
                assert!((at..=last).all(|at| entries[at].key().index == GAP));
                gaps += run;
                at = last;
            } else {
                let message = sends.get(entries[at].key()).expect("one that was taken back is a gap");
                assert_eq!(message.place, first.wrapping_add(at as u32));
            }
            (at, was_gap) = (at + 1, run > 0);
        }
        assert_eq!(self.count, gaps);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::buffer::Buffer;
    use crate::ses::Operation;
    use crate::steps;

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        Pop,
        /// Those from here on, so many, and then every one after this number.
        Withdraw(prop::sample::Index, usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let any = any::<prop::sample::Index>;
        prop_oneof![
            2 => (1usize..100).prop_map(Step::Push),
            3 => Just(Step::Pop),
            4 => (any(), 1usize..60, 1usize..4).prop_map(|(at, count, each)| Step::Withdraw(at, count, each)),
        ]
    }

    #[derive(Default)]
    struct Queue {
        sends: Table<SendMessage>,
        entries: VecDeque<Key>,
        gaps: Gaps,
        /// The messages that wait, in order.
        model: Vec<Key>,
        most_steps: u64,
    }

    impl Queue {
        fn push(&mut self) {
            let mut message = SendMessage::new(Buffer::Virtual(1), Operation::Send { tag: None }, 0, 0, 0);
            message.place = Gaps::next_place(&self.entries, &self.sends);
            let key = self.sends.insert(message);
            self.entries.push_back(key);
            self.model.push(key);
        }

        fn withdraw(&mut self, at: usize) {
            let key = self.model.remove(at);
            let place = self.sends.get(key).unwrap().place;
            let Queue { sends, entries, gaps, .. } = self;
            let steps = steps::of(|| assert!(gaps.withdraw(entries, sends, key, place)));
            self.most_steps = self.most_steps.max(steps);
            self.sends.remove(key);
        }

        fn pop(&mut self) {
            let first = self.gaps.pop_front(&mut self.entries);
            assert_eq!(first, self.model.first().copied());
            if let Some(first) = first {
                self.model.remove(0);
                self.sends.remove(first);
            }
        }

        fn check(&self) {
            self.gaps.check(&self.entries, &self.sends);
            let there: Vec<Key> = self.entries.iter().copied().filter(|key| key.index != GAP).collect();
            assert_eq!(there, self.model);
            assert!(self.most_steps <= u64::from(LOOKS));
        }
    }

    proptest! {
        #[test]
        fn what_waits_is_what_was_appended_and_neither_left_nor_was_taken_back(
            steps in prop::collection::vec(step(), 0..100),
            first in any::<u32>(),
        ) {
            let mut queue = Queue::default();
            queue.push();
            // Places wrap around.
            queue.sends.get_mut(queue.model[0]).unwrap().place = first;
            for step in steps {
                match step {
                    Step::Push(count) => (0..count).for_each(|_| queue.push()),
                    Step::Pop => queue.pop(),
                    Step::Withdraw(at, count, each) if !queue.model.is_empty() => {
                        let mut at = at.index(queue.model.len());
                        for _ in 0..count {
                            if at < queue.model.len() {
                                queue.withdraw(at);
                                at += each - 1;
                            }
                        }
                    }
                    Step::Withdraw(..) => {}
                }
                queue.check();
            }
        }
    }

    /// However many there are, and whichever is taken back: the first with all gaps behind it, or the last, or every second one.
    #[test]
    fn no_message_that_is_taken_back_pays_for_many_others() {
        const COUNT: usize = 5_000;
        let orders: [fn(usize) -> usize; 4] = [
            |n| (n + 1) % COUNT,
            |n| COUNT - 1 - n,
            |n| n.wrapping_mul(0x9e37) % COUNT,
            |n| n * 2 % COUNT + n * 2 / COUNT,
        ];
        for order in orders {
            let mut queue = Queue::default();
            (0..COUNT).for_each(|_| queue.push());
            let keys = queue.model.clone();
            let mut longest = 0;
            for n in (0..COUNT).map(order) {
                let at = queue.model.iter().position(|key| *key == keys[n]).unwrap();
                queue.withdraw(at);
                longest = longest.max(queue.entries.len());
                let live = queue.model.len();
                assert!(queue.entries.len() <= 4 * live + 100, "{} for {live}", queue.entries.len());
            }
            queue.check();
            assert!(queue.entries.is_empty() && longest <= COUNT);
        }
    }
}
