//! What an application may use up, and where it lies in the memory that it shares with its worker.

use crate::fep::CallError;
use crate::region::RegionError;
use crate::worker::ring::{RingError, ring_bytes};

/// What one application may use up. All of it is reserved when its session is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// Slots of the ring of commands, a power of two.
    pub commands: u32,
    /// Slots of the ring of reports, a power of two.
    pub reports: u32,
    /// Messages and receives posted and not reported, at most 2²⁰.
    pub operations: u32,
    /// Connections, at most 2¹⁶.
    pub connections: u32,
    /// Bytes of memory for messages, at most 2³² − 2²⁶.
    pub memory: u32,
}

impl Default for SessionConfig {
    /// 256 commands, 512 reports, 1,024 operations, 64 connections, 16 MiB.
    fn default() -> SessionConfig {
        SessionConfig { commands: 256, reports: 512, operations: 1024, connections: 64, memory: 16 << 20 }
    }
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A number is out of range.
    #[error("{0} {1}: expected 1 to {2}")]
    Range(u64, &'static str, u64),
    /// All sessions are taken.
    #[error("there are {0} sessions, and no more can be")]
    Full(usize),
    /// All processes are taken, or the one that was asked for is.
    #[error(transparent)]
    Process(#[from] CallError),
    /// There cannot be such a ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// There cannot be such memory.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The system refused something.
    #[error("the system refuses shared memory or a socket: {0}")]
    System(#[from] std::io::Error),
}

/// Where things lie in what is shared: commands, reports, memory. Both sides compute it from the configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) reports: usize,
    pub(super) memory: usize,
    /// All of it, bytes.
    pub(super) total: usize,
}

impl SessionConfig {
    /// # Errors
    /// What is more than in `most`.
    pub(super) fn within(&self, most: &SessionConfig) -> Result<(), OpenError> {
        let pairs = [
            (self.commands, most.commands, "commands"),
            (self.reports, most.reports, "reports"),
            (self.operations, most.operations, "operations"),
            (self.connections, most.connections, "connections"),
            (self.memory, most.memory, "bytes of memory"),
        ];
        match pairs.into_iter().find(|(own, most, _)| own > most) {
            Some((own, most, what)) => Err(OpenError::Range(own.into(), what, most.into())),
            None => Ok(()),
        }
    }

    /// # Errors
    /// What is out of range.
    pub(super) fn layout(&self) -> Result<Layout, OpenError> {
        let ranges = [
            (self.operations, "operations", 1 << 20),
            (self.connections, "connections", 1 << 16),
            (self.commands, "commands", 1 << 16),
            (self.reports, "reports", 1 << 16),
            (self.memory, "bytes of memory", u32::MAX - (1 << 26)),
        ];
        for (number, what, most) in ranges {
            if !(1..=most).contains(&number) {
                return Err(OpenError::Range(number.into(), what, most.into()));
            }
        }
        let reports = ring_bytes(self.commands, 8)?;
        // On a page of its own: what applications copy to and from does not share lines with indices.
        let memory = (reports + ring_bytes(self.reports, 8)?).next_multiple_of(4096);
        Ok(Layout { reports, memory, total: memory + self.memory as usize })
    }
}
