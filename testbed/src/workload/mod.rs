//! Workloads: the flows of a run, and what starts them.
//!
//! A [`Workload`] is a list of flows. A flow starts at a given time or when a [`Trigger`] starts it, and can
//! itself activate triggers when it is done. That is enough to express chains, windows and barriers. Flows of
//! one [`Connection`] are messages over the same connection.
//!
//! Flows and triggers refer to each other by index. A `Workload` is checked when it is made: hosts exist, and
//! every flow will start if the flows it depends on end. At run time, a [`TriggerBank`] tells which flows an
//! activation starts.
//!
//! Connection matrices (`.cm` files) are read by [`CmReader`] or [`parse_cm`] and written by [`Workload::write_cm`];
//! [`WorkloadSpec`] generates workloads from short descriptions, of which [`GENERATORS`] lists the kinds.
//!
//! A [`Task`] is a set of flows that make up one operation, such as a request and its response or an iteration of a
//! collective. Reports give the time of each.

mod agenda;
mod background;
mod collective;
mod draft;
mod generate;
mod incast;
mod matrix_file;
mod matrix_write;
mod numbering;
mod open_loop;
mod pairs;
mod partners;
mod payload;
mod random;
mod sizes;
mod spec;
mod trigger;

#[cfg(test)]
mod tests;

pub use agenda::Agenda;
pub use draft::Setting;
pub use matrix_file::{CmOptions, CmReader, CmReason, MatrixError, StartUnit, parse_cm};
pub use payload::{first_wrong_byte, payload};
pub use sizes::{BUILT_IN_SIZES, BuiltInSizes, SizeDistribution, Sizes, SizesError, SizesReason};
pub use spec::{GENERATORS, Generator, Parameter, WorkloadSpec, WorkloadSpecError};
pub use trigger::{Fired, TriggerBank};

use core::num::{NonZeroU8, NonZeroU16, NonZeroU32};

use thiserror::Error;
use weft_cc::{Rate, Span, Time};
use weft_stack::wire::class::Priority;

use crate::topology::HostId;

/// Maximum size of a flow that is one message, bytes: the length of a message has 32 bits on the wire. Larger flows are
/// sent as several messages of their connection.
pub const MAX_MESSAGE_BYTES: u64 = u32::MAX as u64;

/// Maximum size of a flow, bytes: 64 PiB, so that sums of sizes are exact.
pub const MAX_FLOW_BYTES: u64 = 1 << 56;

/// Maximum number of kinds of background traffic. Each takes one of the 256 zones of endpoints.
pub const MAX_BACKGROUNDS: usize = 254;

/// Maximum number of flows, and of triggers: an index takes 31 bits.
const MAX_ITEMS: usize = 1 << 31;

/// The index of a trigger in [`Workload::triggers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TriggerIdx(NonZeroU32);

impl TriggerIdx {
    /// The trigger number `index`, counted from 0; `None` for `u32::MAX`, which no workload reaches.
    pub const fn new(index: u32) -> Option<TriggerIdx> {
        match NonZeroU32::new(index.wrapping_add(1)) {
            Some(n) => Some(TriggerIdx(n)),
            None => None,
        }
    }

    /// The index, counted from 0.
    #[inline]
    pub const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The number of a message within its connection, if the file gives one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageNumber(NonZeroU32);

impl MessageNumber {
    /// A message without a number.
    pub const UNNUMBERED: MessageNumber = MessageNumber(NonZeroU32::MIN);

    /// The message number `number`, or no number if it is 0. `None` for `u32::MAX`, which no file may use.
    pub const fn new(number: u32) -> Option<MessageNumber> {
        match NonZeroU32::new(number.wrapping_add(1)) {
            Some(n) => Some(MessageNumber(n)),
            None => None,
        }
    }

    /// The number; 0 if the file gives none.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0.get() - 1
    }
}

/// When a flow starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At a time since the start of the run.
    At(Time),
    /// When a trigger starts it.
    Trigger(TriggerIdx),
}

/// One message from one host to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The number in the file, above 0. Messages of one connection share it. Flows without a number get
    /// numbers that the file does not use.
    pub id: u32,
    /// Index of its connection in [`Workload::connections`].
    pub connection: u32,
    /// The sending host.
    pub src: HostId,
    /// The receiving host, which is another host.
    pub dst: HostId,
    /// Payload bytes, at most [`MAX_FLOW_BYTES`].
    pub bytes: u64,
    /// The start of the flow.
    pub start: Start,
    /// The trigger activated when the sender knows that all of the flow has arrived.
    pub on_sent: Option<TriggerIdx>,
    /// The trigger activated when the receiver has all of the flow.
    pub on_received: Option<TriggerIdx>,
    /// Its number as a message of its connection; `None` if the file does not mark it as a message.
    pub message: Option<MessageNumber>,
}

