//! How much of what was sent to a peer at once nobody may have received there, as far as the sender knows.
//!
//! A target keeps 64 MiB of a sender's messages that have met no receive, and refuses further payload: messages behind it wait. So
//! something stands for long messages before that. The sender counts what it has sent at once. Once that is much, it asks the
//! target how much that keeps: all else that had been acknowledged when it was asked has been received. A peer whose receives are
//! there in time is sent everything at once, and costs a question for each few MiB.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use weft::Source;

use super::stand_in::SHORT;
use super::{OutgoingBytes, State};
use crate::error::FiError;

/// The longest message that is sent at once while there is room for those of its kind, bytes.
const MIDDLE: usize = 64 << 10;
/// Bytes that may not have been received when a longer one is sent at once, itself included.
const FOR_LONG: u64 = 24 << 20;
/// The longest one that is sent at once when all before it were received: a target keeps it, and leaves as much to short ones and
/// stand-ins as beside [`FOR_LONG`] and those of up to [`MIDDLE`]. A flow of such messages whose receives are there costs no reads.
const ALONE: u64 = 48 << 20;
/// As many when another one is, longer than [`SHORT`]. The rest of what a target keeps is for short ones and stand-ins.
const FOR_MIDDLE: u64 = 40 << 20;
/// Bytes that may not have been received before the target is asked.
const ASK: u64 = 8 << 20;
/// Bytes that are sent before it is asked again.
const AGAIN: u64 = 4 << 20;
/// How long an answer may take before the question is asked once more.
const ANSWER: Duration = Duration::from_secs(1);

/// How long a call is refused with the error of a question, if none was made before.
const GONE: Duration = Duration::from_secs(10);
/// How many acknowledged questions may have no answer until a peer is taken for one that has none: what is sent to it is sent at once.
const UNHEARD: u32 = 5;

/// How often an application is woken that was told to call again, 2 s apart: while what the peer has said is believed. Of several threads
/// that sleep another one may have been woken, or it may have called to sleep too late.
const WAKES: u32 = 5;

#[derive(Debug, Default)]
pub(super) struct Eager {
    all: Vec<Budget>,
    of: HashMap<Source, usize>,
    /// The one that was used last.
    last: Option<(Source, usize)>,
}

/// Bytes of messages longer than [`SHORT`] that were sent at once to one peer.
#[derive(Debug, Default)]
struct Budget {
    sent: u64,
    /// Of those that are not under way any more.
    ended: u64,
    /// Of those that are known to have been received.
    taken: u64,
    /// The last question, and what had ended when it was asked.
    marked: Option<(u32, u64)>,
    /// Whether a question has no answer yet, and when it was acknowledged.
    is_asked: bool,
    acknowledged: Option<Instant>,
    /// The bytes that had been sent to the peer when it was asked last.
    asked_at: u64,
    /// Acknowledged questions since the last answer.
    unheard: u32,
    /// The peer has no memory for questions, or has answered none of many: nothing stands for messages until it has answered one.
    is_blind: bool,
    /// The last question says that the peer is gone, with this error, and when: the next message is sent at once and ends as that does,
    /// or its call is refused if no target might keep so much.
    gone: Option<(FiError, Instant)>,
    /// How often the application, which was told to call again when the peer has answered, is to be woken yet, unless it calls before.
    wakes: u32,
    /// Whether it has been woken.
    was_woken: bool,
}

impl Budget {
    fn untaken(&self) -> u64 {
        self.sent.saturating_sub(self.taken)
    }
}

impl Eager {
    fn of(&mut self, peer: Source) -> usize {
        if let Some((_, at)) = self.last.filter(|(last, _)| *last == peer) {
            return at;
        }
        let next = self.all.len();
        let at = *self.of.entry(peer).or_insert(next);
        if at == next {
            self.all.push(Budget::default());
        }
        self.last = Some((peer, at));
        at
    }

    fn get(&mut self, peer: Source) -> Option<&mut Budget> {
        self.of.get(&peer).and_then(|at| self.all.get_mut(*at))
    }

