//! A completion queue: entries of endpoints, in the order in which their operations ended.

use std::collections::VecDeque;
use std::sync::Mutex;

use crate::endpoints::Endpoints;
use crate::error::{FiError, lock};
use crate::sys::fi_addr_t;
use crate::wake::Deadline;

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The application's pointer.
    pub(crate) context: usize,
    /// What the operation was.
    pub(crate) flags: u64,
    /// Bytes of the message that were received; 0 for a message that was sent.
    pub(crate) len: usize,
    /// Where they were received.
    pub(crate) buf: usize,
    /// The sender's 32 bits, if the flags say that there are any.
    pub(crate) data: u64,
    pub(crate) tag: u64,
    /// The sender, for those who ask for it.
    pub(crate) source: fi_addr_t,
    pub(crate) problem: Option<Problem>,
}

/// How an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) error: FiError,
    /// Bytes of the message for which there was no room.
    pub(crate) beyond: usize,
}

#[derive(Debug)]
pub(crate) struct Queue {
    size: usize,
    endpoints: Endpoints,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: VecDeque<Entry>,
    /// Somebody sleeps, or is about to, and wants to be woken by the next entry.
    awaited: bool,
    /// The application has asked for those who sleep to be woken.
    signalled: bool,
    /// How often all who sleep were woken.
    wakes: u64,
}

impl State {
    /// The first entry, if it has failed or not, as wanted.
    fn take(&mut self, failed: bool) -> Option<Entry> {
        let fits = self.entries.front()?.problem.is_some() == failed;
        if fits { self.entries.pop_front() } else { None }
    }
}

impl Queue {
    /// A queue for `size` entries; `waits` says whether anybody may sleep until there is one.
    pub(crate) fn new(size: usize, waits: bool) -> Result<Queue, FiError> {
        Ok(Queue { size, endpoints: Endpoints::new(waits)?, state: Mutex::default() })
    }

    /// The endpoints whose operations end here.
    pub(crate) fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Whether an operation may begin: its end would find room here.
    pub(crate) fn has_room(&self) -> Result<bool, FiError> {
        Ok(lock(&self.state)?.entries.len() < self.size)
    }

    /// How many entries it is for.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// How many more entries it has room for.
    pub(crate) fn room(&self) -> Result<usize, FiError> {
        Ok(self.size.saturating_sub(lock(&self.state)?.entries.len()))
    }

    pub(crate) fn push(&self, entry: Entry) -> Result<(), FiError> {
        let mut state = lock(&self.state)?;
        state.entries.push_back(entry);
        if std::mem::take(&mut state.awaited)
            && let Ok(wake) = self.endpoints.wake()
        {
            wake.wake();
        }
        Ok(())
    }

    /// Whether there are so many entries that messages may wait with their senders for room. Must be asked under the lock under which
    /// entries are taken: one that comes in between may fill the queue.
    fn is_full(&self, state: &State) -> bool {
        state.entries.len() >= self.size
    }

    /// Lets the endpoints take what has waited for room, which there is again.
    fn go_on(&self) {
        // One that cannot work says so to those who find no entries.
        let _ = self.endpoints.progress();
    }

    /// Hands at most `count` entries to `write`, with their places, up to the first that has failed. Returns how many.
    ///
    /// # Errors
    /// There is none, or the first one has failed.
    pub(crate) fn read(&self, count: usize, mut write: impl FnMut(usize, &Entry)) -> Result<usize, FiError> {
        // fi_cq(3): a call that reads none is one that lets the endpoints work.
        let is_short = count == 0 || lock(&self.state)?.entries.len() < count;
        let worked = if is_short { self.endpoints.progress() } else { Ok(()) };
        let mut state = lock(&self.state)?;
        let was_full = self.is_full(&state);
        match state.entries.front() {
            // An endpoint that can work no longer has ended its operations before: their entries come first.
            None => return Err(worked.err().unwrap_or(FiError::AGAIN)),
            Some(entry) if entry.problem.is_some() => return Err(FiError::ERROR_ENTRY),
            Some(_) => {}
        }
        let mut read = 0;
        while read < count
            && let Some(entry) = state.take(false)
        {
            write(read, &entry);
            read += 1;
        }
        drop(state);
        if was_full && read > 0 {
            self.go_on();
        }
        Ok(read)
    }

