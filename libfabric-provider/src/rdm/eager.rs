//! How much of what was sent to a peer has perhaps not been received there, as far as the sender knows.
//!
//! A target keeps 128 MiB and 65,536 of a sender's messages that have met no receive. It refuses further ones, and all messages behind
//! those wait. Before that happens, the sender sends stand-ins in place of long messages, and refuses calls. For this it counts all that it
//! has sent. When the count is high, it asks the target how many messages and bytes that keeps. The target has received all else that it
//! had acknowledged when it was asked. Its answer also [grants](super::grants) how much it may keep. A sender sends everything at once
//! to a peer whose receives are there in time, and asks one question for each few MiB.

use std::collections::HashMap;
use std::ops::{AddAssign, Sub};
use std::time::{Duration, Instant};

use weft::Source;

use super::grants::{Answer, FIRST, MOST, VALID};
use super::stand_in::{UNIT, stand_in_len};
use super::{OutgoingBytes, State};
use crate::error::FiError;

/// The longest message that is sent at once while there is room for those of its kind, bytes.
const MIDDLE: usize = 64 << 10;
/// Bytes that are perhaps not received when a longer one is sent at once, itself included.
const FOR_LONG: u64 = 24 << 20;
/// As many when another one is for which something may stand; or [`MOST`] when all before it were received: a flow of such messages whose
/// receives are there costs no reads. Shorter ones, and stand-ins, are sent besides: [`MESSAGES`] of them have 57 MiB, so that a target has
/// 23 MiB for messages without tags.
const FOR_MIDDLE: u64 = 40 << 20;
/// Messages that are perhaps not received when another one is sent. A target keeps 8,192 more: an answer says up to 2,047 too many.
const MESSAGES: u64 = 56 << 10;
/// Bytes that are perhaps not received before the target is asked, if so many are granted; otherwise half of the grant.
const ASK: u64 = 8 << 20;
/// Bytes that are sent before it is asked again, or a quarter of the grant.
const AGAIN: u64 = 4 << 20;
/// As many messages.
const ASK_MESSAGES: u64 = 8 << 10;
const AGAIN_MESSAGES: u64 = 4 << 10;
/// How long an answer may take before the question is asked once more.
const ANSWER: Duration = Duration::from_secs(1);
/// How long the sender waits before it asks again when an answer has left no room for a further message. It waits twice as long each
/// time, up to the longest pause: a peer that computes receives nothing, and answers all the same.
const PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How long a grant counts by the clock. Ticks are cheaper, but a process that was stopped has had none meanwhile.
const VALID_FOR: Duration = Duration::from_secs(2 * VALID);

/// How long a call is refused with the error of a question, if none was made before.
const GONE: Duration = Duration::from_secs(10);
/// How many acknowledged questions may have no answer until a peer is taken for one that has none: what is sent to it is sent at once.
const UNHEARD: u32 = 5;

/// How often an application is woken that was told to call again, 2 s apart: while what the peer has said is believed. Of several threads
/// that sleep another one may have been woken, or it may have called to sleep too late.
const WAKES: u32 = 5;

/// Identifies a thread among those that are running.
type ThreadMark = usize;

/// The mark of the calling thread. Unlike a `ThreadId`, it is available while the thread ends, too.
fn this_thread() -> ThreadMark {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

#[derive(Debug, Default)]
pub(super) struct Eager {
    all: Vec<Budget>,
    of: HashMap<Source, usize>,
    /// Places in `all` whose peer was removed and whose messages have all ended; they are used again.
    free: Vec<usize>,
    /// The one that was used last.
    last: Option<(Source, usize)>,
    /// How many ticks of 2 s there were.
    now: u64,
    /// Whether an application may have been told to call again for a peer, and may not have done so.
    has_callers: bool,
}

/// How a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goes {
    AtOnce,
    /// Something stands for it.
    ByStandIn,
    /// Not now: its call is refused.
    Not,
}

