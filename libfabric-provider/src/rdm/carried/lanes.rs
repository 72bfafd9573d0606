//! Whose turn it is to be asked for a piece: of each peer there is a lane of accesses.
//!
//! A peer may never answer, as it is stopped for example. Its pieces keep memory only as long as nobody else waits for that: then
//! the receives of its answers are taken back, and the peer is silent until it answers something. The pieces of a silent peer get
//! memory again one at a time, and those of all such peers together have half of it, in turns.

use std::collections::VecDeque;

use weft::{Found, Source};

use super::super::State;
use super::asker::Ask;
use super::{Carrier, WINDOW};
use crate::error::FiError;

/// The accesses to one peer's memory.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// The accesses that still have pieces to ask for, in order.
    pub(super) ready: VecDeque<usize>,
    /// Pieces that were asked for and have not ended.
    pub(super) window: usize,
    /// How many of these have memory.
    pub(super) holds: usize,
    /// The others: their memory was taken away, and they wait for memory for their answers.
    pub(super) withdrawn: VecDeque<usize>,
    /// Whether it waits for its turn among the lanes.
    queued: bool,
    /// Whether it had to leave memory to others, and the peer has answered nothing since.
    is_silent: bool,
}

/// The next thing to do for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The answer to this piece is waited for again.
    Answer(usize),
    /// A piece of an access is asked for: where it begins, and its length.
    Piece(usize, u32, u32),
}

impl Lane {
    /// Whether there is something to do that needs memory.
    fn is_waiting(&self) -> bool {
        !self.ready.is_empty() && self.window < WINDOW || !self.withdrawn.is_empty()
    }

    /// Whether there is something to do for which it may take one of `free` pieces of memory. The peer may never answer, so it gets
    /// one piece, and further ones while it leaves as many to all others. A peer that is silent gets no further one.
    fn may_ask(&self, free: usize) -> bool {
        let may_hold = self.holds == 0 || !self.is_silent && self.holds < free;
        self.is_waiting() && may_hold
    }
}

impl Carrier {
    /// Whether a peer that is silent may get a piece of memory: all of those together leave half of the pieces to others.
    fn may_ask_silent(&self) -> bool {
        self.silent_holds < self.pieces.div_ceil(2)
    }

    /// Whether the memory of a piece was taken away, or is being.
    pub(super) fn has_withdrawn(&self) -> bool {
        self.asks.iter().any(|ask| ask.is_withdrawn)
    }

    /// A piece of the lane of `peer` has got memory.
    pub(super) fn hold(&mut self, peer: Source) {
        let lane = self.lanes.entry(peer).or_default();
        lane.holds += 1;
        self.silent_holds += usize::from(lane.is_silent);
    }

    /// A piece of the lane of `peer` has no memory any more.
    pub(super) fn release(&mut self, peer: Source) {
        let Some(lane) = self.lanes.get_mut(&peer) else { return };
        lane.holds -= 1;
        self.silent_holds -= usize::from(lane.is_silent);
    }

    /// Notes whether `peer` is silent.
    pub(super) fn set_silent(&mut self, peer: Source, is_silent: bool) {
        let Some(lane) = self.lanes.get_mut(&peer) else { return };
        if lane.is_silent == is_silent {
            return;
        }
        lane.is_silent = is_silent;
        let before = if is_silent {
            self.silent_holds += lane.holds;
            &mut self.turns
        } else {
            self.silent_holds -= lane.holds;
            &mut self.silent_turns
        };
        if std::mem::replace(&mut lane.queued, false) {
            before.retain(|other| *other != peer);
        }
        self.enqueue_lane(peer);
    }

    /// Lets an access, of which there is something to ask for, wait for its turn.
    pub(super) fn enqueue(&mut self, access: usize) {
        let Some(carried) = self.accesses.get_mut(access) else { return };
        let peer = carried.peer;
        if !std::mem::replace(&mut carried.queued, true) {
            self.lanes.entry(peer).or_default().ready.push_back(access);
        }
        self.enqueue_lane(peer);
    }

    /// Takes an access out of its lane.
    pub(super) fn dequeue(&mut self, access: usize) {
        let Some(carried) = self.accesses.get_mut(access) else { return };
        let (peer, was_queued) = (carried.peer, std::mem::replace(&mut carried.queued, false));
        if was_queued
            && let Some(lane) = self.lanes.get_mut(&peer)
            // It mostly is the first.
            && let Some(at) = lane.ready.iter().position(|other| *other == access)
        {
            lane.ready.remove(at);
        }
        self.enqueue_lane(peer);
    }

    pub(super) fn enqueue_lane(&mut self, peer: Source) {
        let free = self.free_pieces();
        let Some(lane) = self.lanes.get_mut(&peer).filter(|lane| !lane.queued) else { return };
        if lane.ready.is_empty() && lane.window == 0 {
            self.lanes.remove(&peer);
        } else if lane.may_ask(free) {
            lane.queued = true;
            if lane.is_silent { self.silent_turns.push_back(peer) } else { self.turns.push_back(peer) }
        }
    }

    /// The lane whose turn it is.
    pub(super) fn next_lane(&mut self) -> Option<Source> {
        if self.free_pieces() == 0 {
            return None;
        }
        let silent = if self.may_ask_silent() { self.silent_turns.pop_front() } else { None };
        let peer = silent.or_else(|| self.turns.pop_front())?;
        self.lanes.get_mut(&peer)?.queued = false;
        Some(peer)
    }

