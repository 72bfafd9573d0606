//! All PDCs that peers have opened here, and what is remembered of those that are closed.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use weft_cc::{Span, Time};

use super::Map;
use super::acquaintance::Proof;
use super::config::Limits;
use super::core::Core;
use super::credit::Joined;
use super::pdcid::{self, DrawnIds};
use super::peer_usage::{PeerUsage, Usage};
use super::suspects::Suspects;
use super::target_pdc::{Early, Origin, TargetPdc};
use crate::heap;
use crate::packet::Addr;
use crate::pdc::PdcConfig;
use crate::rng::Rng;
use crate::ses::Order;
use crate::table::{Key, Table};
use crate::wire::pds::{DeliveryMode, NackCode, PdcId, Psn};

/// All PDCs that peers have opened.
// In order of use: most packets need the table only.
#[derive(Default)]
#[repr(C)]
pub(super) struct TargetPdcs {
    pub(super) table: Table<TargetPdc>,
    pub(super) by_origin: Map<Origin, Key>,
    pub(super) usage: PeerUsage,
    pub(super) closed: ClosedPdcs,
    /// `None` until there is a PDC.
    pub(super) half_open: Option<Box<HalfOpen>>,
}

impl TargetPdcs {
    /// The PDC with PDCID `id`.
    pub(super) fn find(&mut self, id: PdcId) -> Option<(Key, &mut TargetPdc)> {
        let slot = self.slot(id)?;
        self.table.at_mut(slot)
    }

    /// The slot of the PDC with PDCID `id`.
    #[inline]
    pub(super) fn slot(&self, id: PdcId) -> Option<u32> {
        slot_of(&self.table, &self.half_open, id)
    }

    /// The PDC that `origin` has open here.
    pub(super) fn of_origin(&mut self, origin: Origin) -> Option<(Key, &mut TargetPdc)> {
        let &key = self.by_origin.get(&origin)?;
        self.table.get_mut(key).map(|pdc| (key, pdc))
    }

    /// Opens a PDC, which [`TargetPdcs::name`] then gives its PDCID. Its initiator is to be asked whether it is there if there
    /// are many half-open ones, or the caller is `wary` of the peer. If one has made room for it, [`TargetPdcs::take_what_makes_room`]
    /// has seen to it that the peer leaves enough to others.
    ///
    /// # Errors
    /// The NACK code to answer with: there are too many, or the peer would leave too few to others.
    #[expect(clippy::too_many_arguments, reason = "the parts of the request that opens it")]
    pub(super) fn open(
        &mut self,
        pdc: &PdcConfig,
        limits: &Limits,
        (wary, has_room): (bool, bool),
        now: Time,
        origin: Origin,
        mode: DeliveryMode,
        start: Psn,
    ) -> Result<Key, NackCode> {
        let used = self.usage.of(origin.0);
        let is_fair = has_room || used.leaves_pdcs(limits, self.table.len());
        if !is_fair || self.is_full(limits) || used.is_at_limit(limits) {
            return Err(NackCode::NO_PDC_AVAIL);
        }
        self.usage.change(origin.0, |used| {
            used.open += 1;
            used.half_open += 1;
        });
        let half_open = self.half_open.get_or_insert_default();
        half_open.count += 1;
        let asks = wary
            || used.half_open >= limits.half_open_pdcs_per_peer / 2
            || half_open.count as usize > limits.half_open_pdcs / 2;
        let proof = if asks { Proof::Asked } else { Proof::None };
        let key = self.table.insert_with(|key| TargetPdc {
            proof,
            ..TargetPdc::new(pdc, origin, pdcid::of_slot(key.index), mode, start, now)
        });
        self.by_origin.insert(origin, key);
        if asks {
            half_open.asked += 1;
            half_open.suspect(&self.table, key, origin.0, used.half_open as usize);
        }
        Ok(key)
    }

