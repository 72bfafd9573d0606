//! PDCIDs of target PDCs.
//!
//! As long as a target has few PDCs, their PDCIDs are the numbers of their slots, which are found without a search. Anybody
//! can guess them, and with a guess name a PDC that was opened with a forged address as if he had seen the answer. So once
//! there are [many](PREDICTABLE), new PDCs get PDCIDs that are drawn.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::rng::Rng;
use crate::table::Key;
use crate::wire::pds::PdcId;

/// PDCs that a target can have before PDCIDs are drawn.
pub(super) const PREDICTABLE: usize = 1024;

/// All numbers that a PDCID can have, 0 included, which names no PDC.
const NUMBERS: usize = 1 << 16;
/// PDCIDs of a word of bits, and words of a block.
const WORD: usize = 64;
const BLOCK: usize = 16;
const BLOCKS: usize = NUMBERS / WORD / BLOCK;
/// Numbers of which one is tried after the other before the free ones are counted. With half of all PDCIDs taken, one choice in
/// sixteen has to count.
const TRIES: usize = 4;
/// While fewer are free, most choices would have to count after all.
const WORTH_TRYING: u32 = (NUMBERS / 4) as u32;

/// The PDCIDs of a target that has had many PDCs; `None` if it never had.
#[derive(Default)]
pub(super) struct DrawnIds(Option<Box<Drawn>>);

/// As large for a thousand PDCs as for all that there can be, so that a draw and a look-up take as long however many there are.
struct Drawn {
    free: FreeIds,
    /// By PDCID, the number after that of the slot of its PDC; 0 if there is none.
    slots: Box<[u16]>,
    /// PDCIDs are chosen by images of a count under a keyed hash: who has been given some can guess no others.
    secret: [u64; 2],
    /// What has hashed the secret, which each image begins with.
    keyed: DefaultHasher,
    count: u64,
    /// The last image, of which each 16 bits are a number that is drawn, without those that have been drawn.
    image: u64,
    left: u8,
}

/// The PDCIDs that no PDC has.
struct FreeIds {
    /// A bit for each, in order.
    words: Box<[u64]>,
    /// How many each block of words has.
    of_block: [u16; BLOCKS],
    all: u32,
}

/// The PDCID of the PDC in slot `index`, if it was not drawn.
pub(super) fn of_slot(index: u32) -> PdcId {
    PdcId((index + 1) as u16)
}

impl DrawnIds {
    /// The slot of a PDC whose PDCID was drawn.
    #[cold]
    pub(super) fn slot(&self, id: PdcId) -> Option<u32> {
        u32::from(self.0.as_ref()?.slots[usize::from(id.0)]).checked_sub(1)
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
        match &mut self.0 {
            None if count <= PREDICTABLE => of_slot(key.index),
            drawn => drawn.get_or_insert_with(|| Drawn::new(rng, in_slot)).choose(key.index, count),
        }
    }

    /// The PDC `id` is no more.
    #[inline]
    pub(super) fn release(&mut self, id: PdcId) {
        if let Some(drawn) = &mut self.0 {
            drawn.slots[usize::from(id.0)] = 0;
            drawn.free.give_back(id);
        }
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        self.0.as_deref().map_or(0, |drawn| {
            let own = size_of::<Drawn>() + size_of_val(&*drawn.slots) + size_of_val(&*drawn.free.words);
            own as u64
        })
    }
}

impl Drawn {
    /// For the first PDC that is one of too many to have the number of its slot: others are in the first slots.
    #[cold]
    fn new(rng: &mut Rng, in_slot: impl Fn(u32) -> bool) -> Box<Drawn> {
        let secret = [rng.next_u64(), rng.next_u64()];
        let mut keyed = DefaultHasher::new();
        secret.hash(&mut keyed);
        let mut drawn = Box::new(Drawn {
            free: FreeIds::all(),
            slots: vec![0; NUMBERS].into_boxed_slice(),
            secret,
            keyed,
            count: 0,
            image: 0,
            left: 0,
        });
        for slot in (0..=PREDICTABLE as u32).filter(|slot| in_slot(*slot)) {
            drawn.give(of_slot(slot), slot);
        }
        drawn
    }

    #[cold]
    fn choose(&mut self, index: u32, count: usize) -> PdcId {
        let own = of_slot(index);
        let id = match count <= PREDICTABLE && self.free.has(own) {
            true => own,
            false => self.draw_free(),
        };
        self.give(id, index);
        id
    }

    /// A free PDCID, each with the same chance: a uniform number that happens to be free is uniform among the free ones.
    fn draw_free(&mut self) -> PdcId {
        let tries = if self.free.all < WORTH_TRYING { 0 } else { TRIES };
        for _ in 0..tries {
            let id = PdcId(self.draw());
            if self.free.has(id) {
                return id;
            }
        }
        let draw = u64::from(self.draw()) << 16 | u64::from(self.draw());
        self.free.nth((draw * u64::from(self.free.all)) >> 32)
    }

