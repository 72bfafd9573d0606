//! The flows from and to one rank: when they start, and what becomes of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use weft_cc::{Span, Time};
use weft_testbed::workload::{Agenda, Flow, Start, TriggerIdx, Workload, first_wrong_byte, payload};

use crate::Failure;
use crate::control::{Part, Sent};
use crate::fabric::{Fabric, Word};
use crate::triggers::Owners;

/// The flows of a run from and to one rank.
pub(crate) struct Flows<'w> {
    workload: &'w Workload,
    rank: u32,
    verify: bool,
    owners: &'w Owners,
    /// The triggers of this rank alone.
    agenda: Agenda<'w>,
    /// Flows from here that start at a time; the next one is the last.
    timed: Vec<(Span, u32)>,
    sent: BTreeMap<u32, Sent>,
    /// Flows from here that have not ended, and to here that have not arrived.
    left: usize,
    /// The bytes of each flow, unless they are verified: as many as the longest has.
    zeros: Arc<Vec<u8>>,
    /// Triggers that this rank's flows have activated, of which rank 0 has not heard.
    activated: VecDeque<TriggerIdx>,
    wrong: Vec<String>,
}

impl<'w> Flows<'w> {
    pub(crate) fn new(workload: &'w Workload, owners: &'w Owners, rank: u32, verify: bool) -> Flows<'w> {
        let mut flows = Flows {
            workload,
            rank,
            verify,
            owners,
            agenda: Agenda::new(workload, |trigger| owners.is_at(trigger, rank)),
            timed: Vec::new(),
            sent: BTreeMap::new(),
            left: 0,
            zeros: Arc::new(Vec::new()),
            activated: VecDeque::new(),
            wrong: Vec::new(),
        };
        for (index, flow) in (0..).zip(workload.flows()) {
            flows.left += usize::from(flow.dst.0 == rank);
            if flow.src.0 == rank {
                flows.left += 1;
                flows.sent.insert(index, Sent { flow: index, start: None, end: None });
                if let Start::At(time) = flow.start {
                    flows.timed.push((time.since(Time::ZERO), index));
                }
            }
        }
        flows.timed.sort_by_key(|&start| Reverse(start));
        flows
    }

    fn flow(&self, index: u32) -> &'w Flow {
        &self.workload.flows()[index as usize]
    }

    /// Number of flows to here.
    pub(crate) fn arriving(&self) -> usize {
        self.left - self.sent.len()
    }

    /// Number of flows from here.
    pub(crate) fn leaving(&self) -> usize {
        self.sent.len()
    }

    /// Bytes of the longest flow from or to here.
    pub(crate) fn longest(&self) -> u64 {
        let own = |flow: &&Flow| flow.src.0 == self.rank || flow.dst.0 == self.rank;
        self.workload.flows().iter().filter(own).map(|flow| flow.bytes).max().unwrap_or(0)
    }

    /// The ranks to which flows go from here.
    pub(crate) fn destinations(&self) -> BTreeSet<u32> {
        self.sent.keys().map(|index| self.flow(*index).dst.0).collect()
    }

    /// Posts the receives for all flows to here, before any may arrive.
    pub(crate) fn prepare(&mut self, fabric: &mut Fabric) -> Result<(), Failure> {
        for (index, flow) in (0u64..).zip(self.workload.flows()) {
            if flow.dst.0 == self.rank {
                fabric.receive(flow.bytes as usize, index)?;
            }
        }
        Ok(())
    }

    /// Starts the flows whose time has come when the run is `since` old.
    pub(crate) fn start_due(
        &mut self,
        since: impl Fn() -> Span,
        fabric: &mut Fabric,
    ) -> Result<bool, Failure> {
        let mut any = false;
        while self.timed.last().is_some_and(|(at, _)| *at <= since()) {
            let Some((_, flow)) = self.timed.pop() else { break };
            self.start(flow, &since, fabric)?;
            any = true;
        }
        for flow in self.agenda.due(since()) {
            self.start(flow, &since, fabric)?;
            any = true;
        }
        Ok(any)
    }

    /// Starts a flow, unless it has started.
    pub(crate) fn start(
        &mut self,
        index: u32,
        since: impl Fn() -> Span,
        fabric: &mut Fabric,
    ) -> Result<(), Failure> {
        let flow = self.flow(index);
        let bytes = match self.verify {
            true => Arc::new(payload(u64::from(index), flow.bytes as u32)),
            false => self.zeros(flow.bytes as usize),
        };
        match self.sent.get_mut(&index) {
            Some(sent) if sent.start.is_none() => sent.start = Some(since().as_ps()),
            _ => return Ok(()),
        }
        fabric.send(flow.dst.0, bytes, u64::from(index))
    }

    /// Bytes that say nothing. Flows of the same length share them.
    fn zeros(&mut self, len: usize) -> Arc<Vec<u8>> {
        if self.zeros.len() != len {
            self.zeros = Arc::new(vec![0; len]);
        }
        self.zeros.clone()
    }

    /// The message with this tag has arrived.
    pub(crate) fn received(
        &mut self,
        tag: u64,
        bytes: &[u8],
        since: impl Fn() -> Span,
        fabric: &mut Fabric,
    ) -> Result<(), Failure> {
        let index = tag as u32;
        let flow = self.flow(index);
        // First: the sender's time ends with it.
        fabric.say(flow.src.0, Word::Arrived(index))?;
        self.left -= 1;
        if bytes.len() as u64 != flow.bytes {
            let (id, len, expected) = (flow.id, bytes.len(), flow.bytes);
            self.wrong.push(format!("flow {id} arrived with {len} bytes; expected {expected}"));
        } else if let Some(at) = first_wrong_byte(tag, bytes).filter(|_| self.verify) {
            self.wrong.push(format!("flow {} arrived with another byte at offset {at}", flow.id));
        }
        self.activate(flow.on_received, since, fabric)
    }

    /// The receiver of a flow says that it has it.
    pub(crate) fn arrived(
        &mut self,
        index: u32,
        since: impl Fn() -> Span,
        fabric: &mut Fabric,
    ) -> Result<(), Failure> {
        match self.sent.get_mut(&index) {
            Some(sent) if sent.start.is_some() && sent.end.is_none() => sent.end = Some(since().as_ps()),
            _ => {
                return Err(Failure::Run(format!(
                    "flow number {index} is said to have arrived, but is not under way"
                )));
            }
        }
        self.left -= 1;
        self.activate(self.flow(index).on_sent, since, fabric)
    }

    fn activate(
        &mut self,
        trigger: Option<TriggerIdx>,
        since: impl Fn() -> Span,
        fabric: &mut Fabric,
    ) -> Result<(), Failure> {
        let Some(trigger) = trigger else { return Ok(()) };
        if self.owners.is_shared(trigger) {
            self.activated.push_back(trigger);
            return Ok(());
        }
        self.agenda
            .activate(since(), trigger)
            .into_iter()
            .try_for_each(|flow| self.start(flow, &since, fabric))
    }

    /// The next trigger that rank 0 has to hear of.
    pub(crate) fn next_activated(&mut self) -> Option<TriggerIdx> {
        self.activated.pop_front()
    }

    /// Whether all flows from here have ended, and all to here have arrived.
    pub(crate) fn are_done(&self) -> bool {
        self.left == 0
    }

    /// The results.
    pub(crate) fn part(&self) -> Part {
        Part { sent: self.sent.values().copied().collect(), wrong: self.wrong.clone() }
    }
}