    /// Lets the endpoints work, and tells whether there are entries.
    ///
    /// # Errors
    /// There are none, and an endpoint cannot work.
    pub(crate) fn has_entries(&self) -> Result<bool, FiError> {
        let worked = self.endpoints.progress();
        let has_some = !lock(&self.state)?.entries.is_empty();
        if has_some { Ok(true) } else { worked.map(|()| false) }
    }

    /// The first entry, if it has failed.
    pub(crate) fn read_problem(&self) -> Result<Option<(Entry, Problem)>, FiError> {
        let mut state = lock(&self.state)?;
        let (was_full, entry) = (self.is_full(&state), state.take(true));
        drop(state);
        if was_full && entry.is_some() {
            self.go_on();
        }
        Ok(entry.and_then(|entry| entry.problem.map(|problem| (entry, problem))))
    }

    /// As [`Queue::read`], but sleeps until there is an entry.
    ///
    /// # Errors
    /// There is none for so long, or until somebody has called [`Queue::wake_all`] or the thread was signalled; or the first one has
    /// failed.
    pub(crate) fn read_within(
        &self,
        deadline: Deadline,
        count: usize,
        mut write: impl FnMut(usize, &Entry),
    ) -> Result<usize, FiError> {
        let wakes = lock(&self.state)?.wakes;
        let mut is_interrupted = false;
        loop {
            match self.read(count, &mut write) {
                Err(FiError::AGAIN) if !is_interrupted => {}
                done => return done,
            }
            let left = deadline.left()?;
            let attended = self.endpoints.attend()?;
            if self.arm(Some(wakes))? {
                is_interrupted = !self.endpoints.wake()?.sleep(left);
            }
            drop(attended);
            let mut state = lock(&self.state)?;
            if std::mem::take(&mut state.signalled) || state.wakes != wakes {
                return Err(FiError::AGAIN);
            }
        }
    }

    /// Prepares for a sleep on the descriptor. Returns whether the caller may sleep: not if there are entries, and not the
    /// first time after [`Queue::signal`].
    pub(crate) fn try_wait(&self) -> Result<bool, FiError> {
        let may_sleep = self.arm(None)?;
        if !may_sleep {
            lock(&self.state)?.signalled = false;
        }
        Ok(may_sleep)
    }

    /// From here on, until somebody rests the descriptor again, the first entry that is pushed makes it readable. Entries that
    /// were pushed before are seen here: both hold the lock. Several may sleep at once, since each of them arms and looks
    /// for itself: one that rests the descriptor has found no entry that another one would have to be woken for.
    ///
    /// # Errors
    /// Nobody may sleep, or there are no entries and an endpoint cannot work.
    fn arm(&self, wakes: Option<u64>) -> Result<bool, FiError> {
        let wake = self.endpoints.wake()?;
        let armed = self.endpoints.arm();
        let mut state = lock(&self.state)?;
        let was_woken = state.signalled || wakes.is_some_and(|wakes| wakes != state.wakes);
        if !state.entries.is_empty() || was_woken || !armed? {
            return Ok(false);
        }
        wake.rest();
        state.awaited = true;
        Ok(true)
    }

    /// Ends the sleeps of all threads in [`Queue::read_within`], and of one that begins later: which of them has something to do is not known.
    pub(crate) fn wake_all(&self) -> Result<(), FiError> {
        let mut state = lock(&self.state)?;
        state.wakes = state.wakes.wrapping_add(1);
        drop(state);
        self.signal()
    }

