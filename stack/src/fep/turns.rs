//! Who is next: connections that wait for the link or for a window take turns, by the process that they belong to first.
//!
//! Each process with something to send has an equal part, however many connections it has, and so has each connection of a
//! process. As long as all connections are of one process, as in most endpoints, they wait in one queue.

use std::collections::VecDeque;

use super::Map;
use crate::heap;
use crate::table::Key;

/// The number of a process of this endpoint.
type Process = u16;

/// Connections that wait, in the order of their turns. Each is in there once at most.
#[derive(Debug)]
pub(super) enum Turns {
    /// All are of one process.
    Of(VecDeque<Key>),
    /// The same, where some have left.
    Sparse(Box<Line>),
    /// They may be of several.
    Among(Box<Processes>),
}

// It takes no more memory than a queue, which endpoints and contexts have room for.
const _: () = assert!(size_of::<Turns>() == size_of::<VecDeque<Key>>());

/// A queue that connections can leave from any place. A connection that has left keeps its place in memory until it
/// would be the first, or until more have left than wait. If it comes again before that, it has its old place.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// The first one has not left.
    keys: VecDeque<Key>,
    /// Those of `keys` that have left.
    gone: Map<Key, ()>,
}

/// Queues of processes.
#[derive(Debug, Default)]
pub(super) struct Processes {
    /// Places in `queues` of the processes, in the order of their turns. All that have connections waiting are among them.
    /// Others leave when their turn comes.
    order: VecDeque<u32>,
    queues: Vec<Queue>,
    /// Places in `queues` that no process has.
    free: Vec<u32>,
    /// Each process's place in `queues`.
    places: Map<Process, u32>,
    /// Number of connections that wait.
    len: usize,
}

/// The connections of one process that wait. They do so in two queues, which take turns, so that a connection in one of
/// them cannot keep those in the other waiting, however many come.
#[derive(Debug, Default)]
struct Queue {
    keys: Line,
    /// Connections for which connections of other processes may wait. This queue is kept short, so that they do not
    /// wait long.
    soon: VecDeque<Key>,
    /// Whether the next turn is one of `soon`.
    is_soons_turn: bool,
    process: Process,
    /// Whether the process is in the order.
    is_listed: bool,
}

/// A queue that is empty keeps room for as many connections.
const SPARE: usize = 16;

impl Default for Turns {
    fn default() -> Turns {
        Turns::Of(VecDeque::new())
    }
}

