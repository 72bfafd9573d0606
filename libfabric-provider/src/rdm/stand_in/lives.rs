//! Which process a receiver of long messages is: who sends one asks before, and each endpoint answers with its own life. A stand-in
//! that one process gets is none to another one in its place.

use std::time::{Duration, Instant};

use weft::{Error, Failure, SendError, Source};

use super::super::{Operation, State};
use super::{Message, StandIns};
use crate::error::FiError;

/// A peer that messages are for, or will be.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) life: Life,
    /// Only answers to this question and later ones count: who has answered an earlier one may be gone.
    since: u32,
    /// Its messages that have not ended.
    pub(super) messages: usize,
    /// Questions that it has got since it has said its life.
    unheeded: u32,
}

/// What is known of the process that a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It has to be asked.
    Unknown,
    /// It has been asked.
    Asked,
    /// It has said its life, then.
    Said(u64, Instant),
}

/// How many questions for its life, 2 s apart, a process may have got and not answered when the messages that wait for that fail. One in
/// a job never hears the answer of one outside it.
const UNHEEDED: u32 = 150;
/// How many it may when so many have been in vain before.
const UNHEEDED_AGAIN: u32 = 2;
/// How many peers that heed no questions are remembered.
const UNHEEDING: usize = 4096;
/// How long a peer's life that no message was sent to yet is believed.
const FRESH: Duration = Duration::from_secs(1);
/// As long as that where the application repeats its call when that is said, and not before.
const FRESH_FOR_CALLS: Duration = Duration::from_secs(10);

/// Questions of peers that wait for their answers here. Who is not among them asks again.
pub(in super::super) const UNANSWERED: usize = 4096;
/// How many of them are looked at in one turn.
const LOOKS: usize = 64;

impl StandIns {
    pub(in super::super) fn life(&self) -> u64 {
        self.life
    }

    /// The number of the next question, which is asked now.
    pub(in super::super) fn next_question(&mut self) -> u32 {
        let number = self.question;
        self.question = number.wrapping_add(1);
        number
    }

    /// The number of the question that will be asked next.
    pub(in super::super) fn coming_question(&self) -> u32 {
        self.question
    }

    /// What a question to a peer says that is to be the same process as before, or is asked for its life; none if it may be any.
    pub(in super::super) fn asks_life(&self, peer: Source) -> Option<u64> {
        self.receivers.get(&peer).map(|receiver| match receiver.life {
            Life::Said(life, _) => life,
            Life::Unknown | Life::Asked => 0,
        })
    }

    /// The life of a peer, if it was said since the last message to it has ended.
    fn life_of(&self, peer: Source) -> Option<u64> {
        let receiver = self.receivers.get(&peer)?;
        match receiver.life {
            Life::Said(life, at) if receiver.messages > 0 || self.is_fresh(at) => Some(life),
            _ => None,
        }
    }

    fn is_fresh(&self, said: Instant) -> bool {
        said.elapsed() < if self.by_notes { FRESH_FOR_CALLS } else { FRESH }
    }

    /// Whether the process that a peer is has been said just now.
    pub(in super::super) fn knows_life(&self, peer: Source) -> bool {
        self.life_of(peer).is_some()
    }

    /// The next question to a peer asks which process it is.
    pub(in super::super) fn expect_life(&mut self, peer: Source) {
        let (since, life, knows) = (self.question, Life::Asked, self.knows_life(peer));
        let receiver = self.receivers.entry(peer);
        let receiver = receiver.or_insert_with(|| Receiver { life, since, messages: 0, unheeded: 0 });
        if !knows {
            // It is asked again and again until it has answered.
            receiver.life = Life::Asked;
        }
    }

    /// The question to a peer that is asked now also asks which process it is, unless that is known or has been asked. Returns whether it
    /// does.
    pub(in super::super) fn begin_asking_life(&mut self, peer: Source) -> bool {
        let (since, life, knows) = (self.question, Life::Unknown, self.knows_life(peer));
        let receiver = self.receivers.entry(peer);
        let receiver = receiver.or_insert_with(|| Receiver { life, since, messages: 0, unheeded: 0 });
        let asks = !knows && receiver.life != Life::Asked;
        if asks {
            (receiver.life, receiver.since) = (Life::Asked, since);
        }
        asks
    }