    /// Whether something has to stand for a message of `len` bytes.
    pub(super) fn is_over(&mut self, peer: Source, len: usize) -> bool {
        let most = if len > MIDDLE { FOR_LONG } else { FOR_MIDDLE };
        let at = self.of(peer);
        let budget = &self.all[at];
        let may_try = budget.gone.is_some() && len as u64 <= FOR_LONG;
        let is_alone = budget.untaken() == 0 && len as u64 <= ALONE;
        budget.untaken() + len as u64 > most && !is_alone && !budget.is_blind && !may_try
    }

    /// A message of `len` bytes is sent at once. Returns what [`Eager::end`] is told, and whether the peer is to be asked.
    fn begin(&mut self, peer: Source, len: u32) -> (Counted, bool) {
        let at = self.of(peer);
        let budget = &mut self.all[at];
        budget.sent += u64::from(len);
        (budget.gone, budget.wakes) = (None, 0);
        let asks = budget.untaken() > ASK && budget.sent - budget.asked_at >= AGAIN;
        (Counted { budget: at as u32, len }, asks)
    }

    /// It has been acknowledged, or has failed. Returns whether the peer is to be asked: none is under way any more, and earlier questions
    /// have said nothing of the last ones.
    pub(super) fn end(&mut self, counted: Counted) -> bool {
        let Some(budget) = self.all.get_mut(counted.budget as usize) else { return false };
        budget.ended += u64::from(counted.len);
        budget.ended == budget.sent && budget.untaken() > ASK && !budget.is_blind
    }

    /// Whether the peer may be asked now, which it is then.
    fn ask(&mut self, peer: Source) -> bool {
        let at = self.of(peer);
        let budget = &mut self.all[at];
        let is_over = budget.acknowledged.is_some_and(|since| since.elapsed() >= ANSWER);
        let asks = !budget.is_asked || is_over;
        if asks {
            (budget.is_asked, budget.acknowledged, budget.asked_at) = (true, None, budget.sent);
        }
        asks
    }

    /// Question `question` is asked.
    pub(super) fn mark(&mut self, peer: Source, question: u32) {
        if let Some(budget) = self.get(peer) {
            (budget.marked, budget.is_asked) = (Some((question, budget.ended)), true);
        }
    }

    /// A question to the peer that has a number was acknowledged. Returns whether the peer is taken for one that answers none.
    pub(super) fn has_asked(&mut self, peer: Source) -> bool {
        let Some(budget) = self.get(peer).filter(|budget| budget.is_asked) else { return false };
        budget.acknowledged.get_or_insert_with(Instant::now);
        budget.unheard += 1;
        let is_deaf = budget.unheard >= UNHEARD;
        if is_deaf {
            self.is_unasked(peer);
        }
        is_deaf
    }

    /// A question to the peer has failed, or was not asked: another one may be.
    pub(super) fn has_failed(&mut self, peer: Source, why: FiError) {
        if let Some(budget) = self.get(peer) {
            budget.gone = why.says_that_the_peer_is_gone().then(|| (why, Instant::now()));
            (budget.is_asked, budget.acknowledged) = (false, None);
        }
    }

    /// What the last question has failed with, if that was just now and says that the peer is gone. The next call asks it again: another
    /// process may have taken its place.
    fn take_gone(&mut self, peer: Source) -> Option<FiError> {
        let (why, at) = self.get(peer)?.gone.take()?;
        (at.elapsed() < GONE).then_some(why)
    }

    /// The peer keeps `kept` bytes, as it says in answer to `question`.
    pub(super) fn learn(&mut self, peer: Source, question: u32, kept: u64) {
        let Some(budget) = self.get(peer) else { return };
        let Some((_, ended)) = budget.marked.filter(|(marked, _)| *marked == question) else { return };
        // If some of what is kept has ended since then, more than this was taken.
        budget.taken = budget.taken.max(ended.saturating_sub(kept));
        (budget.is_asked, budget.acknowledged, budget.unheard) = (false, None, 0);
        (budget.is_blind, budget.gone) = (false, None);
    }

    /// The application is told to call again.
    fn refuse(&mut self, peer: Source) {
        if let Some(budget) = self.get(peer) {
            (budget.wakes, budget.was_woken) = (WAKES, false);
        }
    }

    /// What it was told to repeat has been sent.
    fn has_sent(&mut self, peer: Source) {
        if let Some(budget) = self.get(peer) {
            budget.wakes = 0;
        }
    }