impl Turns {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Turns::Of(queue) => queue.is_empty(),
            Turns::Sparse(line) => line.keys.is_empty(),
            Turns::Among(processes) => processes.len == 0,
        }
    }

    /// How many processes may have connections that wait: no fewer than have.
    pub(super) fn processes(&self) -> usize {
        match self {
            Turns::Of(queue) => usize::from(!queue.is_empty()),
            Turns::Sparse(line) => usize::from(!line.keys.is_empty()),
            Turns::Among(processes) => processes.order.len(),
        }
    }

    /// From now on connections may be of several processes. Until now they were all of `process`.
    pub(super) fn divide(&mut self, process: Process) {
        if !self.is_divided() {
            let mut processes = Box::<Processes>::default();
            self.iter().for_each(|key| processes.push_back(key, process));
            *self = Turns::Among(processes);
        }
    }

    /// From now on all connections are of one process again. None waits now.
    pub(super) fn unite(&mut self) {
        if self.is_divided() {
            *self = Turns::default();
        }
    }

    /// The connection whose turn it is.
    #[inline]
    pub(super) fn front(&mut self) -> Option<Key> {
        match self {
            Turns::Of(queue) => queue.front().copied(),
            Turns::Sparse(line) => line.keys.front().copied(),
            Turns::Among(processes) => processes.front(),
        }
    }

    /// Takes the connection whose turn it is. Its process keeps its turn until [`Turns::pass`]: a connection that could not
    /// use the turn leaves it to the next one of its process.
    #[inline]
    pub(super) fn pop_front(&mut self) -> Option<Key> {
        match self {
            Turns::Of(queue) => queue.pop_front(),
            Turns::Sparse(_) => self.pop_sparse(),
            Turns::Among(processes) => processes.pop_front(),
        }
    }

    /// `process` has used its turn with a connection that was taken.
    #[inline]
    pub(super) fn pass(&mut self, process: Process) {
        if let Turns::Among(processes) = self {
            processes.pass(process);
        }
    }

    /// The connection whose turn it is, of `process`, has used the turn, and waits for the next one if it `stays`.
    #[inline]
    pub(super) fn end_turn(&mut self, process: Process, stays: bool) {
        match self {
            Turns::Of(queue) if stays => {
                if queue.len() > 1 {
                    rotate(queue);
                }
            }
            Turns::Of(queue) => {
                queue.pop_front();
            }
            Turns::Sparse(_) => {
                if let Some(key) = self.pop_sparse()
                    && stays
                {
                    self.push_back(key, process);
                }
            }
            Turns::Among(processes) => processes.end_turn(process, stays),
        }
    }

    /// Connection `key` of `process` waits for its turn behind the others of its process.
    #[inline]
    pub(super) fn push_back(&mut self, key: Key, process: Process) {
        match self {
            Turns::Of(queue) => queue.push_back(key),
            Turns::Sparse(line) => line.push_back(key),
            Turns::Among(processes) => processes.push_back(key, process),
        }
    }

    /// Connection `key` of `process` waits for its turn before the others of its process. If none of them waits, the
    /// process is next.
    #[inline]
    pub(super) fn push_front(&mut self, key: Key, process: Process) {
        match self {
            Turns::Of(queue) => queue.push_front(key),
            Turns::Sparse(line) => line.push_front(key),
            Turns::Among(processes) => processes.push_front(key, process),
        }
    }

    /// Whether connections may be of several processes.
    #[inline]
    pub(super) fn is_divided(&self) -> bool {
        matches!(self, Turns::Among(_))
    }

    /// Number of connections that wait.
    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Turns::Of(queue) => queue.len(),
            Turns::Sparse(line) => line.len(),
            Turns::Among(processes) => processes.len,
        }
    }

    /// Connection `key` of `process`, for which connections of other processes may wait, waits for its turn. It has every
    /// second turn of its process, together with others that came in this way. If there is only one process, it is before
    /// all others.
    #[inline]
    pub(super) fn push_next(&mut self, key: Key, process: Process) {
        match self {
            Turns::Of(queue) => queue.push_front(key),
            Turns::Sparse(line) => line.push_front(key),
            Turns::Among(processes) => processes.push_soon(key, process),
        }
    }

    /// As [`Turns::push_next`], but if there is only one process, the connection is behind all others.
    #[inline]
    pub(super) fn push_soon(&mut self, key: Key, process: Process) {
        match self {
            Turns::Of(queue) => queue.push_back(key),
            Turns::Sparse(line) => line.push_back(key),
            Turns::Among(processes) => processes.push_soon(key, process),
        }
    }

    /// Connection `key` of `process`, which waits, and not [soon](Turns::push_soon), waits no longer. If it waits again before many
    /// others have had their turns, it may have its old place.
    pub(super) fn remove(&mut self, key: Key, process: Process) {
        match self {
            Turns::Of(queue) if queue.front() == Some(&key) => _ = queue.pop_front(),
            Turns::Of(queue) => {
                let mut line = Line { keys: std::mem::take(queue), gone: Map::default() };
                line.remove(key);
                *self = Turns::Sparse(Box::new(line));
            }
            Turns::Sparse(line) => {
                line.remove(key);
                self.unite_sparse();
            }
            Turns::Among(processes) => processes.remove(key, process),
        }
    }

    #[cold]
    fn pop_sparse(&mut self) -> Option<Key> {
        let Turns::Sparse(line) = self else { return None };
        let key = line.pop_front();
        self.unite_sparse();
        key
    }

    /// If no connection that has left keeps a place, a plain queue is enough again.
    fn unite_sparse(&mut self) {
        if let Turns::Sparse(line) = self
            && line.gone.is_empty()
        {
            *self = Turns::Of(std::mem::take(&mut line.keys));
        }
    }

    /// All that wait, process by process.
    pub(super) fn iter(&self) -> impl Iterator<Item = Key> {
        let (one, sparse, several) = match self {
            Turns::Of(queue) => (Some(queue), None, None),
            Turns::Sparse(line) => (None, Some(line), None),
            Turns::Among(processes) => (None, None, Some(processes.queues.iter().flat_map(Queue::iter))),
        };
        let one = one.into_iter().flatten().copied();
        one.chain(sparse.into_iter().flat_map(|line| line.iter())).chain(several.into_iter().flatten())
    }

    /// Bytes of heap held.
    pub(super) fn heap_bytes(&self) -> u64 {
        match self {
            Turns::Of(queue) => heap::of_deque(queue),
            Turns::Sparse(line) => size_of::<Line>() as u64 + line.heap_bytes(),
            Turns::Among(processes) => processes.bytes(),
        }
    }
}

