//! GOAL programs: what each rank of a parallel application computes, sends and receives, and in which order.
//!
//! GOAL (Group Operation Assembly Language; Hoefler, Siebert and Lumsdaine, ICPP 2009) is the input of LogGOPSim
//! (Hoefler, Schneider and Lumsdaine, 2010), and the format of the traces that ATLAHS (SC 2025) publishes.
//! [`GoalReader`] documents the text form, [`Program::write_goal`] writes it, [`Collective`] makes programs.
//!
//! A [`Job`] is a program with a place for each rank, and [`HostRanks`] executes the ranks of one host over its endpoint, in
//! a simulation as in real time.
#![forbid(unsafe_code)]

mod cycle;
mod generate;
mod job;
mod local;
mod rank;
mod read;
mod records;
mod run;
mod words;
mod write;

#[cfg(test)]
mod tests;

pub use generate::{Collective, CollectiveError, Pattern};
pub use job::{Costs, Job, JobError, Message, Placement, Scale};
pub use read::{GoalError, GoalReader, parse_goal};
pub use records::{MessageRecord, RankRecord, RankWait};
pub use run::HostRanks;

/// The largest number of ranks of a program.
pub const MAX_RANKS: u32 = 1 << 20;
/// The largest number of operations of a program, and of its dependencies.
pub const MAX_OPERATIONS: usize = 1 << 26;
/// The longest computation, ns: 53 days, well within the range in which instants can be compared.
pub const MAX_COMPUTATION: u64 = (1 << 62) / 1000;

/// The operations of all ranks.
///
/// Two programs are equal if they do the same with the same labels; the lines that they were read from do not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// By rank.
    ranks: Vec<RankProgram>,
}

/// The operations of one rank, and their order.
#[derive(Clone, Debug, Default)]
pub struct RankProgram {
    operations: Vec<Operation>,
    /// The line of each operation; empty if the program was not read from a file.
    lines: Vec<u32>,
    /// The labels of all operations, one after the other.
    labels: String,
    /// Sorted.
    dependencies: Vec<Dependency>,
    /// For each operation, and for the end, the place of the first dependency on it or on a later one.
    first: Vec<u32>,
}

impl PartialEq for RankProgram {
    fn eq(&self, other: &RankProgram) -> bool {
        let labels = |rank: &RankProgram, index: usize| rank.label(index).map(str::to_owned);
        self.dependencies == other.dependencies
            && self.operations.len() == other.operations.len()
            && self.operations.iter().zip(&other.operations).enumerate().all(|(index, (a, b))| {
                (a.action, a.cpu, a.nic) == (b.action, b.cpu, b.nic)
                    && labels(self, index) == labels(other, index)
            })
    }
}

impl Eq for RankProgram {}

/// One statement that does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// What it does.
    pub action: Action,
    /// The processor of the rank that it needs.
    pub cpu: u16,
    /// The network interface that it names. Hosts have one, so it has no effect.
    pub nic: u16,
    /// The place of its label among those of its rank; of length 0 if it has none.
    label: (u32, u8),
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Computes.
    Calc {
        /// How long, ns.
        ns: u64,
    },
    /// Sends a message.
    Send {
        /// Its length.
        bytes: u32,
        /// The rank that it is for.
        to: u32,
        /// Its tag.
        tag: u32,
    },
    /// Receives a message.
    Recv {
        /// The longest message that it takes, bytes.
        bytes: u32,
        /// The rank whose messages it takes; those of any rank if `None`.
        from: Option<u32>,
        /// The tag of the messages that it takes; any if `None`.
        tag: Option<u32>,
    },
}

impl Action {
    /// The length of its message, or of the longest one that it takes.
    fn bytes(self) -> u32 {
        match self {
            Action::Calc { .. } => 0,
            Action::Send { bytes, .. } | Action::Recv { bytes, .. } => bytes,
        }
    }
}

/// That an operation waits for another one of its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dependency {
    /// Index of the operation that is waited for.
    pub earlier: u32,
    /// Index of the operation that waits.
    pub later: u32,
    /// What it waits for.
    pub event: Event,
}

/// What happens to an operation that others can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// It finishes: `requires`.
    Finish,
    /// It starts: `irequires`.
    Start,
}

impl Program {
    /// The ranks in their order.
    pub fn ranks(&self) -> &[RankProgram] {
        &self.ranks
    }

    /// Number of operations of all ranks.
    pub fn operations(&self) -> usize {
        self.ranks.iter().map(|rank| rank.operations.len()).sum()
    }

    /// Memory that the program takes, bytes.
    pub fn bytes(&self) -> u64 {
        self.ranks.iter().map(RankProgram::bytes).sum()
    }
}

impl RankProgram {
    /// The operations in the order of their statements.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// All dependencies, sorted.
    pub fn dependencies(&self) -> &[Dependency] {
        &self.dependencies
    }

    /// The dependencies on operation `index`.
    pub fn dependents(&self, index: usize) -> &[Dependency] {
        let place = |index: usize| self.first.get(index).map_or(self.dependencies.len(), |at| *at as usize);
        &self.dependencies[place(index)..place(index + 1)]
    }

    /// The label of operation `index`, if it has one.
    pub fn label(&self, index: usize) -> Option<&str> {
        let (start, len) = self.operations.get(index)?.label;
        let label = self.labels.get(start as usize..start as usize + usize::from(len))?;
        (!label.is_empty()).then_some(label)
    }

    /// The line that operation `index` was read from, counted from 1; `None` if it was not read from a file.
    pub fn line(&self, index: usize) -> Option<u32> {
        self.lines.get(index).copied()
    }

    fn bytes(&self) -> u64 {
        let lists = self.operations.capacity() * size_of::<Operation>()
            + (self.lines.capacity() + self.first.capacity()) * size_of::<u32>()
            + self.dependencies.capacity() * size_of::<Dependency>();
        (size_of::<RankProgram>() + lists + self.labels.capacity()) as u64
    }

    /// Appends an operation. `label` is empty or a label that no other operation has.
    fn push(&mut self, action: Action, (cpu, nic): (u16, u16), label: &str) -> u32 {
        let place = (self.labels.len() as u32, label.len() as u8);
        self.labels.push_str(label);
        self.operations.push(Operation { action, cpu, nic, label: place });
        self.operations.len() as u32 - 1
    }

    /// Takes over the dependencies.
    fn depend(&mut self, mut dependencies: Vec<Dependency>) {
        dependencies.sort_unstable();
        dependencies.shrink_to_fit();
        let mut first = Vec::with_capacity(self.operations.len());
        let mut place = 0;
        for index in 0..self.operations.len() as u32 {
            while dependencies.get(place).is_some_and(|dependency| dependency.earlier < index) {
                place += 1;
            }
            first.push(place as u32);
        }
        (self.dependencies, self.first) = (dependencies, first);
        self.operations.shrink_to_fit();
        self.lines.shrink_to_fit();
        self.labels.shrink_to_fit();
    }
}