    /// Whether it is to be woken now that the peer has answered, or later.
    pub(super) fn wakes(&mut self, peer: Source) -> bool {
        let Some(budget) = self.get(peer).filter(|budget| budget.wakes > 0) else { return false };
        (budget.wakes, budget.was_woken) = (budget.wakes - 1, true);
        true
    }

    /// The peers for whose messages it was woken and has not called.
    pub(super) fn to_wake(&self) -> Vec<Source> {
        let waits = |at: &usize| self.all.get(*at).is_some_and(|budget| budget.wakes > 0 && budget.was_woken);
        self.of.iter().filter(|(_, at)| waits(at)).map(|(peer, _)| *peer).collect()
    }

    /// A peer has no memory for questions, or does not answer.
    pub(super) fn is_unasked(&mut self, peer: Source) {
        if let Some(budget) = self.get(peer) {
            (budget.is_asked, budget.unheard, budget.is_blind) = (false, 0, true);
        }
    }
}

/// What a message that was sent at once counts for, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    budget: u32,
    len: u32,
}

impl State {
    /// Sends what stands for a message if the peer may have too much that it has not received. Gives the message back if it is to
    /// be sent at once.
    ///
    /// # Errors
    /// [`FiError::AGAIN`] until the peer has said which process it is, and the error of the question if that says that it is gone.
    pub(super) fn stand_in_if_over(
        &mut self,
        number: usize,
        peer: Source,
        bytes: OutgoingBytes,
        options: weft::SendOptions,
    ) -> Result<Option<OutgoingBytes>, FiError> {
        if !self.stand_ins.by_notes || options.tag.is_none() || !self.eager.is_over(peer, bytes.len()) {
            return Ok(Some(bytes));
        }
        if let Some(error) = self.eager.take_gone(peer) {
            return Err(error);
        }
        match self.ask_for_room(peer) {
            Ok(()) | Err(FiError::AGAIN) => {}
            Err(error) => return Err(error),
        }
        if !self.stand_ins.knows_life(peer) {
            self.eager.refuse(peer);
            return Err(FiError::AGAIN);
        }
        self.post_stand_in(number, peer, bytes.into_bytes(), options).map_err(|(error, _)| error)?;
        self.eager.has_sent(peer);
        Ok(None)
    }

    /// A message of `len` bytes has been sent at once.
    pub(super) fn count_sent(&mut self, number: usize, peer: Source, len: usize) {
        if len <= SHORT || !self.stand_ins.by_notes {
            return;
        }
        let (counted, asks) = self.eager.begin(peer, len as u32);
        if let Some(operation) = self.operations.get_mut(number) {
            operation.counted = Some(counted);
        }
        if asks {
            // It is asked again when that matters.
            let _ = self.ask_for_room(peer);
        }
    }

