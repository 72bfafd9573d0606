//! Credit at the receiver: distributes credit among senders, and announces it to them.

use core::num::NonZeroU64;
use std::collections::{BTreeMap, VecDeque};

use weft_cc::credit::{GrantLedger, LARGEST_CREDIT};
use weft_cc::{DataSample, PeerId, ReceiverAlgorithm, ReceiverCc, SenderId, Time};

use super::Map;
use super::core::Core;
use super::target::Target;
use super::timers::TimerKey;
use crate::heap;
use crate::packet::Addr;
use crate::spray::Entropy;
use crate::wire::pds::{Control, ControlKind, Destination, PdcId, Psn};

/// The congestion contexts that a peer can have: there is no more than this many ccc_ids.
pub const CONTEXTS_PER_PEER: usize = 1 << u8::BITS;

/// Senders that a call forgets because they asked for credit and fell silent, and places in which it looks for them.
const FORGOTTEN_PER_CALL: usize = 64;
const LOOKS_PER_CALL: usize = 1024;

/// A congestion context of a peer: its address and its ccc_id.
pub(super) type Granted = (Addr, u8);

struct Sender {
    name: Granted,
    ledger: GrantLedger,
    /// The PDCs that are open here and have sent something, in the order in which they joined; credit is sent to the last one.
    pdcs: BTreeMap<NonZeroU64, Ends>,
    /// A PDC from which only trimmed packets and requests for credit have arrived: its credit is pending. The PDC is
    /// not open here, but credit can be sent to it.
    pending: Option<PdcId>,
    last_heard: Time,
    /// The sender's place in the order in which senders came to have no open PDC: they lost their last one, or began
    /// without.
    outside_since: u64,
    /// Announces the credit again although no more was granted.
    announce: bool,
}

impl Sender {
    fn is_outside(&self) -> bool {
        self.pdcs.is_empty()
    }
}

/// Whether sender `id` has had no open PDC since its place `since` in the order of those.
fn is_outsider(senders: &[Option<Sender>], id: SenderId, since: u64) -> bool {
    let sender = senders[id.0 as usize].as_ref();
    sender.is_some_and(|sender| sender.is_outside() && sender.outside_since == since)
}

/// The PDCIDs of a PDC at its two ends.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) initiator: PdcId,
    /// 0 if the PDC is not open here.
    pub(super) target: PdcId,
}

/// The congestion context that a PDC has joined, and its number among all PDCs that have joined one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Joined {
    ccc_id: u8,
    number: NonZeroU64,
}

/// The PDC that has been heard of, as its target knows it: a sender may have thousands, and no packet must look at all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It is open, and has [joined](Granter::join) the sender.
    Joined,
    /// It has not; with the initiator's PDCID.
    Pending(PdcId),
}

impl Heard {
    /// The initiator's PDC `initiator`, named by a packet of context `ccc_id`, which belongs to context `joined` if it is open.
    #[inline]
    pub(super) fn of(initiator: PdcId, ccc_id: u8, joined: Option<Joined>) -> Heard {
        let is_its_own = joined.is_some_and(|joined| joined.ccc_id == ccc_id);
        if is_its_own { Heard::Joined } else { Heard::Pending(initiator) }
    }
}

/// The credit scheduler, and the credit that it has announced to each sender.
pub(super) struct Granter {
    algorithm: ReceiverAlgorithm,
    senders: Vec<Option<Sender>>,
    by_name: Map<Granted, SenderId>,
    free: Vec<SenderId>,
    repeat: Vec<SenderId>,
    /// Number of senders that have no PDC open here, and how many there may be.
    outside: usize,
    most_outside: usize,
    /// Senders without an open PDC; the one that has had none for longest is at the front. The list also has some that
    /// have one again, or are gone.
    outsiders: VecDeque<(SenderId, u64)>,
    last_outsider: u64,
    /// The number of each peer, and how many senders it is.
    by_peer: Map<Addr, (PeerId, u16)>,
    /// Free numbers: peers that are no senders any more had them.
    free_peers: Vec<PeerId>,
    largest_demand: u64,
    pub(super) timer: Option<Time>,
    /// Whether the wheel holds an entry for the sweep of senders whose credit is pending.
    sweeping: bool,
    /// The number of the last PDC that has joined a sender.
    last_joined: NonZeroU64,
    /// Places of senders that the sweep has looked at.
    swept: usize,
}

