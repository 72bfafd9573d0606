//! Credit at the receiver: distributes credit among senders, and announces it to them.

use weft_cc::credit::{GrantLedger, LARGEST_CREDIT};
use weft_cc::{DataSample, ReceiverAlgorithm, ReceiverCc, SenderId, Time};

use super::Map;
use super::core::Core;
use super::target::Target;
use super::timers::TimerKey;
use crate::heap;
use crate::packet::Addr;
use crate::spray::Entropy;
use crate::wire::pds::{Control, ControlKind, Destination, PdcId, Psn};

/// A congestion context of a peer: its address and its ccc_id.
pub(super) type Granted = (Addr, u8);

struct Sender {
    name: Granted,
    ledger: GrantLedger,
    /// The PDCs that are open here and have sent something; credit is sent to the last one.
    pdcs: Vec<Ends>,
    /// A PDC from which only trimmed packets and requests for credit have arrived: its credit is pending. The PDC is
    /// not open here, but credit can be sent to it.
    pending: Option<PdcId>,
    last_heard: Time,
    /// Announces the credit again although no more was granted.
    announce: bool,
}

/// The PDCIDs of a PDC at its two ends.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) initiator: PdcId,
    /// 0 if the PDC is not open here.
    pub(super) target: PdcId,
}

/// The credit scheduler, and the credit that it has announced to each sender.
pub(super) struct Granter {
    algorithm: ReceiverAlgorithm,
    senders: Vec<Option<Sender>>,
    by_name: Map<Granted, SenderId>,
    free: Vec<SenderId>,
    repeat: Vec<SenderId>,
    /// Number of senders that have no PDC open here.
    outside: usize,
    largest_demand: u64,
    pub(super) timer: Option<Time>,
    /// Whether the wheel holds an entry for the sweep of senders whose credit is pending.
    sweeping: bool,
}

impl Granter {
    pub(super) fn new(algorithm: ReceiverAlgorithm) -> Granter {
        let largest_demand = match &algorithm {
            ReceiverAlgorithm::Rccc(rccc) => rccc.largest_demand(),
            // The receiver does not know how much credit a user's own algorithm lets its senders accumulate.
            _ => LARGEST_CREDIT,
        };
        Granter {
            algorithm,
            senders: Vec::new(),
            by_name: Map::default(),
            free: Vec::new(),
            repeat: Vec::new(),
            outside: 0,
            largest_demand,
            timer: None,
            sweeping: false,
        }
    }

    /// Number of known senders.
    pub(super) fn senders(&self) -> usize {
        self.by_name.len()
    }

    /// Records that `pdc`, which belongs to `name`, is open.
    pub(super) fn join(&mut self, now: Time, name: Granted, pdc: Ends) {
        if let Some(sender) = self.sender(now, name).1 {
            sender.pending.take_if(|pending| *pending == pdc.initiator);
            sender.pdcs.push(pdc);
            self.outside -= usize::from(sender.pdcs.len() == 1);
        }
    }

    /// Records that the initiator's PDC `pdc` is closed; removes the sender with its last PDC.
    pub(super) fn leave(&mut self, now: Time, name: Granted, pdc: PdcId) {
        let Some(&id) = self.by_name.get(&name) else { return };
        let Some(sender) = self.senders[id.0 as usize].as_mut() else { return };
        let before = sender.pdcs.len();
        sender.pdcs.retain(|other| other.initiator != pdc);
        let left = before > 0 && sender.pdcs.is_empty();
        self.outside += usize::from(left);
        if sender.pdcs.is_empty() && sender.pending.is_none() {
            self.remove(now, id);
        }
    }

    /// Records the credit target that a data packet of `pdc` states: the total credit that its sender wants.
    pub(super) fn on_data(&mut self, now: Time, name: Granted, pdc: PdcId, target: u32, sample: &DataSample) {
        let id = self.hear(now, name, pdc);
        self.algorithm.on_data(now, id, sample);
        self.demand(now, id, target);
    }

    /// Handles a sender's request for credit. It may be a repetition, because the answer was lost.
    pub(super) fn on_request(&mut self, now: Time, name: Granted, pdc: PdcId, target: u32) {
        let id = self.hear(now, name, pdc);
        self.demand(now, id, target);
        if let Some(sender) = self.senders[id.0 as usize].as_mut()
            && !sender.announce
        {
            sender.announce = true;
            self.repeat.push(id);
        }
    }

    /// Removes the senders without an open PDC that were last heard before `before`. Returns whether other senders
    /// with pending credit are left.
    fn sweep(&mut self, now: Time, before: Time) -> bool {
        for index in 0..self.senders.len() {
            let Some(sender) = &self.senders[index] else { continue };
            if sender.pdcs.is_empty() && sender.last_heard.is_before(before) {
                self.remove(now, SenderId(index as u32));
            }
        }
        self.outside > 0
    }

