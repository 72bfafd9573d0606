//! A hierarchical timing wheel: exact deadlines, and work that does not depend on how many there are or how far ahead.
//!
//! Ten levels of 64 slots; a slot of level 0 spans 2¹⁸ ps (262 ns), one of each further level 64 times as much, 9,000 years
//! in all: every deadline has its slot. A deadline waits in the lowest level whose slots distinguish it from the current
//! tick, and moves down when time reaches its slot: at most nine times, four for one of some seconds. The first entry
//! of a slot is its earliest, so the wheel's earliest is found without a walk.
//!
//! A level takes a quarter of a kilobyte, once there is a deadline in it. Entries cannot be removed: owners that move a
//! deadline remember the valid one, and ignore or re-insert entries that come due too early.

use weft_cc::{Span, Time};

const TICK_SHIFT: u32 = 18;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 10;
const NONE: u32 = u32::MAX;
/// The place of a level that has never held a deadline.
const UNUSED: u8 = u8::MAX;

struct Entry<K> {
    deadline: Time,
    key: K,
    next: u32,
}

struct Level {
    /// The slots that hold entries.
    occupied: u64,
    /// The first entry of each slot's list: none of the others is earlier.
    heads: [u32; SLOTS],
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
    /// The levels that have held a deadline, in the order of their first one: most endpoints of a large fabric are idle, or
    /// need one or two.
    levels: Vec<Level>,
    entries: Vec<Entry<K>>,
    free: u32,
    /// The levels that hold entries, a bit each.
    occupied: u16,
    /// Where each level is in `levels`.
    places: [u8; LEVELS],
}

impl<K: Copy> Wheel<K> {
    pub(crate) fn new(now: Time) -> Wheel<K> {
        Wheel {
            now,
            tick: 0,
            remainder: Span::ZERO,
            levels: Vec::new(),
            occupied: 0,
            places: [UNUSED; LEVELS],
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

    /// Moves the keys whose deadlines are at or before `now` to `due`. Returns how many entries it has looked at.
    pub(crate) fn expire(&mut self, now: Time, due: &mut Vec<K>) -> usize {
        let mut touched = 0;
        if self.earliest.is_none_or(|e| now.is_before(e)) {
            self.advance(now);
            return touched;
        }
        let target = self.tick_of(now);
        while let Some((level, slot)) = self.first_slot() {
            let start = self.slot_start(level, slot);
            if start > target {
                break;
            }
            touched += self.drain(level, slot, start, now, due);
            if level == 0 && start == target {
                break;
            }
        }
        self.advance(now);
        self.earliest = self.find_earliest();
        touched
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

    /// Links an entry into the lowest level whose slots distinguish it from `tick`. Of entries with equal deadlines the
    /// newest comes first.
    fn link(&mut self, index: u32) {
        let deadline = self.entries[index as usize].deadline;
        let place = self.tick_of(deadline);
        let differing = (place ^ self.tick) | 1;
        let level = (63 - differing.leading_zeros()) / SLOT_BITS;
        let slot = (place >> (SLOT_BITS * level)) as usize % SLOTS;
        self.occupied |= 1 << level;
        let at = self.place_of(level as usize);
        let Level { occupied, heads } = &mut self.levels[at];
        *occupied |= 1 << slot;
        match self.entries.get_mut(heads[slot] as usize) {
            Some(head) if head.deadline.is_before(deadline) => {
                let second = std::mem::replace(&mut head.next, index);
                self.entries[index as usize].next = second;
            }
            _ => self.entries[index as usize].next = std::mem::replace(&mut heads[slot], index),
        }
    }

    /// Where a level is in `levels`; it is made if it was never used.
    fn place_of(&mut self, level: usize) -> usize {
        if self.places[level] == UNUSED {
            self.places[level] = self.levels.len() as u8;
            self.levels.reserve_exact(1);
            self.levels.push(Level { occupied: 0, heads: [NONE; SLOTS] });
        }
        usize::from(self.places[level])
    }

    fn first_slot(&self) -> Option<(usize, usize)> {
        let level = self.occupied.trailing_zeros() as usize;
        let place = *self.places.get(level)?;
        Some((level, self.levels[usize::from(place)].occupied.trailing_zeros() as usize))
    }

    fn slot_start(&self, level: usize, slot: usize) -> u64 {
        let below = SLOT_BITS * level as u32;
        let above = below + SLOT_BITS;
        ((self.tick >> above) << above) | ((slot as u64) << below)
    }

    /// Empties a slot and advances to `tick`: due entries go to `due`, the others to lower levels. Returns how many there
    /// were.
    fn drain(&mut self, level: usize, slot: usize, tick: u64, now: Time, due: &mut Vec<K>) -> usize {
        let mut touched = 0;
        let drained = &mut self.levels[usize::from(self.places[level])];
        let mut index = std::mem::replace(&mut drained.heads[slot], NONE);
        drained.occupied &= !(1 << slot);
        if drained.occupied == 0 {
            self.occupied &= !(1 << level);
        }
        if tick > self.tick {
            self.now += Span::from_ps((tick - self.tick) << TICK_SHIFT).minus(self.remainder);
            self.tick = tick;
            self.remainder = Span::ZERO;
        }
        while index != NONE {
            touched += 1;
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
        touched
    }

    fn find_earliest(&self) -> Option<Time> {
        let (level, slot) = self.first_slot()?;
        let head = self.levels[usize::from(self.places[level])].heads[slot];
        Some(self.entries[head as usize].deadline)
    }

    /// Bytes of heap allocated.
    pub(crate) fn heap_bytes(&self) -> u64 {
        crate::heap::of_vec(&self.levels) + crate::heap::of_vec(&self.entries)
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

    /// From nothing to 53 days: twice as much ahead counts as behind.
    fn horizon() -> impl Strategy<Value = u64> {
        (0u32..62, any::<u64>()).prop_map(|(bits, random)| random & ((1 << bits) - 1))
    }

    proptest! {
        #[test]
        fn the_wheel_agrees_with_a_list(
            start in prop_oneof![Just(0u64), Just(u64::MAX - 3_000_000_000), any::<u64>()],
            spans in prop::collection::vec(horizon(), 0..60),
            steps in prop::collection::vec(horizon(), 1..40),
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

    /// Connections come and go at 10,000 a second. Each has an idle timer of 10 s and one of 100 µs, which has expired when
    /// the next one comes.
    #[test]
    fn the_work_does_not_grow_with_the_number_or_the_horizon_of_deadlines() {
        let mut wheel = Wheel::new(Time::ZERO);
        let mut due = Vec::new();
        let (connections, mut now, mut touched) = (120_000u64, Time::ZERO, 0);
        for n in 0..connections {
            wheel.insert(now + Span::from_ms(10_000), n);
            wheel.insert(now + Span::from_us(100), n);
            now += Span::from_us(100);
            touched += wheel.expire(now, &mut due);
        }
        let per_deadline = touched as f64 / (2 * connections) as f64;
        assert!(per_deadline < 4.0, "{per_deadline} entries looked at for each");
    }

    #[test]
    fn a_level_without_deadlines_takes_no_memory() {
        let mut wheel = Wheel::new(Time::ZERO);
        assert_eq!(wheel.heap_bytes(), 0);
        wheel.insert(Time::ZERO + Span::from_ms(10_000), 0);
        assert_eq!(wheel.levels.len(), 1);
        assert!(size_of::<Level>() <= 264);
    }
}