/// Messages, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    messages: u64,
    bytes: u64,
}

impl AddAssign for Amount {
    fn add_assign(&mut self, more: Amount) {
        self.messages += more.messages;
        self.bytes += more.bytes;
    }
}

impl Sub for Amount {
    type Output = Amount;

    fn sub(self, less: Amount) -> Amount {
        let messages = self.messages.saturating_sub(less.messages);
        Amount { messages, bytes: self.bytes.saturating_sub(less.bytes) }
    }
}

/// What was sent to one peer, stand-ins included.
#[derive(Debug, Default)]
struct Budget {
    sent: Amount,
    /// Of those that are not under way any more.
    ended: Amount,
    /// Of those that are known to have been received.
    taken: Amount,
    /// Bytes that the peer may keep, and the tick from which on they are [`FIRST`] again.
    granted: u64,
    until: u64,
    /// When they were granted.
    granted_at: Option<Instant>,
    /// The last question, and what had ended when it was asked.
    marked: Option<(u32, Amount)>,
    /// Whether a question has no answer yet, and when it was acknowledged.
    is_asked: bool,
    acknowledged: Option<Instant>,
    /// What had been sent to the peer when it was asked last.
    asked_at: Amount,
    /// The pause after the last answer, if that has left no room for a further message, and when it is over.
    pause: Duration,
    rests_until: Option<Instant>,
    /// Acknowledged questions since the last answer.
    unheard: u32,
    /// The peer has no memory for questions, or has answered none of many: nothing stands for messages until it has answered one, or
    /// until its process is gone.
    is_blind: bool,
    /// Its peer's address was removed. The place is free once its last message ends.
    is_left: bool,
    /// Its peer's address was removed, and it is remembered for the same peer. Until the next call is refused for that, whoever was told
    /// to call again is woken whether there is room or not, and the peer is not asked.
    is_absent: bool,
    /// The last question says that the peer is gone, with this error, and when: the next message is sent at once and ends as that does,
    /// or its call is refused if no target might keep so much.
    gone: Option<(FiError, Instant)>,
    /// How often the application, which was told to call again when the peer has answered, is to be woken yet, unless it calls before.
    wakes: u32,
    /// Its threads that were told to call again and have sent nothing since: each may sleep.
    refused: Vec<ThreadMark>,
    /// Whether it has been woken.
    was_woken: bool,
    /// Whether one of the calls was for a message of [`UNIT`] bytes or more. Shorter ones are refused for the number of messages only, so
    /// any message that is sent shows that there is room for them.
    awaits_long: bool,
}

impl Budget {
    fn untaken(&self) -> Amount {
        self.sent - self.taken
    }

    /// Whether so much is perhaps not received that the peer is asked at any grant.
    fn is_much(&self) -> bool {
        let untaken = self.untaken();
        untaken.messages > ASK_MESSAGES || untaken.bytes > ASK
    }

    /// Makes it as it was in the beginning if it is left and nothing that counts for it is under way. Returns whether it is.
    fn empty(&mut self) -> bool {
        let is_over = self.is_left && self.ended == self.sent;
        if is_over {
            *self = Budget::default();
        }
        is_over
    }

    fn granted(&self, now: u64) -> u64 {
        if now < self.until { self.granted } else { FIRST }
    }

    /// The same by the clock, too.
    fn surely_granted(&self, now: u64) -> u64 {
        match self.granted(now) {
            granted if granted > FIRST && self.granted_at.is_none_or(|at| at.elapsed() >= VALID_FOR) => FIRST,
            granted => granted,
        }
    }

    /// Whether a question that was asked not long ago says that the peer is gone.
    fn is_gone(&self) -> bool {
        self.gone.is_some_and(|(_, at)| at.elapsed() < GONE)
    }

    /// Whether another message may be sent, in one way or the other.
    fn has_place(&self) -> bool {
        self.is_blind || self.untaken().messages < MESSAGES || self.is_gone()
    }