    fn give(&mut self, id: PdcId, slot: u32) {
        self.free.take(id);
        // There are fewer slots than PDCIDs.
        self.slots[usize::from(id.0)] = (slot + 1) as u16;
    }

    /// A number that nobody can guess.
    fn draw(&mut self) -> u16 {
        if self.left == 0 {
            self.count += 1;
            // In one piece, as each piece that is hashed takes its time.
            let mut hasher = self.keyed.clone();
            let rest = [self.count, self.secret[0], self.secret[1]].map(u64::to_le_bytes);
            hasher.write(rest.as_flattened());
            (self.image, self.left) = (hasher.finish(), 4);
        }
        let draw = self.image as u16;
        (self.image, self.left) = (self.image >> 16, self.left - 1);
        draw
    }
}

impl FreeIds {
    /// All but 0.
    fn all() -> FreeIds {
        let words = vec![u64::MAX; NUMBERS / WORD].into_boxed_slice();
        let mut ids = FreeIds { words, of_block: [(WORD * BLOCK) as u16; BLOCKS], all: NUMBERS as u32 };
        ids.take(PdcId(0));
        ids
    }

    fn place(id: PdcId) -> (usize, u64) {
        let id = usize::from(id.0);
        (id / WORD, 1 << (id % WORD))
    }

    fn has(&self, id: PdcId) -> bool {
        let (word, bit) = FreeIds::place(id);
        self.words[word] & bit != 0
    }

    fn take(&mut self, id: PdcId) {
        let (word, bit) = FreeIds::place(id);
        if self.words[word] & bit != 0 {
            self.words[word] &= !bit;
            self.of_block[word / BLOCK] -= 1;
            self.all -= 1;
        }
    }

    fn give_back(&mut self, id: PdcId) {
        let (word, bit) = FreeIds::place(id);
        if self.words[word] & bit == 0 && id.0 > 0 {
            self.words[word] |= bit;
            self.of_block[word / BLOCK] += 1;
            self.all += 1;
        }
    }

    /// The one before which there are so many, of which there are more.
    fn nth(&self, mut before: u64) -> PdcId {
        let mut block = 0;
        while let Some(count) = self.of_block.get(block).filter(|count| u64::from(**count) <= before) {
            before -= u64::from(*count);
            block += 1;
        }
        for (at, word) in self.words.iter().enumerate().skip(block * BLOCK) {
            let count = u64::from(word.count_ones());
            if before < count {
                let others = (0..before).fold(*word, |word, _| word & (word - 1));
                return PdcId((at * WORD) as u16 | others.trailing_zeros() as u16);
            }
            before -= count;
        }
        // Not reached: there are fewer PDCs than PDCIDs.
        PdcId(0)
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
        let drawn = ids.drawn.0.as_ref().unwrap();
        assert!(drawn.slots.iter().all(|slot| *slot == 0));
        assert_eq!(drawn.free.all, 65_535);
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

    #[test]
    fn the_nth_free_pdcid_is_the_one_that_a_list_has() {
        let (mut free, mut rng) = (FreeIds::all(), Rng::new(5, 0));
        for step in 0..200_000 {
            let id = PdcId(rng.next_u64() as u16);
            match rng.next_u64() % 8 {
                0 => free.give_back(id),
                _ => free.take(id),
            }
            if step % 20_000 == 0 {
                let listed: Vec<PdcId> = (0..=u16::MAX).map(PdcId).filter(|id| free.has(*id)).collect();
                assert_eq!(free.all as usize, listed.len());
                assert!(listed.iter().enumerate().all(|(n, id)| free.nth(n as u64) == *id));
            }
        }
    }

    /// With 60,000 that are taken, the free ones are counted at once, and with 40,000 after numbers that were taken.
    #[test]
    fn all_free_pdcids_are_as_likely() {
        for (taken, draws) in [(60_000, 500_000), (40_000, 2_300_000)] {
            let (mut ids, mut rng) = (Ids::default(), Rng::new(6, 0));
            let open: Vec<_> = (0..taken).map(|_| ids.open(&mut rng)).collect();
            let mut drawn = vec![0u32; NUMBERS];
            for _ in 0..draws {
                let (key, id) = ids.open(&mut rng);
                drawn[usize::from(id.0)] += 1;
                ids.close(key);
            }
            open.iter().for_each(|(_, id)| assert_eq!(drawn[usize::from(id.0)], 0));
            let counts = || drawn.iter().filter(|count| **count > 0);
            // The mean of so many is 90.
            assert_eq!(counts().count(), 65_535 - taken);
            assert!(
                counts().all(|count| (30..170).contains(count)),
                "{:?} of {taken}",
                (counts().min(), counts().max())
            );
        }
    }
}