impl Granter {
    pub(super) fn new(algorithm: ReceiverAlgorithm, most_outside: usize) -> Granter {
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
            most_outside,
            outsiders: VecDeque::new(),
            last_outsider: 0,
            by_peer: Map::default(),
            free_peers: Vec::new(),
            largest_demand,
            timer: None,
            sweeping: false,
            last_joined: NonZeroU64::MIN,
            swept: 0,
        }
    }

    /// Number of known senders.
    pub(super) fn senders(&self) -> usize {
        self.by_name.len()
    }

    /// Records that `pdc`, which belongs to `name`, is open.
    pub(super) fn join(&mut self, now: Time, name: Granted, pdc: Ends) -> Joined {
        self.last_joined = self.last_joined.saturating_add(1);
        let number = self.last_joined;
        if let Some(sender) = self.sender(now, name).1 {
            sender.pending.take_if(|pending| *pending == pdc.initiator);
            sender.pdcs.insert(number, pdc);
            self.outside -= usize::from(sender.pdcs.len() == 1);
        }
        Joined { ccc_id: name.1, number }
    }

    /// Records that a PDC of `peer` is closed, which has `joined` a context; removes the sender with its last PDC.
    pub(super) fn leave(&mut self, now: Time, peer: Addr, joined: Joined) {
        let Some(&id) = self.by_name.get(&(peer, joined.ccc_id)) else { return };
        let Some(sender) = self.senders[id.0 as usize].as_mut() else { return };
        let left = sender.pdcs.remove(&joined.number).is_some() && sender.pdcs.is_empty();
        let is_gone = sender.pdcs.is_empty() && sender.pending.is_none();
        if left {
            self.note_outside(id);
        }
        if is_gone {
            self.remove(now, id);
        }
    }

    /// Records the credit target that a data packet of `pdc` states: the total credit that its sender wants.
    pub(super) fn on_data(&mut self, now: Time, name: Granted, pdc: Heard, target: u32, sample: &DataSample) {
        let id = self.hear(now, name, pdc);
        self.algorithm.on_data(now, id, sample);
        self.demand(now, id, target);
    }

    /// Handles a sender's request for credit. It may be a repetition, because the answer was lost.
    pub(super) fn on_request(&mut self, now: Time, name: Granted, pdc: Heard, target: u32) {
        let id = self.hear(now, name, pdc);
        self.demand(now, id, target);
        if let Some(sender) = self.senders[id.0 as usize].as_mut()
            && !sender.announce
        {
            sender.announce = true;
            self.repeat.push(id);
        }
    }

    /// Removes senders without an open PDC that were last heard before `before`, as many as a call may: anybody can make tens of
    /// thousands fall silent together. Returns whether it has looked at all, and begins anew then.
    fn sweep(&mut self, now: Time, before: Time) -> bool {
        let (first, mut removed) = (self.swept, 0);
        let end = self.senders.len().min(first + LOOKS_PER_CALL);
        while self.swept < end && removed < FORGOTTEN_PER_CALL {
            let sender = self.senders[self.swept].as_ref();
            if sender.is_some_and(|sender| sender.is_outside() && sender.last_heard.is_before(before)) {
                self.remove(now, SenderId(self.swept as u32));
                removed += 1;
            }
            self.swept += 1;
        }
        #[cfg(test)]
        crate::steps::count(self.swept - first);
        let is_over = self.swept == self.senders.len();
        if is_over {
            self.swept = 0;
        }
        is_over
    }

    /// Sender `id` has no open PDC any more, or none yet.
    fn note_outside(&mut self, id: SenderId) {
        self.outside += 1;
        self.last_outsider += 1;
        let since = self.last_outsider;
        if let Some(sender) = &mut self.senders[id.0 as usize] {
            sender.outside_since = since;
        }
        if self.outsiders.len() > 64 + 2 * self.outside {
            let senders = &self.senders;
            self.outsiders.retain(|&(id, since)| is_outsider(senders, id, since));
        }
        self.outsiders.push_back((id, since));
    }

    /// Removes the sender that has had no open PDC for longest. Anybody can ask for credit in the name of any host.
    #[cold]
    fn remove_oldest_outsider(&mut self, now: Time) {
        while let Some((id, since)) = self.outsiders.pop_front() {
            if is_outsider(&self.senders, id, since) {
                return self.remove(now, id);
            }
        }
    }

    /// Removes the senders of a peer that the address book has forgotten, as far as they have no PDC open here.
    pub(super) fn forget(&mut self, peer: Addr) {
        if !self.by_peer.contains_key(&peer) {
            return;
        }
        for ccc_id in 0..=u8::MAX {
            let Some(&id) = self.by_name.get(&(peer, ccc_id)) else { continue };
            let sender = self.senders[id.0 as usize].as_ref();
            let heard = sender.filter(|sender| sender.is_outside()).map(|sender| sender.last_heard);
            if let Some(heard) = heard {
                self.remove(heard, id);
            }
        }
    }

    fn hear(&mut self, now: Time, name: Granted, pdc: Heard) -> SenderId {
        if self.outside >= self.most_outside && !self.by_name.contains_key(&name) {
            self.remove_oldest_outsider(now);
        }
        let (id, sender) = self.sender(now, name);
        if let Some(sender) = sender {
            sender.last_heard = now;
            if let Heard::Pending(pdc) = pdc {
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
                    pdcs: BTreeMap::new(),
                    pending: None,
                    last_heard: now,
                    outside_since: 0,
                    announce: false,
                });
                self.note_outside(id);
                let next = PeerId(self.by_peer.len() as u32);
                let (peer, senders) =
                    self.by_peer.entry(name.0).or_insert_with(|| (self.free_peers.pop().unwrap_or(next), 0));
                *senders += 1;
                self.algorithm.on_join(now, id, *peer);
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
            if let Some((peer, senders)) = self.by_peer.get_mut(&sender.name.0) {
                *senders -= 1;
                if *senders == 0 {
                    self.free_peers.push(*peer);
                    self.by_peer.remove(&sender.name.0);
                    if self.by_peer.is_empty() {
                        (self.by_peer, self.free_peers) = (Map::default(), Vec::new());
                    }
                }
            }
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
        let pdc = sender.pdcs.last_key_value().map(|(_, pdc)| *pdc).or(pending)?;
        Some((sender.name.0, pdc, total))
    }

    /// Bytes allocated, including `self`, excluding the algorithm's allocations.
    pub(super) fn bytes(&self) -> u64 {
        size_of::<Granter>() as u64
            + heap::of_vec(&self.senders)
            + self.senders.iter().flatten().map(|sender| heap::of_tree(&sender.pdcs)).sum::<u64>()
            + heap::of_map(&self.by_name)
            + heap::of_map(&self.by_peer)
            + heap::of_deque(&self.outsiders)
            + heap::of_vec(&self.free)
            + heap::of_vec(&self.free_peers)
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

    /// Removes senders that asked for credit, never opened a PDC and fell silent. The next call does what this one may not, and
    /// follows at once.
    pub(super) fn on_pending_credit_timer(&mut self, core: &mut Core, now: Time) {
        let idle = core.config.idle_timeout;
        let Some(granter) = &mut self.granter else { return };
        let is_over = granter.sweep(now, now - idle);
        granter.sweeping = !is_over || granter.outside > 0;
        if granter.sweeping {
            let next = if is_over { now + idle } else { now };
            core.wheel.insert(next, TimerKey::PendingCredit);
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

#[cfg(test)]
mod tests {
    use weft_cc::{CcChoice, CcParams, Delays, Rate, Span};

    use super::*;
    use crate::steps;

    const MOST: usize = 100;
    const NAME: Granted = (Addr(1), 7);

    fn granter() -> Granter {
        granter_of(MOST)
    }

    /// A granter that keeps so many senders without a PDC.
    fn granter_of(most: usize) -> Granter {
        let params = CcParams {
            mtu: 4096,
            overhead: 64,
            link_rate: Rate::from_gbps(100),
            network_rtt: Span::from_us(10),
            trimming: true,
            delays: Delays::Known,
        };
        let choice = CcChoice::parse("rccc").unwrap();
        Granter::new(choice.receiver(&params).unwrap(), most)
    }

    fn check(granter: &Granter) {
        let senders: Vec<&Sender> = granter.senders.iter().flatten().collect();
        assert_eq!(senders.len(), granter.by_name.len());
        assert_eq!(senders.iter().filter(|sender| sender.is_outside()).count(), granter.outside);
        let by_peer = granter.by_peer.values();
        assert_eq!(by_peer.clone().map(|(_, count)| usize::from(*count)).sum::<usize>(), senders.len());
        let mut numbers: Vec<u32> = by_peer.map(|(peer, _)| peer.0).collect();
        numbers.extend(granter.free_peers.iter().map(|peer| peer.0));
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(0..numbers.len() as u32), "each peer has its own: {numbers:?}");
    }

    /// What each sender has been granted, in units of 256 B.
    type Totals = std::collections::BTreeMap<Granted, u32>;

    /// What the senders of each address get in so many grants, while all its contexts, up to the last one, want more.
    fn shared(granter: &mut Granter, totals: &mut Totals, contexts: &[(u32, u8)], grants: usize) -> Vec<u32> {
        let of = |totals: &Totals, addr: u32| -> u32 {
            totals.iter().filter(|(name, _)| name.0 == Addr(addr)).map(|(_, total)| total).sum()
        };
        let before: Vec<u32> = contexts.iter().map(|(addr, _)| of(totals, *addr)).collect();
        let mut now = Time::ZERO;
        for _ in 0..grants {
            let credit = loop {
                for &(addr, last) in contexts {
                    for ccc_id in 0..=last {
                        let name = (Addr(addr), ccc_id);
                        let total = totals.get(&name).copied().unwrap_or(0);
                        let pdc = Heard::Pending(PdcId(u16::from(ccc_id) + 1));
                        granter.on_data(now, name, pdc, total + 600, &UNTRIMMED);
                    }
                }
                match granter.next(now) {
                    Some(credit) => break credit,
                    None => now = now.latest(granter.algorithm.poll_timeout().expect("all want more")),
                }
            };
            let (addr, pdc, total) = credit;
            totals.insert((addr, (pdc.initiator.0 - 1) as u8), total);
        }
        contexts.iter().zip(before).map(|((addr, _), before)| of(totals, *addr) - before).collect()
    }

    const UNTRIMMED: DataSample =
        DataSample { bytes: 0, scheduled: true, ecn: false, trimmed: None, congested_sender: false };

    #[test]
    fn a_peer_gets_no_more_credit_by_asking_as_many_contexts() {
        let (mut granter, mut totals) = (granter_of(1_000), Totals::new());
        let parts = shared(&mut granter, &mut totals, &[(1, u8::MAX), (2, 0), (3, 3)], 900);
        assert_eq!(parts, [300 * 64; 3], "pulls of 64 quanta");
        check(&granter);
        // One of them leaves, and another comes in its place.
        granter.forget(Addr(1));
        check(&granter);
        granter.forget(Addr(3));
        let parts = shared(&mut granter, &mut totals, &[(4, 9), (2, 0)], 100);
        assert!(parts[0].abs_diff(50 * 64) <= 64, "{parts:?}");
        check(&granter);
    }

    #[test]
    fn room_for_peers_that_have_left_is_given_back() {
        let mut granter = granter_of(1_000);
        for n in 0..1_000 {
            granter.on_request(Time::ZERO, (Addr(n), 0), Heard::Pending(PdcId(1)), 10);
        }
        (1..1_000).for_each(|n| granter.forget(Addr(n)));
        check(&granter);
        granter.forget(Addr(0));
        assert_eq!((granter.free_peers.capacity(), granter.by_peer.capacity()), (0, 0));
        granter.on_request(Time::ZERO, (Addr(5), 0), Heard::Pending(PdcId(1)), 10);
        check(&granter);
    }

    /// Requests for credit in the names of many hosts take a bounded number of places, and none of a sender with a PDC.
    #[test]
    fn requests_without_a_pdc_have_a_limit_and_the_oldest_makes_room() {
        let mut granter = granter();
        let now = Time::ZERO;
        let joined = granter.join(now, NAME, Ends { initiator: PdcId(1), target: PdcId(1) });
        for n in 0..10_000 {
            granter.on_request(now, (Addr(2 + n / 256), n as u8), Heard::Pending(PdcId(1)), 10);
            while granter.next(now).is_some() {}
            check(&granter);
            assert!(granter.outside <= MOST && granter.outsiders.len() <= 65 + 2 * (MOST + 1));
        }
        assert_eq!(granter.senders(), MOST + 1);
        assert!(granter.by_name.contains_key(&NAME));
        let newest = (9_900..10_000).all(|n| granter.by_name.contains_key(&(Addr(2 + n / 256), n as u8)));
        assert!(newest, "those that asked last are left");
        assert!(granter.senders.len() <= MOST + 2, "{} places", granter.senders.len());
        granter.leave(now, NAME.0, joined);
        check(&granter);
        while !granter.sweep(now + Span::from_ms(1), now + Span::from_us(1)) {
            check(&granter);
        }
        check(&granter);
        assert_eq!(granter.senders(), 0);
    }

    /// Many senders fall silent together, and of most places the sender is still there.
    #[test]
    fn what_a_call_does_about_senders_that_are_silent_has_a_bound() {
        let mut granter = granter_of(50_000);
        for n in 0..40_000 {
            granter.on_request(Time::ZERO, (Addr(n), 0), Heard::Pending(PdcId(1)), 10);
        }
        let heard = Time::ZERO + Span::from_us(1);
        let stays = |n: u32| n >= 5_000 || n.is_multiple_of(2);
        for n in (0..40_000).filter(|n| stays(*n)) {
            granter.on_request(heard, (Addr(n), 0), Heard::Pending(PdcId(1)), 10);
        }
        while granter.next(heard).is_some() {}
        let (mut calls, mut is_over) = (0, false);
        while !is_over {
            let before = granter.senders();
            let looks = steps::of(|| is_over = granter.sweep(heard, heard));
            let removed = before - granter.senders();
            assert!(removed <= FORGOTTEN_PER_CALL && looks <= LOOKS_PER_CALL as u64, "{removed}, {looks}");
            calls += 1;
        }
        check(&granter);
        assert_eq!((calls, granter.senders()), (2_500 / 64 + 1 + 35_000 / 1024, 37_500));
        assert!((0..40_000).filter(|n| stays(*n)).all(|n| granter.by_name.contains_key(&(Addr(n), 0))));
    }

    #[test]
    fn credit_goes_to_the_pdc_that_has_joined_last_of_those_that_are_open() {
        let (mut granter, now) = (granter(), Time::ZERO);
        let join = |granter: &mut Granter, initiator: u16| {
            granter.join(now, NAME, Ends { initiator: PdcId(initiator), target: PdcId(initiator) })
        };
        let credited = |granter: &mut Granter| {
            granter.on_request(now, NAME, Heard::Joined, 10);
            granter.next(now).unwrap().1.initiator.0
        };
        let joined = [9, 2, 5, 4].map(|initiator| join(&mut granter, initiator));
        assert_eq!(credited(&mut granter), 4);
        granter.leave(now, NAME.0, joined[1]);
        assert_eq!(credited(&mut granter), 4);
        granter.leave(now, NAME.0, joined[3]);
        assert_eq!(credited(&mut granter), 5);
        join(&mut granter, 1);
        assert_eq!(credited(&mut granter), 1);
        granter.leave(now, NAME.0, joined[0]);
        check(&granter);
        assert_eq!(granter.outside, 0);
    }

    #[test]
    fn a_peer_that_is_forgotten_leaves_only_the_senders_of_its_open_pdcs() {
        let mut granter = granter();
        let now = Time::ZERO;
        for ccc_id in 0..50 {
            granter.on_request(now, (Addr(1), ccc_id), Heard::Pending(PdcId(9)), 10);
            granter.on_request(now, (Addr(2), ccc_id), Heard::Pending(PdcId(9)), 10);
        }
        granter.join(now, NAME, Ends { initiator: PdcId(9), target: PdcId(1) });
        granter.forget(Addr(1));
        check(&granter);
        assert_eq!(granter.senders(), 51);
        assert!(granter.by_name.contains_key(&NAME));
        granter.forget(Addr(3));
        assert_eq!(granter.senders(), 51);
    }
}