    /// A question has ended: the next one is asked later if there is still no room for a message.
    fn rest(&mut self) {
        let pause = (2 * self.pause).clamp(PAUSE, LONGEST_PAUSE);
        self.pause = if self.has_place() { Duration::ZERO } else { pause };
        self.rests_until = if self.pause.is_zero() { None } else { Some(Instant::now() + self.pause) };
    }

    /// How a message of `len` bytes goes.
    fn goes(&self, len: usize, may_stand_in: bool, now: u64) -> Goes {
        let (untaken, bytes) = (self.untaken(), len as u64);
        if self.is_blind {
            return Goes::AtOnce;
        }
        if !self.has_place() {
            return Goes::Not;
        }
        let all = untaken.bytes + bytes;
        if !may_stand_in || all <= FIRST {
            return Goes::AtOnce;
        }
        let granted = self.surely_granted(now);
        let is_in = all <= granted.min(if len > MIDDLE { FOR_LONG } else { FOR_MIDDLE });
        let is_alone = untaken.bytes == 0 && bytes <= granted;
        let may_try = self.is_gone() && bytes <= FOR_LONG;
        if is_in || is_alone || may_try { Goes::AtOnce } else { Goes::ByStandIn }
    }

    /// Whether so much is perhaps not received that the peer is to be asked, if that is `more` than when it was asked before.
    fn asks(&self, more: Amount, now: u64) -> bool {
        let (untaken, granted) = (self.untaken(), self.granted(now));
        untaken.bytes > ASK.min(granted / 2) && more.bytes >= AGAIN.min(granted / 4)
            || untaken.messages > ASK_MESSAGES && more.messages >= AGAIN_MESSAGES
    }
}

