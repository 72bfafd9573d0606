//! Triggers at run time, and the check that each flow will start.

use weft_cc::Span;

use super::{
    Flow, Start, Subject, Trigger, TriggerIdx, TriggerKind, Workload, WorkloadError, WorkloadReason,
};

/// What the activation of a trigger leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fired<'w> {
    /// The indices of the flows that start, in order.
    pub flows: &'w [u32],
    /// Time until they start, and until `then` is activated.
    pub delay: Span,
    /// A trigger that is activated.
    pub then: Option<TriggerIdx>,
}

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

    /// Activates a trigger. Returns what that leads to; `None` if the trigger does not react. `workload` must be the one
    /// that the bank was made for.
    ///
    /// The caller starts the flows and activates the next trigger after the delay, or at once if there is none.
    pub fn activate<'w>(&mut self, workload: &'w Workload, trigger: TriggerIdx) -> Option<Fired<'w>> {
        let count = &mut self.activations[trigger.index()];
        let before = *count as usize;
        *count = count.saturating_add(1);
        let flows = workload.started_by(trigger);
        let Trigger { kind, delay, then, .. } = workload.triggers()[trigger.index()];
        let flows = match kind {
            TriggerKind::Oneshot if before == 0 => flows,
            TriggerKind::Barrier(needed) if *count == needed && before < needed as usize => flows,
            TriggerKind::Multishot if before < flows.len() => &flows[before..=before],
            _ => return None,
        };
        Some(Fired { flows, delay, then })
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
        let progress = self.run_to_end();
        match progress.started.iter().position(|&s| !s) {
            None => Ok(()),
            Some(stuck) => Err(self.cycle_from(stuck, &progress)),
        }
    }

    /// Checks that each trigger gets enough activations if all flows end and all triggers react.
    fn check_activations(&self) -> Result<(), WorkloadError> {
        let mut given = vec![0u64; self.triggers.len()];
        self.flows.iter().flat_map(activated_by).for_each(|t| given[t.index()] += 1);
        for (i, trigger) in self.triggers.iter().enumerate() {
            given[i] += u64::from(trigger.at.is_some());
            if let Some(then) = trigger.then {
                given[then.index()] += match trigger.kind {
                    TriggerKind::Oneshot | TriggerKind::Barrier(_) => 1,
                    TriggerKind::Multishot => self.targets_of(i),
                };
            }
        }
        for (i, (trigger, &given)) in self.triggers.iter().zip(&given).enumerate() {
            let needed = match trigger.kind {
                TriggerKind::Oneshot => 1,
                TriggerKind::Multishot => self.targets_of(i),
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

    /// Number of flows that trigger number `i` starts.
    fn targets_of(&self, i: usize) -> u64 {
        u64::from(self.first_target[i + 1] - self.first_target[i])
    }

    /// Determines which flows ever start, and which triggers ever react. A trigger's flows depend on the number of its
    /// activations, not on their order, so any order of completion gives the same answer.
    fn run_to_end(&self) -> Progress {
        let started = self.flows.iter().map(|f| matches!(f.start, Start::At(_))).collect();
        let mut progress = Progress { started, fired: vec![false; self.triggers.len()] };
        let mut running: Vec<u32> =
            (0..self.flows.len() as u32).filter(|&i| progress.started[i as usize]).collect();
        let mut bank = TriggerBank::new(self);
        let mut activated: Vec<TriggerIdx> = (0..self.triggers.len() as u32)
            .filter(|&i| self.triggers[i as usize].at.is_some())
            .filter_map(TriggerIdx::new)
            .collect();
        loop {
            if let Some(trigger) = activated.pop() {
                let Some(fired) = bank.activate(self, trigger) else { continue };
                progress.fired[trigger.index()] = true;
                activated.extend(fired.then);
                for &next in fired.flows {
                    progress.started[next as usize] = true;
                    running.push(next);
                }
            } else if let Some(flow) = running.pop() {
                activated.extend(activated_by(&self.flows[flow as usize]));
            } else {
                return progress;
            }
        }
    }

    /// Finds the cycle that keeps the flow `stuck` from starting. There is one: its trigger would get enough
    /// activations if all flows ended and all triggers reacted, so a flow that activates it has not started either, or a
    /// trigger that activates it has not reacted.
    fn cycle_from(&self, stuck: usize, progress: &Progress) -> WorkloadError {
        let mut waits_for: Vec<Option<Waited>> = vec![None; self.triggers.len()];
        for (i, trigger) in self.triggers.iter().enumerate().filter(|&(i, _)| !progress.fired[i]) {
            trigger.then.into_iter().for_each(|then| waits_for[then.index()] = Some(Waited::Trigger(i)));
        }
        for (i, flow) in self.flows.iter().enumerate().filter(|&(i, _)| !progress.started[i]) {
            activated_by(flow).for_each(|t| waits_for[t.index()] = Some(Waited::Flow(i)));
        }
        let mut seen_at = vec![0usize; self.flows.len()];
        let mut at = stuck;
        let mut steps = 0;
        loop {
            let flow = &self.flows[at];
            let Start::Trigger(trigger) = flow.start else {
                unreachable!("flows with a start time do start")
            };
            let stuck_at = |length| WorkloadError {
                subject: Subject::Flow(at),
                reason: WorkloadReason::Cycle {
                    flow: flow.id,
                    trigger: self.triggers[trigger.index()].id,
                    length,
                },
            };
            steps += 1;
            if seen_at[at] != 0 {
                return stuck_at(steps - seen_at[at]);
            }
            seen_at[at] = steps;
            // Through triggers to the next flow. More steps than triggers are a cycle of triggers alone.
            let mut waited = waits_for[trigger.index()];
            for _ in 0..self.triggers.len() {
                match waited {
                    Some(Waited::Trigger(i)) => waited = waits_for[i],
                    _ => break,
                }
            }
            match waited {
                Some(Waited::Flow(next)) => at = next,
                _ => return stuck_at(0),
            }
        }
    }
}

/// Which flows have started, and which triggers have reacted.
struct Progress {
    started: Vec<bool>,
    fired: Vec<bool>,
}

/// What a trigger waits for.
#[derive(Clone, Copy)]
enum Waited {
    Flow(usize),
    Trigger(usize),
}