    /// Gives PDC `key`, which is new, its PDCID. Returns what its initiator has shown.
    pub(super) fn name(&mut self, rng: &mut Rng, key: Key) -> Proof {
        let TargetPdcs { table, half_open, .. } = self;
        let in_slot = |slot| slot != key.index && has_id_of_slot(table, slot);
        let id = half_open.get_or_insert_default().drawn.choose(rng, key, table.len(), in_slot);
        let Some(pdc) = table.get_mut(key) else { return Proof::None };
        pdc.rx.id = id;
        pdc.proof
    }

    /// There is a PDC in `slot` that needs a timer. Returns whether it has to be set: that of the PDC before may be there still.
    pub(super) fn begin_timer(&mut self, slot: u32) -> bool {
        let timed = &mut self.half_open.get_or_insert_default().timed;
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        if timed.len() <= word {
            timed.resize(word + 1, 0);
        }
        let is_new = timed[word] & bit == 0;
        timed[word] |= bit;
        is_new
    }

    /// The timer of `slot` has come due, and is not set again.
    pub(super) fn end_timer(&mut self, slot: u32) {
        let word = self.half_open.as_mut().and_then(|all| all.timed.get_mut(slot as usize / 64));
        if let Some(word) = word {
            *word &= !(1 << (slot % 64));
        }
    }

    /// The initiator of the PDC in `slot` is to be asked, or the PDC is to end, in a later call. Its timer counts as set meanwhile.
    #[cold]
    pub(super) fn put_off_timer(&mut self, slot: u32) {
        self.half_open.get_or_insert_default().silent.push_back(slot);
    }

    /// The same for one whose turn had come.
    #[cold]
    pub(super) fn put_off_again(&mut self, slot: u32) {
        self.half_open.get_or_insert_default().silent.push_front(slot);
    }

    /// The slot of the PDC whose timer has been put off for longest.
    pub(super) fn next_put_off(&mut self) -> Option<u32> {
        self.half_open.as_mut()?.silent.pop_front()
    }

    /// Messages and packets of the PDC with PDCID `id` that arrived early are to be taken in a later call.
    #[cold]
    pub(super) fn put_off_early(&mut self, id: PdcId) {
        let key = self.find(id).map(|(key, _)| key);
        self.half_open.get_or_insert_default().early.extend(key);
    }

    /// The PDC whose early messages and packets have been put off for longest. It may have ended meanwhile.
    pub(super) fn next_put_off_early(&mut self) -> Option<Key> {
        self.half_open.as_mut()?.early.pop_front()
    }

    /// PDC `key` is over, and is to end in a later call.
    #[cold]
    pub(super) fn put_off_end(&mut self, key: Key) {
        if self.table.get_mut(key).is_some_and(TargetPdc::put_off_end) {
            self.half_open.get_or_insert_default().over.push_back(key);
        }
    }

    /// The same for one whose turn had come.
    #[cold]
    pub(super) fn put_off_end_again(&mut self, key: Key) {
        self.half_open.get_or_insert_default().over.push_back(key);
    }

    /// The next PDC that is over and has not ended.
    pub(super) fn next_over(&mut self) -> Option<(Key, &TargetPdc)> {
        let over = &mut self.half_open.as_mut()?.over;
        // Others have ended meanwhile.
        let key = std::iter::from_fn(|| over.pop_front()).find(|key| self.table.get(*key).is_some())?;
        Some((key, self.table.get(key)?))
    }

    /// PDCs of `peer` of which nothing has been heard after `since` are to end in later calls.
    #[cold]
    pub(super) fn give_up(&mut self, peer: Addr, since: Time) {
        if self.usage.of(peer).open == 0 {
            return;
        }
        let all = &mut self.half_open.get_or_insert_default().given_up;
        // A peer that is given up again and again has all slots looked at once more, not once more for each time. The search does
        // not begin anew before it is through, as it would not end then.
        match all.iter_mut().find(|one| one.peer == peer) {
            Some(one) => (one.since, one.again) = (one.since.latest(since), one.slot > 0),
            None => all.push_back(GivenUp { peer, since, slot: 0, again: false }),
        }
    }

