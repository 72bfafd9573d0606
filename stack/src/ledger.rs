//! The accounting of what several holders use together, so that none of them can leave the others without.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash};

use rustc_hash::FxHasher;

/// What is reserved for each of up to `holders` holders that share `total`: half of it in even parts, or all of it for one.
pub fn reserved_part(total: u64, holders: u64) -> u64 {
    match holders {
        0 | 1 => total,
        _ => total / 2 / holders,
    }
}

/// An amount of something, which holders share. Half of it is reserved for them, in even parts; the rest is for those
/// that need more. (A single holder has all of it reserved.)
///
/// A holder takes from its own part first. From the rest it may take no more than it leaves: one greedy holder gets half
/// of it, and of n greedy ones each gets one part in n + 1, so that there is always something left for the next. Switches
/// share packet buffers by the same rule (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
/// switches", 1998). What a holder gives back goes to the rest first.
///
/// So at any time the parts of all holders, whether used or not, and what is taken of the rest, are no more than the
/// total.
#[derive(Clone, Debug)]
pub(crate) struct Shares<H> {
    /// The part that is reserved for each holder.
    each: u64,
    /// What is reserved for nobody and not taken; less than nothing between [`Shares::put`] and what makes up for it.
    free: i64,
    /// The amount that [`Shares::take_of_rest`] has taken and not given back. It counts for no holder.
    of_rest: u64,
    /// What each holder has. One that has nothing has no entry.
    used: HashMap<H, u64, BuildHasherDefault<FxHasher>>,
}

impl<H: Copy + Eq + Hash> Shares<H> {
    /// `total` for up to `holders` holders, none of which has anything. It is the caller's to have no more of them.
    pub(crate) fn new(total: u64, holders: u64) -> Shares<H> {
        let each = reserved_part(total, holders);
        let free = (total - each * holders.max(1)) as i64;
        Shares { each, free, of_rest: 0, used: HashMap::default() }
    }

    /// Shares of another total, or for another number of holders, which have what they have of these.
    pub(crate) fn resized(&self, total: u64, holders: u64) -> Shares<H> {
        let mut resized = Shares::new(total, holders);
        self.used.iter().for_each(|(holder, used)| resized.put(*holder, *used));
        resized.take_of_rest(self.of_rest);
        resized
    }

    /// What `holder` has.
    pub(crate) fn used(&self, holder: H) -> u64 {
        self.used.get(&holder).copied().unwrap_or(0)
    }

    /// What `holder` may take now beyond what it has.
    pub(crate) fn available(&self, holder: H) -> u64 {
        let used = self.used(holder);
        let of_rest = used.saturating_sub(self.each);
        let free = u64::try_from(self.free).unwrap_or(0);
        self.each.saturating_sub(used) + free.saturating_sub(of_rest).div_ceil(2)
    }

