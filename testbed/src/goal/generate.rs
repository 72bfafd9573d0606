//! Programs of collective operations.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

use super::{Action, Dependency, Event, MAX_COMPUTATION, MAX_OPERATIONS, MAX_RANKS, Program, RankProgram};

/// How the ranks of a collective operation exchange messages. A vector has [`Collective::bytes`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// All-reduce around a ring: 2 (n - 1) steps with an n-th of the vector each (Patarasuk and Yuan, JPDC 2009). The first
    /// chunks have a byte more where n does not divide the vector.
    Ring,
    /// All-reduce over a binomial tree whose root is rank 0, up and down again, with the whole vector. On the way down, a
    /// rank sends to its children one after the other, beginning with the largest subtree.
    Tree,
    /// All-reduce by recursive doubling: log₂ n exchanges of the whole vector (Thakur et al., IJHPCA 2005). n is a power
    /// of two.
    RecursiveDoubling,
    /// Every rank sends a vector to each other rank, all at once, beginning with the one after it.
    AllToAll,
}

/// A collective operation of all ranks, once or in iterations. A rank begins an iteration when it has received
/// everything of the one before, and has computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collective {
    /// The messages of an iteration.
    pub pattern: Pattern,
    /// Number of ranks, at least 2.
    pub ranks: u32,
    /// Bytes of the vector.
    pub bytes: u32,
    /// Number of iterations, at least 1.
    pub iterations: u32,
    /// Computation of each rank between two iterations, ns.
    pub compute: u64,
}

/// Why a program cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CollectiveError {
    /// The number of ranks does not fit.
    #[error("{0} ranks; expected 2 to {MAX_RANKS}")]
    Ranks(u32),
    /// Recursive doubling needs a power of two.
    #[error("{0} ranks; expected a power of two for recursive doubling")]
    NoPowerOfTwo(u32),
    /// There are no iterations.
    #[error("0 iterations; expected at least 1")]
    NoIterations,
    /// The computation is too long.
    #[error("{0} ns of computation; expected at most {MAX_COMPUTATION}")]
    Compute(u64),
    /// The program has too many operations.
    #[error("the program has more than {MAX_OPERATIONS} operations")]
    TooLarge,
    /// The text names no pattern.
    #[error("`{0}` is no pattern; expected ring, tree, recursive-doubling or all-to-all")]
    Unknown(String),
}

impl Pattern {
    /// All patterns with their names.
    pub const ALL: [(&'static str, Pattern); 4] = [
        ("ring", Pattern::Ring),
        ("tree", Pattern::Tree),
        ("recursive-doubling", Pattern::RecursiveDoubling),
        ("all-to-all", Pattern::AllToAll),
    ];
}

impl FromStr for Pattern {
    type Err = CollectiveError;

