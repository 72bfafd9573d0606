//! RCCC, the receiver-credit congestion control of Ultra Ethernet (EQDS): the receiver grants credit at
//! slightly less than its line rate, round robin over the peers that have senders with demand, and over those of each.
//!
//! A sender whose demand is satisfied becomes idle. While no sender has demand, idle senders receive *slow
//! credit* unasked, up to 1.5 BDP each, so that their next message starts at once.
//! The arithmetic of credit on the wire is in [`credit`](crate::credit).
//!
//! # Deviations from the simulator's code (uet-htsim)
//! - A pull is 16 KiB, as in the UE text. In the code it is four payload MTUs, rounded down to quanta.
//! - A pull that would grant nothing is not sent. In the code it is sent and takes the time of 1 KiB.
//! - A trimmed packet counts as demand for its size, because it will be retransmitted even if the demand of its
//!   sender was satisfied before. In the code such a sender waits for slow credit.
//! - A bottleneck inside the fabric lowers the rate of credit if the setting `oversubscription` says that there is one.
//!   In the code the topology file says so.
//! - A late poll does not lower the rate: the scheduler catches up with up to one pull.
//! - Pulls go round robin over peers first, and over the senders of each. In the code they go round robin over senders, which is
//!   the same where each peer is one.

mod fabric;
mod queue;

use fabric::FabricShare;
use queue::{Links, Turns};

use crate::credit::{LARGEST_CREDIT, QUANTUM};
use crate::deadline::{elapsed_ps, reached};
use crate::settings::{BDPS, FACTOR, SHARE, SIZE, TIME, settings};
use crate::{CcParams, Credit, DataSample, PeerId, ReceiverCc, SenderId, Span, Time};

settings! {
    /// The settings of `rccc`.
    pub struct RcccConfig {
        pull: u64 = 64 * QUANTUM, in SIZE, "credit of one pull, rounded up to whole quanta of 256 B";
        pull_rate: f64 = 0.99, in 0.01..=1.0, "share of the line rate at which credit is granted";
        oversubscription: f64 = 1.0, in 1.0..=100.0,
            "the rate of all hosts over the fabric's; above 1, marks and trims inside the fabric lower the rate of credit";
        fabric_increase: f64 = 0.01, in SHARE,
            "with oversubscription: first step of an increase of the rate of credit, as a share of the line rate";
        fabric_decrease: f64 = 0.5, in SHARE,
            "with oversubscription: strength of the decrease for marks beyond the target";
        fabric_gain: f64 = 0.5, in SHARE, "with oversubscription: gain of the average of the marked share";
        slow_credit_bdp: f64 = 1.5, in FACTOR, "credit that an idle sender gets unasked, in BDPs of the network";
        max_credit_bdp: f64 = 1.5, in BDPS,
            "credit that a sender may store, and its speculative first window, in BDPs of the network";
        reclaim_after: Span = Span::from_ms(5), in TIME, "silence of a sender after which its credit counts as lost";
    }
}

impl RcccConfig {
    /// Bytes of credit that a sender may store: the `cap` of
    /// [`SenderCredit::new`](crate::credit::SenderCredit::new).
    pub fn credit_cap(&self, params: &CcParams) -> u64 {
        of_bdp(params, self.max_credit_bdp).max(params.wire_mtu())
    }

    /// The most credit that a sender lacks at a time, bytes: the credit that it may store, and one packet by
    /// which it may have overdrawn its balance. The argument of
    /// [`GrantLedger::with_largest_demand`](crate::credit::GrantLedger::with_largest_demand).
    pub fn largest_demand(&self, params: &CcParams) -> u64 {
        self.credit_cap(params) + params.wire_mtu()
    }
}

fn of_bdp(params: &CcParams, factor: f64) -> u64 {
    ((params.network_bdp() as f64 * factor) as u64).min(LARGEST_CREDIT)
}

/// The queue that a sender is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Place {
    /// No queue: the sender is unknown, gone, or idle with all the slow credit that it may have.
    #[default]
    Out,
    Active,
    Idle,
}