    /// Ends the sleep of one thread, now or when it begins.
    pub(crate) fn signal(&self) -> Result<(), FiError> {
        let wake = self.endpoints.wake()?;
        lock(&self.state)?.signalled = true;
        wake.wake();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::rdm::Rdm;

    fn entry(context: usize, problem: Option<Problem>) -> Entry {
        Entry { context, flags: 0, len: 0, buf: 0, data: 0, tag: 0, source: 0, problem }
    }

    fn read(queue: &Queue, count: usize) -> Result<Vec<usize>, FiError> {
        let mut all = Vec::new();
        queue.read(count, |_, entry| all.push(entry.context)).map(|_| all)
    }

    /// A thread that has been woken takes what is left for one that sleeps later.
    #[test]
    fn all_threads_that_sleep_are_woken() {
        let queue = Queue::new(4, true).unwrap();
        let minute = || Deadline::after(60_000);
        let wakes = lock(&queue.state).unwrap().wakes;
        queue.wake_all().unwrap();
        assert_eq!(queue.read_within(minute(), 1, |_, _| {}), Err(FiError::AGAIN));
        assert!(!lock(&queue.state).unwrap().signalled);
        // One that began to sleep before is not held up by that; one that begins now sleeps.
        assert_eq!([queue.arm(Some(wakes)), queue.arm(Some(wakes + 1))], [Ok(false), Ok(true)]);
    }

    #[test]
    fn entries_are_read_in_order_and_failures_apart() {
        let queue = Queue::new(4, false).unwrap();
        let failed = Some(Problem { error: FiError::CANCELED, beyond: 0 });
        for (context, problem) in [(1, None), (2, None), (3, failed), (4, None)] {
            assert!(queue.has_room().unwrap());
            queue.push(entry(context, problem)).unwrap();
        }
        assert!(!queue.has_room().unwrap());
        assert_eq!(queue.read_problem(), Ok(None));
        assert_eq!(read(&queue, 1), Ok(vec![1]));
        assert_eq!(read(&queue, 8), Ok(vec![2]));
        assert_eq!(read(&queue, 8), Err(FiError::ERROR_ENTRY));
        assert_eq!(queue.read_problem().unwrap().unwrap().0.context, 3);
        assert_eq!(read(&queue, 8), Ok(vec![4]));
        assert_eq!(read(&queue, 8), Err(FiError::AGAIN));
    }

    /// What has waited for room goes on as soon as there is some, even if the reader has found all that it asked for.
    #[test]
    fn endpoints_work_when_a_queue_was_read_that_was_full() {
        let queue = Queue::new(2, false).unwrap();
        let endpoint = Rdm::closed();
        queue.endpoints().attach(&endpoint).unwrap();
        let visits = || endpoint.attention().0;
        (1..4).for_each(|context| queue.push(entry(context, None)).unwrap());
        for (context, worked) in [(1, 1), (2, 2), (3, 2)] {
            assert_eq!((read(&queue, 1), visits()), (Ok(vec![context]), worked));
        }
        let failed = Some(Problem { error: FiError::CANCELED, beyond: 0 });
        (0..2).for_each(|_| queue.push(entry(4, failed)).unwrap());
        for worked in [3, 3] {
            assert_eq!((queue.read_problem().unwrap().is_some(), visits()), (true, worked));
        }
    }

    #[test]
    fn a_call_that_reads_nothing_lets_endpoints_work_whatever_waits_to_be_read() {
        let queue = Queue::new(4, false).unwrap();
        let endpoint = Rdm::closed();
        queue.endpoints().attach(&endpoint).unwrap();
        queue.push(entry(1, None)).unwrap();
        for worked in 1..4 {
            assert_eq!((read(&queue, 0), endpoint.attention().0), (Ok(vec![]), worked));
        }
    }

    #[test]
    fn sleepers_are_woken_by_entries_and_signals_and_at_their_deadline() {
        let queue = Queue::new(4, true).unwrap();
        let begin = Instant::now();
        let none = |ms| queue.read_within(Deadline::after(ms), 1, |_, _| ());
        assert_eq!(none(20), Err(FiError::AGAIN));
        assert!(begin.elapsed() >= Duration::from_millis(20));
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| none(60_000));
            std::thread::sleep(Duration::from_millis(20));
            queue.push(entry(1, None)).unwrap();
            assert_eq!(sleeper.join().unwrap(), Ok(1));
            let sleeper = scope.spawn(|| none(60_000));
            std::thread::sleep(Duration::from_millis(20));
            queue.signal().unwrap();
            assert_eq!(sleeper.join().unwrap(), Err(FiError::AGAIN));
        });
        assert!(begin.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn no_entry_is_overlooked_by_those_who_sleep() {
        // A lone sleeper has nobody who makes up for an entry that it overlooks; several get into each other's way.
        for (readers, waiters) in [(1, 0), (0, 1), (2, 2)] {
            sleep_and_read(readers, waiters);
        }
    }

    /// Threads read entries one by one, and sleep in between, in the queue or on its descriptor. Each round ends when all of
    /// its entries have been read, so that nothing but those wakes anybody. Sleeps that nobody ends fail after a minute.
    fn sleep_and_read(readers: usize, waiters: usize) {
        const ROUNDS: usize = 1_000;
        let queue = Queue::new(4, true).unwrap();
        let taken = AtomicUsize::new(0);
        let minute = Duration::from_secs(60);
        let take = |_: usize, _: &Entry| {
            taken.fetch_add(1, Ordering::Relaxed);
        };
        let reads = || loop {
            match queue.read_within(Deadline::after(60_000), 1, take) {
                Ok(1) => {}
                Err(FiError::ERROR_ENTRY) => return,
                other => panic!("nobody has woken it: {other:?}"),
            }
        };
        let waits = || loop {
            match queue.read(1, take) {
                Ok(_) => {}
                Err(FiError::ERROR_ENTRY) => return,
                Err(_) if queue.try_wait().unwrap() => {
                    let begin = Instant::now();
                    queue.endpoints().wake().unwrap().sleep(Some(minute));
                    assert!(begin.elapsed() < minute, "nobody has woken it");
                }
                Err(_) => {}
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..readers {
                scope.spawn(reads);
            }
            for _ in 0..waiters {
                scope.spawn(waits);
            }
            let (begin, mut pushed) = (Instant::now(), 0);
            for round in 0..ROUNDS {
                for _ in 0..=round % 3 {
                    queue.push(entry(1, None)).unwrap();
                    pushed += 1;
                }
                let mut looks = 0;
                while taken.load(Ordering::Relaxed) < pushed && begin.elapsed() < minute {
                    looks += 1;
                    if looks > 1_000 {
                        std::thread::yield_now();
                    }
                }
            }
            // It stays in the queue, so that all see it.
            let failed = Some(Problem { error: FiError::CANCELED, beyond: 0 });
            queue.push(entry(2, failed)).unwrap();
            assert_eq!(taken.load(Ordering::Relaxed), pushed, "nobody was woken");
        });
        assert_eq!(queue.read_problem().unwrap().map(|(entry, _)| entry.context), Some(2));
    }

    #[test]
    fn a_signal_forbids_one_sleep() {
        let queue = Queue::new(4, true).unwrap();
        queue.signal().unwrap();
        assert_eq!(queue.try_wait(), Ok(false));
        assert_eq!(read(&queue, 1), Err(FiError::AGAIN));
        assert_eq!(queue.try_wait(), Ok(true));
    }

    #[test]
    fn a_queue_without_a_descriptor_cannot_be_waited_for() {
        let queue = Queue::new(1, false).unwrap();
        assert_eq!(queue.try_wait(), Err(FiError::NOT_THERE));
        assert_eq!(queue.signal(), Err(FiError::NOT_THERE));
    }
}
