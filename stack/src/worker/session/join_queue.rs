//! Applications that have sent their request, until they are let in or refused: most in the next turn, but one for which there is
//! no memory until that of others is unmapped has to wait.
//!
//! They take turns, those of one process one behind the other. One for which there is memory passes those of other processes for
//! which there is none, so that no process keeps others from joining with what it cannot have. But those that pass may take the
//! memory that the one they pass waits for. So an application that waits is passed by [`ALWAYS`] applications of each other process,
//! and by further ones of that process only as long as they have taken no more than an even part of the memory. So none waits for
//! ever because others come and go.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use rustc_hash::FxHasher;
use weft_cc::Time;

use super::acceptor::JOINING;
use super::config::OpenError;
use super::server::{ALWAYS, Share};

/// The operating system's process that asks. Those that the system does not tell of are one.
pub(super) type Tenant = Option<u32>;

/// Checks that another application of `tenant` may wait while `all` do, of which `own` are those of this process: it may have
/// [`ALWAYS`], and else as many as it leaves of [`JOINING`]. The owner's own process is trusted.
///
/// # Errors
/// [`OpenError::Share`].
pub(super) fn check_part(tenant: Tenant, all: usize, own: usize) -> Result<(), OpenError> {
    let (left, wanted) = (JOINING.saturating_sub(all + 1) as u64, own as u64 + 1);
    if tenant == Some(std::process::id()) || wanted <= ALWAYS.max(left) {
        return Ok(());
    }
    let (what, limit) = ("applications that wait", JOINING as u64);
    Err(OpenError::Share { what, wanted, part: ALWAYS, left, limit })
}

/// An application in the queue.
#[derive(Debug)]
pub(super) struct Queued<T> {
    pub(super) application: T,
    pub(super) tenant: Tenant,
    /// The memory that it asks for, bytes.
    pub(super) memory: u64,
    /// When it has asked.
    pub(super) since: Time,
    /// Whether there was too little memory for it before.
    waits: bool,
    /// What processes have been given since it waits.
    passed: HashMap<Tenant, Share, BuildHasherDefault<FxHasher>>,
}

impl<T> Queued<T> {
    /// Whether an application of `tenant` that asks for so much memory may be let in first, if an even part of all memory has
    /// `part` bytes.
    fn lets_pass(&self, tenant: Tenant, memory: u64, part: u64) -> bool {
        let passed = self.passed.get(&tenant).copied().unwrap_or_default();
        self.tenant != tenant && (passed.places < ALWAYS || passed.memory.saturating_add(memory) <= part)
    }
}

/// The applications, those that asked first at the front.
#[derive(Debug)]
pub(super) struct JoinQueue<T> {
    queued: VecDeque<Queued<T>>,
    /// If the last search found no application whose turn it was, and the queue has not changed since: the free memory and the even
    /// part at that time. As long as these are the same, the queue need not be searched again.
    settled: Option<(u64, u64)>,
}

impl<T> JoinQueue<T> {
    pub(super) fn new() -> JoinQueue<T> {
        JoinQueue { queued: VecDeque::new(), settled: None }
    }

