//! Receives that name a peer end with an error when that is gone: an endpoint asks the peers that they wait for, now and then,
//! whether they are there. The question is a write of no bytes, to memory that nobody has, or one of the [notes](super::notes): any
//! answer will do. Endpoints of servers send a message instead, which is delivered if the process is there.

use std::collections::HashSet;

use weft::{Endpoint, Error, Failure, ReadFault, SendError, Source, Span};

use super::{Operation, Rdm, State};
use crate::error::{FiError, lock};

/// A peer that has not answered a question has sent nothing else for at least so long either, or is there after all. It is less than
/// the 6.3 s that an answer may take.
const SILENCE: Span = Span::from_ms(6_000);

impl Rdm {
    /// Asks the peers that receives name, those that have not answered the last question excepted, and drops answers of others
    /// that come too late.
    pub(crate) fn ask_peers(&self) -> Result<(), FiError> {
        let mut state = lock(&self.state)?;
        // First: the look must know of the receives that are taken back.
        state.withdraw_pieces();
        // Work says what is wrong if that fails.
        let _ = state.sweep();
        // Another thread may have removed the address for which an application sleeps.
        let _ = state.meet();
        let State { stand_ins, backlog, .. } = &mut *state;
        stand_ins.keep_receivers(|peer| backlog.has_sends_to(peer));
        state.takings.keep_recent();
        state.tick_budgets();
        let callers: Vec<Source> = state.eager.callers().collect();
        callers.into_iter().for_each(|peer| state.stand_ins.expect_life(peer));
        let asked: HashSet<Source> = state.operations.iter().filter_map(|operation| operation.asks).collect();
        for peer in state.peers_to_ask().difference(&asked) {
            // Who cannot be asked now is asked the next time.
            let _ = state.ask(*peer);
        }
        state.repeat_notices();
        state.repeat_notes();
        state.eager.to_wake().into_iter().for_each(|peer| state.wake_caller(peer));
        Ok(())
    }

    /// Asks the peers that have had no room for a message whose call was refused, as often as [`super::eager`] lets it.
    pub(crate) fn ask_for_callers(&self) -> Result<(), FiError> {
        let mut state = lock(&self.state)?;
        for peer in state.eager.callers_without_room() {
            // Who cannot be asked now is asked the next time.
            let _ = state.ask_for_room(peer);
        }
        Ok(())
    }

    /// Whether a question, its answer, or a look for answers that come too late, is under way or waits.
    pub(crate) fn is_asking(&self) -> Result<bool, FiError> {
        let state = lock(&self.state)?;
        let sweeps = state.carrier.as_ref().is_some_and(|carrier| carrier.sweeps());
        Ok(state.questions > 0 || state.stand_ins.owes_answers() || sweeps)
    }
}

impl State {
    /// The peers that are asked whether they are there: receives name them, they owe answers, are to fetch messages, or to say what
    /// they have taken while messages, or an application that was told to call again, wait for that.
    pub(super) fn peers_to_ask(&self) -> HashSet<Source> {
        let named = self.operations.iter().filter_map(|operation| operation.from);
        let owing = self.owe_answers().chain(self.stand_ins.receivers());
        let awaited = self.backlog.awaited().filter(|peer| self.budgets.awaits(*peer));
        named.chain(owing).chain(awaited).chain(self.eager.callers()).collect()
    }

    pub(super) fn ask(&mut self, peer: Source) -> Result<(), FiError> {
        let number = self.operations.insert(Operation { asks: Some(peer), ..Operation::default() });
        let posted = match self.carrier {
            Some(_) => self.post_question(number, peer),
            None => self.write_question(number, peer),
        };
        match posted {
            Ok(()) => self.questions += 1,
            Err(_) => drop(self.operations.remove(number)),
        }
        posted
    }

    /// A question to `peer` has ended, or an answer to one of its own: if that is gone, receives that name it have failed, and so have
    /// those whose messages are read from it, and accesses to its memory that wait for their answers.
    pub(super) fn answered(&mut self, peer: Source, result: Result<(), Error>) -> Result<(), FiError> {
        self.questions = self.questions.saturating_sub(1);
        let error = match result {
            // It is there, and takes nothing now.
            Ok(()) | Err(Error::Send(SendError::Failed(Failure::Busy { .. }))) => return Ok(()),
            Err(
                Error::Connection(Failure::Busy { .. })
                | Error::Access(ReadFault::Failed(Failure::Busy { .. })),
            ) => return Ok(()),
            Err(why) => FiError::from(&why),
        };
        if !error.says_that_the_peer_is_gone() {
            return Ok(());
        }
        let mut was_met = false;
        for number in self.operations.numbers(|operation| operation.from == Some(peer)) {
            let Some(receive) = self.operations.get_mut(number) else { continue };
            receive.given_up = Some(error);
            let ended = match (receive.id, &mut self.endpoint) {
                (Some(id), Some(endpoint)) => endpoint.cancel(id).map_err(|error| FiError::from(&error)),
                _ => self.cancel_waiting(number),
            };
            was_met |= ended.is_err();
        }
        // Who is silent is so with all its processes.
        was_met &= error == FiError::TIMED_OUT;
        if let (true, Some(worker)) = (was_met, self.endpoint.as_mut().and_then(Endpoint::worker_mut)) {
            // One that a message has met ends with that, of which nothing more will come.
            let now = worker.clock().now();
            worker.fep_mut().give_up_peer(now, peer.peer, SILENCE);
        }
        self.fail_asks_of(peer, error)?;
        self.fail_readings_of(peer, error)?;
        self.fail_stand_ins_of(peer, error)
    }
}