    /// The next PDC of those that are given up, unless it takes more than `looks` at slots to find it. They are counted down.
    pub(super) fn next_given_up(&mut self, looks: &mut usize) -> Option<(Key, &TargetPdc)> {
        let TargetPdcs { table, half_open, usage, .. } = self;
        let all = &mut half_open.as_mut()?.given_up;
        while let Some(GivenUp { peer, since, slot, again }) = all.front_mut() {
            let rest = if usage.of(*peer).open > 0 { *slot..table.slots() } else { 0..0 };
            for at in rest {
                if *looks == 0 {
                    return None;
                }
                *looks -= 1;
                *slot = at + 1;
                let is_silent =
                    |pdc: &TargetPdc| pdc.rx.peer == *peer && since.is_at_or_after(pdc.rx.last_heard);
                if let Some(found) = table.at(at).filter(|(_, pdc)| is_silent(pdc)) {
                    return Some(found);
                }
            }
            if std::mem::take(again) {
                *slot = 0;
            } else {
                all.pop_front();
            }
        }
        None
    }

    /// Whether anything has been put off that no later call knows of yet.
    pub(super) fn must_note_put_off(&mut self) -> bool {
        self.half_open.as_mut().is_some_and(|all| {
            let waits = !all.silent.is_empty()
                || !all.early.is_empty()
                || !all.over.is_empty()
                || !all.given_up.is_empty();
            waits && !std::mem::replace(&mut all.is_noted, true)
        })
    }

    /// A call begins that knows of what has been put off.
    pub(super) fn begin_put_off(&mut self) {
        if let Some(all) = &mut self.half_open {
            all.is_noted = false;
        }
    }

    /// Whether there can be no further PDC of any peer.
    pub(super) fn is_full(&self, limits: &Limits) -> bool {
        self.table.len() >= limits.most_pdcs() || self.half_open_count() >= limits.half_open_pdcs
    }

    fn half_open_count(&self) -> usize {
        self.half_open.as_ref().map_or(0, |half_open| half_open.count as usize)
    }

    /// Takes out the half-open PDC that makes room for a further one of `peer`, if there is too little room. Of the peer's own,
    /// and where there is room but the peer would leave too little of it, it is one whose initiator has not answered for as long
    /// as `rto`: an honest peer may open many in a round trip. None makes room for a peer that would leave too little even if
    /// all that others have and that could make room were gone: it may have opened them itself, in the names of hosts that
    /// are not there.
    pub(super) fn take_what_makes_room(
        &mut self,
        limits: &Limits,
        now: Time,
        peer: Addr,
        rto: Span,
    ) -> Option<Key> {
        let used = self.usage.of(peer);
        if used.has_too_many_open(limits) {
            let half_open = self.half_open.as_mut()?;
            take_oldest(half_open.by_peer.get_mut(&peer)?, &self.table, now, rto)
        } else if used.has_closed_too_many(limits) || !self.would_leave_pdcs(limits, &used) {
            None
        } else if self.is_full(limits) {
            take_oldest(&mut self.half_open.as_mut()?.suspects, &self.table, now, Span::ZERO)
        } else if !used.leaves_pdcs(limits, self.table.len()) {
            take_oldest(&mut self.half_open.as_mut()?.suspects, &self.table, now, rto)
        } else {
            None
        }
    }

    /// Whether a peer that has `used` so much leaves as many PDCs as it has with one more, if the half-open ones of others whose
    /// initiators have been asked count as free.
    fn would_leave_pdcs(&self, limits: &Limits, used: &Usage) -> bool {
        let asked = self.half_open.as_ref().map_or(0, |half_open| half_open.asked);
        let of_others = asked.saturating_sub(used.half_open) as usize;
        used.leaves_pdcs(limits, self.table.len() - of_others)
    }