// A workload may have millions of flows.
const _: () = assert!(size_of::<Flow>() <= 56 && size_of::<Connection>() <= 16);

/// A connection: its messages share one pair of hosts and one congestion control state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The [`Flow::id`] of its messages.
    pub id: u32,
    /// The sending host.
    pub src: HostId,
    /// The receiving host.
    pub dst: HostId,
    /// The priority of its data in switches.
    pub priority: Priority,
    /// Whether it is background traffic.
    pub background: Option<BackgroundIdx>,
    /// Number of connections that stand behind it, at least 1. Each message takes the one with the fewest bytes of messages
    /// that are not complete, when it starts.
    pub pool: NonZeroU16,
}

impl Connection {
    /// A connection for data of the lowest priority, and no pool of them.
    pub const fn new(id: u32, src: HostId, dst: HostId) -> Connection {
        Connection { id, src, dst, priority: Priority::LOWEST, background: None, pool: NonZeroU16::MIN }
    }
}

/// The index of background traffic of one kind in [`Workload::backgrounds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackgroundIdx(NonZeroU8);

impl BackgroundIdx {
    /// The kind number `index`, counted from 0; `None` if there cannot be so many.
    pub const fn new(index: usize) -> Option<BackgroundIdx> {
        if index >= MAX_BACKGROUNDS {
            return None;
        }
        match NonZeroU8::new(index as u8 + 1) {
            Some(n) => Some(BackgroundIdx(n)),
            None => None,
        }
    }

    /// The index, counted from 0.
    pub const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Background traffic: flows that are sent at a constant rate, without congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Background {
    /// The rate of each flow, payload in bits per second.
    pub rate: Rate,
    /// The entropy of all its packets; `None`: each connection draws one.
    pub path: Option<u16>,
}

/// The reaction of a trigger to activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriggerKind {
    /// The first activation starts all of its flows; later activations do nothing.
    Oneshot,
    /// Each activation starts the next of its flows, as long as there are any.
    Multishot,
    /// The activation with the given number, at least 1, starts all of its flows; the other activations do nothing.
    Barrier(u32),
}

/// A trigger: starts the flows of [`Workload::started_by`] when other flows end. With a delay it stands for a
/// computation; triggers that activate each other express what depends on what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// The number in the file, above 0.
    pub id: u32,
    /// Its reaction to activations.
    pub kind: TriggerKind,
    /// When it is activated once by itself; `None`: it is not.
    pub at: Option<Time>,
    /// Time between its reaction to an activation and what it starts and activates.
    pub delay: Span,
    /// Another trigger that it activates whenever it reacts.
    pub then: Option<TriggerIdx>,
}

impl Trigger {
    /// A trigger that starts its flows without delay and activates no other one.
    pub const fn new(id: u32, kind: TriggerKind) -> Trigger {
        Trigger { id, kind, at: None, delay: Span::ZERO, then: None }
    }
}

/// Flows that make up one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// The index of its description in [`Workload::sources`].
    pub source: u32,
    /// The index of its first flow.
    pub first: u32,
    /// Number of its flows, which follow each other.
    pub flows: u32,
}

/// A link that has failed for the whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFailure {
    /// Tier of the switch: 0 ToR, 1 aggregation or spine, 2 core.
    pub tier: u8,
    /// Number of the switch within its tier.
    pub switch: u32,
    /// Number of the link among the switch's uplinks, or downlinks in the top tier, as in
    /// [`Topology::link_at`](crate::topology::Topology::link_at).
    pub link: u32,
}

/// A checked list of flows; see the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    hosts: u32,
    flows: Vec<Flow>,
    connections: Vec<Connection>,
    triggers: Vec<Trigger>,
    failures: Vec<LinkFailure>,
    /// Indices of the flows that triggers start, trigger by trigger, in the order of the flows.
    targets: Vec<u32>,
    /// Where each trigger's part of `targets` begins, followed by the length of `targets`.
    first_target: Vec<u32>,
    /// In the order of their flows.
    tasks: Vec<Task>,
    sources: Vec<String>,
    backgrounds: Vec<Background>,
}