impl Eager {
    fn of(&mut self, peer: Source) -> usize {
        if let Some((_, at)) = self.last.filter(|(last, _)| *last == peer) {
            return at;
        }
        let Eager { all, of, free, .. } = self;
        let at = *of.entry(peer).or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                all.push(Budget::default());
                all.len() - 1
            })
        });
        self.last = Some((peer, at));
        at
    }

    /// Forgets the peers that are not there any more, but for those that may keep much, and those for which somebody waits. Another
    /// process may have the same name later. Returns those for which somebody waits, whose call will find no address.
    pub(super) fn keep(&mut self, is_there: impl Fn(Source) -> bool) -> Vec<Source> {
        let Eager { all, of, free, .. } = self;
        let mut awaited = Vec::new();
        of.retain(|peer, at| {
            let Some(budget) = all.get_mut(*at) else { return false };
            budget.is_absent = !is_there(*peer);
            if !budget.is_absent {
                return true;
            }
            // The same process may be inserted again, and still keep what it has not received. Of a blind one nobody knows that.
            let is_much = !budget.is_blind && budget.is_much();
            budget.is_blind = false;
            if budget.wakes > 0 {
                awaited.push(*peer);
            }
            let stays = is_much || budget.wakes > 0;
            if !stays {
                budget.is_left = true;
                if budget.empty() {
                    free.push(*at);
                }
            }
            stays
        });
        self.last = None;
        awaited
    }

    fn get(&mut self, peer: Source) -> Option<&mut Budget> {
        self.of.get(&peer).and_then(|at| self.all.get_mut(*at))
    }

    /// Another tick: what peers have granted is over after some.
    pub(super) fn tick(&mut self) {
        self.now += 1;
    }

    /// How a message of `len` bytes goes, for which something `may_stand_in`.
    pub(super) fn goes(&mut self, peer: Source, len: usize, may_stand_in: bool) -> Goes {
        let at = self.of(peer);
        self.all[at].goes(len, may_stand_in, self.now)
    }

    /// A message of `len` bytes is sent at once, or what stands for one. Returns what [`Eager::end`] is told, and whether the peer is to be
    /// asked.
    fn begin(&mut self, peer: Source, len: u32, stands: bool) -> (Counted, bool) {
        let (at, now) = (self.of(peer), self.now);
        let budget = &mut self.all[at];
        budget.sent += Amount { messages: 1, bytes: len.into() };
        if budget.wakes > 0 && (stands || len >= UNIT || !budget.awaits_long) {
            // The application may have been told to call again for it. Another thread may sleep, or be about to.
            let thread = this_thread();
            budget.refused.retain(|refused| *refused != thread);
            if budget.refused.is_empty() {
                budget.wakes = 0;
            }
        }
        if !stands && len >= UNIT {
            budget.gone = None;
        }
        let asks = budget.asks(budget.sent - budget.asked_at, now);
        (Counted { budget: at as u32, len }, asks)
    }

    /// It has been acknowledged, or has failed. Returns whether the peer is to be asked: none is under way any more, and earlier questions
    /// have said nothing of the last ones.
    pub(super) fn end(&mut self, counted: Counted) -> bool {
        let Some(budget) = self.all.get_mut(counted.budget as usize) else { return false };
        budget.ended += Amount { messages: 1, bytes: counted.len.into() };
        if budget.is_left {
            if budget.empty() {
                self.free.push(counted.budget as usize);
            }
            return false;
        }
        let all = Amount { messages: u64::MAX, bytes: u64::MAX };
        budget.ended == budget.sent && !budget.is_blind && budget.asks(all, self.now)
    }

    /// Whether the peer may be asked now, which it is then.
    fn ask(&mut self, peer: Source) -> bool {
        let at = self.of(peer);
        let budget = &mut self.all[at];
        let is_over = budget.acknowledged.is_some_and(|since| since.elapsed() >= ANSWER);
        let rests = budget.rests_until.is_some_and(|until| Instant::now() < until);
        let asks = !rests && (!budget.is_asked || is_over);
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
            // Its process is gone for good, and the one that takes its place may answer.
            budget.is_blind &= why != FiError::REFUSED;
            budget.rest();
        }
    }

    /// What the last question has failed with, if that was just now and says that the peer is gone. The next call asks it again: another
    /// process may have taken its place.
    fn take_gone(&mut self, peer: Source) -> Option<FiError> {
        let (why, at) = self.get(peer)?.gone.take()?;
        (at.elapsed() < GONE).then_some(why)
    }

    /// The peer says this in answer to `question`.
    pub(super) fn learn(&mut self, peer: Source, question: u32, said: &Answer) {
        let until = self.now + VALID;
        let Some(budget) = self.get(peer) else { return };
        let Some((_, ended)) = budget.marked.filter(|(marked, _)| *marked == question) else { return };
        // If some of what is kept has ended since then, more than this was taken.
        let taken = ended - Amount { messages: said.messages, bytes: said.bytes };
        budget.taken.messages = budget.taken.messages.max(taken.messages);
        budget.taken.bytes = budget.taken.bytes.max(taken.bytes);
        (budget.granted, budget.until) = (said.granted.clamp(FIRST, MOST), until);
        budget.granted_at = Some(Instant::now());
        (budget.is_asked, budget.acknowledged, budget.unheard) = (false, None, 0);
        (budget.is_blind, budget.gone) = (false, None);
        budget.rest();
    }

    /// The application is told to call again for a message of `len` bytes.
    fn refuse(&mut self, peer: Source, len: usize) {
        if let Some(budget) = self.get(peer) {
            if budget.wakes == 0 {
                budget.refused.clear();
            }
            let thread = this_thread();
            if !budget.refused.contains(&thread) {
                budget.refused.push(thread);
            }
            let awaited_long = budget.wakes > 0 && budget.awaits_long;
            budget.awaits_long = awaited_long || len >= UNIT as usize;
            (budget.wakes, budget.was_woken, budget.is_absent) = (WAKES, false, false);
            self.has_callers = true;
        }
    }

    /// The peers for whose messages the application was told to call again, and may not have done so: it may sleep, and they are asked
    /// until it is woken.
    pub(super) fn callers(&self) -> impl Iterator<Item = Source> {
        self.budgets().filter(|(_, budget)| budget.wakes > 0 && !budget.is_absent).map(|(peer, _)| peer)
    }

    /// Those of them that had no room for a further message when they answered last.
    pub(super) fn callers_without_room(&mut self) -> Vec<Source> {
        if !self.has_callers {
            return Vec::new();
        }
        let has_callers = self.callers().next().is_some();
        self.has_callers = has_callers;
        let has_none = |peer: &Source| self.of.get(peer).is_some_and(|at| !self.all[*at].has_place());
        self.callers().filter(has_none).collect()
    }

    fn budgets(&self) -> impl Iterator<Item = (Source, &Budget)> {
        self.of.iter().filter_map(|(peer, at)| Some((*peer, self.all.get(*at)?)))
    }

    /// Whether it is to be woken now that the peer has answered or its address was removed, or later: only if there is room for a message,
    /// or no address.
    pub(super) fn wakes(&mut self, peer: Source) -> bool {
        let may_wake = |budget: &&mut Budget| budget.wakes > 0 && (budget.has_place() || budget.is_absent);
        let Some(budget) = self.get(peer).filter(may_wake) else { return false };
        (budget.wakes, budget.was_woken) = (budget.wakes - 1, true);
        true
    }

    /// The peers for whose messages it was woken and has not called.
    pub(super) fn to_wake(&self) -> Vec<Source> {
        let waits = |(_, budget): &(Source, &Budget)| budget.wakes > 0 && budget.was_woken;
        self.budgets().filter(waits).map(|(peer, _)| peer).collect()
    }

    /// A peer has no memory for questions, or does not answer.
    pub(super) fn is_unasked(&mut self, peer: Source) {
        if let Some(budget) = self.get(peer) {
            (budget.is_asked, budget.unheard, budget.is_blind) = (false, 0, true);
        }
    }
}