    /// Keeps a peer's question for its answer, unless there are too many; another one of the same peer stays unless this one is newer.
    fn keep_question(&mut self, peer: Source, question: u32, is_newer: bool) {
        if let Some(kept) = self.unanswered.get_mut(&peer) {
            if is_newer {
                *kept = question;
            }
        } else if self.unanswered.len() < UNANSWERED || !is_newer {
            self.unanswered.insert(peer, question);
            self.askers.push_back(peer);
        }
    }

    /// Forgets peers that no message is for, or waits for. At ports of one's own the application keeps what waits, until it calls again.
    pub(in super::super) fn keep_receivers(&mut self, waits: impl Fn(Source) -> bool) {
        let by_notes = self.by_notes;
        let is_called_for = |receiver: &Receiver| match receiver.life {
            Life::Unknown => false,
            Life::Asked => by_notes,
            Life::Said(_, at) => by_notes && at.elapsed() < FRESH_FOR_CALLS,
        };
        self.receivers
            .retain(|peer, receiver| receiver.messages > 0 || waits(*peer) || is_called_for(receiver));
    }

    /// Takes this for the life of a peer.
    #[cfg(test)]
    pub(in super::super) fn believe(&mut self, peer: Source, life: u64) {
        let (life, since) = (Life::Said(life, Instant::now()), self.question);
        self.receivers.insert(peer, Receiver { life, since, messages: 0, unheeded: 0 });
    }

    /// Whether a message waits for the life of a peer.
    pub(in super::super) fn awaits(&self, peer: Source) -> bool {
        let waits = |receiver: &Receiver| matches!(receiver.life, Life::Unknown | Life::Asked);
        self.receivers.get(&peer).is_some_and(waits)
    }

    /// A question that asked a peer for its life has come back, or has failed. Returns whether a message waits for the answer.
    pub(in super::super) fn ask_again(&mut self, peer: Source) -> bool {
        let Some(receiver) = self.receivers.get_mut(&peer) else { return false };
        let waits = receiver.life == Life::Asked;
        if waits {
            receiver.life = Life::Unknown;
        }
        waits
    }

    /// Whether questions of peers wait for their answers.
    pub(in super::super) fn owes_answers(&self) -> bool {
        !self.unanswered.is_empty()
    }

    /// Whether one of `peer` does.
    pub(in super::super) fn owes_answer_to(&self, peer: Source) -> bool {
        self.unanswered.contains_key(&peer)
    }
}

impl State {
    /// The life of the process that is to fetch a message. If that has not been said, it is asked for, and the message waits: a
    /// stand-in that one process gets is none to another one in its place, so its sender has to tell them apart from the beginning.
    ///
    /// # Errors
    /// It cannot be asked. With [`FiError::AGAIN`] it can be later.
    pub(in super::super) fn life_to_send_to(&mut self, peer: Source) -> Result<Option<u64>, FiError> {
        if let Some(life) = self.stand_ins.life_of(peer) {
            return Ok(Some(life));
        }
        if self.stand_ins.begin_asking_life(peer) {
            let asked = if self.peers.beside.may_post(peer) { self.ask(peer) } else { Err(FiError::AGAIN) };
            if let Err(error) = asked {
                self.stand_ins.ask_again(peer);
                return Err(error);
            }
        }
        Ok(None)
    }

