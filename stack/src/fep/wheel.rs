//! A hierarchical timing wheel: O(1) insertion, exact deadlines, and a kilobyte of memory once it holds a deadline.
//!
//! Four levels of 64 slots; a slot of level 0 spans 2¹⁸ ps (262 ns), so the wheel spans 4.4 s and later deadlines wait
//! in its last slot. Entries cannot be removed: owners that move a deadline remember the valid one, and ignore or
//! re-insert entries that come due too early.

use weft_cc::{Span, Time};

const TICK_SHIFT: u32 = 18;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 4;
const NONE: u32 = u32::MAX;

struct Entry<K> {
    deadline: Time,
    key: K,
    next: u32,
}

/// The first entry of each slot's list.
type Heads = [[u32; SLOTS]; LEVELS];

#[cold]
fn no_entries() -> Box<Heads> {
    Box::new([[NONE; SLOTS]; LEVELS])
}

/// Deadlines with their keys. The earliest one is first in memory, because it is read all the time.
#[repr(C)]
pub(crate) struct Wheel<K> {
    earliest: Option<Time>,
    now: Time,
    /// Ticks since the wheel was made; unlike [`Time`] this does not wrap in the machine's lifetime.
    tick: u64,
    /// Time from the start of `tick` to `now`.
    remainder: Span,
    /// Allocated with the first entry: most endpoints of a large fabric are idle.
    heads: Option<Box<Heads>>,
    occupied: [u64; LEVELS],
    entries: Vec<Entry<K>>,
    free: u32,
}

impl<K: Copy> Wheel<K> {
    pub(crate) fn new(now: Time) -> Wheel<K> {
        Wheel {
            now,
            tick: 0,
            remainder: Span::ZERO,
            heads: None,
            occupied: [0; LEVELS],
            entries: Vec::new(),
            free: NONE,
            earliest: None,
        }
    }

    /// Adds a deadline. A deadline in the past comes due at the next [`Wheel::expire`].
    // Not inlined: most callers need no entry, and must not grow for the few that do.
    #[inline(never)]
    pub(crate) fn insert(&mut self, deadline: Time, key: K) {
        let entry = Entry { deadline, key, next: NONE };
        let index = if self.free == NONE {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        } else {
            let index = self.free;
            self.free = self.entries[index as usize].next;
            self.entries[index as usize] = entry;
            index
        };
        self.link(index);
        self.earliest = Some(self.earliest.map_or(deadline, |e| e.earliest(deadline)));
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.earliest
    }

    /// Moves the keys whose deadlines are at or before `now` to `due`.
    pub(crate) fn expire(&mut self, now: Time, due: &mut Vec<K>) {
        if self.earliest.is_none_or(|e| now.is_before(e)) {
            self.advance(now);
            return;
        }
        let target = self.tick_of(now);
        while let Some((level, slot)) = self.first_slot() {
            let start = self.slot_start(level, slot);
            if start > target {
                break;
            }
            // An entry that is not due although its tick is over is beyond the wheel's span: insert it from the next
            // tick.
            let over = level == 0 && start < target;
            self.drain(level, slot, start + u64::from(over), now, due);
            if level == 0 && !over {
                break;
            }
        }
        self.advance(now);
        self.earliest = self.find_earliest();
    }

    /// The tick that contains `time`; the current tick for times in the past.
    fn tick_of(&self, time: Time) -> u64 {
        self.tick + (time.since(self.now).plus(self.remainder).as_ps() >> TICK_SHIFT)
    }

    fn advance(&mut self, now: Time) {
        if now.is_before(self.now) {
            return;
        }
        // Entries are in slots relative to `tick`, so `tick` must not enter an occupied slot of a higher level before
        // its entries have moved to lower levels.
        let limit = self.first_slot().map_or(u64::MAX, |(level, slot)| {
            self.slot_start(level, slot).saturating_sub(u64::from(level > 0))
        });
        let target = self.tick_of(now);
        if target > limit {
            return;
        }
        let passed = now.since(self.now).plus(self.remainder).as_ps();
        self.tick = target;
        self.remainder = Span::from_ps(passed & ((1 << TICK_SHIFT) - 1));
        self.now = now;
    }

    /// Links an entry into the lowest level whose slots distinguish it from `tick`.
    fn link(&mut self, index: u32) {
        let span = 1u64 << (SLOT_BITS * LEVELS as u32);
        let mut place = self.tick_of(self.entries[index as usize].deadline);
        if (place ^ self.tick) >= span {
            // Beyond the wheel: wait in the last slot of the top level, or in its current one if that is the last.
            place = self.tick | (span - 1);
        }
        let differing = (place ^ self.tick) | 1;
        let level = ((63 - differing.leading_zeros()) / SLOT_BITS) as usize;
        let slot = ((place >> (SLOT_BITS * level as u32)) & (SLOTS as u64 - 1)) as usize;
        let heads = self.heads.get_or_insert_with(no_entries);
        self.entries[index as usize].next = heads[level][slot];
        heads[level][slot] = index;
        self.occupied[level] |= 1 << slot;
    }

