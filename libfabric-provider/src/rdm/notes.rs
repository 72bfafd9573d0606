//! What endpoints whose workers are their own tell each other: notes, which are writes of no bytes with data, to keys that no
//! application has. They meet no receive, wait behind no message, and cost messages nothing
//! ([decision 0123](../../../docs/decisions/0123-long-messages-at-ports-of-ones-own-are-read.md)).
//!
//! | key | says | data | offset |
//! |---|---|---|---|
//! | [`ASKS`] | which process are you, and how much do you keep of mine? | number of the question; none if it only asks whether the process is there | 0 |
//! | [`HERE`] | this one, in answer to a question | life of the process in the upper half, number of the question in the lower | [what is kept](super::grants::Answer) of the asker's messages that nobody has received, and what is granted it |
//! | [`DONE`] | your message was received, or could not be read | the key of its bytes | the number in its stand-in, and behind its 16 bits 2 if it could not |
//! | [`DROPPED`] | one like this was dropped, or received by who has seen less than its stand-in | the number of the notice | 32 bits of the hash of its tag and of its stand-in's header data |
//!
//! The bytes of a message for which something stands are exposed, to its receiver alone, under a key that follows from all that
//! both know of it. The receiver [reads](super::readings) them to where they belong, and tells the sender so.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use weft::core::{Buffer, Exposure};
use weft::{Endpoint, Error, ReadFault, RemoteMemory, Rights, Source, Written};

use super::grants::{Answer, Grants};
use super::pending::TO_ONE;
use super::readings::Readings;
use super::stand_in::{Alike, Named, Untaken};
use super::{Operation, State};
use crate::error::FiError;
use crate::random;

const HERE: u64 = u64::MAX - 1;
const ASKS: u64 = u64::MAX - 2;
const DONE: u64 = u64::MAX - 3;
const DROPPED: u64 = u64::MAX - 4;

/// The most notices to one peer that are under way or wait: twice as many as it has messages under way, since those that it has got
/// count until they are acknowledged.
pub(super) const NOTICES: usize = 2 * TO_ONE;
/// As many to all peers, beyond those of which each is sure.
pub(super) const TO_ALL: usize = 8 * NOTICES;
/// Of so many each peer is sure, whatever others have, and as many to all peers: as of operations without a server.
const SURE: usize = 4;
pub(super) const ALL_SURE: usize = SURE * super::DEPTH;
/// The most to one peer that have failed and wait to be sent again: one for each of its messages that may be under way. Those that
/// another process refuses, in the place of the one that they are for, do not wait. One that a peer has not answered does: it may have
/// stood still, and waits for what it has not heard.
pub(super) const AGAIN: usize = TO_ONE;
/// As many to all peers, beyond those of which each is sure. A peer has no more of them than it leaves to others.
pub(super) const ALL_AGAIN: usize = TO_ALL / 2;
/// How often one is sent, 2 s after it has failed.
const TRIES: u32 = 32;
/// How many notices that messages were dropped a peer may get while one of them has not ended: fewer than it remembers.
const SPAN: u64 = 1 << 14;
/// How many of those that wait are looked at in one turn.
pub(super) const LOOKS: usize = 64;
/// How many of them find no room before the others are not tried.
const REFUSED: usize = 8;

/// Whether peers write notes to the memory under this key.
pub(crate) fn is_key(key: u64) -> bool {
    (DROPPED..=HERE).contains(&key)
}

/// Lets peers write notes.
pub(super) fn expose(endpoint: &mut Endpoint) -> Result<bool, FiError> {
    let process = endpoint.process();
    let Some(worker) = endpoint.worker_mut() else { return Ok(false) };
    for key in [HERE, ASKS, DONE, DROPPED] {
        let rights = Rights { write: true, ..Rights::default() };
        // No byte is ever kept.
        let exposure = Exposure { key, buffer: Buffer::Virtual(u32::MAX), base: 0, rights, from: None };
        let exposed = worker.fep_mut().expose(process, exposure);
        exposed.map_err(|refused| FiError::from(&Error::from(refused.why)))?;
    }
    Ok(true)
}