    /// A peer says which process it is, in answer to a question. If it is another one than before, that one fetches nothing any more.
    pub(in super::super) fn learn_life(
        &mut self,
        peer: Source,
        life: u64,
        question: u32,
    ) -> Result<(), FiError> {
        let next = self.stand_ins.question;
        self.stand_ins.unheeding.remove(&peer);
        let Some(receiver) = self.stand_ins.receivers.get_mut(&peer) else { return Ok(()) };
        if question.wrapping_sub(receiver.since) >= next.wrapping_sub(receiver.since) {
            return Ok(());
        }
        (receiver.since, receiver.unheeded) = (question, 0);
        let known = std::mem::replace(&mut receiver.life, Life::Said(life, Instant::now()));
        if matches!(known, Life::Said(known, _) if known != life) {
            self.stand_ins.dropped.retain(|alike, _| alike.peer != peer);
        }
        let is_of_another =
            move |key: Source, message: &Message| key == peer && message.is_delivered && message.life != life;
        self.fail_stand_ins(is_of_another, FiError::REFUSED)
    }

    /// A question to a peer has ended. If that is there and refuses it, for example as it belongs to another job, a message that has to be
    /// fetched fails; and all of them do if it has heeded none of many questions.
    pub(in super::super) fn has_asked(
        &mut self,
        peer: Source,
        result: &Result<(), Error>,
    ) -> Result<(), FiError> {
        if result.is_ok() {
            self.budgets.has_asked(peer);
        }
        let Some(receiver) = self.stand_ins.receivers.get_mut(&peer) else { return Ok(()) };
        if receiver.life != Life::Asked {
            return Ok(());
        }
        match result {
            Err(
                Error::Send(SendError::Failed(Failure::Busy { .. }))
                | Error::Connection(Failure::Busy { .. }),
            ) => Ok(()),
            Ok(()) => {
                receiver.unheeded += 1;
                let unheeding = &mut self.stand_ins.unheeding;
                if receiver.unheeded < if unheeding.contains(&peer) { UNHEEDED_AGAIN } else { UNHEEDED } {
                    return Ok(());
                }
                receiver.unheeded = 0;
                if unheeding.len() >= UNHEEDING {
                    unheeding.clear();
                }
                unheeding.insert(peer);
                self.stand_ins.ask_again(peer);
                self.fail_unheeded(peer)
            }
            Err(why) => {
                let error = FiError::from(why);
                if error.says_that_the_peer_is_gone() {
                    // As of all that is asked of it.
                    return Ok(());
                }
                // One that may be sent at once waits for memory, and the question is asked again now and then.
                if !self.has_to_stand_in(peer) {
                    return Ok(());
                }
                self.stand_ins.ask_again(peer);
                self.fail_first(peer, error)
            }
        }
    }

    /// A peer that is gone does not say its life: the message that waits for that fails. Those behind it ask again if its host is
    /// there, since another process may be; if that does not answer, each of them would wait as long as the first.
    pub(super) fn fail_asked(&mut self, peer: Source, error: FiError) -> Result<(), FiError> {
        if !self.stand_ins.ask_again(peer) {
            return Ok(());
        }
        self.fail_first(peer, error)?;
        if error == FiError::REFUSED { Ok(()) } else { self.fail_long(peer, error) }
    }

    /// There is no connection to ask a peer for its life: messages that have to be fetched fail.
    pub(in super::super) fn give_up_life(&mut self, peer: Source, error: FiError) -> Result<(), FiError> {
        if self.stand_ins.awaits(peer) { self.fail_long(peer, error) } else { Ok(()) }
    }

    /// Answers a peer's question with this process's life.
    pub(in super::super) fn say_here(&mut self, peer: Source, question: u32) {
        self.stand_ins.keep_question(peer, question, true);
        self.answer_questions();
    }

    /// Answers the questions that have not been, as far as there is room, of the peers in turn.
    pub(in super::super) fn answer_questions(&mut self) {
        for _ in 0..self.stand_ins.askers.len().min(LOOKS) {
            let Some(peer) = self.stand_ins.askers.pop_front() else { return };
            let Some(&question) = self.stand_ins.unanswered.get(&peer) else { continue };
            let is_first = !self.stand_ins.answering.contains(&peer);
            // Who cannot be reached at all is answered the next time that it asks.
            let is_over = is_first && self.peers.beside.may_post(peer) && !self.post_answer(peer, question);
            if is_over {
                self.stand_ins.unanswered.remove(&peer);
            } else {
                self.stand_ins.askers.push_back(peer);
            }
        }
    }

