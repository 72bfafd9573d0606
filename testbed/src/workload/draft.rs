//! A workload while generators add to it.

use core::num::{NonZeroU16, NonZeroU32};
use std::collections::BTreeMap;

use weft_cc::{Span, Time};
use weft_stack::wire::class::Priority;

use super::pairs::Pairs;
use super::spec::WorkloadSpecError;
use super::{
    Background, BackgroundIdx, Connection, Flow, MessageNumber, Start, Task, Trigger, TriggerIdx,
    TriggerKind, Workload, WorkloadError,
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
    /// How many times slower than described the fabric is. Rates of descriptions are divided by it.
    pub slow: u32,
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
    /// The priority of connections that are added.
    pub(super) priority: Priority,
    backgrounds: Vec<Background>,
}

impl Draft {
    pub(super) fn new(hosts: u32) -> Draft {
        Draft {
            hosts,
            flows: Vec::new(),
            connections: Vec::new(),
            triggers: Vec::new(),
            tasks: Vec::new(),
            priority: Priority::LOWEST,
            backgrounds: Vec::new(),
        }
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
        let priority = self.priority;
        self.connections
            .push(Connection { priority, ..Connection::new(index + 1, HostId(src), HostId(dst)) });
        index
    }

    /// Adds a flow of background traffic over a connection of its own.
    pub(super) fn background_flow(
        &mut self,
        (src, dst): (u32, u32),
        kind: Background,
        bytes: u64,
        start: Start,
    ) -> Result<(), WorkloadSpecError> {
        let known = self.backgrounds.iter().position(|other| *other == kind);
        let index = known.unwrap_or(self.backgrounds.len());
        let index = BackgroundIdx::new(index).ok_or(WorkloadSpecError::TooManyBackgrounds)?;
        if known.is_none() {
            self.backgrounds.push(kind);
        }
        let connection = self.connect(src, dst);
        self.connections[connection as usize].background = Some(index);
        self.flow(connection, bytes, start, false).map(drop)
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
        let Connection { id, src, dst, .. } = self.connections[connection as usize];
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
        let Draft { hosts, flows, connections, triggers, tasks, backgrounds, .. } = self;
        let workload = Workload::new(hosts, flows, connections, triggers, Vec::new())?;
        let workload = workload.with_backgrounds(backgrounds)?;
        Ok(if tasks.is_empty() { workload } else { workload.with_tasks(tasks, sources) })
    }
}

/// How the messages of a pair of hosts share connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Each message has a connection of its own.
    None,
    /// They take turns on so many connections.
    Turns(NonZeroU32),
    /// Each takes the least loaded of so many connections.
    LeastLoaded(NonZeroU16),
}

impl Sharing {
    /// Takes `connections` and `pick`.
    pub(super) fn parse(pairs: &mut Pairs<'_>) -> Result<Sharing, WorkloadSpecError> {
        let connections = pairs.count("connections")?.and_then(NonZeroU32::new);
        let least_loaded = pairs.read("pick", "turn or least-loaded", |text| match text {
            "turn" => Some(false),
            "least-loaded" => Some(true),
            _ => None,
        })?;
        match (connections, least_loaded) {
            (None, None) => Ok(Sharing::None),
            (None, Some(_)) => {
                Err(WorkloadSpecError::value("pick", "expected connections=N with it".to_owned()))
            }
            (Some(size), Some(true)) => {
                let expected =
                    || WorkloadSpecError::value("connections", format!("`{size}`; expected at most 65535"));
                NonZeroU16::try_from(size).map(Sharing::LeastLoaded).map_err(|_| expected())
            }
            (Some(size), _) => Ok(Sharing::Turns(size)),
        }
    }
}

/// The connections that messages of pairs of hosts share.
pub(super) struct Pool {
    sharing: Sharing,
    /// The first connection of each pair, and the number of messages so far. The connections of a pair follow each
    /// other where they are opened together.
    pairs: BTreeMap<(u32, u32), (Vec<u32>, u32)>,
}

impl Pool {
    pub(super) fn new(sharing: Sharing) -> Pool {
        Pool { sharing, pairs: BTreeMap::new() }
    }

    /// Adds a flow over a connection of the pair, and returns its index.
    pub(super) fn flow(
        &mut self,
        draft: &mut Draft,
        (src, dst): (u32, u32),
        bytes: u64,
        start: Start,
    ) -> Result<u32, WorkloadSpecError> {
        let (turns, behind_each) = match self.sharing {
            Sharing::None => return draft.lone_flow(src, dst, bytes, start),
            Sharing::Turns(count) => (count.get(), NonZeroU16::MIN),
            Sharing::LeastLoaded(count) => (1, count),
        };
        let (connections, sent) = self.pairs.entry((src, dst)).or_default();
        let turn = (*sent % turns) as usize;
        *sent = (*sent + 1) % turns;
        if turn == connections.len() {
            let connection = draft.connect(src, dst);
            draft.connections[connection as usize].pool = behind_each;
            connections.push(connection);
        }
        draft.flow(connections[turn], bytes, start, true)
    }
}
