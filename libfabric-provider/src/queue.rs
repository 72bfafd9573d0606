//! A completion queue: entries of endpoints, in the order in which their operations ended.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::error::{FiError, lock};
use crate::rdm::{Attended, Rdm};
use crate::sys::fi_addr_t;
use crate::wake::{Deadline, Wake};

/// The longest sleep between two looks at the endpoints.
const SLEEP: Duration = Duration::from_millis(100);

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
    wake: Option<Wake>,
    state: Mutex<State>,
    /// The endpoints whose operations end here. Locked before an endpoint, never after it.
    endpoints: Mutex<Vec<Weak<Rdm>>>,
}

#[derive(Debug, Default)]
struct State {
    entries: VecDeque<Entry>,
    /// Somebody sleeps, or is about to, and wants to be woken by the next entry.
    awaited: bool,
    /// The application has asked for those who sleep to be woken.
    signalled: bool,
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
        let wake = if waits { Some(Wake::new()?) } else { None };
        Ok(Queue { size, wake, state: Mutex::default(), endpoints: Mutex::default() })
    }

    /// The descriptor to sleep on after [`Queue::try_wait`].
    pub(crate) fn wake(&self) -> Option<&Wake> {
        self.wake.as_ref()
    }

    /// Operations of `endpoint` end here from now on.
    pub(crate) fn attach(&self, endpoint: &Arc<Rdm>) -> Result<(), FiError> {
        let mut endpoints = lock(&self.endpoints)?;
        if endpoints.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(endpoint))) {
            return Ok(());
        }
        if let Some(wake) = &self.wake {
            endpoint.with_descriptor(|descriptor| wake.add(descriptor))?;
        }
        endpoints.push(Arc::downgrade(endpoint));
        Ok(())
    }

    pub(crate) fn detach(&self, endpoint: &Arc<Rdm>) -> Result<(), FiError> {
        let mut endpoints = lock(&self.endpoints)?;
        let before = endpoints.len();
        endpoints.retain(|known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(endpoint)));
        if let Some(wake) = self.wake.as_ref().filter(|_| before != endpoints.len()) {
            endpoint.with_descriptor(|descriptor| {
                wake.remove(descriptor);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Whether an operation may begin: its end would find room here.
    pub(crate) fn has_room(&self) -> Result<bool, FiError> {
        Ok(lock(&self.state)?.entries.len() < self.size)
    }

    pub(crate) fn push(&self, entry: Entry) -> Result<(), FiError> {
        let mut state = lock(&self.state)?;
        state.entries.push_back(entry);
        if std::mem::take(&mut state.awaited)
            && let Some(wake) = &self.wake
        {
            wake.wake();
        }
        Ok(())
    }

    /// Hands at most `count` entries to `write`, with their places, up to the first that has failed. Returns how many.
    ///
    /// # Errors
    /// There is none, or the first one has failed.
    pub(crate) fn read(&self, count: usize, mut write: impl FnMut(usize, &Entry)) -> Result<usize, FiError> {
        if lock(&self.state)?.entries.len() < count.max(1) {
            self.progress()?;
        }
        let mut state = lock(&self.state)?;
        match state.entries.front() {
            None => return Err(FiError::AGAIN),
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
        Ok(read)
    }

    /// The first entry, if it has failed.
    pub(crate) fn read_problem(&self) -> Result<Option<(Entry, Problem)>, FiError> {
        let mut state = lock(&self.state)?;
        let entry = state.take(true);
        Ok(entry.and_then(|entry| entry.problem.map(|problem| (entry, problem))))
    }

    /// As [`Queue::read`], but sleeps until there is an entry.
    ///
    /// # Errors
    /// There is none for so long, somebody has called [`Queue::signal`], or the first one has failed.
    pub(crate) fn read_within(
        &self,
        deadline: Deadline,
        count: usize,
        mut write: impl FnMut(usize, &Entry),
    ) -> Result<usize, FiError> {
        let wake = self.wake.as_ref().ok_or(FiError::NOT_THERE)?;
        loop {
            match self.read(count, &mut write) {
                Err(FiError::AGAIN) => {}
                done => return done,
            }
            let Some(left) = deadline.left(SLEEP) else { return Err(FiError::AGAIN) };
            if self.arm()? {
                let attended = self.attend()?;
                wake.sleep(left);
                drop(attended);
            }
            if std::mem::take(&mut lock(&self.state)?.signalled) {
                return Err(FiError::AGAIN);
            }
        }
    }

    /// Prepares for a sleep on the descriptor. Returns whether the caller may sleep: not if there are entries, and not the
    /// first time after [`Queue::signal`].
    pub(crate) fn try_wait(&self) -> Result<bool, FiError> {
        let may_sleep = self.arm()?;
        if !may_sleep {
            lock(&self.state)?.signalled = false;
        }
        Ok(may_sleep)
    }

    fn arm(&self) -> Result<bool, FiError> {
        let wake = self.wake.as_ref().ok_or(FiError::NOT_THERE)?;
        let mut may_sleep = true;
        for endpoint in self.endpoints()? {
            may_sleep &= endpoint.arm()?;
        }
        let mut state = lock(&self.state)?;
        if !may_sleep || !state.entries.is_empty() || state.signalled {
            return Ok(false);
        }
        wake.rest();
        state.awaited = true;
        Ok(true)
    }

    /// Ends the sleep of one thread, now or when it begins.
    pub(crate) fn signal(&self) -> Result<(), FiError> {
        let wake = self.wake.as_ref().ok_or(FiError::NOT_THERE)?;
        lock(&self.state)?.signalled = true;
        wake.wake();
        Ok(())
    }

    /// Does the work of all endpoints.
    pub(crate) fn progress(&self) -> Result<(), FiError> {
        for endpoint in lock(&self.endpoints)?.iter().filter_map(Weak::upgrade) {
            endpoint.progress()?;
        }
        Ok(())
    }

    fn endpoints(&self) -> Result<Vec<Arc<Rdm>>, FiError> {
        Ok(lock(&self.endpoints)?.iter().filter_map(Weak::upgrade).collect())
    }

    /// Keeps the endpoints' threads from doing what the caller does, who sleeps on their descriptors.
    fn attend(&self) -> Result<Vec<Attended>, FiError> {
        Ok(self.endpoints()?.into_iter().map(Attended::new).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn entry(context: usize, problem: Option<Problem>) -> Entry {
        Entry { context, flags: 0, len: 0, buf: 0, data: 0, tag: 0, source: 0, problem }
    }

    fn read(queue: &Queue, count: usize) -> Result<Vec<usize>, FiError> {
        let mut all = Vec::new();
        queue.read(count, |_, entry| all.push(entry.context)).map(|_| all)
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