/// Moves the head of the queue to its end.
#[inline(never)]
fn rotate(queue: &mut VecDeque<Key>) {
    if let Some(key) = queue.pop_front() {
        queue.push_back(key);
    }
}

impl Line {
    /// Number of those that wait.
    fn len(&self) -> usize {
        self.keys.len() - self.gone.len()
    }

    fn iter(&self) -> impl Iterator<Item = Key> {
        self.keys.iter().filter(|key| !self.gone.contains_key(key)).copied()
    }

    fn pop_front(&mut self) -> Option<Key> {
        let key = self.keys.pop_front();
        self.trim();
        key
    }

    fn push_back(&mut self, key: Key) {
        if self.gone.is_empty() || self.gone.remove(&key).is_none() {
            self.keys.push_back(key);
        }
    }

    fn push_front(&mut self, key: Key) {
        if !self.gone.is_empty() && self.gone.contains_key(&key) {
            self.clear_up();
        }
        self.keys.push_front(key);
    }

    /// `key`, which is in the queue, leaves it. On average this looks at no more than one connection that has left
    /// before.
    fn remove(&mut self, key: Key) {
        debug_assert!(self.iter().any(|other| other == key), "it waits");
        if self.keys.front() == Some(&key) {
            self.pop_front();
            return;
        }
        self.gone.insert(key, ());
        if self.gone.len() > SPARE + self.len() {
            self.clear_up();
        }
    }

    /// Those that have left give up their places at the front.
    fn trim(&mut self) {
        while !self.gone.is_empty()
            && let Some(first) = self.keys.front()
            && self.gone.remove(first).is_some()
        {
            #[cfg(test)]
            crate::steps::count(1);
            self.keys.pop_front();
        }
    }

    /// Those that have left give up their places.
    #[cold]
    fn clear_up(&mut self) {
        #[cfg(test)]
        crate::steps::count(self.keys.len());
        let gone = std::mem::take(&mut self.gone);
        self.keys.retain(|key| !gone.contains_key(key));
    }

    fn heap_bytes(&self) -> u64 {
        heap::of_deque(&self.keys) + heap::of_map(&self.gone)
    }
}

impl Queue {
    /// The connection whose turn it is.
    fn front(&self) -> Option<Key> {
        match self.takes_soon() {
            true => self.soon.front().copied(),
            false => self.keys.keys.front().copied(),
        }
    }

    /// Takes the connection whose turn it is.
    fn pop_front(&mut self) -> Option<Key> {
        let takes_soon = self.takes_soon();
        let key = if takes_soon { self.soon.pop_front() } else { self.keys.pop_front() };
        let queue = if takes_soon { &mut self.soon } else { &mut self.keys.keys };
        // A queue that has grown gives its memory back when it is empty. Growing again costs no more than the
        // connections that need it.
        if queue.is_empty() && queue.capacity() > SPARE {
            *queue = VecDeque::new();
            if self.keys.gone.is_empty() {
                self.keys.gone = Map::default();
            }
        }
        key
    }

    /// Whether the next connection is one of `soon`.
    fn takes_soon(&self) -> bool {
        self.keys.keys.is_empty() || self.is_soons_turn && !self.soon.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.keys.keys.is_empty() && self.soon.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = Key> {
        self.keys.iter().chain(self.soon.iter().copied())
    }

    fn heap_bytes(&self) -> u64 {
        self.keys.heap_bytes() + heap::of_deque(&self.soon)
    }
}

// These functions are not inlined, so that the code for endpoints with one process is that of a queue.
impl Processes {
    /// The place of `process`.
    fn place(&mut self, process: Process) -> u32 {
        if let Some(&place) = self.places.get(&process) {
            return place;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.queues.push(Queue::default());
            self.queues.len() as u32 - 1
        });
        self.queues[place as usize].process = process;
        self.places.insert(process, place);
        place
    }