#[derive(Clone, Debug, Default)]
struct Sender {
    /// Bytes that the sender wants beyond its credit, as of its last request.
    demand: u64,
    /// Trimmed bytes that the sender has to retransmit, which it needs credit for whatever it requests.
    resend: u64,
    /// Credit granted for which no data has arrived yet, bytes.
    outstanding: u64,
    /// Slow credit granted since the last demand, bytes.
    slow: u64,
    last_heard: Time,
    /// Its peer's number and one; 0 if nobody has said which peer it is of. All of these take turns as one peer does.
    peer: u32,
    place: Place,
    links: Links,
}

impl Sender {
    fn wanted(&self) -> u64 {
        self.demand.max(self.resend)
    }

    fn grant(&mut self, bytes: u64) {
        self.demand = self.demand.saturating_sub(bytes);
        self.resend = self.resend.saturating_sub(bytes);
        self.outstanding = self.outstanding.saturating_add(bytes);
    }
}

/// The receiver's scheduler of one endpoint.
#[derive(Clone, Debug)]
pub struct Rccc {
    senders: Vec<Sender>,
    active: Turns,
    idle: Turns,
    /// The time at which the next pull is due; none while the pacer rests.
    next_pull: Option<Time>,
    pull: u64,
    slow_cap: u64,
    largest_demand: u64,
    reclaim_ps: u64,
    ps_per_byte: f64,
    /// The control for bottlenecks inside the fabric, if it is on.
    fabric: Option<Box<FabricShare>>,
}

/// The longest time between two pulls, for links with a rate near zero.
const SLOWEST_PULL: Span = Span::from_ms(1_000);

impl Rccc {
    /// A scheduler for an endpoint whose link has the rate `params.link_rate`.
    pub fn new(config: &RcccConfig, params: &CcParams) -> Rccc {
        Rccc {
            senders: Vec::new(),
            active: Turns::default(),
            idle: Turns::default(),
            next_pull: None,
            pull: config.pull.clamp(1, LARGEST_CREDIT).next_multiple_of(QUANTUM),
            slow_cap: of_bdp(params, config.slow_credit_bdp),
            largest_demand: config.largest_demand(params),
            reclaim_ps: config.reclaim_after.as_ps(),
            ps_per_byte: 8e12 / (params.link_rate.as_bps() as f64 * config.pull_rate),
            fabric: (config.oversubscription > 1.0).then(|| Box::new(FabricShare::new(params, config))),
        }
    }

    /// The most credit that a sender lacks at a time, bytes
    /// ([`RcccConfig::largest_demand`]).
    pub fn largest_demand(&self) -> u64 {
        self.largest_demand
    }

    /// The time that `bytes` of credit take at the pace of the grants.
    fn pace(&self, bytes: u64) -> Span {
        let share = self.fabric.as_ref().map_or(1.0, |fabric| fabric.get());
        Span::from_ps((bytes as f64 * self.ps_per_byte / share).clamp(1.0, SLOWEST_PULL.as_ps() as f64) as u64)
    }

    fn sender(&mut self, now: Time, id: SenderId) -> &mut Sender {
        let index = id.0 as usize;
        if index >= self.senders.len() {
            self.senders.resize_with(index + 1, || Sender { last_heard: now, ..Sender::default() });
        }
        let sender = &mut self.senders[index];
        if elapsed_ps(now, sender.last_heard) > self.reclaim_ps {
            // The credit, or the data that used it, must have been lost.
            sender.outstanding = 0;
            sender.slow = 0;
        }
        sender
    }

    /// Lets the pacer rest if no sender waits and the next pull would be due.
    fn rest_if_empty(&mut self, now: Time) {
        let empty = self.active.is_empty() && self.idle.is_empty();
        if empty && self.next_pull.is_some_and(|due| reached(now, due)) {
            self.next_pull = None;
        }
    }

    /// Queues a sender as active if it wants credit.
    fn enqueue(&mut self, id: SenderId) {
        let sender = &mut self.senders[id.0 as usize];
        if sender.wanted() == 0 {
            return;
        }
        sender.slow = 0;
        let was = std::mem::replace(&mut sender.place, Place::Active);
        if was == Place::Idle {
            self.idle.remove(&mut self.senders, id);
        }
        if was != Place::Active {
            self.active.push_back(&mut self.senders, id);
        }
    }

