//! Datagrams to peers whose Ethernet address is being asked for. They are posted once the peer has answered; if it does not
//! answer, they are refused. Each is an operation of its application, so that there are no more of them than of those.
//!
//! Applications do not wait for each other: those of each are let go by themselves, some in each turn.

use std::collections::{BTreeMap, BTreeSet};

use weft_cc::Time;

use super::application::COMMANDS_PER_TURN;
use super::held::LONGEST;
use super::served::Served;
use crate::fep::{Datagram, Unreachable};
use crate::packet::Addr;

/// The most datagrams of one application that are let go in a turn: to post them takes as long as as many commands.
const PER_TURN: usize = COMMANDS_PER_TURN;

/// The memory that forgetting one touches, bytes: it is taken out of a tree that is found in another one.
const FORGET: i64 = 4 << 10;

/// The held datagrams of all applications, which go by their slots.
#[derive(Debug, Default)]
pub(super) struct HeldDatagrams {
    /// Those that wait for their peer, which is asked once for all of them. The number of a question is greater than those
    /// of earlier ones, and it ends later.
    questions: BTreeMap<u64, Question>,
    /// The questions that each application's wait for.
    of_slots: BTreeMap<u32, BTreeSet<u64>>,
    /// The question to each of those peers.
    of_peers: BTreeMap<Addr, u64>,
    /// Those of each application whose peer has been found or given up, by the numbers of their questions. What became of
    /// the peer stays as it was: it may be asked anew before all of them are let go.
    answered: BTreeMap<u32, BTreeMap<u64, Answered>>,
    /// How many questions there have been.
    last: u64,
    /// [`Served::resolutions`] when peers were last looked at.
    seen: u64,
}

/// The datagrams of one application that wait for the same answer, oldest first.
type Queue = BTreeMap<u32, Datagram>;

#[derive(Debug)]
struct Question {
    peer: Addr,
    /// Until when its datagrams may be held: counted from the first of them.
    until: Time,
    /// How many there have been.
    count: u32,
    /// Those of each application.
    queues: BTreeMap<u32, Queue>,
}

#[derive(Debug)]
struct Answered {
    result: Result<(), Unreachable>,
    queue: Queue,
}

/// The name of a held datagram: which question it waits for, and which of its datagrams it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldDatagram {
    pub(super) question: u64,
    pub(super) number: u32,
}