    /// The process at `place`, of which nothing waits, is no longer in the order.
    fn free(&mut self, place: u32) {
        let queue = &mut self.queues[place as usize];
        (queue.is_listed, queue.is_soons_turn) = (false, false);
        self.places.remove(&queue.process);
        self.free.push(place);
    }

    /// The place of the process whose turn it is.
    fn next(&mut self) -> Option<usize> {
        while let Some(&place) = self.order.front() {
            if !self.queues[place as usize].is_empty() {
                return Some(place as usize);
            }
            self.order.pop_front();
            self.free(place);
        }
        None
    }

    #[inline(never)]
    fn front(&mut self) -> Option<Key> {
        let place = self.next()?;
        self.queues[place].front()
    }

    #[inline(never)]
    fn pop_front(&mut self) -> Option<Key> {
        let place = self.next()?;
        self.len -= 1;
        self.queues[place].pop_front()
    }

    #[inline(never)]
    fn pass(&mut self, process: Process) {
        // The process goes to the end of the order even if no connection of it waits at the moment: processes that use
        // their turns after it must not overtake it.
        if let Some(&place) = self.order.front()
            && self.queues[place as usize].process == process
        {
            let queue = &mut self.queues[place as usize];
            queue.is_soons_turn = !queue.is_soons_turn && !queue.soon.is_empty();
            self.order.rotate_left(1);
        }
    }

    #[inline(never)]
    fn end_turn(&mut self, process: Process, stays: bool) {
        if let Some(key) = self.pop_front()
            && stays
        {
            self.push_back(key, process);
        }
        self.pass(process);
    }

    #[inline(never)]
    fn push_back(&mut self, key: Key, process: Process) {
        let place = self.place(process);
        self.queues[place as usize].keys.push_back(key);
        self.list(place);
    }

    #[inline(never)]
    fn push_soon(&mut self, key: Key, process: Process) {
        let place = self.place(process);
        self.queues[place as usize].soon.push_back(key);
        self.list(place);
    }

    /// The process at `place` has one connection more that waits: it is in the order, or goes to its end.
    fn list(&mut self, place: u32) {
        self.len += 1;
        if !std::mem::replace(&mut self.queues[place as usize].is_listed, true) {
            self.order.push_back(place);
        }
    }

    #[inline(never)]
    fn push_front(&mut self, key: Key, process: Process) {
        let place = self.place(process);
        let queue = &mut self.queues[place as usize];
        match queue.is_soons_turn {
            true => queue.soon.push_front(key),
            false => queue.keys.push_front(key),
        }
        self.len += 1;
        if !std::mem::replace(&mut queue.is_listed, true) {
            self.order.push_front(place);
        }
    }

    #[inline(never)]
    fn remove(&mut self, key: Key, process: Process) {
        let Some(&place) = self.places.get(&process) else { return };
        self.queues[place as usize].keys.remove(key);
        self.len -= 1;
        // A process without a waiting connection leaves the order at once: if no connection of the others can leave,
        // its turn would not come for any length of time, and its place stay taken.
        if self.queues[place as usize].is_empty() {
            self.queues[place as usize] = Queue { process, ..Queue::default() };
            self.order.retain(|other| *other != place);
            self.free(place);
        }
        if self.len == 0 {
            *self = Processes::default();
        }
    }

