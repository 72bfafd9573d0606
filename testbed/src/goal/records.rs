//! What is recorded of messages and ranks.

use core::fmt;

use weft_cc::Span;

use super::Job;
use super::rank::Phase;

/// A message to another host as its sender sees it; times in ps since the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRecord {
    /// Its number in [`Job::messages`].
    pub message: u32,
    /// When the endpoint got it, if it did.
    pub start: Option<u64>,
    /// When the sender knew that all of it had arrived, if it did.
    pub end: Option<u64>,
    /// Packets sent again.
    pub retransmitted: u32,
}

/// The end of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankRecord {
    /// Its number.
    pub rank: u32,
    /// Its host.
    pub host: u32,
    /// When its last operation finished, since the beginning; `None` if some have not.
    pub end: Option<Span>,
}

/// An operation that has not finished although no operation of its rank holds it up; displays as a message for people.
#[derive(Clone, Copy, Debug)]
pub struct RankWait<'a> {
    pub(super) job: &'a Job,
    pub(super) rank: u32,
    pub(super) index: u32,
    pub(super) phase: Phase,
}

impl fmt::Display for RankWait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RankWait { job, rank, index, phase } = *self;
        let what = match phase {
            Phase::Queued => "waits for its processor",
            Phase::Leaving => "waits for its message to arrive",
            Phase::Posted => "waits for a message",
            Phase::Waiting | Phase::Running | Phase::Finished => "is under way",
        };
        write!(f, "{} {what}", job.name(rank, index))
    }
}