impl HeldDatagrams {
    /// Whether there are none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.questions.is_empty() && self.answered.is_empty()
    }

    /// How many there are.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn len(&self) -> usize {
        let waiting = self.questions.values().flat_map(|question| question.queues.values());
        let answered = self.answered.values().flat_map(BTreeMap::values).map(|answered| &answered.queue);
        waiting.chain(answered).map(BTreeMap::len).sum()
    }

    /// Holds a datagram of the application in `slot` from `now` on.
    pub(super) fn add(&mut self, now: Time, slot: u32, datagram: Datagram) -> HeldDatagram {
        let peer = datagram.peer;
        let number = *self.of_peers.entry(peer).or_insert_with(|| {
            self.last += 1;
            self.last
        });
        let new = || Question { peer, until: now + LONGEST, count: 0, queues: BTreeMap::new() };
        let question = self.questions.entry(number).or_insert_with(new);
        let name = HeldDatagram { question: number, number: question.count };
        question.count += 1;
        question.queues.entry(slot).or_default().insert(name.number, datagram);
        self.of_slots.entry(slot).or_default().insert(number);
        name
    }

    /// Forgets a datagram of the application in `slot`. False if it is not held.
    pub(super) fn remove(&mut self, slot: u32, name: HeldDatagram) -> bool {
        let waiting = self.questions.get_mut(&name.question).and_then(|it| it.queues.get_mut(&slot));
        if let Some(queue) = waiting {
            let was_held = queue.remove(&name.number).is_some();
            if queue.is_empty() {
                self.forget_queue(slot, name.question);
            }
            return was_held;
        }
        let Some(all) = self.answered.get_mut(&slot) else { return false };
        let Some(answered) = all.get_mut(&name.question) else { return false };
        let was_held = answered.queue.remove(&name.number).is_some();
        if answered.queue.is_empty() {
            all.remove(&name.question);
        }
        if all.is_empty() {
            self.answered.remove(&slot);
        }
        was_held
    }

    /// Forgets datagrams of the application in `slot` until that has touched `budget` bytes of memory, which are taken from it.
    /// Returns whether none is left.
    pub(super) fn forget_some(&mut self, slot: u32, budget: &mut i64) -> bool {
        while let Some(first) = self.first_of(slot) {
            #[cfg(test)]
            crate::steps::count(1);
            self.remove(slot, first);
            *budget -= FORGET;
            if *budget <= 0 {
                return false;
            }
        }
        true
    }

    /// A datagram of the application in `slot`.
    fn first_of(&self, slot: u32) -> Option<HeldDatagram> {
        let answered = self.answered.get(&slot).and_then(BTreeMap::first_key_value);
        let (question, queue) = match answered {
            Some((question, answered)) => (*question, &answered.queue),
            None => {
                let question = *self.of_slots.get(&slot)?.first()?;
                (question, self.questions.get(&question)?.queues.get(&slot)?)
            }
        };
        queue.first_key_value().map(|(number, _)| HeldDatagram { question, number: *number })
    }

    /// The datagrams of the application in `slot` do not wait for question `number` any more.
    fn unlist(of_slots: &mut BTreeMap<u32, BTreeSet<u64>>, slot: u32, number: u64) {
        if let Some(numbers) = of_slots.get_mut(&slot) {
            numbers.remove(&number);
            if numbers.is_empty() {
                of_slots.remove(&slot);
            }
        }
    }

    /// Forgets the datagrams of the application in `slot` that wait for an answer, and the question if nobody else does.
    fn forget_queue(&mut self, slot: u32, number: u64) {
        let Some(question) = self.questions.get_mut(&number) else { return };
        question.queues.remove(&slot);
        Self::unlist(&mut self.of_slots, slot, number);
        if question.queues.is_empty() {
            self.of_peers.remove(&question.peer);
            self.questions.remove(&number);
        }
    }

    /// Removes and returns datagrams whose peer has been found or given up, some of each application in each turn, with the
    /// application's slot.
    pub(super) fn settle(
        &mut self,
        served: &mut impl Served,
        now: Time,
    ) -> Vec<(u32, Datagram, Result<(), Unreachable>)> {
        self.take_answers(served, now);
        let mut settled = Vec::new();
        self.answered.retain(|slot, all| {
            let mut left = PER_TURN;
            while left > 0
                && let Some(mut first) = all.first_entry()
            {
                let Answered { result, queue } = first.get_mut();
                while left > 0
                    && let Some((_, datagram)) = queue.pop_first()
                {
                    settled.push((*slot, datagram, *result));
                    left -= 1;
                }
                if queue.is_empty() {
                    first.remove();
                }
            }
            !all.is_empty()
        });
        settled
    }

    /// Looks which questions are over. In turns in which nothing about any peer has changed this is one comparison of times;
    /// otherwise those are looked at about whose peers something has.
    fn take_answers(&mut self, served: &mut impl Served, now: Time) {
        let resolutions = served.resolutions();
        let is_over = |question: &Question| now.is_at_or_after(question.until);
        // The oldest question is over first.
        let oldest_is_over = self.questions.values().next().is_some_and(is_over);
        if resolutions == self.seen && !oldest_is_over {
            return;
        }
        let known = served.resolved_since(self.seen);
        self.seen = resolutions;
        let over =
            self.questions.iter().take_while(|(_, question)| is_over(question)).map(|(number, _)| *number);
        let concerned: BTreeSet<u64> = match known {
            Some(peers) => {
                peers.iter().filter_map(|peer| self.of_peers.get(peer).copied()).chain(over).collect()
            }
            None => self.questions.keys().copied().collect(),
        };
        for number in concerned {
            #[cfg(test)]
            crate::steps::count(1);
            let Some(question) = self.questions.get(&number) else { continue };
            let result = served.resolve_peer(now, question.peer);
            if !is_over(question) && matches!(result, Err(Unreachable::Resolving { .. })) {
                continue;
            }
            let Some(question) = self.questions.remove(&number) else { continue };
            self.of_peers.remove(&question.peer);
            for (slot, queue) in question.queues {
                Self::unlist(&mut self.of_slots, slot, number);
                self.answered.entry(slot).or_default().insert(number, Answered { result, queue });
            }
        }
    }
}