    fn first_slot(&self) -> Option<(usize, usize)> {
        (0..LEVELS)
            .find(|&level| self.occupied[level] != 0)
            .map(|level| (level, self.occupied[level].trailing_zeros() as usize))
    }

    fn slot_start(&self, level: usize, slot: usize) -> u64 {
        let below = SLOT_BITS * level as u32;
        let above = below + SLOT_BITS;
        ((self.tick >> above) << above) | ((slot as u64) << below)
    }

    /// Empties a slot and advances to `tick`: due entries go to `due`, the others to lower levels.
    fn drain(&mut self, level: usize, slot: usize, tick: u64, now: Time, due: &mut Vec<K>) {
        let Some(heads) = &mut self.heads else { return };
        let mut index = std::mem::replace(&mut heads[level][slot], NONE);
        self.occupied[level] &= !(1 << slot);
        if tick > self.tick {
            self.now += Span::from_ps((tick - self.tick) << TICK_SHIFT).minus(self.remainder);
            self.tick = tick;
            self.remainder = Span::ZERO;
        }
        while index != NONE {
            let entry = &self.entries[index as usize];
            let (next, key) = (entry.next, entry.key);
            if now.is_at_or_after(entry.deadline) {
                due.push(key);
                self.entries[index as usize].next = self.free;
                self.free = index;
            } else {
                self.link(index);
            }
            index = next;
        }
    }

    fn find_earliest(&self) -> Option<Time> {
        let (level, slot) = self.first_slot()?;
        let mut index = self.heads.as_ref()?[level][slot];
        let mut earliest = self.entries[index as usize].deadline;
        while index != NONE {
            let entry = &self.entries[index as usize];
            earliest = earliest.earliest(entry.deadline);
            index = entry.next;
        }
        Some(earliest)
    }

    /// Bytes of heap allocated.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.heads.as_deref().map_or(0, size_of_val) as u64 + crate::heap::of_vec(&self.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(start: Time, spans: &[u64], steps: &[u64]) {
        let mut wheel = Wheel::new(start);
        let mut model: Vec<(Time, usize)> = Vec::new();
        let mut now = start;
        let mut spans = spans.iter().enumerate();
        for &step in steps {
            for (key, &ahead) in spans.by_ref().take(3) {
                let deadline = now + Span::from_ps(ahead);
                wheel.insert(deadline, key);
                model.push((deadline, key));
            }
            let expected = model.iter().map(|m| m.0).reduce(|a, b| a.earliest(b));
            assert_eq!(wheel.next_deadline(), expected);
            now += Span::from_ps(step);
            let mut due = Vec::new();
            wheel.expire(now, &mut due);
            due.sort_unstable();
            let mut expected: Vec<usize> =
                model.iter().filter(|m| now.is_at_or_after(m.0)).map(|m| m.1).collect();
            expected.sort_unstable();
            assert_eq!(due, expected, "at {now:?}");
            model.retain(|m| now.is_before(m.0));
        }
    }

    proptest! {
        #[test]
        fn the_wheel_agrees_with_a_list(
            start in prop_oneof![Just(0u64), Just(u64::MAX - 3_000_000_000), any::<u64>()],
            spans in prop::collection::vec(prop_oneof![0u64..1 << 20, 0u64..1 << 30, 0u64..1 << 44], 0..60),
            steps in prop::collection::vec(prop_oneof![0u64..1 << 20, 0u64..1 << 30, 0u64..1 << 44], 1..40),
        ) {
            run(Time::from_ps(start), &spans, &steps);
        }
    }

    #[test]
    fn deadlines_from_before_a_long_pause_are_inserted_relative_to_the_current_tick() {
        let spans = [&[0; 9][..], &[1127845, 0, 1127845, 491006, 491006, 491006, 403520]].concat();
        let steps = [5013861156110, 103758, 2491542751168, 636839, 491005, 564808];
        run(Time::ZERO, &spans, &steps);
    }

    #[test]
    fn memory_stays_bounded_with_many_timers() {
        let mut wheel = Wheel::new(Time::ZERO);
        let mut due = Vec::new();
        for i in 0..10_000u64 {
            let now = Time::from_ps(i * 1_000_000);
            wheel.insert(now + Span::from_us(3), i);
            wheel.expire(now, &mut due);
        }
        assert!(wheel.entries.len() <= 5, "{}", wheel.entries.len());
    }
}
