//! Messages between ranks of one host, which do not use the endpoint: they are copied through memory, at a cost of their
//! own, and meet receives by the same rules.
//!
//! A receive for any rank waits here and at the endpoint. A message from this host that meets it takes it back from the
//! endpoint first; if it is too late for that, a message of another host has met it before.

use std::collections::BTreeMap;

use weft_stack::fep::Fep;

use super::job::Costs;
use super::rank::{Kept, Rank};
use super::{Action, Job};

/// When the copies under way are done.
#[derive(Default)]
pub(super) struct Memory {
    /// By sending and receiving process: when the last copy is done, ps.
    busy: BTreeMap<(u16, u16), u64>,
}

impl Memory {
    /// The arrival of a message that is copied from `now` on, ps. Messages of a pair arrive in order.
    pub(super) fn copy(&mut self, now: u64, pair: (u16, u16), bytes: u32, costs: &Costs) -> u64 {
        let busy = self.busy.entry(pair).or_default();
        let time = costs.memory_rate.time_for(u64::from(bytes)).as_ps();
        *busy = now.max(*busy).saturating_add(time);
        busy.saturating_add(costs.memory_latency.as_ps())
    }
}

/// Whether the receive `action` takes a message of rank `from` with `tag`.
fn takes(action: Action, from: u32, tag: u32) -> bool {
    match action {
        Action::Recv { from: wanted, tag: wanted_tag, .. } => {
            wanted.is_none_or(|wanted| wanted == from) && wanted_tag.is_none_or(|wanted| wanted == tag)
        }
        Action::Calc { .. } | Action::Send { .. } => false,
    }
}

impl Rank {
    /// A message of this host arrives. Returns the receive that it meets; without one it is kept.
    pub(super) fn meet(&mut self, message: Kept, job: &Job, fep: &mut Fep) -> Option<u32> {
        for place in 0..self.posted.len() {
            let posted = self.posted[place];
            let action = job.operation(self.number, posted.operation).action;
            let mut is_free = || posted.at_endpoint.is_none_or(|id| fep.cancel_receive(id).is_ok());
            if takes(action, message.from, message.tag) && is_free() {
                self.posted.remove(place);
                return Some(posted.operation);
            }
        }
        self.kept.push_back(message);
        None
    }

    /// Takes the first message of this host that the receive `index` accepts.
    pub(super) fn take_kept(&mut self, index: u32, job: &Job) -> Option<Kept> {
        let action = job.operation(self.number, index).action;
        let place = self.kept.iter().position(|kept| takes(action, kept.from, kept.tag))?;
        self.kept.remove(place)
    }

    /// A message of another host has met the receive `index`.
    pub(super) fn forget_posted(&mut self, index: u32) {
        if let Some(place) = self.posted.iter().position(|posted| posted.operation == index) {
            self.posted.remove(place);
        }
    }
}
