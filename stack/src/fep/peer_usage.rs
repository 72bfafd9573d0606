//! What each peer takes of what an endpoint has for its target side.

use super::config::Limits;
use super::reply::Replies;
use super::target_pdc::TargetPdc;
use super::{Map, refused};
use crate::heap;
use crate::packet::Addr;
use crate::pdc::Answer;
use crate::wire::pds::Psn;

/// The resources that each peer uses here.
#[derive(Default)]
pub(super) struct PeerUsage {
    /// A peer that uses none has no entry. The bytes of all peers together are under `None`, because two more numbers here
    /// would move what follows to other cache lines.
    peers: Map<Option<Addr>, Usage>,
}

/// The resources that one peer uses here.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// PDCs that are open, and those of them that are half-open.
    pub(super) open: u32,
    pub(super) half_open: u32,
    /// PDCs that are closed and remembered.
    pub(super) remembered: u32,
    /// Bytes that its early ROD packets take, and that the messages count for of which the rest is refused.
    pub(super) early_bytes: u64,
    /// Bytes that the responses stored for it count for.
    pub(super) response_bytes: u64,
}

impl Usage {
    /// Whether there can be no further PDC until one is closed.
    pub(super) fn has_too_many_open(&self, limits: &Limits) -> bool {
        self.open >= limits.pdcs_per_peer || self.half_open >= limits.half_open_pdcs_per_peer
    }

    /// Whether there can be no further PDC until one is forgotten. Each open PDC will have to be remembered.
    pub(super) fn has_closed_too_many(&self, limits: &Limits) -> bool {
        self.open + self.remembered >= limits.closed_pdcs_per_peer
    }

    /// Whether the peer, if it opens one more PDC beside the `open` ones of all peers, leaves as many to the others as it has then.
    pub(super) fn leaves_pdcs(&self, limits: &Limits, open: usize) -> bool {
        leaves_as_much(limits.most_pdcs() as u64, open as u64, 1, u64::from(self.open) + 1)
    }

    /// Whether the peer can open no further PDC.
    pub(super) fn is_at_limit(&self, limits: &Limits) -> bool {
        self.has_too_many_open(limits) || self.has_closed_too_many(limits)
    }
}

impl PeerUsage {
    pub(super) fn of(&self, peer: Addr) -> Usage {
        self.peers.get(&Some(peer)).copied().unwrap_or_default()
    }

    /// The bytes of all peers; PDCs are not counted here.
    fn of_all(&self) -> Usage {
        self.peers.get(&None).copied().unwrap_or_default()
    }

    /// Whether closed PDCs of `peer` are remembered.
    pub(super) fn remembers(&self, peer: Addr) -> bool {
        self.of(peer).remembered > 0
    }

    /// Whether a response that counts for `cost` bytes may be stored for `peer`.
    pub(super) fn may_store(&self, limits: &Limits, peer: Addr, cost: u64) -> bool {
        let wanted = self.of(peer).response_bytes.saturating_add(cost);
        wanted <= limits.response_bytes_per_peer
            && leaves_as_much(limits.response_bytes, self.of_all().response_bytes, cost, wanted)
    }

    /// Whether an early ROD packet of `peer` that takes `cost` bytes may be kept.
    pub(super) fn may_keep(&self, limits: &Limits, peer: Addr, cost: u64) -> bool {
        let wanted = self.of(peer).early_bytes.saturating_add(cost);
        wanted <= limits.unexpected_bytes_per_peer
            && leaves_as_much(limits.reorder_bytes, self.of_all().early_bytes, cost, wanted)
    }

    /// Whether the rest of the message may be refused that packet `psn` of `pdc` begins.
    pub(super) fn may_refuse_rest(&self, limits: &Limits, pdc: &TargetPdc, psn: Psn) -> bool {
        // The next packet may have its answer whatever the others take, as without it there is room for nobody.
        !pdc.refuses_more_than_few()
            || psn == pdc.rx.expected()
            || self.may_keep(limits, pdc.rx.peer, refused::RECORD)
    }