    /// Closes a PDC and remembers it for `time_wait`. Returns when to forget one again if none was remembered so far.
    pub(super) fn close(&mut self, key: Key, now: Time, time_wait: Span) -> Option<(Ended, Option<Time>)> {
        let (ended, used_psns, early, responses) = self.table.remove_with(key, |pdc| {
            let (origin, order) = (pdc.origin(), std::mem::take(&mut pdc.order));
            let ended = Ended { id: pdc.rx.id, origin, proof: pdc.proof, joined: pdc.joined, order };
            let early = pdc.early.iter().map(Early::cost).sum::<u64>() + pdc.refused_cost();
            (ended, pdc.rx.used(), early, pdc.rx.response_cost())
        })?;
        let Ended { id, origin, proof, .. } = ended;
        self.by_origin.remove(&origin);
        let half_open = u32::from(proof != Proof::Given);
        if let Some(all) = &mut self.half_open {
            all.count -= half_open;
            all.asked -= u32::from(proof == Proof::Asked);
            all.drawn.release(id);
        }
        let used = self.usage.change(origin.0, |used| {
            used.open -= 1;
            used.half_open -= half_open;
            used.remembered += 1;
            used.early_bytes -= early;
            used.response_bytes -= responses;
        });
        if half_open > 0 {
            forget_suspects(&mut self.half_open, &used, origin.0);
        }
        let until = now + time_wait;
        let is_first = self.closed.remember(origin, used_psns, until);
        Some((ended, is_first.then_some(until)))
    }

    /// The next PDC of `origin` has this Start_PSN: others are not opened until the one that is about to end is forgotten, or for
    /// `time_wait` if that is longer. Returns the same as [`close`](TargetPdcs::close): that is remembered as a PDC which used no PSN.
    pub(super) fn expect_next(
        &mut self,
        now: Time,
        time_wait: Span,
        origin: Origin,
        start: Psn,
    ) -> Option<Time> {
        let until = now + time_wait;
        self.usage.change(origin.0, |used| used.remembered += 1);
        let is_first = self.closed.remember(origin, (start, start), until);
        if let Some(former) = self.closed.by_origin.get_mut(&origin) {
            former.next = Some(start);
        }
        is_first.then_some(until)
    }

    /// Forgets the closed PDCs whose time has passed. Returns when the next one is due.
    pub(super) fn forget_closed(&mut self, now: Time) -> Option<Time> {
        self.closed.forget(now, |peer| _ = self.usage.change(peer, |used| used.remembered -= 1))
    }

    /// Bytes of heap held.
    pub(super) fn heap_bytes(&self) -> u64 {
        let pdcs = self.table.iter().map(|(_, pdc)| pdc.heap_bytes());
        self.table.heap_bytes()
            + heap::of_map(&self.by_origin)
            + self.usage.heap_bytes()
            + self.closed.heap_bytes()
            + self.half_open.as_deref().map_or(0, HalfOpen::heap_bytes)
            + pdcs.sum::<u64>()
    }
}

/// What is left of a PDC that has ended.
pub(super) struct Ended {
    pub(super) id: PdcId,
    pub(super) origin: Origin,
    pub(super) proof: Proof,
    pub(super) joined: Option<Joined>,
    pub(super) order: Order,
}

/// Half-open PDCs: those whose initiator has not shown that it gets what is sent to it. Anybody can open them with a
/// packet each, in the name of any host.
#[derive(Default)]
pub(super) struct HalfOpen {
    count: u32,
    /// How many of them are in [`Proof::Asked`].
    asked: u32,
    /// PDCs that were opened while there were many, in order, whose initiators are asked whether they are there. Some
    /// have answered, or are gone.
    suspects: Suspects,
    /// The same for each peer, as long as it has half-open PDCs.
    by_peer: Map<Addr, Suspects>,
    /// PDCIDs that are not the numbers of their slots.
    drawn: DrawnIds,
    /// The slots of PDCs whose timer is set, a bit each. (Here because most packets need nothing of this, and it is there as soon as
    /// there is a PDC.)
    timed: Vec<u64>,
    /// The slots of PDCs whose peers are silent: whether they are there is to be asked in later calls, or the PDCs end then.
    silent: VecDeque<u32>,
    /// PDCs whose messages and packets that arrived early are to be taken in later calls.
    early: VecDeque<Key>,
    /// PDCs that are over and are to end in later calls. Some have ended in another way.
    over: VecDeque<Key>,
    /// Peers whose PDCs are to end in later calls, as their owner knows that they are gone.
    given_up: VecDeque<GivenUp>,
    /// Whether there is a timer for those calls.
    is_noted: bool,
}

