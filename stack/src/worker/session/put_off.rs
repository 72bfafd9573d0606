//! How much the worker does for one application in a turn, and what it leaves for the next.

use std::collections::VecDeque;

use super::Slot;
use crate::event::Counters;
use crate::fep::END_COST;

/// Bytes of messages that wait for receives which the worker touches for one application in a turn, on average: 4,096 tags
/// that it compares, or so many bytes that it copies. Either takes about as long as a burst of other commands. It is also what the
/// worker touches in a turn of messages whose connections are aborted, for all applications together.
pub const BYTES_PER_TURN: i64 = if cfg!(test) { 1 << 10 } else { 64 << 10 };

/// What the worker touches of messages whose connections are aborted in a turn while nothing else happens, so that applications
/// which have left do not keep their places for long.
const BYTES_PER_QUIET_TURN: i64 = 16 * BYTES_PER_TURN;

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
    /// What was done in one turn beyond its share, because the memory of a message goes back in one piece, and one that is short
    /// enough is copied so; later turns make up for it.
    debt: i64,
}

impl PutOff {
    /// The bytes that may be touched in a turn that begins; none while earlier ones are made up for.
    pub(super) fn begin_turn(&mut self) -> i64 {
        let paid = self.debt.min(BYTES_PER_TURN);
        self.debt -= paid;
        BYTES_PER_TURN - paid
    }

    /// A turn ends which has `left` so much of what it might touch.
    pub(super) fn end_turn(&mut self, left: i64) {
        self.debt += (-left).max(0);
    }

    /// Whether nothing is left to do before new commands.
    pub(super) fn is_done(&self) -> bool {
        self.commands.is_empty() && !self.gathers
    }

    /// The same, and whether nothing has to be made up for.
    #[inline]
    pub(super) fn is_paid(&self) -> bool {
        self.debt == 0 && self.is_done()
    }

    /// The number of commands that were put off.
    pub(super) fn commands(&self) -> usize {
        self.commands.len()
    }

    /// Keeps commands for the next turn.
    pub(super) fn keep(&mut self, slots: &[Slot]) {
        self.commands.extend(slots);
    }

    /// Moves the commands that were put off to the beginning of `slots`, which has room for a burst. Returns how many.
    pub(super) fn take(&mut self, slots: &mut [Slot]) -> usize {
        let count = self.commands.len();
        slots.iter_mut().zip(self.commands.drain(..)).for_each(|(to, from)| *to = from);
        count
    }
}
