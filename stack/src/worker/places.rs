//! The places of an address book: who has them, under which names, and who makes room for others.
//!
//! A name ([`Addr`]) is the number of a place in its low bits, and above them how many peers had the place before. So the
//! names of peers that were forgotten are nobody's, until 2³² names of the book's places have been used up.

use std::collections::VecDeque;

use crate::fep::Standing;
use crate::packet::Addr;

/// The most peers of a queue that are looked at to find one that makes room: there may be thousands that have to stay. The
/// next search goes on behind them. (Of newcomers each is looked at once.)
pub(super) const EXAMINED: usize = 64;

/// The places of a book.
#[derive(Clone, Debug)]
pub(super) struct Places {
    capacity: usize,
    /// The bits of a name that are the place's number.
    mask: u32,
    places: Vec<Place>,
    /// No place below this has never had a holder.
    first_unused: usize,
    /// Places whose holders were forgotten, the first of them first; some have holders again.
    freed: VecDeque<usize>,
    /// Holders that nobody keeps, in the order in which they came.
    newcomers: VecDeque<Addr>,
    /// Those of which it is not known whether they are there.
    undecided: VecDeque<Addr>,
    /// Those that were found to be there. They go last.
    acquaintances: VecDeque<Addr>,
    /// How many holders are kept for good, and how many are not.
    kept: usize,
    strangers: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// The name of its holder; while there is none, that of the next.
    name: Addr,
    tenure: Tenure,
    /// Whether the holder is in one of the queues.
    queued: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tenure {
    Free,
    /// For good.
    Kept,
    /// As long as somebody needs it: so many applications have asked for it.
    Stranger {
        users: u32,
    },
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// A holder, or the next one, of this place.
    Place(usize),
    /// One that was forgotten.
    Former,
    /// Nothing: no place has that name yet.
    Nothing,
}

impl Places {
    pub(super) fn new(capacity: usize) -> Places {
        Places {
            capacity,
            mask: (capacity.next_power_of_two() - 1) as u32,
            places: Vec::new(),
            first_unused: 0,
            freed: VecDeque::new(),
            newcomers: VecDeque::new(),
            undecided: VecDeque::new(),
            acquaintances: VecDeque::new(),
            kept: 0,
            strangers: 0,
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many holders are kept for good.
    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    /// The place in `name`, whether that is its present name or not.
    #[inline]
    pub(super) fn slot(&self, name: Addr) -> usize {
        (name.0 & self.mask) as usize
    }

    #[inline]
    pub(super) fn named(&self, name: Addr) -> Named {
        let slot = self.slot(name);
        let present = self.places.get(slot).map_or(Addr(slot as u32), |place| place.name);
        if slot < self.capacity && present == name {
            Named::Place(slot)
        } else if slot < self.capacity && name < present {
            Named::Former
        } else {
            Named::Nothing
        }
    }

    fn holder(&mut self, name: Addr) -> Option<&mut Place> {
        let slot = self.slot(name);
        self.places.get_mut(slot).filter(|place| place.name == name && place.tenure != Tenure::Free)
    }

    /// The name for one more peer: that of the lowest place that never had a holder, else of that which has been free for
    /// longest. None if all are taken.
    pub(super) fn free(&mut self) -> Option<Addr> {
        let is_free = |places: &[Place], slot| {
            matches!(places.get(slot), None | Some(Place { tenure: Tenure::Free, .. }))
        };
        while self.first_unused < self.capacity && !is_free(&self.places, self.first_unused) {
            self.first_unused += 1;
        }
        if self.first_unused < self.capacity {
            return Some(
                self.places.get(self.first_unused).map_or(Addr(self.first_unused as u32), |place| place.name),
            );
        }
        while let Some(&slot) = self.freed.front() {
            if is_free(&self.places, slot) {
                return Some(self.places[slot].name);
            }
            self.freed.pop_front();
        }
        None
    }

    /// The peer `name`, which is the name of a place, has it for good.
    pub(super) fn keep(&mut self, name: Addr) {
        self.set(name, Tenure::Kept);
    }

    /// The peer `name`, which is the name of a free place, has it as long as somebody needs it.
    pub(super) fn lend(&mut self, name: Addr) {
        self.set(name, Tenure::Stranger { users: 0 });
        self.queue(name);
    }

    /// The peer `name` need not be kept any longer, if it was.
    pub(super) fn let_go(&mut self, name: Addr) {
        if self.holder(name).is_some_and(|place| place.tenure == Tenure::Kept) {
            self.lend(name);
        }
    }

    fn set(&mut self, name: Addr, tenure: Tenure) {
        let slot = self.slot(name);
        while self.places.len() <= slot {
            let name = Addr(self.places.len() as u32);
            self.places.push(Place { name, tenure: Tenure::Free, queued: false });
        }
        self.count(slot, -1);
        self.places[slot].tenure = tenure;
        self.count(slot, 1);
    }

    fn count(&mut self, slot: usize, change: isize) {
        let counter = match self.places[slot].tenure {
            Tenure::Free => return,
            Tenure::Kept => &mut self.kept,
            Tenure::Stranger { .. } => &mut self.strangers,
        };
        *counter = counter.wrapping_add_signed(change);
    }

    /// One more application needs the peer `name`. False if that makes no difference: it is kept, or not in the book.
    pub(super) fn hold(&mut self, name: Addr) -> bool {
        match self.holder(name) {
            Some(Place { tenure: Tenure::Stranger { users }, .. }) => {
                *users += 1;
                true
            }
            _ => false,
        }
    }

    /// An application for which the peer was held needs it no more.
    pub(super) fn release(&mut self, name: Addr) {
        if let Some(Place { tenure: Tenure::Stranger { users }, .. }) = self.holder(name) {
            *users = users.saturating_sub(1);
            self.queue(name);
        }
    }

    /// Whether the peer `name` has a place for as long as somebody needs it.
    #[cfg(test)]
    pub(super) fn is_lent(&self, name: Addr) -> bool {
        let place = self.places.get(self.slot(name)).filter(|place| place.name == name);
        place.is_some_and(|place| matches!(place.tenure, Tenure::Stranger { .. }))
    }

    /// The holders that applications need, and how many of these have asked for each.
    #[cfg(test)]
    pub(super) fn users(&self) -> impl Iterator<Item = (Addr, u32)> {
        self.places.iter().filter_map(|place| match place.tenure {
            Tenure::Stranger { users } if users > 0 => Some((place.name, users)),
            _ => None,
        })
    }

    /// Queues `name` behind all others if it may be forgotten.
    fn queue(&mut self, name: Addr) {
        if let Some(place) = self.holder(name)
            && place.tenure == (Tenure::Stranger { users: 0 })
            && !std::mem::replace(&mut place.queued, true)
        {
            self.newcomers.push_back(name);
        }
    }

    /// Whether so many peers that nobody keeps are in the book that those who come should show soon that they are there.
    pub(super) fn is_crowded(&self) -> bool {
        self.strangers > self.capacity.saturating_sub(self.kept) / 2
    }

    /// The peer that is to be forgotten so that there is room for another, if any may. Of those that have never shown that
    /// they are there it is the one that came first; only if there seems to be none, it is another that has no PDC and no
    /// connection.
    pub(super) fn take_least_needed(&mut self, standing: impl Fn(Addr) -> Standing) -> Option<Addr> {
        while let Some(name) = self.newcomers.pop_front() {
            if self.is_dispensable(name) && self.wait(name, standing(name)) {
                return Some(name);
            }
        }
        for _ in 0..EXAMINED.min(self.undecided.len()) {
            let name = self.undecided.pop_front()?;
            if self.is_dispensable(name) && self.wait(name, standing(name)) {
                return Some(name);
            }
        }
        for _ in 0..EXAMINED.min(self.acquaintances.len()) {
            let name = self.acquaintances.pop_front()?;
            if !self.is_dispensable(name) {
                continue;
            }
            match standing(name) {
                Standing::Unproven | Standing::Proven => return Some(name),
                Standing::Unasked | Standing::InUse => self.acquaintances.push_back(name),
            }
        }
        None
    }

    /// Puts `name`, which has been taken from a queue, where those of its standing wait. True if it need not wait.
    fn wait(&mut self, name: Addr, standing: Standing) -> bool {
        match standing {
            Standing::Unproven => return true,
            Standing::Unasked => self.undecided.push_back(name),
            Standing::Proven | Standing::InUse => self.acquaintances.push_back(name),
        }
        false
    }

    /// Whether `name`, which has been taken from a queue, may be forgotten. If not, it is in no queue any more.
    fn is_dispensable(&mut self, name: Addr) -> bool {
        let Some(place) = self.holder(name) else { return false };
        let dispensable = place.tenure == Tenure::Stranger { users: 0 };
        place.queued = dispensable;
        dispensable
    }

    /// The peer `name` has its place no more. Its name will not be another's.
    pub(super) fn free_up(&mut self, name: Addr) {
        let slot = self.slot(name);
        if self.holder(name).is_some() {
            self.count(slot, -1);
            let next = Addr(name.0.wrapping_add(self.mask).wrapping_add(1));
            self.places[slot] = Place { name: next, tenure: Tenure::Free, queued: false };
            self.freed.push_back(slot);
        }
    }
}
