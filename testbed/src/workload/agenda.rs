//! What begins later in a run: triggers that react after a delay, or are activated at a time.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use weft_cc::{Span, Time};

use super::{TriggerBank, TriggerIdx, Workload};

/// Something that begins at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Beginning {
    /// This flow starts.
    Flow(u32),
    /// A trigger is activated.
    Activation(TriggerIdx),
}

/// The triggers of a run in real time, with what they start after a delay. Times count from the beginning of the run.
#[derive(Clone, Debug)]
pub struct Agenda<'w> {
    workload: &'w Workload,
    triggers: TriggerBank,
    later: BinaryHeap<Reverse<(Span, Beginning)>>,
    latest: Span,
}

impl<'w> Agenda<'w> {
    /// The triggers of `workload` that `owns` says, none of them activated. Those that the workload activates at a time are
    /// on the agenda.
    pub fn new(workload: &'w Workload, owns: impl Fn(TriggerIdx) -> bool) -> Agenda<'w> {
        let mut agenda = Agenda {
            workload,
            triggers: TriggerBank::new(workload),
            later: BinaryHeap::new(),
            latest: Span::ZERO,
        };
        for (trigger, index) in workload.triggers().iter().zip((0..).filter_map(TriggerIdx::new)) {
            if let Some(at) = trigger.at.filter(|_| owns(index)) {
                agenda.note(at.since(Time::ZERO), Beginning::Activation(index));
            }
        }
        agenda
    }

    fn note(&mut self, at: Span, what: Beginning) {
        self.latest = self.latest.max(at);
        self.later.push(Reverse((at, what)));
    }

    /// The latest time that has ever been on the agenda.
    pub fn latest(&self) -> Span {
        self.latest
    }

    /// Activates a trigger when the run is `since` old. Returns the flows that start at once, by their index in the
    /// workload.
    pub fn activate(&mut self, since: Span, trigger: TriggerIdx) -> Vec<u32> {
        let (mut flows, mut next) = (Vec::new(), Some(trigger));
        while let Some(trigger) = next.take() {
            let Some(fired) = self.triggers.activate(self.workload, trigger) else { break };
            if fired.delay == Span::ZERO {
                flows.extend(fired.flows);
                next = fired.then;
            } else {
                let at = since + fired.delay;
                fired.flows.iter().for_each(|flow| self.note(at, Beginning::Flow(*flow)));
                fired.then.into_iter().for_each(|then| self.note(at, Beginning::Activation(then)));
            }
        }
        flows
    }

    /// The flows whose time has come when the run is `since` old.
    pub fn due(&mut self, since: Span) -> Vec<u32> {
        let mut flows = Vec::new();
        while self.later.peek().is_some_and(|Reverse((at, _))| *at <= since) {
            match self.later.pop() {
                Some(Reverse((_, Beginning::Flow(flow)))) => flows.push(flow),
                Some(Reverse((_, Beginning::Activation(trigger)))) => {
                    flows.extend(self.activate(since, trigger));
                }
                None => {}
            }
        }
        flows
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CmOptions, parse_cm};
    use super::*;

    #[test]
    fn triggers_start_their_flows_after_their_delay_and_activate_the_next_one() {
        let matrix = "Nodes 2\nConnections 3\nTriggers 2\n\
            0->1 id 1 start 0 size 1 send_done_trigger 1\n\
            0->1 id 2 trigger 1 size 1\n\
            0->1 id 3 trigger 2 size 1\n\
            trigger id 1 oneshot delay 5 then 2\n\
            trigger id 2 oneshot\n";
        let workload = parse_cm("test", matrix, CmOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        let mut agenda = Agenda::new(&workload, |_| true);
        let first = workload.flows()[0].on_sent.unwrap();
        let us = Span::from_us;
        assert_eq!(agenda.activate(us(10), first), []);
        assert_eq!(agenda.latest(), us(15));
        assert_eq!(agenda.due(us(14)), []);
        let mut due = agenda.due(us(15));
        due.sort_unstable();
        assert_eq!(due, [1, 2]);
        assert_eq!(agenda.due(us(99)), []);
    }
}