    fn bytes(&self) -> u64 {
        let keys: u64 = self.queues.iter().map(Queue::heap_bytes).sum();
        size_of::<Processes>() as u64
            + heap::of_deque(&self.order)
            + heap::of_vec(&self.queues)
            + heap::of_vec(&self.free)
            + heap::of_map(&self.places)
            + keys
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::steps;

    fn key(index: u32) -> Key {
        Key { index, generation: 0 }
    }

    /// Connections 0 to 2 of process 1, and 10 and 11 of process 2.
    fn two_processes() -> Turns {
        let mut turns = Turns::default();
        (0..3).for_each(|index| turns.push_back(key(index), 1));
        turns.divide(1);
        (10..12).for_each(|index| turns.push_back(key(index), 2));
        turns
    }

    /// The connections that have the next turns, each of which stays.
    fn next(turns: &mut Turns, count: usize) -> Vec<u32> {
        let turn = |_| {
            let front = turns.front().unwrap();
            turns.end_turn(if front.index < 10 { 1 } else { 2 }, true);
            front.index
        };
        (0..count).map(turn).collect()
    }

    #[test]
    fn processes_take_turns_and_so_do_the_connections_of_each() {
        assert_eq!(next(&mut two_processes(), 7), [0, 10, 1, 11, 2, 10, 0]);
    }

    #[test]
    fn a_turn_that_a_connection_cannot_use_is_its_process_s() {
        let mut turns = two_processes();
        assert_eq!(turns.pop_front(), Some(key(0)));
        assert_eq!(next(&mut turns, 4), [1, 10, 2, 11]);
        turns.push_front(key(0), 1);
        assert_eq!(next(&mut turns, 3), [0, 10, 1]);
        // One that was taken and has used it.
        assert_eq!(turns.pop_front(), Some(key(11)));
        turns.pass(2);
        turns.push_back(key(11), 2);
        assert_eq!(next(&mut turns, 4), [2, 10, 0, 11]);
    }

    #[test]
    fn a_process_whose_only_connection_has_used_its_turn_comes_back_before_those_that_used_theirs_later() {
        let mut turns = two_processes();
        turns.push_back(key(20), 3);
        for (index, process) in [(0, 1), (10, 2), (20, 3), (1, 1)] {
            assert_eq!(turns.pop_front(), Some(key(index)));
            turns.pass(process);
        }
        turns.push_back(key(20), 3);
        let turn = || {
            let key = turns.pop_front()?;
            turns.pass(key.index as u16 / 10 + 1);
            Some(key.index)
        };
        assert_eq!(std::iter::from_fn(turn).collect::<Vec<_>>(), [11, 20, 2]);
    }

    #[test]
    fn connections_that_leave_take_no_turns() {
        let mut turns = two_processes();
        turns.remove(key(1), 1);
        turns.remove(key(10), 2);
        assert_eq!(turns.iter().map(|key| key.index).collect::<Vec<_>>(), [0, 2, 11]);
        turns.remove(key(11), 2);
        assert_eq!(next(&mut turns, 3), [0, 2, 0]);
        turns.end_turn(1, false);
        turns.end_turn(1, false);
        assert!(turns.is_empty() && turns.front().is_none() && turns.pop_front().is_none());
        turns.push_back(key(10), 2);
        assert_eq!(next(&mut turns, 2), [10, 10]);
    }

    /// A cancel lets its connection leave the queue at the gate.
    #[test]
    fn what_it_takes_to_leave_does_not_depend_on_how_many_wait() {
        for (count, divided) in [(512, false), (512, true), (20_000, false), (20_000, true)] {
            let mut turns = Turns::default();
            turns.push_back(key(count), 1);
            if divided {
                turns.divide(1);
                turns.push_back(key(count + 1), 2);
            }
            (0..count).for_each(|index| turns.push_back(key(index), 1));
            let before = turns.len();
            let steps = steps::of(|| {
                for round in 0..3 {
                    (0..count).rev().for_each(|index| turns.remove(key(index), 1));
                    assert_eq!(
                        (turns.len(), turns.front()),
                        (before - count as usize, Some(key(count))),
                        "{round}"
                    );
                    (0..count).for_each(|index| turns.push_back(key(index), 1));
                }
            });
            assert!(steps <= 3 * 3 * u64::from(count) + 100, "{steps} steps for {count}");
            assert_eq!(turns.len(), before);
            let mut all: Vec<_> = turns.iter().map(|key| key.index).collect();
            all.sort_unstable();
            assert_eq!(all, (0..before as u32).collect::<Vec<_>>(), "each waits once");
        }
    }

    proptest! {
        /// Whoever leaves and comes again: each that waits gets one turn, and no other one does.
        #[test]
        fn connections_leave_and_come_again_in_any_order(
            divided: bool,
            steps in prop::collection::vec((0u32..12, 0u8..4), 0..200),
        ) {
            let mut turns = Turns::default();
            if divided {
                turns.divide(1);
            }
            let mut waiting = std::collections::BTreeSet::new();
            for (index, step) in steps {
                match step {
                    0 if waiting.insert(index) => turns.push_back(key(index), 1),
                    1 if waiting.insert(index) => turns.push_front(key(index), 1),
                    2 => {
                        let taken = turns.pop_front();
                        turns.pass(1);
                        prop_assert_eq!(taken.is_some(), !waiting.is_empty());
                        prop_assert!(taken.is_none_or(|key| waiting.remove(&key.index)));
                    }
                    3 if waiting.remove(&index) => turns.remove(key(index), 1),
                    _ => {}
                }
                prop_assert_eq!((turns.len(), turns.is_empty()), (waiting.len(), waiting.is_empty()));
                let mut all: Vec<_> = turns.iter().map(|key| key.index).collect();
                all.sort_unstable();
                prop_assert_eq!(all, waiting.iter().copied().collect::<Vec<_>>());
                prop_assert!(turns.front().is_none_or(|key| waiting.contains(&key.index)));
            }
        }
    }

    #[test]
    fn a_connection_for_which_others_wait_has_its_turn_soon() {
        let mut turns = two_processes();
        turns.push_soon(key(3), 1);
        turns.push_soon(key(12), 2);
        assert_eq!(next(&mut turns, 6), [0, 10, 3, 12, 1, 11]);
        let mut turns = Turns::default();
        (0..3).for_each(|index| turns.push_soon(key(index), 1));
        assert_eq!(next(&mut turns, 3), [0, 1, 2]);
    }

    /// Each context has one connection that tries its gate. When that has sent, the next one is of the same process.
    #[test]
    fn connections_for_which_others_wait_do_not_keep_one_waiting_for_which_others_wait_too() {
        let mut turns = two_processes();
        (3..6).for_each(|index| turns.push_soon(key(index), 1));
        let mut sent = Vec::new();
        for _ in 0..24 {
            let front = turns.front().unwrap();
            let process = if matches!(front.index, 10 | 11) { 2 } else { 1 };
            turns.end_turn(process, front.index < 3 || process == 2);
            // Connections 4 and 5 have successors.
            if front.index > 3 && process == 1 {
                turns.push_soon(key(front.index + 10), 1);
            }
            sent.push(front.index);
        }
        let of_one: Vec<_> = sent.iter().filter(|index| !matches!(index, 10 | 11)).copied().collect();
        assert_eq!(of_one, [0, 3, 1, 4, 2, 5, 0, 14, 1, 15, 2, 24]);
    }

    #[test]
    fn a_connection_that_may_leave_before_all_others_is_next() {
        for turns_used in 0..4 {
            let mut turns = two_processes();
            turns.push_soon(key(3), 1);
            turns.push_soon(key(4), 1);
            next(&mut turns, 2 * turns_used);
            let front = turns.pop_front().unwrap();
            turns.push_front(front, 1);
            assert_eq!(turns.front(), Some(front), "after {turns_used} turns");
        }
    }

    #[test]
    fn memory_of_processes_of_which_nothing_waits_is_given_back() {
        let mut turns = two_processes();
        next(&mut turns, 10);
        let before = turns.heap_bytes();
        for process in 3..103 {
            (100..400).for_each(|index| turns.push_back(key(index), process));
            (100..400).for_each(|index| turns.remove(key(index), process));
            (100..400).for_each(|index| turns.push_back(key(index), process));
            let mut left = 300;
            while left > 0 {
                let front = turns.front().unwrap();
                let own = match front.index {
                    ..10 => 1,
                    10..100 => 2,
                    _ => process,
                };
                turns.end_turn(own, own != process);
                left -= u32::from(own == process);
            }
        }
        assert!(turns.heap_bytes() <= before + 1_024, "{before} and {}", turns.heap_bytes());
        (0..3).for_each(|index| turns.remove(key(index), 1));
        (10..12).for_each(|index| turns.remove(key(index), 2));
        assert!(turns.is_empty() && turns.heap_bytes() == size_of::<Processes>() as u64);
    }
}
