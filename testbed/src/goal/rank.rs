//! The progress of one rank: which of its operations may start, and which of them its processors carry out.

use std::collections::{BTreeMap, VecDeque};

use weft_stack::ses::ReceiveId;

use super::{Event, RankProgram};

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It waits for other operations.
    Waiting,
    /// It waits for its processor.
    Queued,
    /// Its processor is busy with it.
    Running,
    /// A receive waits for its message.
    Posted,
    /// A send waits until its message has arrived.
    Leaving,
    /// It has finished.
    Finished,
}

/// One rank.
pub(super) struct Rank {
    /// Its number in the program.
    pub(super) number: u32,
    /// For each operation, the events that it still waits for.
    waits: Vec<u32>,
    phases: Vec<Phase>,
    /// Operations that have not finished.
    left: usize,
    /// When the last operation finished, ps since the beginning.
    pub(super) end: Option<u64>,
    cpus: BTreeMap<u16, Cpu>,
    /// Receives that messages from this host may meet, in the order in which they were posted.
    pub(super) posted: VecDeque<Posted>,
    /// Messages from this host that have not met a receive, in the order of their arrival.
    pub(super) kept: VecDeque<Kept>,
}

/// A receive that a message from this host may meet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub(super) operation: u32,
    /// Its identifier at the endpoint, if messages of other hosts may meet it too.
    pub(super) at_endpoint: Option<ReceiveId>,
}

/// A message from a rank of this host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) from: u32,
    pub(super) tag: u32,
    pub(super) bytes: u32,
}

/// A processor of a rank. It carries out one operation after the other, in the order in which they become ready.
#[derive(Default)]
struct Cpu {
    is_busy: bool,
    queue: VecDeque<u32>,
}

impl Rank {
    pub(super) fn new(number: u32, program: &RankProgram) -> Rank {
        let count = program.operations().len();
        let mut waits = vec![0; count];
        program.dependencies().iter().for_each(|dependency| waits[dependency.later as usize] += 1);
        Rank {
            number,
            waits,
            phases: vec![Phase::Waiting; count],
            left: count,
            end: None,
            cpus: BTreeMap::new(),
            posted: VecDeque::new(),
            kept: VecDeque::new(),
        }
    }

    /// Memory of its tables, bytes.
    pub(super) fn bytes(&self) -> u64 {
        (size_of::<Rank>() + self.waits.capacity() * (size_of::<u32>() + size_of::<Phase>())) as u64
    }

    /// The operations that wait for nothing.
    pub(super) fn free(&self) -> Vec<u32> {
        (0u32..).zip(&self.waits).filter(|(_, waits)| **waits == 0).map(|(index, _)| index).collect()
    }

    /// Operations that have begun to wait for something other than operations of their rank, or run.
    pub(super) fn active(&self) -> impl Iterator<Item = (u32, Phase)> + '_ {
        let phases = (0u32..).zip(self.phases.iter().copied());
        phases.filter(|(_, phase)| !matches!(phase, Phase::Waiting | Phase::Finished))
    }

    pub(super) fn enter(&mut self, index: u32, phase: Phase) {
        self.phases[index as usize] = phase;
    }

    /// Queues an operation at a processor.
    pub(super) fn queue(&mut self, index: u32, cpu: u16) {
        self.enter(index, Phase::Queued);
        self.cpus.entry(cpu).or_default().queue.push_back(index);
    }

    /// The operation that the processor begins now, if it is idle and has one.
    pub(super) fn next_on(&mut self, cpu: u16) -> Option<u32> {
        let cpu = self.cpus.get_mut(&cpu).filter(|cpu| !cpu.is_busy)?;
        let index = cpu.queue.pop_front()?;
        cpu.is_busy = true;
        self.enter(index, Phase::Running);
        Some(index)
    }

    /// The processor has carried out its operation.
    pub(super) fn release(&mut self, cpu: u16) {
        if let Some(cpu) = self.cpus.get_mut(&cpu) {
            cpu.is_busy = false;
        }
    }

    /// Operations that may start because `event` happens to operation `index`.
    pub(super) fn released_by(&mut self, program: &RankProgram, index: u32, event: Event) -> Vec<u32> {
        let mut released = Vec::new();
        for dependency in program.dependents(index as usize).iter().filter(|one| one.event == event) {
            let waits = &mut self.waits[dependency.later as usize];
            *waits -= 1;
            if *waits == 0 {
                released.push(dependency.later);
            }
        }
        released
    }

    /// Operation `index` has finished at `now`.
    pub(super) fn finish(&mut self, index: u32, now: u64) {
        self.enter(index, Phase::Finished);
        self.left -= 1;
        self.settle(now);
    }

    /// Takes note if nothing is left.
    pub(super) fn settle(&mut self, now: u64) {
        if self.left == 0 {
            self.end = Some(now);
        }
    }
}
