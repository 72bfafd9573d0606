//! What senders have of something that each peer may have so much of: of each peer, and of each of its processes.

use std::ops::{AddAssign, SubAssign};

use super::{Map, Source};
use crate::heap;
use crate::packet::Addr;

/// Amounts by sender. A sender that has nothing has no entry.
#[derive(Clone, Debug)]
pub(super) struct Senders<T> {
    by_peer: Map<Addr, OfPeer<T>>,
    /// Of peers of which several processes have had something since the peer had nothing: an entry for each.
    by_source: Map<Source, T>,
}

#[derive(Clone, Copy, Debug)]
struct OfPeer<T> {
    all: T,
    /// The process that has all of it, unless there are several: those of most peers need no look-up of their own.
    only: Option<u16>,
}

impl<T> Default for Senders<T> {
    fn default() -> Senders<T> {
        Senders { by_peer: Map::default(), by_source: Map::default() }
    }
}

impl<T: Copy + Default + PartialEq + AddAssign + SubAssign> Senders<T> {
    /// What all processes of `peer` have together.
    #[inline]
    pub(super) fn of_peer(&self, peer: Addr) -> T {
        self.by_peer.get(&peer).map_or(T::default(), |of_peer| of_peer.all)
    }

    /// What `source` has.
    pub(super) fn of(&self, source: Source) -> T {
        let Some(of_peer) = self.by_peer.get(&source.peer) else { return T::default() };
        match of_peer.only {
            Some(only) if only == source.process => of_peer.all,
            Some(_) => T::default(),
            None => self.by_source.get(&source).copied().unwrap_or_default(),
        }
    }

    /// Gives `source` so much more, which is not nothing.
    pub(super) fn add(&mut self, source: Source, more: T) {
        let Source { peer, process } = source;
        let of_peer =
            self.by_peer.entry(peer).or_insert_with(|| OfPeer { all: T::default(), only: Some(process) });
        if let Some(only) = of_peer.only.take_if(|only| *only != process) {
            self.by_source.insert(Source { peer, process: only }, of_peer.all);
        }
        of_peer.all += more;
        if of_peer.only.is_none() {
            *self.by_source.entry(source).or_default() += more;
        }
    }

    /// Takes so much of what `source` has.
    pub(super) fn remove(&mut self, source: Source, less: T) {
        let Some(of_peer) = self.by_peer.get_mut(&source.peer) else { return };
        of_peer.all -= less;
        let (is_nothing, has_several) = (of_peer.all == T::default(), of_peer.only.is_none());
        if is_nothing {
            self.by_peer.remove(&source.peer);
        }
        if has_several && let Some(own) = self.by_source.get_mut(&source) {
            *own -= less;
            if *own == T::default() {
                self.by_source.remove(&source);
            }
        }
    }

    /// Checks that what each peer has is what its processes have, and returns that.
    #[cfg(test)]
    pub(super) fn check(&self) -> Map<Source, T>
    where
        T: std::fmt::Debug,
    {
        let mut own = self.by_source.clone();
        let alone = self.by_peer.iter().filter_map(|(&peer, of_peer)| {
            of_peer.only.map(|process| (Source { peer, process }, of_peer.all))
        });
        own.extend(alone);
        let mut of_peers: Map<Addr, T> = Map::default();
        own.iter().for_each(|(source, amount)| *of_peers.entry(source.peer).or_default() += *amount);
        let there: Map<Addr, T> = self.by_peer.iter().map(|(peer, of_peer)| (*peer, of_peer.all)).collect();
        assert_eq!(of_peers, there);
        own
    }

    /// Number of peers that have something.
    #[cfg(test)]
    pub(super) fn peers(&self) -> usize {
        self.by_peer.len()
    }

    /// Bytes of heap allocated.
    pub(super) fn heap_bytes(&self) -> u64 {
        heap::of_map(&self.by_peer) + heap::of_map(&self.by_source)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_sender_has_what_it_was_given_and_each_peer_the_sum(
            steps in prop::collection::vec((0u32..3, 0u16..3, 1u32..5, any::<bool>()), 0..200),
        ) {
            let mut senders = Senders::<u32>::default();
            let mut model: Map<Source, u32> = Map::default();
            for (peer, process, amount, gives) in steps {
                let source = Source { peer: Addr(peer), process };
                let own = model.entry(source).or_default();
                if gives {
                    senders.add(source, amount);
                    *own += amount;
                } else if *own >= amount {
                    senders.remove(source, amount);
                    *own -= amount;
                }
                model.retain(|_, own| *own > 0);
                prop_assert_eq!(&senders.check(), &model);
                for peer in (0..3).map(Addr) {
                    let mut all = 0;
                    for process in 0..3 {
                        let source = Source { peer, process };
                        prop_assert_eq!(senders.of(source), model.get(&source).copied().unwrap_or(0));
                        all += senders.of(source);
                    }
                    prop_assert_eq!(senders.of_peer(peer), all);
                }
            }
            prop_assert!(!model.is_empty() || senders.by_peer.is_empty() && senders.by_source.is_empty());
        }
    }
}