/// A hash that is the same in all processes (the finaliser of SplitMix64).
fn mix(before: u64, word: u64) -> u64 {
    let mut mixed = (before ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// The key of the bytes of a message whose stand-in has this end.
pub(super) fn key_of(tag: u64, header_data: u64, end: u128) -> u64 {
    [tag, header_data, end as u64, (end >> 64) as u64].into_iter().fold(0, mix)
}

/// What a note says of a message that its receiver knows by its tag and its header data.
pub(super) fn folded(tag: u64, header_data: u64) -> u32 {
    mix(mix(0, tag), header_data) as u32
}

/// A notice to the sender of a message that this was received or dropped.
#[derive(Debug)]
pub(super) struct Notice {
    named: Named,
    /// Of one that a message was dropped, from the first time on that it is sent: the same each time, and no other one's.
    number: Option<u64>,
    tries: u32,
}

/// How many notices there are to a peer, or to all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    all: usize,
    /// Those of which peers are sure.
    sure: usize,
}

impl Count {
    /// Whether a peer that has `own` of these may have one more, of `most` to one peer and `to_all` to all.
    fn has_room(&self, own: Count, most: usize, to_all: usize) -> bool {
        let left = to_all.saturating_sub(self.all - self.sure);
        self.is_sure(own) || own.all < most && own.all - own.sure < left
    }

    fn is_sure(&self, own: Count) -> bool {
        own.sure < SURE && self.sure < ALL_SURE
    }

    fn add(&mut self, own: &mut Count) {
        let is_sure = usize::from(self.is_sure(*own));
        for count in [self, own] {
            count.all += 1;
            count.sure += is_sure;
        }
    }

    fn remove(&mut self, own: &mut Count) {
        if own.all > 0 {
            let was_sure = usize::from(own.sure == own.all);
            for count in [self, own] {
                count.all -= 1;
                count.sure -= was_sure;
            }
        }
    }
}

/// The notices to one peer. One that has none has no entry: strangers are as many as they like.
#[derive(Debug, Default)]
struct Told {
    /// Those that have not ended.
    notices: Count,
    /// Of those, the ones that have failed and wait to be sent again.
    failed: Count,
    /// How many numbers were given.
    given: u64,
    /// The numbers of those that have not ended, and how many were given before, the oldest first.
    numbers: VecDeque<(u64, u64)>,
}

/// What an endpoint with a worker of its own has to tell, and to read.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// Notices for which there was no room.
    unsent: VecDeque<Notice>,
    /// Those that have failed, and that are sent again by now.
    failed: Vec<Notice>,
    again: VecDeque<Notice>,
    /// What each peer is told.
    told: HashMap<Source, Told>,
    /// Notices that have not ended, to all peers, and those of them that have failed.
    all: Count,
    all_failed: Count,
    /// The number of the next that a message was dropped. The first is random, so that no process at this place has sent it before.
    next: Option<u64>,
    pub(super) readings: Readings,
    /// What peers may have here that nobody has received.
    pub(super) grants: Grants,
}

impl Notes {
    /// Counts one of `peer`. Returns false if that has as many as it may, or as it leaves to others.
    fn begin(&mut self, peer: Source) -> bool {
        let own = self.told.get(&peer).map_or(Count::default(), |told| told.notices);
        let may_begin = self.all.has_room(own, NOTICES, TO_ALL);
        if may_begin {
            self.all.add(&mut self.told.entry(peer).or_default().notices);
        }
        may_begin
    }

    /// The number of a further notice to `peer` that a message was dropped, unless an earlier one has to end before.
    fn number(&mut self, peer: Source) -> Option<u64> {
        let told = self.told.get_mut(&peer)?;
        if told.numbers.front().is_some_and(|(before, _)| told.given - before >= SPAN) {
            return None;
        }
        let next = self.next.get_or_insert_with(random::number);
        let number = *next;
        *next = number.wrapping_add(1);
        told.numbers.push_back((told.given, number));
        told.given += 1;
        Some(number)
    }

