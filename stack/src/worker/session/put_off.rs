//! How much the worker does for applications in a turn, and what it leaves for the next.

use std::collections::VecDeque;

use super::Slot;
use super::application::COMMANDS_PER_TURN;
use crate::event::Counters;
use crate::fep::END_COST;
use crate::ses::HAND_OVER;

/// Bytes of messages that wait for receives which the worker touches for applications in a turn, on average: 4,096 tags
/// that it compares, or so many bytes that it copies. It is also what the
/// worker touches in a turn of messages whose connections are aborted, for all applications together.
pub const BYTES_PER_TURN: i64 = if cfg!(test) { 1 << 10 } else { 64 << 10 };

/// The part of these that one process has, if it is alone: to copy so many takes about as long as a burst of other commands.
pub const BYTES_ALONE: i64 = BYTES_PER_TURN / 2;

/// What the worker touches of messages whose connections are aborted in a turn while nothing else happens, so that applications
/// which have left do not keep their places for long.
const BYTES_PER_QUIET_TURN: i64 = 16 * BYTES_PER_TURN;

/// Bytes that a process saves at least if none are touched for it for a while, however small its part of a turn is; it saves two parts
/// if these are more. So one that meets a message which has waited, now and then, need not make up for it in many turns.
const SAVED: i64 = HAND_OVER as i64 + BYTES_PER_TURN / 16;

/// How many commands the worker may still execute, and how many bytes it may still touch, in a turn for a process. All applications
/// of the process share one ration, so that a process gets no more of the worker's time by joining several times. Busy processes
/// have equal rations, and the total is the same however many there are: more processes do not make turns longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ration {
    /// The turn and the round in which it was looked at last.
    turn: u32,
    round: u32,
    /// The last round in which an application of the process with a backlog has had its turn, and in which turn of the worker.
    begun: (u32, u32),
    /// Commands that may be executed.
    pub(super) commands: usize,
    /// Bytes of messages that may be touched: less than none if more was done in one turn, because the memory of a message goes
    /// back in one piece, and one that is short enough is copied so. Later turns make up for it.
    pub(super) bytes: i64,
    /// Whether an application of the process has had its turn in this one.
    pub(super) is_begun: bool,
    /// Whether bytes were touched for the process in this round.
    has_touched: bool,
}

/// The ration that a process begins a turn with, if it owes nothing and has saved nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    pub(super) turn: u32,
    pub(super) round: u32,
    pub(super) commands: usize,
    /// Bytes that it may touch in each turn.
    pub(super) bytes: i64,
}

impl Default for Ration {
    fn default() -> Ration {
        let (commands, bytes) = (COMMANDS_PER_TURN, BYTES_ALONE);
        Ration { turn: 0, round: 0, begun: (0, 0), commands, bytes, is_begun: false, has_touched: false }
    }
}

impl Ration {
    /// The process has these parts of a turn, in which all together have so many commands `left`. It may be the turn for which this was
    /// called last. Returns whether it is the first one in a round.
    #[inline]
    pub(super) fn renew(&mut self, parts: &Parts, left: usize) -> bool {
        let turns = parts.turn.wrapping_sub(self.turn);
        if turns == 0 {
            return false;
        }
        // One that touches some in each round has two parts of it at most, so that rounds stay short.
        let each_round = parts.round.wrapping_sub(self.round) <= 1;
        let parts_of = if each_round { turns.min(2) } else { turns };
        let saved = self.bytes.saturating_add(parts.bytes.saturating_mul(parts_of.into()));
        self.bytes = saved.min((2 * parts.bytes).max(SAVED));
        self.commands = parts.commands.min(left).max(1);
        (self.turn, self.is_begun) = (parts.turn, false);
        let is_first = parts.round != self.round;
        if is_first {
            (self.round, self.has_touched) = (parts.round, false);
        }
        is_first
    }

    /// An application of the process with a backlog is next in the round. Returns whether it has its turn: if another one has had it, then
    /// in this turn of the worker, which may have left something of the ration.
    pub(super) fn goes_on_with_round(&mut self, parts: &Parts) -> bool {
        let (round, turn) = self.begun;
        if round != parts.round {
            self.begun = (parts.round, parts.turn);
        }
        round != parts.round || turn == parts.turn
    }