/// What a message that was sent counts for, and where.
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
    /// [`FiError::AGAIN`] if the peer may have too many, and until it has said which process it is; and the error of the question if that
    /// says that it is gone.
    pub(super) fn stand_in_if_over(
        &mut self,
        number: usize,
        peer: Source,
        bytes: OutgoingBytes,
        options: weft::SendOptions,
    ) -> Result<Option<OutgoingBytes>, FiError> {
        if !self.stand_ins.by_notes {
            return Ok(Some(bytes));
        }
        let may_stand_in = options.tag.is_some() && bytes.len() >= UNIT as usize;
        let goes = self.eager.goes(peer, bytes.len(), may_stand_in);
        if goes == Goes::AtOnce {
            return Ok(Some(bytes));
        }
        if let Some(error) = self.eager.take_gone(peer) {
            return Err(error);
        }
        match self.ask_for_room(peer) {
            Ok(()) | Err(FiError::AGAIN) => {}
            Err(error) => return Err(error),
        }
        if goes == Goes::Not || !self.stand_ins.knows_life(peer) {
            self.eager.refuse(peer, bytes.len());
            return Err(FiError::AGAIN);
        }
        let len = stand_in_len(bytes.len() as u32);
        self.post_stand_in(number, peer, bytes.into_bytes()?, options).map_err(|(error, _)| error)?;
        self.count_sent(number, peer, len as usize, true);
        Ok(None)
    }

    /// A message of `len` bytes has been sent at once, or what `stands` for one.
    pub(super) fn count_sent(&mut self, number: usize, peer: Source, len: usize, stands: bool) {
        if !self.stand_ins.by_notes {
            return;
        }
        let (counted, asks) = self.eager.begin(peer, len as u32, stands);
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
mod tests;