    /// Refuses the rest of the message that packet `psn` of `pdc` belongs to.
    #[cold]
    pub(super) fn refuse_rest(&mut self, limits: &Limits, pdc: &mut TargetPdc, msg_id: u16, psn: Psn) {
        let before = pdc.refused_cost();
        pdc.refuse_rest(msg_id, psn, self.may_keep(limits, pdc.rx.peer, refused::RECORD));
        let after = pdc.refused_cost();
        if after != before {
            self.change(pdc.rx.peer, |used| used.early_bytes = used.early_bytes - before + after);
        }
    }

    /// Stores `answer` to packet `psn` of `pdc`.
    pub(super) fn store(&mut self, pdc: &mut TargetPdc, psn: Psn, answer: Answer) {
        self.change(pdc.rx.peer, |used| used.response_bytes += answer.cost());
        pdc.rx.store_response(psn, answer);
    }

    /// The initiator of `pdc` has all responses up to `psn`: they are stored no more, and do not leave again.
    #[inline]
    pub(super) fn clear(&mut self, replies: &mut Replies, pdc: &mut TargetPdc, psn: Psn) {
        let freed = pdc.rx.clear(psn);
        if freed > 0 {
            replies.clear(pdc.rx.id, psn);
            self.change(pdc.rx.peer, |used| used.response_bytes -= freed);
        }
    }

    /// Bytes of heap allocated.
    pub(super) fn heap_bytes(&self) -> u64 {
        heap::of_map(&self.peers)
    }

    /// Checks that no peer, and not all of them together, have more than `limits` permit, and that nothing is counted that
    /// is not there; `open` is the number of PDCs, and no response has more than `data` bytes of data.
    #[cfg(test)]
    pub(super) fn check(&self, limits: &Limits, open: usize, data: u32) {
        let peers = || self.peers.iter().filter(|(peer, _)| peer.is_some()).map(|(_, usage)| usage);
        assert_eq!(peers().map(|used| used.open as usize).sum::<usize>(), open);
        assert!(open <= limits.most_pdcs());
        // Each PDC may store one for its first request that is not cleared, and an error as long as it has no other response.
        let of_pdcs = |open: u64| open * (2 * Answer::PLAIN_COST + u64::from(data));
        let (mut early, mut responses) = (0, 0);
        for used in peers() {
            assert!(used.half_open <= used.open && used.half_open <= limits.half_open_pdcs_per_peer);
            assert!(used.open <= limits.pdcs_per_peer);
            assert!(used.open + used.remembered <= limits.closed_pdcs_per_peer);
            let most = limits.response_bytes_per_peer + of_pdcs(used.open.into());
            assert!(
                used.response_bytes <= most,
                "{} B of responses, {most} are allowed",
                used.response_bytes
            );
            early += used.early_bytes;
            responses += used.response_bytes;
        }
        assert_eq!((early, responses), (self.of_all().early_bytes, self.of_all().response_bytes));
        assert!(responses <= limits.response_bytes + of_pdcs(open as u64));
        // Next packets have what they need beyond that: see `Refused`.
        let of_next = open as u64 * 2 * refused::FEW as u64 * refused::RECORD;
        assert!(early <= limits.reorder_bytes / 4 * 5 + of_next);
    }

    /// Changes what `peer` uses, and returns that.
    pub(super) fn change(&mut self, peer: Addr, change: impl FnOnce(&mut Usage)) -> Usage {
        let usage = self.peers.entry(Some(peer)).or_default();
        let before = *usage;
        change(usage);
        let after = *usage;
        if after == Usage::default() {
            self.peers.remove(&Some(peer));
        }
        let bytes = |usage: Usage| (usage.early_bytes, usage.response_bytes);
        if bytes(before) != bytes(after) {
            let all = self.peers.entry(None).or_default();
            all.early_bytes = all.early_bytes - before.early_bytes + after.early_bytes;
            all.response_bytes = all.response_bytes - before.response_bytes + after.response_bytes;
            if *all == Usage::default() {
                self.peers.remove(&None);
            }
        }
        after
    }
}

/// Whether a peer that takes `more` of `limit`, of which all peers have `taken`, and has `wanted` then, leaves as much to
/// the others: so there is always something left for the next.
pub(super) fn leaves_as_much(limit: u64, taken: u64, more: u64, wanted: u64) -> bool {
    limit.checked_sub(taken).and_then(|free| free.checked_sub(more)).is_some_and(|left| wanted <= left)
}