    /// The next thing to do for the lane of `peer`, if the lane may have memory for it. Accesses that have no piece to ask for now
    /// leave the lane.
    pub(super) fn next_of(&mut self, peer: Source) -> Option<Next> {
        let (free, long_piece) = (self.free_pieces(), self.long_piece);
        let lane = self.lanes.get_mut(&peer).filter(|lane| free > 0 && lane.may_ask(free))?;
        if let Some(ask) = lane.withdrawn.pop_front() {
            return Some(Next::Answer(ask));
        }
        while let Some(&access) = lane.ready.front() {
            let carried = self.accesses.get_mut(access);
            if let Some((at, len)) = carried.as_ref().and_then(|carried| carried.next(long_piece)) {
                return Some(Next::Piece(access, at, len));
            }
            lane.ready.pop_front();
            carried.into_iter().for_each(|carried| carried.queued = false);
        }
        None
    }
}

impl State {
    /// Takes the memory of pieces away from peers that do not answer, if others wait for it. Nothing is asked for again, which would
    /// be done twice: the receive of the answer is taken back, and posted again in its turn. An answer that comes meanwhile waits at
    /// the server. Two calls have to find a piece without an answer.
    pub(in super::super) fn withdraw_pieces(&mut self) {
        let (Some(carrier), Some(endpoint)) = (&mut self.carrier, &mut self.endpoint) else { return };
        if carrier.sweep == Some(Found::IsDiscarded) {
            // That look could drop their answers.
            return;
        }
        let waits = |peer: &Source| carrier.lanes.get(peer).is_some_and(Lane::is_waiting);
        let (some_wait, silent_wait) =
            (carrier.turns.iter().any(waits), carrier.silent_turns.iter().any(waits));
        let of_all = (some_wait || silent_wait) && carrier.free_pieces() == 0;
        let of_silent = silent_wait && !carrier.may_ask_silent();
        let mut silent = Vec::new();
        let waits = |ask: &&mut Ask| ask.room.is_some() && !ask.is_withdrawn && ask.error.is_none();
        for ask in carrier.asks.iter_mut().filter(waits) {
            let is_wanted =
                of_all || of_silent && carrier.lanes.get(&ask.peer).is_some_and(|lane| lane.is_silent);
            if !std::mem::replace(&mut ask.is_old, true) || !is_wanted {
                continue;
            }
            silent.push(ask.peer);
            // The memory of a request that is not delivered is in use. If the receive cannot be taken back now, it is the next
            // time. If an answer has met it, it ends with that.
            if let (true, Some(room)) = (ask.is_sent, ask.room) {
                ask.is_withdrawn = endpoint.cancel(room).is_ok();
            }
        }
        silent.into_iter().for_each(|peer| carrier.set_silent(peer, true));
    }

    /// Waits again for the answer to a piece whose memory was taken away. Returns false if there is no room for that now.
    pub(super) fn wait_for_answer(&mut self, ask: usize) -> Result<bool, FiError> {
        let Some(carrier) = &mut self.carrier else { return Ok(false) };
        let Some(&mut Ask { is_read, peer, .. }) = carrier.asks.get_mut(ask) else { return Ok(true) };
        let slices = if is_read { &mut carrier.large } else { &mut carrier.small };
        let posted = match slices.pop() {
            Some(slice) => self.post_answer_room(ask, slice),
            None => Err((FiError::AGAIN, None)),
        };
        let Some(carrier) = &mut self.carrier else { return Ok(false) };
        match posted {
            Ok(room) => {
                if let Some(asked) = carrier.asks.get_mut(ask) {
                    (asked.room, asked.is_withdrawn, asked.is_old) = (Some(room), false, false);
                }
                carrier.hold(peer);
                Ok(true)
            }
            Err((error, slice)) => {
                slice.into_iter().for_each(|slice| carrier.give_back(is_read, slice));
                if let Some(lane) = carrier.lanes.get_mut(&peer) {
                    lane.withdrawn.push_front(ask);
                }
                match error {
                    FiError::AGAIN => Ok(false),
                    _ => self.fail_ask(ask, None, error).map(|()| true),
                }
            }
        }
    }

    /// An answer is at the server. If it is one to a piece whose memory was taken away, its peer is not silent any more, and the
    /// answer is received as soon as there is memory for it. Returns whether there is some; none if nobody waits for the answer.
    pub(super) fn has_come(&mut self, from: Source, number: u32) -> Result<Option<bool>, FiError> {
        let Some(carrier) = &mut self.carrier else { return Ok(None) };
        let Carrier { lanes, asks, .. } = &mut **carrier;
        let Some(lane) = lanes.get_mut(&from) else { return Ok(None) };
        let mut is_it = |ask: &usize| asks.get_mut(*ask).is_some_and(|ask| ask.number == number);
        let Some(at) = lane.withdrawn.iter().position(&mut is_it) else { return Ok(None) };
        lane.withdrawn.swap(0, at);
        let ask = lane.withdrawn[0];
        carrier.set_silent(from, false);
        self.ask_for_pieces()?;
        let lane = self.carrier.as_ref().and_then(|carrier| carrier.lanes.get(&from));
        Ok(Some(lane.is_none_or(|lane| !lane.withdrawn.contains(&ask))))
    }
}
