//! Workloads from a short description instead of a file. [`WorkloadSpec`] lists them.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;
use weft_cc::Time;
use weft_stack::rng::Rng;

use super::{Connection, Flow, Start, Trigger, TriggerIdx, TriggerKind, Workload, WorkloadError};
use crate::topology::HostId;

/// Maximum number of flows of a generated workload. It bounds the memory that a short description can
/// request.
const MAX_FLOWS: u64 = 1 << 24;

/// A description of a workload, as given on a command line.
///
/// | description | flows |
/// |---|---|
/// | `incast:N` | N hosts, each one flow to the same other host |
/// | `permutation` | every host sends to one other and receives from one other |
/// | `all-to-all:K` | every host sends to each other host, at most K flows at a time |
///
/// The roles of the hosts are drawn at random; all flows have the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadSpec {
    /// `incast:N`
    Incast {
        /// Number of sending hosts.
        senders: u32,
    },
    /// `permutation`: a derangement, with each equally likely.
    Permutation,
    /// `all-to-all:K` (SMaRTT §IV-C). Each host sends to the others in the order of one common ring. When a
    /// flow ends, the host's next flow starts.
    AllToAll {
        /// Maximum number of concurrent flows per sending host.
        window: u32,
    },
}

/// Why a description is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WorkloadSpecError {
    /// The text does not name a generator.
    #[error("`{0}` is not a workload: expected incast:N, permutation or all-to-all:K")]
    Unknown(String),
    /// The number after the colon is missing, zero or not a number.
    #[error("`{0}` needs a number above zero, as in {0}:8")]
    BadNumber(&'static str),
    /// `permutation` is followed by a number.
    #[error("permutation takes no number")]
    NoNumber,
    /// The number of hosts is not given, and the workload does not imply it.
    #[error("{0} needs a number of hosts")]
    NeedsHosts(WorkloadSpec),
    /// Too few hosts.
    #[error("{spec} needs at least {needed} hosts, there are {hosts}")]
    TooFewHosts {
        /// The description of the workload.
        spec: WorkloadSpec,
        /// Number of hosts that it needs.
        needed: u64,
        /// Number of hosts given.
        hosts: u32,
    },
    /// The workload would have too many flows.
    #[error("{spec} on {hosts} hosts has more than {MAX_FLOWS} flows")]
    TooManyFlows {
        /// The description of the workload.
        spec: WorkloadSpec,
        /// Number of hosts.
        hosts: u32,
    },
    /// The flows are not valid, because they are too large.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

impl WorkloadSpec {
    /// Form and description of each generator, for help texts.
    pub const ALL: &'static [(&'static str, &'static str)] = &[
        ("incast:N", "N hosts, each one flow to the same other host"),
        ("permutation", "every host sends to one other and receives from one other"),
        ("all-to-all:K", "every host sends to each other host, at most K flows at a time (SMaRTT §IV-C)"),
    ];

    /// The number of hosts that the description implies: N + 1 for an incast, `None` for the others.
    pub fn default_hosts(&self) -> Option<u32> {
        match self {
            WorkloadSpec::Incast { senders } => senders.checked_add(1),
            _ => None,
        }
    }

    /// Makes the workload over `hosts` hosts (or [`WorkloadSpec::default_hosts`]) with flows of `bytes` bytes
    /// each. The same state of `rng` gives the same workload.
    pub fn build(
        &self,
        hosts: Option<u32>,
        bytes: u64,
        rng: &mut Rng,
    ) -> Result<Workload, WorkloadSpecError> {
        let hosts = hosts.or(self.default_hosts()).ok_or(WorkloadSpecError::NeedsHosts(*self))?;
        let (needed, flows) = match *self {
            WorkloadSpec::Incast { senders } => (u64::from(senders) + 1, u64::from(senders)),
            WorkloadSpec::Permutation => (2, u64::from(hosts)),
            WorkloadSpec::AllToAll { .. } => (2, u64::from(hosts) * u64::from(hosts.saturating_sub(1))),
        };
        if u64::from(hosts) < needed {
            return Err(WorkloadSpecError::TooFewHosts { spec: *self, needed, hosts });
        }
        // The number of hosts is limited as well, as each host takes some memory.
        if flows > MAX_FLOWS || u64::from(hosts) > MAX_FLOWS {
            return Err(WorkloadSpecError::TooManyFlows { spec: *self, hosts });
        }
        let (flows, connections) = (Vec::with_capacity(flows as usize), Vec::with_capacity(flows as usize));
        let mut list = FlowList { bytes, flows, connections };
        let mut triggers = Vec::new();
        match *self {
            WorkloadSpec::Incast { senders } => list.incast(senders, &shuffled(hosts, rng)),
            WorkloadSpec::Permutation => list.permutation(hosts, rng),
            WorkloadSpec::AllToAll { window } => {
                list.all_to_all(window, &shuffled(hosts, rng), &mut triggers)
            }
        }
        Ok(Workload::new(hosts, list.flows, list.connections, triggers, Vec::new())?)
    }
}

