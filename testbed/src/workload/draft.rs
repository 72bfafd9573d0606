//! A workload while generators add to it.

use std::collections::BTreeMap;

use weft_cc::{Span, Time};

use super::spec::WorkloadSpecError;
use super::{
    Connection, Flow, MessageNumber, Start, Task, Trigger, TriggerIdx, TriggerKind, Workload, WorkloadError,
};
use crate::topology::{HostId, Topology};

/// Maximum number of flows of generated workloads. It bounds the memory that a short description can request:
/// `docs/workloads.md` says how much a flow takes.
pub(super) const MAX_FLOWS: u64 = 1 << 24;

/// The surroundings in which a description becomes flows.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// Number of hosts that take part, counted from 0.
    pub hosts: u32,
    /// The fabric. Loads and zones refer to it.
    pub topology: Option<&'a Topology>,
    /// Bytes of a flow where the description does not say it.
    pub bytes: u64,
    /// Returns the text of the file of this name, or why it cannot be read.
    pub read: &'a dyn Fn(&str) -> Result<String, String>,
}

/// When a flow is done, seen from one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// The sender knows that all of it has arrived.
    Sent(u32),
    /// The receiver has all of it.
    Received(u32),
}

/// The lists of a workload.
pub(super) struct Draft {
    hosts: u32,
    flows: Vec<Flow>,
    connections: Vec<Connection>,
    triggers: Vec<Trigger>,
    tasks: Vec<Task>,
}

impl Draft {
    pub(super) fn new(hosts: u32) -> Draft {
        Draft { hosts, flows: Vec::new(), connections: Vec::new(), triggers: Vec::new(), tasks: Vec::new() }
    }

    /// Makes room for about `more` flows over connections of their own.
    pub(super) fn reserve(&mut self, more: u64) -> Result<(), WorkloadSpecError> {
        let flows = self.flows.len() as u64 + more;
        if flows > MAX_FLOWS || u64::from(self.hosts) > MAX_FLOWS {
            return Err(WorkloadSpecError::TooManyFlows { flows });
        }
        self.flows.reserve_exact(more as usize);
        Ok(())
    }

    /// Number of flows so far.
    pub(super) fn len(&self) -> u32 {
        self.flows.len() as u32
    }

    /// Adds a connection.
    pub(super) fn connect(&mut self, src: u32, dst: u32) -> u32 {
        let index = self.connections.len() as u32;
        self.connections.push(Connection { id: index + 1, src: HostId(src), dst: HostId(dst) });
        index
    }

    /// Adds a flow over `connection`, and returns its index. `message` says whether the connection has other flows.
    pub(super) fn flow(
        &mut self,
        connection: u32,
        bytes: u64,
        start: Start,
        message: bool,
    ) -> Result<u32, WorkloadSpecError> {
        let index = self.flows.len();
        if index as u64 >= MAX_FLOWS {
            return Err(WorkloadSpecError::TooManyFlows { flows: MAX_FLOWS + 1 });
        }
        let Connection { id, src, dst } = self.connections[connection as usize];
        self.flows.push(Flow {
            id,
            connection,
            src,
            dst,
            bytes,
            start,
            on_sent: None,
            on_received: None,
            message: message.then_some(MessageNumber::UNNUMBERED),
        });
        Ok(index as u32)
    }

    /// Adds a flow over a connection of its own, and returns its index.
    pub(super) fn lone_flow(
        &mut self,
        src: u32,
        dst: u32,
        bytes: u64,
        start: Start,
    ) -> Result<u32, WorkloadSpecError> {
        let connection = self.connect(src, dst);
        self.flow(connection, bytes, start, false)
    }

    /// Adds a trigger that fires at the given number of activations, `delay` after the last of them.
    pub(super) fn trigger(
        &mut self,
        kind: TriggerKind,
        delay: Span,
    ) -> Result<TriggerIdx, WorkloadSpecError> {
        let index = self.triggers.len() as u32;
        self.triggers.push(Trigger { delay, ..Trigger::new(index + 1, kind) });
        TriggerIdx::new(index).ok_or(WorkloadSpecError::TooManyFlows { flows: u64::from(u32::MAX) })
    }

    /// Adds a trigger that fires at a time.
    pub(super) fn timed_trigger(&mut self, at: Time) -> Result<TriggerIdx, WorkloadSpecError> {
        let trigger = self.trigger(TriggerKind::Oneshot, Span::ZERO)?;
        self.triggers[trigger.index()].at = Some(at);
        Ok(trigger)
    }

    /// Makes `trigger` activate `next` when it fires.
    pub(super) fn chain(&mut self, trigger: TriggerIdx, next: TriggerIdx) {
        self.triggers[trigger.index()].then = Some(next);
    }

    /// Makes the end of a flow activate `trigger`.
    pub(super) fn activate(&mut self, done: Done, trigger: TriggerIdx) {
        match done {
            Done::Sent(flow) => self.flows[flow as usize].on_sent = Some(trigger),
            Done::Received(flow) => self.flows[flow as usize].on_received = Some(trigger),
        }
    }

    /// Makes the flows from number `first` on a task of description `source`.
    pub(super) fn task(&mut self, source: u32, first: u32) {
        self.tasks.push(Task { source, first, flows: self.len() - first });
    }

    /// Checks the lists and makes a workload of them. `sources` are the descriptions of its tasks.
    pub(super) fn finish(mut self, sources: Vec<String>) -> Result<Workload, WorkloadError> {
        self.flows.shrink_to_fit();
        self.connections.shrink_to_fit();
        self.triggers.shrink_to_fit();
        let Draft { hosts, flows, connections, triggers, tasks } = self;
        let workload = Workload::new(hosts, flows, connections, triggers, Vec::new())?;
        Ok(if tasks.is_empty() { workload } else { workload.with_tasks(tasks, sources) })
    }
}

/// Connections that the messages of a pair of hosts share in turn.
pub(super) struct Pool {
    /// Connections of each pair; 0: each message has a connection of its own.
    size: u32,
    /// The first connection of each pair, and the number of messages so far. The connections of a pair follow each
    /// other where they are opened together.
    pairs: BTreeMap<(u32, u32), (Vec<u32>, u32)>,
}

impl Pool {
    pub(super) fn new(size: u32) -> Pool {
        Pool { size, pairs: BTreeMap::new() }
    }

    /// Adds a flow over the connection of the pair whose turn it is, and returns its index.
    pub(super) fn flow(
        &mut self,
        draft: &mut Draft,
        (src, dst): (u32, u32),
        bytes: u64,
        start: Start,
    ) -> Result<u32, WorkloadSpecError> {
        if self.size == 0 {
            return draft.lone_flow(src, dst, bytes, start);
        }
        let (connections, sent) = self.pairs.entry((src, dst)).or_default();
        let turn = (*sent % self.size) as usize;
        *sent = (*sent + 1) % self.size;
        if turn == connections.len() {
            connections.push(draft.connect(src, dst));
        }
        draft.flow(connections[turn], bytes, start, true)
    }
}
