//! A program with a place for each rank, and what local work costs.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;
use weft_cc::units::scaled;
use weft_cc::{Rate, Span};
use weft_stack::fep::MAX_PROCESS;

use super::{Action, Operation, Program};
use crate::topology::MAX_HOSTS;

/// Which ranks share a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Placement {
    /// Consecutive ranks.
    #[default]
    Block,
    /// Ranks whose numbers differ by a multiple of the number of hosts.
    RoundRobin,
}

/// A factor of computation times, in whole millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale(u64);

/// What happens at a host apart from the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A send of fewer bytes finishes as soon as the endpoint has its message; a send of at least so many when all of it
    /// has arrived. 65,535 as in LogGOPSim.
    pub eager: u64,
    /// The factor of `calc`.
    pub compute: Scale,
    /// How long each send and each arrived message occupies its processor: o in LogGOPS. 0 by default.
    pub overhead: Span,
    /// How long a message between ranks of one host takes, beside its bytes. 500 ns by default.
    pub memory_latency: Span,
    /// The rate at which a rank copies messages for another rank of its host, one after the other. 200 Gbit/s by default.
    pub memory_rate: Rate,
}

/// A program whose ranks have their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    file: String,
    program: Program,
    ranks_per_host: u32,
    placement: Placement,
    costs: Costs,
    /// Rank and operation of each send to another host, sorted.
    messages: Vec<(u32, u32)>,
}

/// A message from one host to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The rank that sends it, and the index of its operation.
    pub from: u32,
    /// The index of the operation that sends it.
    pub operation: u32,
    /// The rank that it is for.
    pub to: u32,
    /// Its length.
    pub bytes: u32,
    /// Its tag.
    pub tag: u32,
}

/// Why ranks cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JobError {
    /// The number of ranks of a host does not fit.
    #[error("{0} ranks per host; expected 1 to {most}", most = MAX_PROCESS + 1)]
    RanksPerHost(u32),
    /// There are too many hosts.
    #[error("the ranks need {0} hosts; expected at most {MAX_HOSTS}, or more ranks per host")]
    Hosts(u32),
    /// The placement has another name.
    #[error("`{0}` is no placement; expected block or round-robin")]
    Placement(String),
    /// The text is no factor.
    #[error("expected a factor from 0 to 1000000 with at most six decimals, such as 0.5")]
    Scale,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            eager: 65_535,
            compute: Scale::ONE,
            overhead: Span::ZERO,
            memory_latency: Span::from_ns(500),
            memory_rate: Rate::from_gbps(200),
        }
    }
}

impl Costs {
    /// The same in a fabric that is `n` times slower.
    #[must_use]
    fn slowed(self, n: u32) -> Costs {
        Costs {
            compute: Scale(self.compute.0.saturating_mul(u64::from(n))),
            overhead: self.overhead.times(u64::from(n)),
            memory_latency: self.memory_latency.times(u64::from(n)),
            memory_rate: Rate::from_bps((self.memory_rate.as_bps() / u64::from(n.max(1))).max(1)),
            ..self
        }
    }
}

impl Scale {
    /// Computation takes as long as the program says.
    pub const ONE: Scale = Scale(1_000_000);

    /// The scaled time of so many nanoseconds, ps.
    pub(super) fn of_ns(self, ns: u64) -> u64 {
        u64::try_from(u128::from(ns) * u128::from(self.0) / 1000).unwrap_or(u64::MAX)
    }
}

impl FromStr for Scale {
    type Err = JobError;

    fn from_str(text: &str) -> Result<Scale, JobError> {
        let millionths = scaled(text, 1_000_000).filter(|millionths| *millionths <= 1_000_000_000_000);
        millionths.map(Scale).ok_or(JobError::Scale)
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl FromStr for Placement {
    type Err = JobError;

    fn from_str(text: &str) -> Result<Placement, JobError> {
        match text {
            "block" => Ok(Placement::Block),
            "round-robin" => Ok(Placement::RoundRobin),
            _ => Err(JobError::Placement(text.to_owned())),
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Placement::Block => "block",
            Placement::RoundRobin => "round-robin",
        })
    }
}

impl Job {
    /// `program`, which was read from `file`, with at most `ranks_per_host` ranks on each host.
    ///
    /// # Errors
    /// [`JobError`] says which number does not fit.
    pub fn new(
        file: &str,
        program: Program,
        ranks_per_host: u32,
        placement: Placement,
        costs: Costs,
    ) -> Result<Job, JobError> {
        if !(1..=u32::from(MAX_PROCESS) + 1).contains(&ranks_per_host) {
            return Err(JobError::RanksPerHost(ranks_per_host));
        }
        let file = file.to_owned();
        let mut job = Job { file, program, ranks_per_host, placement, costs, messages: Vec::new() };
        if u64::from(job.hosts()) > MAX_HOSTS {
            return Err(JobError::Hosts(job.hosts()));
        }
        let mut messages = Vec::new();
        for (rank, program) in (0..).zip(job.program.ranks()) {
            for (index, operation) in (0..).zip(program.operations()) {
                if matches!(operation.action, Action::Send { to, .. } if job.host_of(to) != job.host_of(rank))
                {
                    messages.push((rank, index));
                }
            }
        }
        messages.shrink_to_fit();
        job.messages = messages;
        Ok(job)
    }