    /// Gives `holder` so much more. Returns whether it may have it; if not, nothing changes.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn take(&mut self, holder: H, amount: u64) -> bool {
        let may = amount <= self.available(holder);
        if may {
            self.put(holder, amount);
        }
        may
    }

    /// Gives `holder` so much more, whatever it leaves: something is given back for it that counts for the same.
    pub(crate) fn put(&mut self, holder: H, amount: u64) {
        if amount > 0 {
            let used = self.used.entry(holder).or_default();
            let before = used.saturating_sub(self.each);
            *used += amount;
            self.free -= (used.saturating_sub(self.each) - before) as i64;
        }
    }

    /// Takes so much of the rest for no holder.
    pub(crate) fn take_of_rest(&mut self, amount: u64) {
        self.free -= amount as i64;
        self.of_rest += amount;
    }

    /// Takes back so much of what [`Shares::take_of_rest`] has taken.
    pub(crate) fn give_back_of_rest(&mut self, amount: u64) {
        self.free += amount as i64;
        self.of_rest -= amount;
    }

    /// The amount that [`Shares::take_of_rest`] has taken and not given back. It counts for no holder.
    pub(crate) fn of_rest(&self) -> u64 {
        self.of_rest
    }

    /// How much more [`Shares::take_of_rest`] may take, so that together with what it has taken before it takes no more than it leaves.
    pub(crate) fn rest(&self) -> u64 {
        u64::try_from(self.free).unwrap_or(0).saturating_sub(self.of_rest).div_ceil(2)
    }

    /// The part that is reserved for each holder.
    pub(crate) fn each(&self) -> u64 {
        self.each
    }

    /// How much of what `holder` has may be [disowned](Shares::disown): what is of the rest already, and beyond that no more than the
    /// rest has left.
    pub(crate) fn disownable(&self, holder: H) -> u64 {
        let used = self.used(holder);
        let free = u64::try_from(self.free).unwrap_or(0);
        used.min(used.saturating_sub(self.each) + free)
    }

    /// Moves as much as possible of what `holder` has to the rest, as taken for no holder until it is
    /// [given back](Shares::give_back_of_rest). Returns how much that is.
    pub(crate) fn disown(&mut self, holder: H) -> u64 {
        let amount = self.disownable(holder);
        self.give_back(holder, amount);
        self.take_of_rest(amount);
        amount
    }

    /// Takes back so much of what `holder` has.
    pub(crate) fn give_back(&mut self, holder: H, amount: u64) {
        let Some(used) = self.used.get_mut(&holder) else { return };
        let amount = amount.min(*used);
        let before = used.saturating_sub(self.each);
        *used -= amount;
        self.free += (before - used.saturating_sub(self.each)) as i64;
        if *used == 0 {
            self.used.remove(&holder);
        }
    }

    /// Bytes of heap allocated.
    pub(crate) fn heap_bytes(&self) -> u64 {
        crate::heap::of_map(&self.used)
    }

    /// Checks that nothing of `total` is promised twice, where there may be up to `holders`: what each has, or its part if that is
    /// more, what is taken of the rest, and what is free make up the total; and all of those that have something can have their
    /// parts still.
    #[cfg(test)]
    pub(crate) fn check(&self, total: u64, holders: u64) {
        let holders = holders.max(1);
        assert!(self.used.len() as u64 <= holders, "{} of {holders} holders", self.used.len());
        let beyond: u64 = self.used.values().map(|used| used.saturating_sub(self.each)).sum();
        let free = u64::try_from(self.free).expect("no more is promised than there is");
        assert_eq!(self.each * holders + beyond + self.of_rest + free, total);
        self.clone().take_parts(self.used.keys().copied(), total);
    }

    /// Each of these holders takes what is left of its part. Together with what the others have that is never too much.
    #[cfg(test)]
    fn take_parts(mut self, holders: impl Iterator<Item = H>, total: u64) {
        for holder in holders {
            let left = self.each.saturating_sub(self.used(holder));
            assert!(self.take(holder, left), "its part is always to be had");
        }
        let all = self.used_by_all();
        assert!(all <= total && self.free >= 0, "{all} of {total}, and {} are free", self.free);
    }

    /// What all holders have.
    #[cfg(test)]
    pub(crate) fn used_by_all(&self) -> u64 {
        self.used.values().sum()
    }

    /// Whether no holder has anything.
    pub(crate) fn is_unused(&self) -> bool {
        self.used.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Takes one at a time until it may have no more. Returns how many it has then.
    fn take_all(shares: &mut Shares<u32>, holder: u32) -> u64 {
        while shares.take(holder, 1) {}
        shares.used(holder)
    }

    #[test]
    fn a_greedy_holder_leaves_the_others_their_parts_and_half_of_the_rest() {
        let mut shares = Shares::new(1_600, 8);
        assert_eq!(take_all(&mut shares, 0), 100 + 400);
        assert_eq!(take_all(&mut shares, 1), 100 + 200);
        for holder in 2..7 {
            assert!(take_all(&mut shares, holder) > 100, "each gets its part, and some of the rest");
        }
        assert!(shares.take(7, 100), "the last has its part still");
        assert!(!shares.take(7, 1_000), "nobody gets more than there is");
        shares.give_back(0, 500);
        assert!(shares.available(7) >= 150, "{}", shares.available(7));
    }

    #[test]
    fn a_smaller_total_leaves_the_holders_what_they_have_and_a_larger_one_gives_them_more() {
        let mut shares = Shares::new(1_600, 8);
        assert_eq!(take_all(&mut shares, 0), 100 + 400);
        let mut smaller = shares.resized(480, 8);
        assert_eq!((smaller.used(0), smaller.available(0)), (500, 0));
        assert_eq!(take_all(&mut smaller, 1), 30, "its part");
        let mut larger = smaller.resized(3_200, 8);
        larger.check(3_200, 8);
        assert_eq!(take_all(&mut larger, 0), 200 + 800);
    }

    #[test]
    fn what_a_holder_has_is_taken_of_the_rest_if_there_is_enough() {
        let mut shares = Shares::new(1_600, 8);
        assert_eq!(take_all(&mut shares, 0), 100 + 400);
        assert_eq!(shares.disown(0), 500, "of which 400 are of the rest already");
        shares.check(1_600, 8);
        assert_eq!(shares.of_rest(), 500);
        assert_eq!((shares.used(0), shares.available(0)), (0, 100 + 150));
        assert_eq!(take_all(&mut shares, 1), 100 + 150);
        assert!(shares.take(2, 100 + 75) && shares.take(3, 100 + 38));
        assert_eq!(shares.disown(1), 150 + 37, "37 are left of the rest");
        assert_eq!((shares.used(1), shares.available(1), shares.disown(1)), (63, 37, 0));
        shares.check(1_600, 8);
        assert_eq!(shares.resized(800, 8).of_rest(), 500 + 187);
        shares.give_back_of_rest(500 + 187);
        shares.check(1_600, 8);
    }

    #[test]
    fn a_single_holder_has_everything() {
        let mut shares = Shares::new(7, 1);
        assert_eq!((take_all(&mut shares, 3), shares.available(3)), (7, 0));
        shares.give_back(3, 7);
        assert!(shares.is_unused());
    }

    proptest! {
        #[test]
        fn reservations_and_what_is_taken_beyond_them_are_never_more_than_the_total(
            total in 0u64..200,
            holders in 1u64..12,
            steps in prop::collection::vec((0u32..12, 0u64..60, 0u32..6), 0..300),
        ) {
            let mut shares = Shares::new(total, holders);
            let mut model = vec![0u64; holders as usize];
            let (each, mut of_rest) = (shares.each, 0);
            for (holder, amount, what) in steps {
                let holder = holder % holders as u32;
                let used = &mut model[holder as usize];
                match what {
                    0 | 1 => {
                        let available = shares.available(holder);
                        prop_assert_eq!(shares.take(holder, amount), amount <= available);
                        *used += if amount <= available { amount } else { 0 };
                    }
                    2 | 3 => {
                        shares.give_back(holder, amount);
                        *used = used.saturating_sub(amount);
                    }
                    4 => {
                        let free = shares.free as u64;
                        let moved = shares.disown(holder);
                        prop_assert_eq!(moved, (*used).min(used.saturating_sub(each) + free), "what the rest has");
                        *used -= moved;
                        of_rest += moved;
                    }
                    _ => {
                        let amount = amount.min(of_rest);
                        shares.give_back_of_rest(amount);
                        of_rest -= amount;
                    }
                }
                prop_assert_eq!(shares.of_rest(), of_rest);
                let held: u64 = of_rest + model.iter().map(|used| *used.max(&each)).sum::<u64>();
                prop_assert!(held <= total, "{held} of {total}");
                prop_assert_eq!(shares.free, (total - held) as i64, "what is given back goes to the rest first");
                for (holder, used) in (0..).zip(&model) {
                    prop_assert_eq!(shares.used(holder), *used);
                }
                shares.clone().take_parts(0..holders as u32, total);
            }
        }
    }
}