    fn hear(&mut self, now: Time, name: Granted, pdc: PdcId) -> SenderId {
        let (id, sender) = self.sender(now, name);
        if let Some(sender) = sender {
            sender.last_heard = now;
            if !sender.pdcs.iter().any(|known| known.initiator == pdc) {
                sender.pending = Some(pdc);
            }
        }
        id
    }

    fn demand(&mut self, now: Time, id: SenderId, target: u32) {
        let Some(sender) = self.senders[id.0 as usize].as_mut() else { return };
        let wanted = sender.ledger.on_target(target);
        self.algorithm.on_demand(now, id, wanted);
    }

    /// The sender called `name`, added if it is new.
    fn sender(&mut self, now: Time, name: Granted) -> (SenderId, Option<&mut Sender>) {
        let id = match self.by_name.get(&name) {
            Some(&id) => id,
            None => {
                let id = self.free.pop().unwrap_or_else(|| {
                    self.senders.push(None);
                    SenderId((self.senders.len() - 1) as u32)
                });
                self.senders[id.0 as usize] = Some(Sender {
                    name,
                    ledger: GrantLedger::with_largest_demand(self.largest_demand),
                    pdcs: Vec::new(),
                    pending: None,
                    last_heard: now,
                    announce: false,
                });
                self.outside += 1;
                self.by_name.insert(name, id);
                id
            }
        };
        (id, self.senders[id.0 as usize].as_mut())
    }

    fn remove(&mut self, now: Time, id: SenderId) {
        if let Some(sender) = self.senders[id.0 as usize].take() {
            self.outside -= usize::from(sender.pdcs.is_empty());
            self.by_name.remove(&sender.name);
            self.repeat.retain(|&other| other != id);
            self.algorithm.on_leave(now, id);
            self.free.push(id);
        }
    }

    /// The next credit to announce: the sender's address, the PDC, and the total.
    fn next(&mut self, now: Time) -> Option<(Addr, Ends, u32)> {
        let (id, bytes) = match self.repeat.pop() {
            Some(id) => (id, 0),
            None => {
                let credit = self.algorithm.poll_credit(now)?;
                (credit.sender, credit.bytes)
            }
        };
        let sender = self.senders.get_mut(id.0 as usize)?.as_mut()?;
        sender.announce = false;
        let total = sender.ledger.on_grant(bytes);
        let pending = sender.pending.map(|initiator| Ends { initiator, target: PdcId(0) });
        let pdc = sender.pdcs.last().copied().or(pending)?;
        Some((sender.name.0, pdc, total))
    }

    /// Bytes allocated, including `self`, excluding the algorithm's allocations.
    pub(super) fn bytes(&self) -> u64 {
        size_of::<Granter>() as u64
            + heap::of_vec(&self.senders)
            + self.senders.iter().flatten().map(|sender| heap::of_vec(&sender.pdcs)).sum::<u64>()
            + heap::of_map(&self.by_name)
            + heap::of_vec(&self.free)
            + heap::of_vec(&self.repeat)
    }
}

impl Target {
    /// Whether the endpoint grants credit.
    #[inline]
    pub(super) fn grants_credit(&self) -> bool {
        self.granter.is_some()
    }

    /// Announces the credit that is due and sets the timer for the next announcement.
    pub(super) fn grant_credit(&mut self, core: &mut Core, now: Time) {
        let Some(granter) = &mut self.granter else { return };
        while let Some((peer, pdc, total)) = granter.next(now) {
            announce(core, now, peer, pdc, total);
        }
        if let Some(at) = granter.algorithm.poll_timeout()
            && granter.timer.is_none_or(|timer| at.is_before(timer))
        {
            granter.timer = Some(at);
            core.wheel.insert(at, TimerKey::Credit);
        }
        if granter.outside > 0 && !granter.sweeping {
            granter.sweeping = true;
            core.wheel.insert(now + core.config.idle_timeout, TimerKey::PendingCredit);
        }
    }

    /// Removes the senders that asked for credit, never opened a PDC and fell silent.
    pub(super) fn on_pending_credit_timer(&mut self, core: &mut Core, now: Time) {
        let idle = core.config.idle_timeout;
        let Some(granter) = &mut self.granter else { return };
        granter.sweeping = granter.sweep(now, now - idle);
        if granter.sweeping {
            core.wheel.insert(now + idle, TimerKey::PendingCredit);
        }
    }
}

fn announce(core: &mut Core, now: Time, peer: Addr, pdc: Ends, total: u32) {
    let control = Control {
        kind: ControlKind::Credit,
        rod: false,
        retx: false,
        ack_request: false,
        probe_opaque: 0,
        psn: Psn(0),
        spdcid: pdc.target,
        destination: Destination::Pdc(pdc.initiator),
        payload: total,
    };
    // Credit packets are sprayed: any path will do, and later totals make up for losses.
    let paths = core.zone(core.zone_of(peer)).paths;
    let entropy = Entropy((core.rng.next_u64() % u64::from(paths)) as u16);
    core.send_control(now, peer, entropy, control);
}