    fn end(&mut self, notice: &Notice) {
        let Some(told) = self.told.get_mut(&notice.named.peer) else { return };
        self.all.remove(&mut told.notices);
        // One that says that a message was read has no number, and there may be thousands of others that do.
        if let Some(ended) = notice.number
            && let Some(at) = told.numbers.iter().position(|(_, number)| *number == ended)
        {
            told.numbers.remove(at);
        }
        if told.notices.all == 0 {
            self.told.remove(&notice.named.peer);
        }
    }

    /// Whether a sender has not been told yet, or a message not been read.
    pub(super) fn are_waiting(&self) -> bool {
        self.all.all > 0 || self.readings.are_waiting()
    }

    /// Keeps one that has failed, unless there is nobody to be told. A peer that did not answer may do so later: its sender, which hears
    /// from this process then, would wait for a notice that was dropped.
    fn keep(&mut self, mut notice: Notice, why: FiError) {
        notice.tries += 1;
        let is_over = why == FiError::REFUSED || why == FiError::GONE || notice.tries >= TRIES;
        match self.told.get_mut(&notice.named.peer) {
            Some(told) if !is_over && self.all_failed.has_room(told.failed, AGAIN, ALL_AGAIN) => {
                self.all_failed.add(&mut told.failed);
                self.failed.push(notice);
            }
            _ => self.end(&notice),
        }
    }

    /// Takes the next that is to be sent in this turn: of those that had no room, and of those that have failed before.
    fn take(&mut self, from_failed: bool) -> Option<Notice> {
        if !from_failed {
            return self.unsent.pop_front();
        }
        let notice = self.again.pop_front()?;
        if let Some(told) = self.told.get_mut(&notice.named.peer) {
            self.all_failed.remove(&mut told.failed);
        }
        Some(notice)
    }
}

impl State {
    fn write_note(
        &mut self,
        peer: Source,
        to: RemoteMemory,
        data: Option<u64>,
        number: usize,
    ) -> Result<(), FiError> {
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let posted = self.peers.beside.post(endpoint, peer, |endpoint, connection| {
            let write = endpoint.write(connection, Bytes::new(), to, data, number as u64);
            write.map_err(|refused| refused.error)
        });
        posted.map(|_| ())
    }

    /// Asks whether a peer is there, and if a message is to stand in or has, which process that is and how much it keeps.
    pub(super) fn write_question(&mut self, number: usize, peer: Source) -> Result<(), FiError> {
        let question = self.stand_ins.asks_life(peer).map(|_| self.stand_ins.next_question());
        if let Some(operation) = self.operations.get_mut(number) {
            operation.is_numbered = question.is_some();
        }
        self.write_note(peer, RemoteMemory { key: ASKS, offset: 0 }, question.map(u64::from), number)?;
        // One that is not on its way has no answer, and the one before it may still get its own.
        if let Some(question) = question {
            self.eager.mark(peer, question);
        }
        Ok(())
    }

    /// The life of this process as notes say it.
    fn noted_life(&self) -> u64 {
        self.stand_ins.life() & u64::from(u32::MAX) | 1
    }

    /// Bytes and number of the messages of `peer` that nobody has received.
    fn kept_of(&self, peer: Source) -> (u64, u64) {
        let endpoint = self.endpoint.as_ref();
        let kept = endpoint.and_then(|endpoint| {
            let (fep, process) = (endpoint.worker()?.fep(), endpoint.process());
            Some((fep.kept_of(process, peer.peer), fep.kept_messages_of(process, peer.peer).into()))
        });
        kept.unwrap_or_default()
    }