    fn from_str(text: &str) -> Result<Pattern, CollectiveError> {
        let found = Pattern::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, pattern)| *pattern).ok_or_else(|| CollectiveError::Unknown(text.to_owned()))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Pattern::ALL.iter().find(|(_, pattern)| pattern == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

impl Collective {
    /// The program of this operation.
    ///
    /// # Errors
    /// [`CollectiveError`] says what does not fit.
    pub fn program(&self) -> Result<Program, CollectiveError> {
        let n = self.ranks;
        if !(2..=MAX_RANKS).contains(&n) {
            return Err(CollectiveError::Ranks(n));
        }
        if self.pattern == Pattern::RecursiveDoubling && !n.is_power_of_two() {
            return Err(CollectiveError::NoPowerOfTwo(n));
        }
        if self.iterations == 0 {
            return Err(CollectiveError::NoIterations);
        }
        if self.compute > MAX_COMPUTATION {
            return Err(CollectiveError::Compute(self.compute));
        }
        let each = match self.pattern {
            Pattern::Ring => 4 * u64::from(n),
            Pattern::Tree => 5,
            Pattern::RecursiveDoubling => 2 * u64::from(n.ilog2()) + 1,
            // A rank depends on all messages of the iteration before.
            Pattern::AllToAll => 4 * u64::from(n),
        };
        let all = each.saturating_mul(u64::from(n)).saturating_mul(u64::from(self.iterations));
        if all > MAX_OPERATIONS as u64 {
            return Err(CollectiveError::TooLarge);
        }
        Ok(Program { ranks: (0..n).map(|rank| self.rank(rank)).collect() })
    }

    fn rank(&self, rank: u32) -> RankProgram {
        let mut draft = Draft { rank, n: self.ranks, bytes: self.bytes, ..Draft::default() };
        let mut ends: Vec<u32> = Vec::new();
        for iteration in 0..self.iterations {
            draft.iteration = iteration;
            draft.begin = (iteration > 0).then(|| {
                let begin = draft.push("b", 0, Action::Calc { ns: self.compute });
                draft.after(begin, &ends);
                begin
            });
            ends = match self.pattern {
                Pattern::Ring => draft.ring(),
                Pattern::Tree => draft.tree(),
                Pattern::RecursiveDoubling => draft.doubling(),
                Pattern::AllToAll => draft.all_to_all(),
            };
        }
        let Draft { mut program, dependencies, .. } = draft;
        program.depend(dependencies);
        program
    }
}

/// The program of a rank while it is made. Each pattern's method adds an iteration, and returns the operations with which
/// that ends.
#[derive(Default)]
struct Draft {
    rank: u32,
    n: u32,
    bytes: u32,
    iteration: u32,
    /// The operation that begins the iteration, except in the first one.
    begin: Option<u32>,
    program: RankProgram,
    dependencies: Vec<Dependency>,
}

impl Draft {
    fn push(&mut self, kind: &str, number: u32, action: Action) -> u32 {
        let label = match number {
            0 => format!("{kind}{}", self.iteration),
            _ => format!("{kind}{}_{number}", self.iteration),
        };
        self.program.push(action, (0, 0), &label)
    }

    fn depend(&mut self, later: u32, earlier: u32, event: Event) {
        self.dependencies.push(Dependency { earlier, later, event });
    }

    /// `later` requires all of `earlier`.
    fn after(&mut self, later: u32, earlier: &[u32]) {
        earlier.iter().for_each(|earlier| self.depend(later, *earlier, Event::Finish));
    }

    /// Adds the send number `number` of the iteration, which requires `before`.
    fn send(&mut self, number: u32, to: u32, bytes: u32, before: &[u32]) -> u32 {
        let send = self.push("s", number, Action::Send { bytes, to, tag: 0 });
        let begin = self.begin.filter(|_| before.is_empty());
        self.after(send, begin.as_slice());
        self.after(send, before);
        send
    }

    /// Adds the receive number `number` of the iteration. All of an iteration are posted as it begins.
    fn recv(&mut self, number: u32, from: u32, bytes: u32) -> u32 {
        let recv = self.push("r", number, Action::Recv { bytes, from: Some(from), tag: Some(0) });
        let begin = self.begin;
        self.after(recv, begin.as_slice());
        recv
    }

    fn ring(&mut self) -> Vec<u32> {
        let Draft { rank, n, bytes, .. } = *self;
        // The first bytes % n chunks have a byte more.
        let chunk = |step: u32| {
            let number = (rank + 2 * n - step) % n;
            bytes / n + u32::from(number < bytes % n)
        };
        let (mut sent, mut arrived): (Option<u32>, Vec<u32>) = (None, Vec::new());
        for step in 0..2 * (n - 1) {
            let send = self.send(step + 1, (rank + 1) % n, chunk(step), &arrived);
            if let Some(sent) = sent {
                self.depend(send, sent, Event::Start);
            }
            sent = Some(send);
            arrived = vec![self.recv(step + 1, (rank + n - 1) % n, chunk(step + 1))];
        }
        arrived
    }

    fn tree(&mut self) -> Vec<u32> {
        let Draft { rank, n, bytes, .. } = *self;
        let width = if rank == 0 { n.next_power_of_two() } else { 1 << rank.trailing_zeros() };
        let bits = (0..32).map(|bit| 1u32 << bit).take_while(|bit| *bit < width);
        let children: Vec<u32> = bits.map(|bit| rank + bit).filter(|child| *child < n).collect();
        let mut number = 0;
        let mut next = || {
            number += 1;
            number
        };
        let reduced: Vec<u32> = children.iter().map(|child| self.recv(next(), *child, bytes)).collect();
        let mut ready = reduced;
        if rank > 0 {
            let parent = rank & (rank - 1);
            self.send(next(), parent, bytes, &ready);
            ready = vec![self.recv(next(), parent, bytes)];
        }
        for child in children.iter().rev() {
            ready = vec![self.send(next(), *child, bytes, &ready)];
        }
        ready
    }

    fn doubling(&mut self) -> Vec<u32> {
        let Draft { rank, n, bytes, .. } = *self;
        let mut arrived = Vec::new();
        for round in 0..n.ilog2() {
            let partner = rank ^ (1 << round);
            self.send(round + 1, partner, bytes, &arrived);
            arrived = vec![self.recv(round + 1, partner, bytes)];
        }
        arrived
    }

    fn all_to_all(&mut self) -> Vec<u32> {
        let Draft { rank, n, bytes, .. } = *self;
        for distance in 1..n {
            self.send(distance, (rank + distance) % n, bytes, &[]);
        }
        (1..n).map(|distance| self.recv(distance, (rank + n - distance) % n, bytes)).collect()
    }
}
