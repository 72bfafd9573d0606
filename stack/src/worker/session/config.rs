//! The resources of an application, and their places in the memory that it shares with its worker.

use crate::fep::{CallError, Resource};
use crate::region::RegionError;
use crate::wire::ses::JobId;
use crate::worker::ring::{RingError, ring_bytes};

/// The resources of one application. All of them are reserved when its session is opened, except entries of the
/// address book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// Slots of the ring of commands, a power of two.
    pub commands: u32,
    /// Slots of the ring of reports, a power of two.
    pub reports: u32,
    /// Messages, receives and requests for peers that have no report yet, at most 2²⁰.
    pub operations: u32,
    /// Connections, at most 2¹⁶.
    pub connections: u32,
    /// Bytes of memory for messages, at most 2³² − 2²⁶.
    pub memory: u32,
    /// Peers that it may add to the endpoint's address book, at most 2¹⁶; may be 0.
    pub peers: u32,
    /// The job that the application belongs to; 0 for none.
    pub job: JobId,
    /// Whether it receives datagrams and nothing else: messages to it are refused, instead of waiting for a receive that never
    /// comes.
    pub only_datagrams: bool,
}

impl Default for SessionConfig {
    /// 256 commands, 512 reports, 1,024 operations, 64 connections, 16 MiB, 64 peers, no job, messages and datagrams.
    fn default() -> SessionConfig {
        SessionConfig {
            commands: 256,
            reports: 512,
            operations: 1024,
            connections: 64,
            memory: 16 << 20,
            peers: 64,
            job: JobId::default(),
            only_datagrams: false,
        }
    }
}

/// Why a session cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A number is out of range.
    #[error("{number} {what}: expected {least} to {most}")]
    Range {
        /// The number that is out of range.
        number: u64,
        /// The unit that it counts.
        what: &'static str,
        /// The smallest number that is accepted.
        least: u64,
        /// The largest number that is accepted.
        most: u64,
    },
    /// The endpoint has less left than the session asks for: other sessions have reserved the rest.
    #[error("{asked} {what} are asked for, and the endpoint has {left} of {limit} left")]
    NotLeft {
        /// The resource.
        what: Resource,
        /// How much of it the session asks for.
        asked: u64,
        /// How much no session has reserved.
        left: u64,
        /// How much the endpoint has.
        limit: u64,
    },
    /// Entries of the address book that earlier processes have added, and that are in use still, have taken what is reserved for nobody
    /// and a part of what would be reserved for the process that asks.
    #[error(
        "of {part} peers in the address book that are reserved for a process {left} are left: \
         others are in use that earlier processes have added"
    )]
    PeersInUse {
        /// How many are reserved for the process, as far as the session asks for so many.
        part: u64,
        /// How many of them it could add.
        left: u64,
    },
    /// The process that asks has applications already, and would have more with this one than an even part among the processes that
    /// are there, and than it would leave to others.
    #[error(
        "this process would have {wanted} of {limit} {what}, and leave {left}: \
         it may have {part}, and else as many as it leaves to others"
    )]
    Share {
        /// The unit that it counts.
        what: &'static str,
        /// How many its applications would have together, with those whose connections are being closed.
        wanted: u64,
        /// An even part among the processes that are there, of which at least two are counted.
        part: u64,
        /// How many would be left.
        left: u64,
        /// How many there are.
        limit: u64,
    },
    /// All sessions are taken.
    #[error("all {0} sessions are in use")]
    Full(usize),
    /// So many applications wait for memory already.
    #[error("{0} applications wait for memory already")]
    ManyWait(usize),
    /// The process is open already, or there is no such process.
    #[error(transparent)]
    Process(#[from] CallError),
    /// The number of slots of a ring is no power of two.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The memory cannot be had.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The system refused shared memory or a socket.
    #[error("the system refuses shared memory or a socket: {0}")]
    System(#[from] std::io::Error),
}

/// The places of the rings and of the memory for messages in the shared memory, where the ring of commands comes
/// first. Both sides compute it from the configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) reports: usize,
    pub(super) memory: usize,
    /// The length of the shared memory, bytes.
    pub(super) total: usize,
}

impl SessionConfig {
    /// Each number, its unit, and the smallest and largest one that there can be.
    fn numbers(&self) -> [(u32, &'static str, u32, u32); 6] {
        [
            (self.operations, "operations", 1, 1 << 20),
            (self.connections, "connections", 1, 1 << 16),
            (self.commands, "commands", 1, 1 << 16),
            (self.reports, "reports", 1, 1 << 16),
            (self.memory, "bytes of memory", 1, u32::MAX - (1 << 26)),
            (self.peers, "peers", 0, 1 << 16),
        ]
    }

    /// # Errors
    /// A resource of which it wants more than there is in `most`.
    pub(super) fn within(&self, most: &SessionConfig) -> Result<(), OpenError> {
        let mut pairs = self.numbers().into_iter().zip(most.numbers());
        pairs.try_for_each(|((number, what, least, _), (most, ..))| check(number, what, least, most))
    }

    /// # Errors
    /// A number is out of range.
    pub(super) fn layout(&self) -> Result<Layout, OpenError> {
        for (number, what, least, most) in self.numbers() {
            check(number, what, least, most)?;
        }
        let reports = ring_bytes(self.commands, 8)?;
        // On a page of its own, so that messages do not share cache lines with indices.
        let memory = (reports + ring_bytes(self.reports, 8)?).next_multiple_of(4096);
        Ok(Layout { reports, memory, total: memory + self.memory as usize })
    }
}

fn check(number: u32, what: &'static str, least: u32, most: u32) -> Result<(), OpenError> {
    match (least..=most).contains(&number) {
        true => Ok(()),
        false => {
            let (number, least, most) = (number.into(), least.into(), most.into());
            Err(OpenError::Range { number, what, least, most })
        }
    }
}