    /// Two seconds have passed, as far as budgets are concerned.
    pub(super) fn tick_budgets(&mut self) {
        self.eager.tick();
        let mut grants = std::mem::take(&mut self.notes.grants);
        grants.tick(|peer| self.kept_of(peer).0);
        self.notes.grants = grants;
    }

    /// Answers question `question`.
    pub(super) fn write_here(&mut self, number: usize, peer: Source, question: u32) -> Result<(), FiError> {
        let (bytes, messages) = self.kept_of(peer);
        let granted = self.notes.grants.grant(peer, bytes);
        let offset = Answer { bytes, messages, granted }.noted();
        let data = self.noted_life() << 32 | u64::from(question);
        self.write_note(peer, RemoteMemory { key: HERE, offset }, Some(data), number)
    }

    /// A peer has written a note.
    pub(super) fn take_note(&mut self, note: &Written) -> Result<(), FiError> {
        let Written { source, key, offset, data, .. } = *note;
        match key {
            ASKS => self.say_here(source, data as u32),
            HERE => {
                let (life, question) = (data >> 32, data as u32);
                self.eager.learn(source, question, &Answer::of_note(offset));
                self.learn_life(source, life, question)?;
                self.wake_caller(source);
            }
            DONE => {
                if let Some(named) = self.stand_ins.lent_as(source, offset as u16, data) {
                    let untaken = Untaken::of((offset >> 16) as u8);
                    self.fetched_by_peer(&Named { untaken, ..named })?;
                }
            }
            DROPPED => {
                let alike = Alike::noted(source, offset as u32);
                if self.stand_ins.drop_one(&alike, Some(data), None) {
                    self.end_dropped(&alike)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Lets `peer` read the bytes of a message.
    ///
    /// # Errors
    /// [`FiError::NO_KEY`] if the key is in use.
    pub(super) fn lend(&mut self, peer: Source, key: u64, bytes: &Bytes) -> Result<(), FiError> {
        let endpoint = self.endpoint.as_mut().ok_or(FiError::BAD_STATE)?;
        let process = endpoint.process();
        let worker = endpoint.worker_mut().ok_or(FiError::BAD_STATE)?;
        let buffer = Buffer::Bytes(Box::new(bytes.clone()));
        let exposure = Exposure { key, buffer, base: 0, rights: Rights::READ, from: Some(peer) };
        let exposed = worker.fep_mut().expose(process, exposure);
        exposed.map_err(|refused| FiError::from(&Error::from(refused.why)))?;
        self.stand_ins.lend(key);
        Ok(())
    }

    /// Nobody reads the bytes under this key any more. They are copied when packets are made of them, so no packet refers to them.
    pub(super) fn take_back_lent(&mut self, key: u64) {
        self.stand_ins.take_back(key);
        let Some(endpoint) = &mut self.endpoint else { return };
        let process = endpoint.process();
        if let Some(worker) = endpoint.worker_mut() {
            drop(worker.fep_mut().withdraw(process, key));
        }
    }

    /// Tells the sender of a message that it is done.
    pub(super) fn tell_by_note(&mut self, named: Named) {
        if self.notes.begin(named.peer) {
            self.post_notice(Notice { named, number: None, tries: 0 });
        }
    }

    /// Sends a notice. It waits if there is no room for it now. Returns whether it does not.
    fn post_notice(&mut self, mut notice: Notice) -> bool {
        let Named { peer, tag, header_data, end, untaken } = notice.named;
        let (key, offset, data) = match end {
            Some(end) => {
                let why = u64::from(Untaken::number(untaken));
                (DONE, why << 16 | u64::from(notice.named.number()), key_of(tag, header_data, end))
            }
            None => {
                notice.number = notice.number.or_else(|| self.notes.number(peer));
                let Some(number) = notice.number else {
                    self.notes.unsent.push_back(notice);
                    return false;
                };
                (DROPPED, folded(tag, header_data).into(), number)
            }
        };
        let number =
            self.operations.insert(Operation { notice: Some(Box::new(notice)), ..Operation::default() });
        let Err(error) = self.write_note(peer, RemoteMemory { key, offset }, Some(data), number) else {
            return true;
        };
        let Some(notice) = self.operations.remove(number).and_then(|operation| operation.notice) else {
            return true;
        };
        if error == FiError::AGAIN {
            self.notes.unsent.push_back(*notice);
            return false;
        }
        self.notes.keep(*notice, error);
        true
    }

    /// A notice has been delivered, or not.
    pub(super) fn notice_ended(&mut self, notice: Notice, result: Result<(), Error>) {
        match result {
            Ok(()) => self.notes.end(&notice),
            Err(why) => self.notes.keep(notice, FiError::from(&why)),
        }
    }

    /// From now on the notices are sent again that may not have arrived.
    pub(super) fn repeat_notes(&mut self) {
        let Notes { failed, again, .. } = &mut self.notes;
        again.extend(failed.drain(..));
    }

    /// Does what there was no room for, as much of it as one turn has time for.
    pub(super) fn carry_notes(&mut self) {
        if self.stand_ins.owes_answers() {
            self.answer_questions();
        }
        if !self.notes.are_waiting() {
            return;
        }
        self.read_on();
        for from_failed in [false, true] {
            let count = if from_failed { self.notes.again.len() } else { self.notes.unsent.len() };
            let mut refused = 0;
            for _ in 0..count.min(LOOKS) {
                let Some(notice) = self.notes.take(from_failed) else { break };
                refused += usize::from(!self.post_notice(notice));
                // One peer may have no room, and the next have some; when there is none for several, there is none at all.
                if refused >= REFUSED {
                    break;
                }
            }
        }
    }

    /// Lets the application repeat a call to send to `peer` that was refused until that had room. It may sleep until something of its
    /// own ends, and nothing of its own may be under way.
    pub(super) fn wake_caller(&mut self, peer: Source) {
        if self.eager.wakes(peer) {
            self.wake_callers();
        }
    }

    /// Lets all threads that sleep at the queue of transmissions repeat their calls.
    pub(super) fn wake_callers(&self) {
        if let Some(transmit) = &self.bindings.transmit {
            // A queue that nobody can sleep at is read again and again.
            let _ = transmit.queue.wake_all();
        }
    }

    /// A question has ended that was written to a peer, or an answer to one of its own.
    pub(super) fn question_ended(
        &mut self,
        peer: Source,
        operation: &Operation,
        result: Result<(), Error>,
    ) -> Result<(), FiError> {
        match (operation.says_here, &result) {
            (Some(question), _) => self.question_answered(peer, question, false),
            (None, Ok(())) => {
                if operation.is_numbered && self.eager.has_asked(peer) {
                    // It has not answered any of many: it reads no messages.
                    self.stand_ins.ask_again(peer);
                    self.wake_caller(peer);
                }
            }
            (None, Err(why)) => {
                self.stand_ins.ask_again(peer);
                let error = FiError::from(why);
                let is_gone = error.says_that_the_peer_is_gone();
                if matches!(why, Error::Access(ReadFault::Answered(_))) && !is_gone {
                    // Who has no memory for notes is none that reads messages: what is sent to it is sent at once. A process that is not
                    // there any more says nothing of the one that takes its place.
                    self.eager.is_unasked(peer);
                    if self.stand_ins.asks_life(peer).is_some() {
                        self.fail_stand_ins_of(peer, FiError::REFUSED)?;
                    }
                } else {
                    self.eager.has_failed(peer, error);
                }
                self.wake_caller(peer);
            }
        }
        self.answered(peer, result)
    }
}

#[cfg(test)]
mod tests {
    use weft::core::wire::ses::ReturnCode;

    use super::super::eager::Goes;
    use super::*;

    #[test]
    fn keys_differ_if_anything_that_is_known_of_two_messages_does() {
        let keys = [(1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4), (1, 2, 3 | 1 << 127), (2, 1, 3)];
        let mut keys = keys.map(|(tag, header_data, end)| key_of(tag, header_data, end));
        assert!(!keys.iter().any(|key| is_key(*key)));
        keys.sort_unstable();
        assert!(keys.windows(2).all(|two| two[0] != two[1]));
    }

    const PEERS: [Source; 2] =
        [Source { peer: weft::Addr(1), process: 1 }, Source { peer: weft::Addr(1), process: 2 }];

    fn notice(number: Option<u64>) -> Notice {
        Notice { named: Named::new(PEERS[0], Some(5), 0, None), number, tries: 0 }
    }

    #[test]
    fn a_peer_that_takes_no_notices_leaves_room_for_those_to_others() {
        let mut notes = Notes::default();
        assert!((0..NOTICES).all(|_| notes.begin(PEERS[0])));
        assert!(!notes.begin(PEERS[0]) && notes.begin(PEERS[1]));
        // Another process has taken its place.
        notes.keep(notice(None), FiError::REFUSED);
        assert!(notes.failed.is_empty() && notes.begin(PEERS[0]));
        notes.keep(notice(None), FiError::OTHER);
        assert!(notes.failed.len() == 1 && !notes.begin(PEERS[0]));
        // However many peers there are, so many wait, and each has some.
        let more = (3..4_096).map(|process| Source { process, ..PEERS[0] });
        let counts: Vec<_> =
            more.map(|peer| (0..NOTICES).take_while(|_| notes.begin(peer)).count()).collect();
        assert!(counts[..6].iter().all(|count| *count == NOTICES));
        assert!(counts.iter().all(|count| *count >= SURE));
        assert!(notes.all.all <= TO_ALL + ALL_SURE && notes.all.sure <= ALL_SURE);
        let stranger = |process| Source { peer: weft::Addr(2), process };
        let strangers = (0..4_096).filter(|process| notes.begin(stranger(*process))).count();
        assert!(strangers < 2 * SURE, "beyond that there is a bound");
        let all = notes.all.all;
        assert_eq!(all, NOTICES + 1 + counts.iter().sum::<usize>() + strangers);
        (0..2 * AGAIN).for_each(|_| notes.keep(notice(None), FiError::OTHER));
        assert_eq!((notes.failed.len(), notes.all.all), (AGAIN, all - AGAIN - 1));
    }

    /// A peer that stands still for longer than an answer may take goes on with what it waits for.
    #[test]
    fn a_notice_that_a_peer_does_not_answer_is_repeated() {
        let mut notes = Notes::default();
        assert!(notes.begin(PEERS[0]));
        let mut told = notice(None);
        for tries in 1..TRIES {
            notes.keep(told, [FiError::TIMED_OUT, FiError::OTHER][tries as usize % 2]);
            assert_eq!((notes.failed.len(), notes.all.all), (1, 1), "{tries}");
            notes.again.extend(notes.failed.drain(..));
            told = notes.take(true).unwrap();
        }
        notes.keep(told, FiError::TIMED_OUT);
        assert!(notes.failed.is_empty() && notes.told.is_empty() && notes.all.all == 0);
    }

    #[test]
    fn peers_that_answer_nothing_leave_room_for_notices_that_are_repeated_to_others() {
        let mut notes = Notes::default();
        let to = |process| Source { process, ..PEERS[0] };
        let fail = |notes: &mut Notes, peer| {
            assert!(notes.begin(peer));
            notes.keep(
                Notice { named: Named::new(peer, Some(5), 0, None), number: None, tries: 0 },
                FiError::TIMED_OUT,
            );
        };
        for process in 1..=12 {
            (0..AGAIN + 1).for_each(|_| fail(&mut notes, to(process)));
            assert!(notes.told[&to(process)].failed.all > 100, "{process}");
        }
        assert_eq!((notes.told[&to(1)].failed.all, notes.all.all), (AGAIN, notes.failed.len()));
        assert!(notes.all.all < ALL_AGAIN);
        // However many they are, each is sure of some.
        for process in 13..=100 {
            (0..SURE + 1).for_each(|_| fail(&mut notes, to(process)));
            assert!(notes.told[&to(process)].failed.all >= SURE, "{process}");
        }
        assert_eq!(notes.all_failed.all, notes.failed.len());
        // When all have been told nothing is left, of whatever was counted.
        let count = notes.failed.len();
        notes.again.extend(notes.failed.drain(..));
        for _ in 0..count {
            let told = notes.take(true).unwrap();
            notes.end(&told);
        }
        assert!(notes.told.is_empty());
        assert_eq!([notes.all, notes.all_failed], [Count::default(); 2]);
    }

    /// Another one that reads messages may take its place.
    #[test]
    fn a_process_that_is_gone_is_not_taken_for_one_that_reads_no_messages() {
        let mut state = State::new(None);
        state.stand_ins.by_notes = true;
        state.count_sent(0, PEERS[0], 1 << 20, false);
        let mut fail = |code| {
            let result = Err(Error::Access(ReadFault::Answered(code)));
            state.question_ended(PEERS[0], &Operation::default(), result).unwrap();
            state.eager.goes(PEERS[0], 64 << 20, true)
        };
        assert_eq!(fail(ReturnCode::BAD_PID), Goes::ByStandIn);
        assert_eq!(fail(ReturnCode::PERM_VIOLATION), Goes::AtOnce);
    }

    #[test]
    fn only_notices_of_dropped_messages_have_numbers() {
        let mut notes = Notes::default();
        assert!((0..3).all(|_| notes.begin(PEERS[0]) && notes.begin(PEERS[1])));
        let numbers = [PEERS[0], PEERS[1], PEERS[0]].map(|peer| notes.number(peer).unwrap());
        assert!(numbers[0] != numbers[1] && numbers[0] != numbers[2] && numbers[1] != numbers[2]);
        // One that has no number is no other's.
        notes.end(&notice(None));
        assert_eq!(notes.told[&PEERS[0]].numbers.len(), 2);
        notes.end(&notice(Some(numbers[2])));
        // An old one holds the others up before the peer has forgotten that it has heard it.
        for _ in 2..SPAN {
            assert!(notes.begin(PEERS[0]));
            let number = notes.number(PEERS[0]).unwrap();
            notes.end(&notice(Some(number)));
        }
        assert!(notes.number(PEERS[0]).is_none());
        assert!(notes.begin(PEERS[0]));
        notes.end(&notice(Some(numbers[0])));
        assert!(notes.number(PEERS[0]).is_some());
    }

    #[test]
    fn strangers_leave_nothing_behind_when_they_have_been_told() {
        let mut notes = Notes::default();
        let peers = || (1..1_000).map(|host| Source { peer: weft::Addr(host), process: 1 });
        let named = |peer| Named::new(peer, Some(5), 0, None);
        for peer in peers() {
            assert!(notes.begin(peer));
            let number = notes.number(peer);
            assert!(number.is_some());
            notes.end(&Notice { named: named(peer), number, tries: 0 });
        }
        assert!(notes.told.is_empty() && notes.all.all == 0);
        // Nor when there is no room for what they are to be told.
        notes.all = Count { all: TO_ALL + ALL_SURE, sure: ALL_SURE };
        assert!(!peers().any(|peer| notes.begin(peer)) && notes.told.is_empty());
    }

    #[test]
    fn a_turn_sends_few_of_many_notices_again() {
        let mut state = State::new(None);
        for _ in 0..AGAIN {
            assert!(state.notes.begin(PEERS[0]));
            state.notes.keep(notice(None), FiError::OTHER);
        }
        state.repeat_notes();
        // There is no endpoint, so each of them fails once more.
        for turn in 1..=3 {
            state.carry_notes();
            assert_eq!(
                (state.notes.failed.len(), state.notes.again.len()),
                (turn * LOOKS, AGAIN - turn * LOOKS)
            );
        }
    }
}