    /// Sends an answer to a question. Returns whether that has to wait.
    fn post_answer(&mut self, peer: Source, question: u32) -> bool {
        let here = Operation { asks: Some(peer), says_here: Some(question), ..Operation::default() };
        let number = self.operations.insert(here);
        let posted = self.post_here(number, peer, question);
        match posted {
            Ok(()) => {
                self.questions += 1;
                self.stand_ins.answering.insert(peer);
            }
            Err(_) => drop(self.operations.remove(number)),
        }
        posted == Err(FiError::AGAIN)
    }

    /// An answer to a peer's question has been delivered, or not; `again` if it has come back unsent.
    pub(in super::super) fn question_answered(&mut self, peer: Source, question: u32, again: bool) {
        self.stand_ins.answering.remove(&peer);
        if again {
            // Unless it has asked once more.
            self.stand_ins.keep_question(peer, question, false);
        }
        self.answer_questions();
    }

    /// There is no connection to a peer: what it has asked is not answered.
    pub(in super::super) fn drop_question(&mut self, peer: Source) {
        if self.stand_ins.unanswered.remove(&peer).is_some() {
            self.stand_ins.askers.retain(|other| *other != peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use weft::core::wire::ses::ReturnCode;

    use super::*;

    const PEER: Source = Source { peer: weft::Addr(3), process: 4 };

    #[test]
    fn a_peer_that_has_said_its_life_is_remembered_until_the_application_calls_again() {
        let mut all = StandIns { by_notes: true, ..StandIns::default() };
        let asked = Source { process: 5, ..PEER };
        all.believe(PEER, 1);
        all.expect_life(asked);
        all.keep_receivers(|_| false);
        assert!(all.knows_life(PEER) && all.awaits(asked));
        assert!(FRESH_FOR_CALLS >= Duration::from_secs(10));
        // One whose questions are in vain is not.
        all.ask_again(asked);
        all.keep_receivers(|_| false);
        assert!(all.knows_life(PEER) && !all.awaits(asked));
        // What waits at a server is asked for.
        all.by_notes = false;
        all.keep_receivers(|_| false);
        assert!(!all.knows_life(PEER));
    }

    #[test]
    fn a_peer_that_refuses_a_question_is_not_asked_at_once_again_for_a_message_that_waits_for_memory() {
        let mut state = State::new(None);
        let receiver = Receiver { life: Life::Asked, since: 0, messages: 0, unheeded: 0 };
        state.stand_ins.receivers.insert(PEER, receiver);
        let refused = Err(Error::Send(SendError::Answered(ReturnCode::BAD_JOB_ID)));
        state.has_asked(PEER, &refused).unwrap();
        assert_eq!(state.stand_ins.receivers[&PEER].life, Life::Asked);
        assert!(state.stand_ins.receivers().eq([PEER]), "it is asked by the next questions");
    }

    #[test]
    fn questions_are_answered_in_turn_and_those_of_peers_without_a_connection_wait() {
        let mut state = State::new(None);
        let peers: Vec<_> = (0..3 * LOOKS as u16).map(|process| Source { process, ..PEER }).collect();
        for (n, peer) in peers.iter().enumerate() {
            state.stand_ins.keep_question(*peer, n as u32, true);
            state.stand_ins.keep_question(*peer, n as u32 + 1, true);
            if n % 2 == 0 {
                state.peers.beside.refuse_for_now(*peer);
            }
        }
        // There is no endpoint, so none of the others can be answered at all.
        for turn in 1..=3 {
            state.answer_questions();
            assert_eq!(state.stand_ins.unanswered.len(), peers.len() - turn * LOOKS / 2);
            assert_eq!(state.stand_ins.askers.len(), state.stand_ins.unanswered.len());
        }
        assert_eq!(state.stand_ins.unanswered.get(&peers[2]), Some(&3));
        peers.iter().for_each(|peer| state.drop_question(*peer));
        assert!(state.stand_ins.unanswered.is_empty() && state.stand_ins.askers.is_empty());
    }
}