/// A peer that was given up.
struct GivenUp {
    peer: Addr,
    /// Its PDCs end of which nothing has been heard after this time.
    since: Time,
    /// The slots before this one have been looked at.
    slot: u32,
    /// They are to be looked at again, as the peer has been given up once more.
    again: bool,
}

impl HalfOpen {
    /// PDC `key` of `table` has been opened by `peer`, which had `of_peer` half-open ones, while there are many.
    #[cold]
    fn suspect(&mut self, table: &Table<TargetPdc>, key: Key, peer: Addr, of_peer: usize) {
        let is_half_open = |key| is_half_open(table, key);
        self.suspects.push(key, self.count as usize, is_half_open);
        self.by_peer.entry(peer).or_default().push(key, of_peer, is_half_open);
    }

    /// Bytes of heap held, its own included.
    fn heap_bytes(&self) -> u64 {
        let by_peer = self.by_peer.values().map(Suspects::heap_bytes).sum::<u64>();
        size_of::<HalfOpen>() as u64
            + self.suspects.heap_bytes()
            + heap::of_map(&self.by_peer)
            + by_peer
            + self.drawn.heap_bytes()
            + heap::of_vec(&self.timed)
            + heap::of_deque(&self.silent)
            + heap::of_deque(&self.early)
            + heap::of_deque(&self.over)
            + heap::of_deque(&self.given_up)
    }
}

/// Forgets which PDCs of `peer` are suspect if none of its PDCs, of which it has `used` so many, is half-open any more.
fn forget_suspects(half_open: &mut Option<Box<HalfOpen>>, used: &Usage, peer: Addr) {
    if used.half_open == 0
        && let Some(half_open) = half_open
        && !half_open.by_peer.is_empty()
    {
        half_open.by_peer.remove(&peer);
    }
}

/// Takes out the half-open one of `suspects` that has been there for longest, if it was opened `age` ago at least.
#[cold]
fn take_oldest(suspects: &mut Suspects, table: &Table<TargetPdc>, now: Time, age: Span) -> Option<Key> {
    // Of a half-open one nobody has been heard since it was opened.
    let opened = |key| table.get(key).filter(|pdc| pdc.is_half_open()).map(|pdc| pdc.rx.last_heard);
    suspects.take_oldest(opened, |at| !now.is_before(at + age))
}

fn is_half_open(table: &Table<TargetPdc>, key: Key) -> bool {
    table.get(key).is_some_and(TargetPdc::is_half_open)
}

#[cold]
pub(super) fn note_proven(
    core: &mut Core,
    half_open: &mut Option<Box<HalfOpen>>,
    usage: &mut PeerUsage,
    pdc: &mut TargetPdc,
) {
    core.note_proven(pdc.rx.peer, pdc.proof);
    if let Some(half_open) = half_open {
        half_open.count -= 1;
        half_open.asked -= u32::from(pdc.proof == Proof::Asked);
    }
    pdc.proof = Proof::Given;
    let used = usage.change(pdc.rx.peer, |used| used.half_open -= 1);
    forget_suspects(half_open, &used, pdc.rx.peer);
}

/// Whether there is a PDC in `slot` whose PDCID is the number of the slot.
#[inline]
fn has_id_of_slot(table: &Table<TargetPdc>, slot: u32) -> bool {
    table.at(slot).is_some_and(|(_, pdc)| pdc.rx.id == pdcid::of_slot(slot))
}

/// The slot of the PDC with PDCID `id`.
#[inline]
fn slot_of(table: &Table<TargetPdc>, half_open: &Option<Box<HalfOpen>>, id: PdcId) -> Option<u32> {
    let slot = u32::from(id.0).checked_sub(1)?;
    if has_id_of_slot(table, slot) {
        return Some(slot);
    }
    half_open.as_ref()?.drawn.slot(id)
}

