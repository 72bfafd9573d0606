//! PDCIDs of target PDCs.
//!
//! As long as a target has few PDCs, their PDCIDs are the numbers of their slots, which are found without a search. Anybody
//! can guess them, and with a guess name a PDC that was opened with a forged address as if he had seen the answer. So once
//! there are [many](PREDICTABLE), new PDCs get PDCIDs that are drawn.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::Map;
use crate::heap;
use crate::rng::Rng;
use crate::table::Key;
use crate::wire::pds::PdcId;

/// PDCs that a target can have before PDCIDs are drawn.
pub(super) const PREDICTABLE: usize = 1024;

/// Draws before the next free PDCID is searched for. With 60,000 PDCs one draw in twelve finds a free one.
const DRAWS: u32 = 100;

/// The PDCIDs that were drawn, and so are not the numbers of their slots.
#[derive(Default)]
pub(super) struct DrawnIds(Option<Box<Drawn>>);

struct Drawn {
    slots: Map<PdcId, u32>,
    /// PDCIDs are images of a count under a keyed hash: who has been given some can guess no others.
    secret: [u64; 2],
    count: u64,
    /// The last image, which has four PDCIDs, without those that have been used.
    image: u64,
    left: u8,
}

/// The PDCID of the PDC in slot `index`, if it was not drawn.
pub(super) fn of_slot(index: u32) -> PdcId {
    PdcId((index + 1) as u16)
}

impl DrawnIds {
    /// The slot of a PDC whose PDCID was drawn.
    #[cold]
    pub(super) fn slot(&self, id: PdcId) -> Option<u32> {
        self.0.as_ref()?.slots.get(&id).copied()
    }

    /// The PDCID for a new PDC in the slot of `key`, one of `count` PDCs. `in_slot` tells whether the PDC in a slot has the
    /// PDCID of the slot.
    #[inline]
    pub(super) fn choose(
        &mut self,
        rng: &mut Rng,
        key: Key,
        count: usize,
        in_slot: impl Fn(u32) -> bool,
    ) -> PdcId {
        let own = of_slot(key.index);
        if count <= PREDICTABLE && self.slot(own).is_none() {
            return own;
        }
        self.draw(rng, key.index, in_slot)
    }

    #[cold]
    fn draw(&mut self, rng: &mut Rng, index: u32, in_slot: impl Fn(u32) -> bool) -> PdcId {
        let drawn = self.0.get_or_insert_with(|| {
            let secret = [rng.next_u64(), rng.next_u64()];
            Box::new(Drawn { slots: Map::default(), secret, count: 0, image: 0, left: 0 })
        });
        let is_free = |drawn: &Drawn, id: PdcId| {
            id.0 > 0 && !drawn.slots.contains_key(&id) && !in_slot(u32::from(id.0) - 1)
        };
        let mut id = drawn.next();
        for _ in 0..DRAWS {
            if is_free(drawn, id) {
                break;
            }
            id = drawn.next();
        }
        // There are fewer PDCs than PDCIDs.
        while !is_free(drawn, id) {
            id = PdcId(id.0.wrapping_add(1));
        }
        drawn.slots.insert(id, index);
        id
    }

    /// The PDC `id` is no more.
    #[inline]
    pub(super) fn release(&mut self, id: PdcId) {
        if let Some(drawn) = &mut self.0 {
            drawn.slots.remove(&id);
        }
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        self.0.as_deref().map_or(0, |drawn| size_of::<Drawn>() as u64 + heap::of_map(&drawn.slots))
    }
}

impl Drawn {
    fn next(&mut self) -> PdcId {
        if self.left == 0 {
            self.count += 1;
            let mut hasher = DefaultHasher::new();
            (self.secret, self.count, self.secret).hash(&mut hasher);
            (self.image, self.left) = (hasher.finish(), 4);
        }
        let id = PdcId(self.image as u16);
        (self.image, self.left) = (self.image >> 16, self.left - 1);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    /// A table of PDCIDs, as a target has it.
    #[derive(Default)]
    struct Ids {
        table: Table<PdcId>,
        drawn: DrawnIds,
    }

    impl Ids {
        fn open(&mut self, rng: &mut Rng) -> (Key, PdcId) {
            let key = self.table.insert(PdcId(0));
            let Ids { table, drawn } = self;
            let in_slot = |index| table.at(index).is_some_and(|(_, id)| *id == of_slot(index));
            let id = drawn.choose(rng, key, table.len(), in_slot);
            *self.table.get_mut(key).unwrap() = id;
            (key, id)
        }

        fn find(&self, id: PdcId) -> Option<Key> {
            let own = self.table.at(u32::from(id.0) - 1).filter(|(_, other)| **other == id);
            own.or_else(|| self.table.at(self.drawn.slot(id)?)).map(|(key, _)| key)
        }

        fn close(&mut self, key: Key) {
            let id = self.table.remove(key).unwrap();
            self.drawn.release(id);
        }
    }

    #[test]
    fn all_pdcids_are_distinct_and_found_whether_they_are_drawn_or_not() {
        let (mut ids, mut rng) = (Ids::default(), Rng::new(3, 0));
        let mut open: Vec<_> = (0..60_000).map(|_| ids.open(&mut rng)).collect();
        let few = &open[..PREDICTABLE];
        assert!(
            few.iter().all(|(key, id)| *id == of_slot(key.index)),
            "few PDCs have the numbers of their slots"
        );
        let lucky = open[PREDICTABLE..].iter().filter(|(key, id)| *id == of_slot(key.index)).count();
        assert!(lucky < 20, "{lucky} of 59,000 drawn PDCIDs are the numbers of their slots");
        for step in 0..60_000 {
            let (key, id) = open.swap_remove(step * 7_919 % open.len());
            assert_eq!(ids.find(id), Some(key));
            ids.close(key);
            assert_eq!(ids.find(id), None);
            if step % 3 > 0 {
                open.push(ids.open(&mut rng));
            }
        }
        assert_eq!(open.iter().filter(|(key, id)| ids.find(*id) == Some(*key)).count(), 40_000);
        open.drain(..).for_each(|(key, _)| ids.close(key));
        assert!(ids.drawn.0.as_ref().unwrap().slots.is_empty());
        let again = ids.open(&mut rng);
        assert_eq!(again.1, of_slot(again.0.index));
    }

    #[test]
    fn the_last_free_pdcid_is_found() {
        let (mut ids, mut rng) = (Ids::default(), Rng::new(4, 0));
        let mut all: Vec<u16> = (0..u16::MAX).map(|_| ids.open(&mut rng).1.0).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(1..=u16::MAX));
    }
}