/// The subject of a [`WorkloadError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The workload as a whole.
    Whole,
    /// The flow with this index.
    Flow(usize),
    /// The trigger with this index.
    Trigger(usize),
}

/// Why flows and triggers do not make a workload.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct WorkloadError {
    /// The flow or trigger that is wrong.
    pub subject: Subject,
    /// The reason why the workload is refused.
    pub reason: WorkloadReason,
}

/// Reasons to refuse a workload.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WorkloadReason {
    /// A flow names a host that does not exist.
    #[error("host {host} does not exist: the workload has {hosts} hosts, counted from 0")]
    NoSuchHost {
        /// The number of the host that does not exist.
        host: u32,
        /// Number of hosts of the workload.
        hosts: u32,
    },
    /// A flow goes from a host to itself.
    #[error("host {0} would send to itself")]
    ToItself(u32),
    /// A flow has more bytes than it can have.
    #[error("{0} bytes are more than a flow can have (2^56)")]
    TooLarge(u64),
    /// There are more flows or triggers than 31 bits can number.
    #[error("too many flows or triggers")]
    TooMany,
    /// A flow or trigger refers to a connection or trigger that does not exist, or to a connection between other hosts.
    #[error(
        "a flow or trigger refers to a connection or trigger that does not exist, or to a connection between other hosts"
    )]
    Dangling,
    /// A barrier has a count of 0.
    #[error("a barrier needs a count of at least 1")]
    EmptyBarrier,
    /// No flow activates the trigger.
    #[error(
        "trigger {0} is never activated: no flow names it as send_done_trigger or recv_done_trigger, no trigger after \
         `then`, and it has no `at`"
    )]
    NeverActivated(u32),
    /// A trigger gets fewer activations than it needs to start all of its flows.
    #[error("trigger {id} needs {needed} activations to start all of its flows but gets {given}")]
    TooFewActivations {
        /// The trigger's number.
        id: u32,
        /// Activations that it needs.
        needed: u64,
        /// Activations that it gets.
        given: u64,
    },
    /// A flow waits for itself.
    #[error(
        "flow {flow} can never start: it is part of a cycle of {length} flow(s) through trigger {trigger}"
    )]
    Cycle {
        /// The flow's number.
        flow: u32,
        /// The number of the trigger that it waits for.
        trigger: u32,
        /// Number of flows that wait for each other.
        length: usize,
    },
}

impl Workload {
    /// Checks and indexes the given lists. The flows of a trigger are those that name it as their start, in
    /// the order of the list. The caller must give different numbers to connections, and to triggers; only
    /// [`Workload::write_cm`] depends on it.
    pub fn new(
        hosts: u32,
        flows: Vec<Flow>,
        connections: Vec<Connection>,
        triggers: Vec<Trigger>,
        failures: Vec<LinkFailure>,
    ) -> Result<Workload, WorkloadError> {
        let at = |subject| move |reason| WorkloadError { subject, reason };
        if flows.len() > MAX_ITEMS || triggers.len() > MAX_ITEMS {
            return Err(at(Subject::Whole)(WorkloadReason::TooMany));
        }
        for (i, flow) in flows.iter().enumerate() {
            check_flow(hosts, flow, &connections, triggers.len()).map_err(at(Subject::Flow(i)))?;
        }
        let dangling = |t: &Trigger| t.then.is_some_and(|then| then.index() >= triggers.len());
        if let Some(i) = triggers.iter().position(dangling) {
            return Err(at(Subject::Trigger(i))(WorkloadReason::Dangling));
        }
        if let Some(i) = triggers.iter().position(|t| t.kind == TriggerKind::Barrier(0)) {
            return Err(at(Subject::Trigger(i))(WorkloadReason::EmptyBarrier));
        }
        let (first_target, targets) = trigger::index_targets(&flows, triggers.len());
        let workload = Workload {
            hosts,
            flows,
            connections,
            triggers,
            failures,
            targets,
            first_target,
            tasks: Vec::new(),
            sources: Vec::new(),
            backgrounds: Vec::new(),
        };
        workload.check_triggers()?;
        Ok(workload)
    }