/// The PDC with PDCID `id` for a request of `origin`.
///
/// # Errors
/// The NACK code to answer with.
#[inline]
pub(super) fn established<'a>(
    table: &'a mut Table<TargetPdc>,
    half_open: &Option<Box<HalfOpen>>,
    id: PdcId,
    origin: Origin,
    mode: DeliveryMode,
) -> Result<&'a mut TargetPdc, NackCode> {
    let found = slot_of(table, half_open, id).and_then(|slot| table.at_mut(slot));
    let Some((_, pdc)) = found else { return Err(NackCode::INV_DPDCID) };
    if pdc.origin() != origin {
        return Err(NackCode::PDC_HDR_MISMATCH);
    }
    if pdc.rx.mode != mode {
        return Err(NackCode::PDC_MODE_MISMATCH);
    }
    Ok(pdc)
}

/// PDCs closed a while ago: late copies of their packets must not open them again.
#[derive(Default)]
#[repr(C)]
pub(super) struct ClosedPdcs {
    by_origin: Map<Origin, Former>,
    /// When each is forgotten, in order.
    order: VecDeque<(Time, Origin)>,
}

/// The closed PDCs of one origin.
struct Former {
    newest: Closed,
    /// The others, oldest first: most origins have none.
    older: Vec<Closed>,
    /// The Start_PSN of the next PDC, if the host has named it when it denied one.
    next: Option<Psn>,
}

impl Former {
    /// Whether one of them used `psn`.
    fn used(&self, psn: Psn) -> bool {
        let used = |closed: &Closed| !psn.is_before(closed.start) && psn.is_before(closed.end);
        used(&self.newest) || self.older.iter().any(used)
    }
}

/// The PSNs that a closed PDC used.
#[derive(Clone, Copy)]
struct Closed {
    start: Psn,
    end: Psn,
    until: Time,
}

/// Closed PDCs of one PDCID that are remembered. Each took a round trip at least: no copy is so many
/// of them late, and a peer that opens and closes all the time costs no more than this.
const REMEMBERED: usize = 64;

impl ClosedPdcs {
    /// Whether `psn` was used by a PDC of `origin` that is closed and remembered.
    pub(super) fn is_late(&self, origin: Origin, psn: Psn) -> bool {
        self.by_origin.get(&origin).is_some_and(|all| all.used(psn))
    }

    /// Why a SYN of `origin` with this PSN and Start_PSN opens no PDC, if it does not.
    pub(super) fn why_not(&self, origin: Origin, psn: Psn, start: Psn) -> Option<&'static str> {
        let all = self.by_origin.get(&origin)?;
        if all.used(psn) {
            return Some("late copy of a packet of a closed PDC");
        }
        all.next.is_some_and(|next| next != start).then_some("SYN for another PDC than its host has named")
    }

    /// Remembers a PDC of `origin` that used the PSNs from the first of `used` to before the second. Returns
    /// whether it is the only one remembered.
    fn remember(&mut self, origin: Origin, (start, end): (Psn, Psn), until: Time) -> bool {
        let newest = Closed { start, end, until };
        match self.by_origin.entry(origin) {
            Entry::Vacant(place) => {
                place.insert(Former { newest, older: Vec::new(), next: None });
            }
            Entry::Occupied(mut former) => {
                let Former { newest: before, older, .. } = former.get_mut();
                if older.len() + 1 == REMEMBERED {
                    older.remove(0);
                }
                older.push(std::mem::replace(before, newest));
            }
        }
        let is_first = self.order.is_empty();
        self.order.push_back((until, origin));
        is_first
    }

    /// Forgets those whose time has passed, calling `forgotten` with the peer of each. Returns when the next is due.
    fn forget(&mut self, now: Time, mut forgotten: impl FnMut(Addr)) -> Option<Time> {
        while let Some(&(until, origin)) = self.order.front() {
            if now.is_before(until) {
                return Some(until);
            }
            self.order.pop_front();
            forgotten(origin.0);
            if let Some(all) = self.by_origin.get_mut(&origin) {
                all.older.retain(|closed| now.is_before(closed.until));
                // The newest is the last to be forgotten.
                if !now.is_before(all.newest.until) {
                    self.by_origin.remove(&origin);
                }
            }
        }
        None
    }

    fn heap_bytes(&self) -> u64 {
        heap::of_map(&self.by_origin)
            + self.by_origin.values().map(|former| heap::of_vec(&former.older)).sum::<u64>()
            + heap::of_deque(&self.order)
    }
}