    /// This ration with no more than so many commands and bytes, but for the first ones of the process in the turn.
    #[inline]
    pub(super) fn within(self, commands: usize, bytes: i64) -> Ration {
        let commands = if self.is_begun { self.commands.min(commands) } else { self.commands };
        Ration { commands, bytes: self.bytes.min(bytes), ..self }
    }

    /// An application of the process has had its turn, in which it gave so many commands.
    #[inline]
    pub(super) fn take(&mut self, commands: usize) {
        (self.commands, self.is_begun) = (self.commands.saturating_sub(commands), true);
    }

    /// So many bytes were touched for it. Returns whether they are the first ones in the round.
    #[inline]
    pub(super) fn touch(&mut self, bytes: i64) -> bool {
        self.bytes -= bytes;
        bytes > 0 && !std::mem::replace(&mut self.has_touched, true)
    }

    /// Whether no application of the process has its turn any more.
    #[inline]
    pub(super) fn is_used_up(&self) -> bool {
        self.commands == 0 || self.bytes <= 0
    }
}

/// Messages whose connections are aborted, or have failed, that end in a turn.
pub const ENDS_PER_TURN: i64 = BYTES_PER_TURN / END_COST;
/// Those that end in a turn while nothing else happens.
pub const ENDS_PER_QUIET_TURN: i64 = BYTES_PER_QUIET_TURN / END_COST;

/// So many turns in a row must be quiet before. Between two packets of an exchange are turns in which nothing happens: these, with
/// the messages that end in them, take some 400 µs, longer than round trips in a data center.
const QUIET_TURNS: u32 = if cfg!(test) { 4 } else { 64 };

/// Notices whether anything else happens in turns in which messages of aborted connections end.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// Turns in a row in which nothing else has happened.
    turns: u32,
    /// What the endpoint had sent and received by the end of the last such turn; `None` if there was nothing to end in the last one.
    counted: Option<Counters>,
}

impl Quiet {
    /// The bytes that may be touched in this turn. `busy` says whether applications have had commands or reports in it, and
    /// `counters` what the endpoint has sent and received.
    pub(super) fn budget(&mut self, busy: bool, counters: &Counters) -> i64 {
        let is_quiet = !busy && self.counted.as_ref() == Some(counters);
        self.turns = if is_quiet { self.turns.saturating_add(1) } else { 0 };
        if self.turns > QUIET_TURNS { BYTES_PER_QUIET_TURN } else { BYTES_PER_TURN }
    }

    /// A turn ends in which messages have ended.
    pub(super) fn note(&mut self, counters: &Counters) {
        self.counted = Some(*counters);
    }

    /// There is nothing to end in this turn.
    #[inline]
    pub(super) fn forget(&mut self) {
        if self.counted.is_some() {
            *self = Quiet::default();
        }
    }
}

/// What one application has in store for later turns.
#[derive(Debug, Default)]
pub(super) struct PutOff {
    /// Commands that have been taken from the ring, and not been executed.
    commands: VecDeque<Slot>,
    /// Whether a receive for many messages has to look at more messages that wait, before any other command that does.
    pub(super) gathers: bool,
    /// The number of turns in which the address book has found no room for the peer that the first of them asks for.
    pub(super) looks: usize,
}

impl PutOff {
    /// Whether nothing is left to do before new commands.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.commands.is_empty() && !self.gathers
    }

    /// The number of commands that were put off.
    pub(super) fn commands(&self) -> usize {
        self.commands.len()
    }

    /// Keeps commands for the next turn, before those that were put off earlier and not taken.
    pub(super) fn keep(&mut self, slots: &[Slot]) {
        slots.iter().rev().for_each(|slot| self.commands.push_front(*slot));
    }

    /// Moves as many commands that were put off to `slots` as have room there. Returns how many.
    pub(super) fn take(&mut self, slots: &mut [Slot]) -> usize {
        let count = self.commands.len().min(slots.len());
        slots.iter_mut().zip(self.commands.drain(..count)).for_each(|(to, from)| *to = from);
        count
    }
}