struct FlowList {
    bytes: u64,
    flows: Vec<Flow>,
    connections: Vec<Connection>,
}

impl FlowList {
    /// Adds a flow over a connection of its own.
    fn push(&mut self, src: u32, dst: u32, start: Start, on_sent: Option<TriggerIdx>) {
        let connection = self.connections.len() as u32;
        let (id, src, dst) = (connection + 1, HostId(src), HostId(dst));
        self.connections.push(Connection { id, src, dst });
        self.flows.push(Flow {
            id,
            connection,
            src,
            dst,
            bytes: self.bytes,
            start,
            on_sent,
            on_received: None,
            message: None,
        });
    }

    fn incast(&mut self, senders: u32, order: &[u32]) {
        for &src in &order[1..=senders as usize] {
            self.push(src, order[0], Start::At(Time::ZERO), None);
        }
    }

    fn permutation(&mut self, hosts: u32, rng: &mut Rng) {
        // One in e shuffles has no fixed point. Taking the first such shuffle keeps all derangements equally
        // likely.
        let order = loop {
            let order = shuffled(hosts, rng);
            if (0..hosts).all(|h| order[h as usize] != h) {
                break order;
            }
        };
        for (src, dst) in (0..hosts).zip(order) {
            self.push(src, dst, Start::At(Time::ZERO), None);
        }
    }

    fn all_to_all(&mut self, window: u32, ring: &[u32], triggers: &mut Vec<Trigger>) {
        let hosts = ring.len();
        for (at, &src) in ring.iter().enumerate() {
            let mut next = None;
            if (window as usize) < hosts - 1 {
                next = TriggerIdx::new(triggers.len() as u32);
                triggers.push(Trigger { id: triggers.len() as u32 + 1, kind: TriggerKind::Multishot });
            }
            for distance in 1..hosts {
                let start = match next {
                    Some(trigger) if distance > window as usize => Start::Trigger(trigger),
                    _ => Start::At(Time::ZERO),
                };
                self.push(src, ring[(at + distance) % hosts], start, next);
            }
        }
    }
}

/// The numbers below `n` in random order (Fisher–Yates).
fn shuffled(n: u32, rng: &mut Rng) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i as usize, rng.below(i + 1) as usize);
    }
    order
}

impl FromStr for WorkloadSpec {
    type Err = WorkloadSpecError;

    fn from_str(text: &str) -> Result<WorkloadSpec, WorkloadSpecError> {
        let (name, number) = match text.split_once(':') {
            Some((name, number)) => (name, Some(number)),
            None => (text, None),
        };
        let positive = |name| {
            let digits = number.filter(|n| n.bytes().all(|b| b.is_ascii_digit()));
            let value = digits.and_then(|n| n.parse().ok()).filter(|&n| n > 0);
            value.ok_or(WorkloadSpecError::BadNumber(name))
        };
        match name {
            "incast" => Ok(WorkloadSpec::Incast { senders: positive("incast")? }),
            "all-to-all" => Ok(WorkloadSpec::AllToAll { window: positive("all-to-all")? }),
            "permutation" if number.is_none() => Ok(WorkloadSpec::Permutation),
            "permutation" => Err(WorkloadSpecError::NoNumber),
            _ => Err(WorkloadSpecError::Unknown(text.to_owned())),
        }
    }
}

impl fmt::Display for WorkloadSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkloadSpec::Incast { senders } => write!(f, "incast:{senders}"),
            WorkloadSpec::Permutation => f.write_str("permutation"),
            WorkloadSpec::AllToAll { window } => write!(f, "all-to-all:{window}"),
        }
    }
}