    /// The same with the kinds of background traffic that its connections refer to.
    ///
    /// # Errors
    /// A connection refers to one that does not exist.
    pub fn with_backgrounds(self, backgrounds: Vec<Background>) -> Result<Workload, WorkloadError> {
        let exists = |c: &Connection| c.background.is_none_or(|kind| kind.index() < backgrounds.len());
        if !self.connections.iter().all(exists) || backgrounds.len() > MAX_BACKGROUNDS {
            return Err(WorkloadError { subject: Subject::Whole, reason: WorkloadReason::Dangling });
        }
        Ok(Workload { backgrounds, ..self })
    }

    /// The same with tasks, which are in the order of their flows and have none in common, and whose descriptions are
    /// `sources`.
    pub(super) fn with_tasks(self, tasks: Vec<Task>, sources: Vec<String>) -> Workload {
        debug_assert!(tasks.windows(2).all(|pair| pair[0].first + pair[0].flows <= pair[1].first));
        Workload { tasks, sources, ..self }
    }

    /// Memory that its lists take, bytes.
    pub fn bytes(&self) -> u64 {
        let Workload { flows, connections, triggers, failures, targets, first_target, tasks, .. } = self;
        let lists = [
            flows.capacity() * size_of::<Flow>(),
            connections.capacity() * size_of::<Connection>(),
            triggers.capacity() * size_of::<Trigger>(),
            failures.capacity() * size_of::<LinkFailure>(),
            (targets.capacity() + first_target.capacity()) * size_of::<u32>(),
            tasks.capacity() * size_of::<Task>(),
        ];
        lists.into_iter().sum::<usize>() as u64
    }

    /// Number of hosts.
    pub fn hosts(&self) -> u32 {
        self.hosts
    }

    /// The flows, in the order of the file.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// The connections, in the order of their first flows.
    pub fn connections(&self) -> &[Connection] {
        &self.connections
    }

    /// The kinds of background traffic.
    pub fn backgrounds(&self) -> &[Background] {
        &self.backgrounds
    }

    /// The background traffic that the flow with this index is, if it is.
    pub fn background_of(&self, flow: usize) -> Option<Background> {
        let kind = self.connections[self.flows.get(flow)?.connection as usize].background?;
        self.backgrounds.get(kind.index()).copied()
    }

    /// Number of priorities that its connections need: one more than the number of the highest.
    pub fn priorities(&self) -> u8 {
        let highest = self.connections.iter().map(|connection| connection.priority).max();
        highest.unwrap_or_default().number() + 1
    }

    /// The triggers, which start flows after other flows.
    pub fn triggers(&self) -> &[Trigger] {
        &self.triggers
    }

    /// The links that have failed.
    pub fn failures(&self) -> &[LinkFailure] {
        &self.failures
    }

    /// The tasks, in the order of their flows.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// The descriptions that tasks come from.
    pub fn sources(&self) -> &[String] {
        &self.sources
    }

    /// The index of the task that a flow is part of, if it is part of one.
    pub fn task_of(&self, flow: u32) -> Option<usize> {
        let after = self.tasks.partition_point(|task| task.first <= flow);
        after.checked_sub(1).filter(|&i| flow - self.tasks[i].first < self.tasks[i].flows)
    }

    /// The indices of the flows that a trigger starts, in the order in which a multishot trigger starts them.
    /// Panics if there is no such trigger.
    pub fn started_by(&self, trigger: TriggerIdx) -> &[u32] {
        let i = trigger.index();
        &self.targets[self.first_target[i] as usize..self.first_target[i + 1] as usize]
    }
}

fn check_flow(
    hosts: u32,
    flow: &Flow,
    connections: &[Connection],
    triggers: usize,
) -> Result<(), WorkloadReason> {
    for host in [flow.src.0, flow.dst.0] {
        if host >= hosts {
            return Err(WorkloadReason::NoSuchHost { host, hosts });
        }
    }
    if flow.src == flow.dst {
        return Err(WorkloadReason::ToItself(flow.src.0));
    }
    if flow.bytes > MAX_FLOW_BYTES {
        return Err(WorkloadReason::TooLarge(flow.bytes));
    }
    let start = match flow.start {
        Start::At(_) => None,
        Start::Trigger(t) => Some(t),
    };
    let known = [start, flow.on_sent, flow.on_received].into_iter().flatten().all(|t| t.index() < triggers);
    let fits = connections
        .get(flow.connection as usize)
        .is_some_and(|c| (c.id, c.src, c.dst) == (flow.id, flow.src, flow.dst));
    if known && fits { Ok(()) } else { Err(WorkloadReason::Dangling) }
}