    /// Asks a peer how much it keeps, and which process it is, unless it has been asked just now.
    ///
    /// # Errors
    /// It cannot be asked. With [`FiError::AGAIN`] it can be later.
    pub(super) fn ask_for_room(&mut self, peer: Source) -> Result<(), FiError> {
        if !self.eager.ask(peer) {
            return Ok(());
        }
        self.stand_ins.expect_life(peer);
        let asked = self.ask(peer);
        if let Err(error) = asked {
            self.eager.has_failed(peer, error);
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Source = Source { peer: weft::Addr(3), process: 4 };
    const MIB: usize = 1 << 20;

    #[test]
    fn what_a_peer_has_received_makes_room_and_what_it_keeps_does_not() {
        let mut eager = Eager::default();
        let (mut sent, mut asks) = (Vec::new(), 0);
        for n in 0..24 {
            assert!(!eager.is_over(PEER, MIB), "{n}");
            let (counted, is_much) = eager.begin(PEER, MIB as u32);
            sent.push(counted);
            asks += u32::from(is_much && eager.ask(PEER));
        }
        assert_eq!(asks, 1, "one question is under way");
        assert!(eager.is_over(PEER, MIB) && !eager.is_over(PEER, MIDDLE));
        let other = Source { process: 5, ..PEER };
        assert!(!eager.is_over(other, 48 * MIB) && eager.is_over(other, 48 * MIB + 1));
        // Twenty have been acknowledged when it is asked, and it keeps six, of which two have come since.
        (0..20).for_each(|n| assert!(!eager.end(sent[n])));
        eager.mark(PEER, 7);
        (20..22).for_each(|n| assert!(!eager.end(sent[n])));
        eager.learn(PEER, 6, 0);
        assert!(eager.is_over(PEER, MIB), "the answer to another question");
        eager.learn(PEER, 7, 6 * MIB as u64);
        assert!(!eager.is_over(PEER, 14 * MIB) && eager.is_over(PEER, 14 * MIB + 1));
        // A question that has failed changes nothing, and one to a peer that is gone lets a message end as all do that are sent to it.
        eager.has_failed(PEER, FiError::OTHER);
        assert!(eager.is_over(PEER, 24 * MIB) && eager.take_gone(PEER).is_none());
        eager.has_failed(PEER, FiError::REFUSED);
        assert!(!eager.is_over(PEER, 24 * MIB));
        eager.begin(PEER, MIB as u32);
        assert!(eager.is_over(PEER, 24 * MIB) && eager.take_gone(PEER).is_none());
        // One that no target keeps is not sent there: its call is refused, and the next one asks again.
        eager.has_failed(PEER, FiError::TIMED_OUT);
        assert!(eager.is_over(PEER, 25 * MIB));
        assert_eq!([eager.take_gone(PEER), eager.take_gone(PEER)], [Some(FiError::TIMED_OUT), None]);
        assert!(eager.is_over(PEER, 24 * MIB));
        // One that cannot be asked is sent everything, until it has answered.
        eager.is_unasked(PEER);
        assert!(!eager.is_over(PEER, 99 * MIB));
        eager.learn(PEER, 7, 24 * MIB as u64);
        assert!(eager.is_over(PEER, 99 * MIB));
    }

    #[test]
    fn an_application_is_woken_again_until_it_has_called() {
        let mut eager = Eager::default();
        assert!(!eager.wakes(PEER) && eager.is_over(PEER, 49 * MIB));
        eager.refuse(PEER);
        assert!(eager.to_wake().is_empty(), "the peer has not answered");
        for n in 1..=WAKES {
            assert!(eager.wakes(PEER), "{n}");
            assert_eq!(eager.to_wake(), if n < WAKES { vec![PEER] } else { Vec::new() });
        }
        assert!(!eager.wakes(PEER));
        for stands_in in [true, false] {
            eager.refuse(PEER);
            assert!(eager.wakes(PEER));
            if stands_in {
                eager.has_sent(PEER);
            } else {
                eager.begin(PEER, 1);
            }
            assert!(!eager.wakes(PEER) && eager.to_wake().is_empty());
        }
    }

    /// Each message that is received in time is sent at once, up to what a target keeps.
    #[test]
    fn one_message_beyond_the_budget_is_sent_at_once_when_all_before_it_were_received() {
        let mut eager = Eager::default();
        for question in 1..4 {
            assert!(!eager.is_over(PEER, 48 * MIB) && eager.is_over(PEER, 49 * MIB), "{question}");
            let (counted, _) = eager.begin(PEER, 48 << 20);
            assert!(eager.is_over(PEER, SHORT + 1), "{question}");
            // Only a question that is asked when it has arrived says that it was received.
            assert!(eager.end(counted) && eager.ask(PEER), "{question}");
            eager.mark(PEER, question);
            eager.learn(PEER, question, 0);
        }
        let (counted, _) = eager.begin(PEER, 4 << 20);
        assert!(!eager.end(counted), "too little to be asked for");
    }

    #[test]
    fn a_peer_that_acknowledges_questions_and_answers_none_is_sent_everything() {
        let mut eager = Eager::default();
        for n in 1..=UNHEARD {
            assert!(eager.is_over(PEER, 50 * MIB) && eager.ask(PEER) && !eager.ask(PEER), "{n}");
            // One in between that has failed does not count.
            eager.has_failed(PEER, FiError::OTHER);
            assert!(!eager.has_asked(PEER) && eager.ask(PEER), "{n}");
            assert_eq!(eager.has_asked(PEER), n == UNHEARD);
            // The time for an answer is over.
            eager.has_failed(PEER, FiError::OTHER);
        }
        assert!(!eager.is_over(PEER, 50 * MIB));
    }
}