    pub(super) fn len(&self) -> usize {
        self.queued.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// What the applications of `tenant` ask for that are in the queue.
    pub(super) fn share_of(&self, tenant: Tenant) -> Share {
        let own = self.queued.iter().filter(|one| one.tenant == tenant);
        own.fold(Share::default(), |all, one| all.with(Share::one(one.memory)))
    }

    /// Checks that there is a place in the queue for another application of `tenant`: see [`check_part`].
    ///
    /// # Errors
    /// There is none, or the process would leave too few.
    pub(super) fn check(&self, tenant: Tenant) -> Result<(), OpenError> {
        if self.len() >= JOINING {
            return Err(OpenError::ManyWait(JOINING));
        }
        check_part(tenant, self.len(), self.share_of(tenant).places as usize)
    }

    pub(super) fn push(&mut self, application: T, tenant: Tenant, memory: u64, since: Time) {
        self.settled = None;
        let (waits, passed) = (false, HashMap::default());
        self.queued.push_back(Queued { application, tenant, memory, since, waits, passed });
    }

    /// Drops the application that is gone.
    pub(super) fn remove(&mut self, is_gone: impl Fn(&T) -> bool) {
        let before = self.queued.len();
        self.queued.retain(|one| !is_gone(&one.application));
        self.settled.take_if(|_| self.queued.len() != before);
    }

    /// Takes out the application whose turn it is, if it is anybody's, and its place: that of the first which has waited long enough
    /// by `is_due`, or for which `free` bytes of memory are enough, or which may be refused for something else. An even part
    /// of all memory has `part` bytes.
    pub(super) fn take(
        &mut self,
        is_due: impl Fn(Time) -> bool,
        free: u64,
        part: u64,
    ) -> Option<(usize, Queued<T>)> {
        // The first one has waited for longest.
        let is_any_due = self.queued.front().is_some_and(|first| is_due(first.since));
        if self.settled == Some((free, part)) && !is_any_due {
            return None;
        }
        let lets_pass = |other: &Queued<T>, one: &Queued<T>| {
            #[cfg(test)]
            crate::steps::count(1);
            other.lets_pass(one.tenant, one.memory, part)
        };
        let is_next = |(at, one): (usize, &Queued<T>)| match one.memory <= free {
            true => self.queued.range(..at).all(|other| lets_pass(other, one)),
            // It may be refused for another reason.
            false => !one.waits,
        };
        let mut all = self.queued.iter().enumerate();
        let at = all.position(|(at, one)| is_due(one.since) || is_next((at, one)));
        self.settled = at.is_none().then_some((free, part));
        let at = at?;
        Some((at, self.queued.remove(at)?))
    }

    /// An application for which there is no memory yet waits at its place.
    pub(super) fn put_back(&mut self, at: usize, one: Queued<T>) {
        self.settled = None;
        self.queued.insert(at, Queued { waits: true, ..one });
    }

    /// The application that was `at` a place has been let in, and has passed those before it.
    pub(super) fn note_passed(&mut self, at: usize, one: &Queued<T>) {
        self.settled = None;
        for other in self.queued.range_mut(..at) {
            let passed = other.passed.entry(one.tenant).or_default();
            *passed = passed.with(Share::one(one.memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An even part of the memory.
    const PART: u64 = 100;

    /// Two processes, which are not this one.
    fn process(n: u32) -> Tenant {
        Some(std::process::id() + 1 + n)
    }

    struct Queue(JoinQueue<&'static str>);

    impl Queue {
        /// One in which applications of process 0 have asked for so much memory each, and wait for it.
        fn with_waiting(memory: &[u64]) -> Queue {
            let mut queue = Queue(JoinQueue::new());
            memory.iter().for_each(|memory| queue.ask("waits", process(0), *memory));
            for _ in memory {
                let (at, one) =
                    queue.0.take(|_| false, 0, PART).expect("it may be refused for another reason");
                queue.0.put_back(at, one);
            }
            queue
        }

        fn ask(&mut self, name: &'static str, tenant: Tenant, memory: u64) {
            self.0.push(name, tenant, memory, Time::ZERO);
        }

        /// Lets in the one whose turn it is, if it is anybody's, while so much memory is free.
        fn admit(&mut self, free: u64) -> Option<&'static str> {
            let (at, one) = self.0.take(|_| false, free, PART)?;
            self.0.note_passed(at, &one);
            Some(one.application)
        }
    }

    #[test]
    fn an_application_for_which_there_is_memory_waits_behind_none_of_another_process() {
        let mut queue = Queue::with_waiting(&[500, 500]);
        queue.ask("small", process(1), 50);
        queue.ask("large", process(2), 60);
        queue.ask("own", process(0), 1);
        assert_eq!((queue.admit(50), queue.admit(50)), (Some("small"), Some("large")), "one may be refused");
        assert_eq!(queue.admit(50), None, "it waits behind those of its process");
        assert_eq!(queue.admit(500), Some("waits"));
        assert_eq!(queue.admit(1), None);
        assert_eq!((queue.admit(500), queue.admit(1)), (Some("waits"), Some("own")));
    }

    #[test]
    fn an_application_that_waits_is_passed_by_no_more_of_a_process_than_may_take_what_it_waits_for() {
        let mut queue = Queue::with_waiting(&[500]);
        let passes = |queue: &mut Queue, process: Tenant, memory| {
            queue.ask("passes", process, memory);
            let passes = queue.admit(memory).is_some();
            queue.0.remove(|name| *name == "passes");
            passes
        };
        // Two always, and further ones as long as they have taken no more than an even part.
        assert_eq!(
            [300, 300, 1, 1].map(|memory| passes(&mut queue, process(1), memory)),
            [true, true, false, false]
        );
        assert_eq!(
            [40, 40, 20, 1].map(|memory| passes(&mut queue, process(2), memory)),
            [true, true, true, false]
        );
        assert!(passes(&mut queue, None, 300));
        // Those that come when it is gone have passed nobody.
        assert_eq!(queue.admit(500), Some("waits"));
        assert!(passes(&mut queue, process(1), 300));
    }

    /// Processes that wait for memory, and one that waits behind them with as many small ones as it may have, slow down no turn.
    #[test]
    fn those_that_wait_are_looked_at_when_something_has_changed_and_not_in_each_turn() {
        let mut queue = Queue(JoinQueue::new());
        let large = |queue: &mut Queue, n: u32| {
            queue.ask("large", process(n), 500);
            let (at, one) = queue.0.take(|_| false, 0, PART).expect("it may be refused for another reason");
            queue.0.put_back(at, one);
        };
        (1..32).for_each(|n| large(&mut queue, n));
        large(&mut queue, 0);
        (0..32).for_each(|_| queue.ask("small", process(0), 1));
        let steps_of = |queue: &mut Queue, free: u64, part: u64| {
            crate::steps::of(|| assert!(queue.0.take(|_| false, free, part).is_none()))
        };
        assert_eq!(steps_of(&mut queue, 10, PART), 32 * 32, "all of them");
        assert_eq!(crate::steps::of(|| (0..1_000).for_each(|_| assert_eq!(queue.admit(10), None))), 0);
        assert_eq!(steps_of(&mut queue, 11, PART), 32 * 32, "memory has become free");
        assert_eq!(steps_of(&mut queue, 11, PART + 1), 32 * 32, "applications have come or gone");
        assert_eq!(steps_of(&mut queue, 11, PART + 1), 0);
        queue.ask("small", process(40), 1);
        assert_eq!(queue.admit(11), Some("small"));
        let (at, one) = queue.0.take(|_| true, 11, PART).expect("its time is up");
        assert_eq!((at, one.application), (0, "large"));
        queue.0.remove(|name| *name == "large");
        assert_eq!(queue.admit(11), Some("small"), "those that it waited behind are gone");
    }

    #[test]
    fn one_that_has_waited_long_enough_comes_first() {
        let mut queue = Queue::with_waiting(&[500]);
        queue.0.push("late", process(1), 1, Time::ZERO + weft_cc::Span::from_us(1));
        let (at, one) = queue.0.take(|since| since == Time::ZERO, 1, PART).expect("its time is up");
        assert_eq!((at, one.application), (0, "waits"));
        assert_eq!(queue.admit(1), Some("late"));
    }

    #[test]
    fn a_process_leaves_as_many_places_as_it_takes() {
        let fill = |queue: &mut Queue, tenant: Tenant| {
            let before = queue.0.len();
            while queue.0.check(tenant).is_ok() {
                queue.ask("waits", tenant, 1);
            }
            queue.0.len() - before
        };
        let mut queue = Queue::with_waiting(&[]);
        let taken = [0, 1, 2, 3, 4, 5, 6].map(|n| fill(&mut queue, process(n)));
        assert_eq!(taken, [32, 16, 8, 4, 2, 2, 0]);
        // Those that the system does not tell apart are one; the owner's own process is trusted.
        queue.0.remove(|_| true);
        let taken = [None, Some(std::process::id())].map(|tenant| fill(&mut queue, tenant));
        assert_eq!(taken, [32, 32]);
        assert!(matches!(queue.0.check(process(0)), Err(OpenError::ManyWait(JOINING))));
    }
}
