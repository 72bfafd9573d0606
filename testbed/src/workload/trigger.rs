//! Triggers at run time, and the check that each flow will start.

use super::{Flow, Start, Subject, TriggerIdx, TriggerKind, Workload, WorkloadError, WorkloadReason};

/// Counts the activations of a workload's triggers and tells which flows start.
#[derive(Clone, Debug)]
pub struct TriggerBank {
    activations: Vec<u32>,
}

impl TriggerBank {
    /// The triggers of `workload`, none of them activated.
    pub fn new(workload: &Workload) -> TriggerBank {
        TriggerBank { activations: vec![0; workload.triggers().len()] }
    }

    /// Activates a trigger. Returns the indices of the flows that start now, in order. `workload` must be the
    /// one that the bank was made for.
    pub fn activate<'w>(&mut self, workload: &'w Workload, trigger: TriggerIdx) -> &'w [u32] {
        let count = &mut self.activations[trigger.index()];
        let before = *count as usize;
        *count = count.saturating_add(1);
        let flows = workload.started_by(trigger);
        match workload.triggers()[trigger.index()].kind {
            TriggerKind::Oneshot if before == 0 => flows,
            TriggerKind::Barrier(needed) if *count == needed && before < needed as usize => flows,
            TriggerKind::Multishot if before < flows.len() => &flows[before..=before],
            _ => &[],
        }
    }

    /// Number of activations of a trigger so far.
    pub fn activations(&self, trigger: TriggerIdx) -> u32 {
        self.activations[trigger.index()]
    }
}

/// Groups the flows that triggers start by trigger. Returns where each trigger's part begins, and the parts.
pub(super) fn index_targets(flows: &[Flow], triggers: usize) -> (Vec<u32>, Vec<u32>) {
    let started = || {
        flows.iter().enumerate().filter_map(|(i, flow)| match flow.start {
            Start::Trigger(t) => Some((i as u32, t.index())),
            Start::At(_) => None,
        })
    };
    let mut first = vec![0u32; triggers + 1];
    started().for_each(|(_, t)| first[t + 1] += 1);
    for t in 0..triggers {
        first[t + 1] += first[t];
    }
    let mut next = first.clone();
    let mut targets = vec![0u32; first[triggers] as usize];
    for (i, t) in started() {
        targets[next[t] as usize] = i;
        next[t] += 1;
    }
    (first, targets)
}

/// The triggers that a flow activates when it is done.
fn activated_by(flow: &Flow) -> impl Iterator<Item = TriggerIdx> {
    [flow.on_received, flow.on_sent].into_iter().flatten()
}

impl Workload {
    /// Checks that every trigger can start all of its flows, and that no flow waits for itself.
    pub(super) fn check_triggers(&self) -> Result<(), WorkloadError> {
        if self.triggers.is_empty() {
            return Ok(());
        }
        self.check_activations()?;
        let started = self.run_to_end();
        match started.iter().position(|&s| !s) {
            None => Ok(()),
            Some(stuck) => Err(self.cycle_from(stuck, &started)),
        }
    }

    /// Checks that each trigger gets enough activations if all flows end.
    fn check_activations(&self) -> Result<(), WorkloadError> {
        let mut given = vec![0u64; self.triggers.len()];
        self.flows.iter().flat_map(activated_by).for_each(|t| given[t.index()] += 1);
        for (i, (trigger, &given)) in self.triggers.iter().zip(&given).enumerate() {
            let flows = u64::from(self.first_target[i + 1] - self.first_target[i]);
            let needed = match trigger.kind {
                TriggerKind::Oneshot => 1,
                TriggerKind::Multishot => flows,
                TriggerKind::Barrier(count) => u64::from(count),
            };
            let id = trigger.id;
            let reason = match given {
                0 => WorkloadReason::NeverActivated(id),
                _ if given < needed => WorkloadReason::TooFewActivations { id, needed, given },
                _ => continue,
            };
            return Err(WorkloadError { subject: Subject::Trigger(i), reason });
        }
        Ok(())
    }

    /// Determines which flows ever start. A trigger's flows depend on the number of its activations, not on
    /// their order, so any order of completion gives the same answer.
    fn run_to_end(&self) -> Vec<bool> {
        let mut started: Vec<bool> = self.flows.iter().map(|f| matches!(f.start, Start::At(_))).collect();
        let mut running: Vec<u32> = (0..self.flows.len() as u32).filter(|&i| started[i as usize]).collect();
        let mut bank = TriggerBank::new(self);
        while let Some(flow) = running.pop() {
            for trigger in activated_by(&self.flows[flow as usize]) {
                for &next in bank.activate(self, trigger) {
                    started[next as usize] = true;
                    running.push(next);
                }
            }
        }
        started
    }

    /// Finds the cycle that keeps the flow `stuck` from starting. There is one: its trigger would get enough
    /// activations if all flows ended, so a flow that activates it has not started either.
    fn cycle_from(&self, stuck: usize, started: &[bool]) -> WorkloadError {
        let mut waits_for = vec![0usize; self.triggers.len()];
        for (i, flow) in self.flows.iter().enumerate().filter(|&(i, _)| !started[i]) {
            activated_by(flow).for_each(|t| waits_for[t.index()] = i);
        }
        let mut seen_at = vec![0usize; self.flows.len()];
        let (mut at, mut steps) = (stuck, 0);
        loop {
            let flow = &self.flows[at];
            let Start::Trigger(trigger) = flow.start else {
                unreachable!("flows with a start time do start")
            };
            steps += 1;
            if seen_at[at] != 0 {
                let length = steps - seen_at[at];
                let reason = WorkloadReason::Cycle {
                    flow: flow.id,
                    trigger: self.triggers[trigger.index()].id,
                    length,
                };
                return WorkloadError { subject: Subject::Flow(at), reason };
            }
            seen_at[at] = steps;
            at = waits_for[trigger.index()];
        }
    }
}