    /// The same in a fabric that is `n` times slower.
    #[must_use]
    pub fn slowed(self, n: u32) -> Job {
        Job { costs: self.costs.slowed(n), ..self }
    }

    /// The name of the program's file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// What happens at hosts apart from the network.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// The most ranks of a host.
    pub fn ranks_per_host(&self) -> u32 {
        self.ranks_per_host
    }

    /// Which ranks share a host.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        self.program.ranks().len() as u32
    }

    /// Number of hosts with ranks, which are those with the smallest numbers.
    pub fn hosts(&self) -> u32 {
        self.ranks().div_ceil(self.ranks_per_host)
    }

    /// The host of a rank.
    pub fn host_of(&self, rank: u32) -> u32 {
        match self.placement {
            Placement::Block => rank / self.ranks_per_host,
            Placement::RoundRobin => rank % self.hosts(),
        }
    }

    /// The number of a rank among those of its host, which is its process at the endpoint.
    pub fn process_of(&self, rank: u32) -> u16 {
        let process = match self.placement {
            Placement::Block => rank % self.ranks_per_host,
            Placement::RoundRobin => rank / self.hosts(),
        };
        process as u16
    }

    /// The ranks of a host by their processes.
    pub fn ranks_on(&self, host: u32) -> impl Iterator<Item = u32> + '_ {
        let (first, step, count) = match self.placement {
            Placement::Block => (host.saturating_mul(self.ranks_per_host), 1, self.ranks_per_host as usize),
            Placement::RoundRobin => (host, self.hosts() as usize, usize::MAX),
        };
        let first = if host < self.hosts() { first } else { self.ranks() };
        (first..self.ranks()).step_by(step).take(count)
    }

    /// All messages between hosts, by the number of their rank and in the order of its statements.
    pub fn messages(&self) -> impl ExactSizeIterator<Item = Message> + '_ {
        self.messages.iter().map(|(rank, index)| self.message_of(*rank, *index))
    }

    /// Message number `index` of [`Job::messages`].
    pub fn message(&self, index: usize) -> Option<Message> {
        self.messages.get(index).map(|(rank, index)| self.message_of(*rank, *index))
    }

    /// The number of the first message of `rank` or a later one.
    pub(super) fn first_message(&self, rank: u32) -> usize {
        self.messages.partition_point(|(other, _)| *other < rank)
    }

    /// The number of the message that operation `index` of `rank` sends to another host.
    pub(super) fn number_of(&self, rank: u32, index: u32) -> Option<usize> {
        self.messages.binary_search(&(rank, index)).ok()
    }

    pub(super) fn operation(&self, rank: u32, index: u32) -> &Operation {
        &self.program.ranks()[rank as usize].operations()[index as usize]
    }

    fn message_of(&self, from: u32, operation: u32) -> Message {
        let (to, bytes, tag) = match self.operation(from, operation).action {
            Action::Send { bytes, to, tag } => (to, bytes, tag),
            Action::Calc { .. } | Action::Recv { .. } => (from, 0, 0),
        };
        Message { from, operation, to, bytes, tag }
    }

    /// Memory that the job takes, bytes.
    pub fn bytes(&self) -> u64 {
        self.program.bytes() + (self.messages.capacity() * size_of::<(u32, u32)>()) as u64
    }

    /// An operation as messages for people name it.
    pub(super) fn name(&self, rank: u32, index: u32) -> OperationName<'_> {
        OperationName { job: self, rank, index }
    }
}

/// An operation of a rank; displays as its rank, label, statement and line.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperationName<'a> {
    job: &'a Job,
    rank: u32,
    index: u32,
}

impl fmt::Display for OperationName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OperationName { job, rank, index } = *self;
        let program = &job.program.ranks()[rank as usize];
        let (label, line) = (program.label(index as usize), program.line(index as usize));
        write!(f, "rank {rank} on host {}: `", job.host_of(rank))?;
        if let Some(label) = label {
            write!(f, "{label}: ")?;
        }
        write!(f, "{}`", job.operation(rank, index).action)?;
        line.map_or(Ok(()), |line| write!(f, " ({}:{line})", job.file))
    }
}
