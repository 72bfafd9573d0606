//! Credit at the receiver: which sender may send how much, and telling it so.

use weft_cc::credit::GrantLedger;
use weft_cc::{DataSample, ReceiverAlgorithm, ReceiverCc, SenderId, Time};

use super::timers::TimerKey;
use super::transmit::{control_packet, network};
use super::{Fep, Map};
use crate::event::Event;
use crate::packet::{Addr, Class};
use crate::spray::Entropy;
use crate::table::Key;
use crate::wire::pds::{Control, ControlKind, DeliveryMode, Destination};

/// A congestion context of a peer: its address and its ccc_id.
pub(super) type Granted = (Addr, u8);

struct Sender {
    name: Granted,
    ledger: GrantLedger,
    /// PDCs through which it can be reached.
    pdcs: Vec<Key>,
    /// Credit is announced again although nothing new was granted.
    announce: bool,
}

/// The credit scheduler with what it has told to whom.
pub(super) struct Granter {
    algorithm: ReceiverAlgorithm,
    senders: Vec<Option<Sender>>,
    by_name: Map<Granted, SenderId>,
    free: Vec<SenderId>,
    repeat: Vec<SenderId>,
    pub(super) timer: Option<Time>,
}

impl Granter {
    pub(super) fn new(algorithm: ReceiverAlgorithm) -> Granter {
        Granter {
            algorithm,
            senders: Vec::new(),
            by_name: Map::default(),
            free: Vec::new(),
            repeat: Vec::new(),
            timer: None,
        }
    }

    /// How many senders it knows.
    pub(super) fn senders(&self) -> usize {
        self.by_name.len()
    }

    /// `name` can be reached through `pdc`.
    pub(super) fn join(&mut self, name: Granted, pdc: Key) {
        if let Some(sender) = self.sender(name) {
            sender.pdcs.push(pdc);
            return;
        }
        let sender = Sender { name, ledger: GrantLedger::new(), pdcs: vec![pdc], announce: false };
        let id = self.free.pop().unwrap_or_else(|| {
            self.senders.push(None);
            SenderId((self.senders.len() - 1) as u32)
        });
        self.senders[id.0 as usize] = Some(sender);
        self.by_name.insert(name, id);
    }

    /// `pdc` is closed; the sender leaves with its last one.
    pub(super) fn leave(&mut self, now: Time, name: Granted, pdc: Key) {
        let Some(&id) = self.by_name.get(&name) else { return };
        let Some(sender) = self.senders[id.0 as usize].as_mut() else { return };
        sender.pdcs.retain(|&other| other != pdc);
        if sender.pdcs.is_empty() {
            self.senders[id.0 as usize] = None;
            self.by_name.remove(&name);
            self.algorithm.on_leave(now, id);
            self.free.push(id);
        }
    }

    /// A data packet has arrived that states how much credit its sender wants in total.
    pub(super) fn on_data(&mut self, now: Time, name: Granted, target: u32, sample: &DataSample) {
        let Some(&id) = self.by_name.get(&name) else { return };
        self.algorithm.on_data(now, id, sample);
        self.demand(now, id, target);
    }

    /// A sender asks for credit. It may have asked before, and the answer been lost.
    pub(super) fn on_request(&mut self, now: Time, name: Granted, target: u32) {
        let Some(&id) = self.by_name.get(&name) else { return };
        self.demand(now, id, target);
        if let Some(sender) = self.senders[id.0 as usize].as_mut()
            && !sender.announce
        {
            sender.announce = true;
            self.repeat.push(id);
        }
    }

    fn demand(&mut self, now: Time, id: SenderId, target: u32) {
        let Some(sender) = self.senders[id.0 as usize].as_mut() else { return };
        let wanted = sender.ledger.on_target(target);
        self.algorithm.on_demand(now, id, wanted);
    }

    fn sender(&mut self, name: Granted) -> Option<&mut Sender> {
        let id = self.by_name.get(&name)?;
        self.senders[id.0 as usize].as_mut()
    }

    /// The next sender to be told its credit: its address, a PDC to reach it through, and the total.
    fn next(&mut self, now: Time) -> Option<(Addr, Key, u32)> {
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
        Some((sender.name.0, *sender.pdcs.last()?, total))
    }
}

impl Fep {
    /// Announces the credit that is due and sets the timer for the next.
    pub(super) fn grant_credit(&mut self, now: Time) {
        let Some(granter) = &mut self.granter else { return };
        let mut announcements = Vec::new();
        while let Some(announcement) = granter.next(now) {
            announcements.push(announcement);
        }
        if let Some(at) = granter.algorithm.poll_timeout()
            && granter.timer.is_none_or(|timer| at.is_before(timer))
        {
            granter.timer = Some(at);
            self.wheel.insert(at, TimerKey::Credit);
        }
        for (peer, key, total) in announcements {
            let Some(target) = self.targets.table.get(key) else { continue };
            let control = Control {
                kind: ControlKind::Credit,
                rod: target.pdc.mode == DeliveryMode::Rod,
                retx: false,
                ack_request: false,
                probe_opaque: 0,
                psn: target.pdc.cack(),
                spdcid: target.pdc.id,
                destination: Destination::Pdc(target.pdc.peer_id),
                payload: total,
            };
            // Credits are sprayed: any path will do, and the totals heal losses.
            let entropy = Entropy((self.rng.next_u64() % u64::from(self.config.paths)) as u16);
            let net = network(self.addr, peer, entropy, Class::Control);
            self.events.emit(now, Event::ControlSent { peer, kind: ControlKind::Credit });
            self.push_control(control_packet(net, control));
        }
    }
}