    fn make_idle(&mut self, id: SenderId) {
        let sender = &mut self.senders[id.0 as usize];
        if sender.slow < self.slow_cap {
            sender.place = Place::Idle;
            self.idle.push_back(&mut self.senders, id);
        } else {
            sender.place = Place::Out;
        }
    }

    fn pull_active(&mut self) -> Option<Credit> {
        loop {
            let id = self.active.pop_front(&mut self.senders)?;
            let sender = &mut self.senders[id.0 as usize];
            let bytes = sender.wanted().min(self.pull);
            sender.grant(bytes);
            if sender.wanted() > 0 {
                self.active.push_back(&mut self.senders, id);
            } else {
                self.make_idle(id);
            }
            if bytes > 0 {
                return Some(Credit { sender: id, bytes });
            }
        }
    }

    fn pull_idle(&mut self) -> Option<Credit> {
        let id = self.idle.pop_front(&mut self.senders)?;
        let sender = &mut self.senders[id.0 as usize];
        sender.slow += self.pull;
        sender.grant(self.pull);
        self.make_idle(id);
        Some(Credit { sender: id, bytes: self.pull })
    }
}

impl ReceiverCc for Rccc {
    fn on_join(&mut self, now: Time, sender: SenderId, peer: PeerId) {
        let known = self.sender(now, sender);
        if known.place == Place::Out {
            known.peer = peer.0 + 1;
        }
    }

    fn on_demand(&mut self, now: Time, sender: SenderId, bytes: u64) {
        self.rest_if_empty(now);
        let known = self.sender(now, sender);
        known.demand = bytes.min(LARGEST_CREDIT);
        known.last_heard = now;
        self.enqueue(sender);
    }

    fn on_data(&mut self, now: Time, sender: SenderId, data: &DataSample) {
        self.rest_if_empty(now);
        if let Some(fabric) = &mut self.fabric {
            fabric.on_data(now, data);
        }
        let known = self.sender(now, sender);
        if data.scheduled {
            known.outstanding = known.outstanding.saturating_sub(data.bytes);
        }
        known.last_heard = now;
        if data.trimmed.is_some() {
            known.resend = known.resend.max(data.bytes.min(LARGEST_CREDIT));
            self.enqueue(sender);
        }
    }

    fn on_leave(&mut self, _now: Time, sender: SenderId) {
        let Some(known) = self.senders.get(sender.0 as usize) else { return };
        match known.place {
            Place::Active => self.active.remove(&mut self.senders, sender),
            Place::Idle => self.idle.remove(&mut self.senders, sender),
            Place::Out => {}
        }
        self.senders[sender.0 as usize] = Sender::default();
        self.active.release();
        self.idle.release();
    }

    fn poll_credit(&mut self, now: Time) -> Option<Credit> {
        let due = self.next_pull.unwrap_or(now);
        if !reached(now, due) {
            return None;
        }
        let Some(credit) = self.pull_active().or_else(|| self.pull_idle()) else {
            self.next_pull = None;
            return None;
        };
        let catch_up = self.pace(self.pull);
        let start = if elapsed_ps(now, due) <= catch_up.as_ps() { due } else { now - catch_up };
        self.next_pull = Some(start + self.pace(credit.bytes));
        Some(credit)
    }

    fn poll_timeout(&self) -> Option<Time> {
        if self.active.is_empty() && self.idle.is_empty() {
            return None;
        }
        // A resting pacer grants at once; any instant in the past means "now".
        self.next_pull.or_else(|| self.active.first().or(self.idle.first()).map(|id| self.heard(id)))
    }

    fn outstanding(&self, sender: SenderId) -> u64 {
        self.senders.get(sender.0 as usize).map_or(0, |s| s.outstanding)
    }
}

impl Rccc {
    fn heard(&self, id: SenderId) -> Time {
        self.senders[id.0 as usize].last_heard
    }
}

#[cfg(test)]
mod tests;
