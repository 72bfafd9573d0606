//! Backoff of a worker that has nothing to do.

use weft_cc::{Span, Time};

use super::{Waker, Worker};
use crate::fep::Fep;
use crate::port::Port;

/// The strategy of a worker that has nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Polls again at once: for a worker with a core of its own. Nothing reacts faster.
    #[default]
    Spin,
    /// Polls again at once for a while, then yields to other threads between polls for a while, then sleeps: for
    /// machines that have other work.
    Adaptive {
        /// How long the worker polls again at once.
        spin: Span,
        /// How long, after that, it yields to other threads between polls.
        yield_for: Span,
        /// The longest sleep. The endpoint's next timer, the [`Waker`], and a frame if the port can announce it
        /// ([`Port::waitable`]) wake it earlier; with a port that cannot, it sleeps no longer than [`Idle::BLIND`]
        /// at a time.
        sleep: Span,
    },
}

impl Idle {
    /// The longest sleep when nothing would wake the worker if a frame arrived, or a port became ready to
    /// send.
    pub const BLIND: Span = Span::from_us(50);

    /// Adaptive: 20 µs of polling, which is a few network RTTs; 80 µs of yielding; then sleeps of up to 100 ms.
    pub const ADAPTIVE: Idle =
        Idle::Adaptive { spin: Span::from_us(20), yield_for: Span::from_us(80), sleep: Span::from_ms(100) };
}

/// [`Worker::run_until`] has reached its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not done after {0}")]
pub struct TimedOut(pub Span);

/// Sleeps shorter than this are not worth their system call.
const NOT_WORTH_IT: Span = Span::from_us(5);

/// How far a worker is on its way to sleep.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    /// The first turn in which nothing happened.
    since: Option<Time>,
    /// Whether the port and the waker have been told that the worker is about to sleep. If the turn after that finds
    /// nothing either, nothing can have been missed.
    armed: bool,
}

impl<P: Port> Worker<P> {
    /// Sets what the worker does when it has nothing to do; [`Idle::Spin`] by default.
    pub fn set_idle(&mut self, idle: Idle) {
        self.idle = idle;
    }

    /// Turns the loop, calling `step` after each turn, until `waker` is stopped. `step` returns whether it
    /// has done something, or has something to do: then the worker does not rest.
    ///
    /// `step` serves everything but the port, such as completions and rings of applications. Code that fills such a
    /// ring must wake the worker. Sessions need [`Worker::run_with`], because they use the worker's address book,
    /// which the endpoint does not know.
    pub fn run(&mut self, waker: &Waker, mut step: impl FnMut(&mut Fep, Time) -> bool) {
        self.run_with(waker, |worker, now| step(&mut worker.fep, now));
    }

    /// As [`Worker::run`], for steps that need more of the worker than its endpoint.
    pub fn run_with(&mut self, waker: &Waker, mut step: impl FnMut(&mut Worker<P>, Time) -> bool) {
        while !waker.is_stopped() {
            let now = self.now();
            let progress = self.poll_at(now);
            let busy = step(self, now) | !progress.is_idle();
            self.rest(now, busy, Some(waker));
        }
        self.rise(Some(waker));
    }

    /// Turns the loop, calling `step` after each turn, until `step` returns true. A sleeping worker is woken by events
    /// of its endpoint only, not by anything else that `step` may look at.
    ///
    /// # Errors
    /// `limit` has passed.
    pub fn run_until(
        &mut self,
        limit: Span,
        mut step: impl FnMut(&mut Fep, Time) -> bool,
    ) -> Result<(), TimedOut> {
        let start = self.now();
        let result = loop {
            let now = self.now();
            let progress = self.poll_at(now);
            if step(&mut self.fep, now) {
                break Ok(());
            }
            if now.since(start) >= limit {
                break Err(TimedOut(limit));
            }
            self.rest(now, !progress.is_idle(), None);
        };
        self.rise(None);
        result
    }

    /// Rests as [`Idle`] says, after a turn at `now` in which something happened (`busy`) or not. For loops
    /// other than [`Worker::run`]. A loop that may end while its worker is about to sleep must end with
    /// [`Worker::rise`].
    #[inline]
    pub fn rest(&mut self, now: Time, busy: bool, waker: Option<&Waker>) {
        self.rest_at_most(now, busy, waker, Span::MAX);
    }

    /// As [`Worker::rest`], but sleeps no longer than `limit`.
    #[inline]
    pub fn rest_at_most(&mut self, now: Time, busy: bool, waker: Option<&Waker>, limit: Span) {
        if !busy {
            self.idle(now, waker, limit);
        } else if self.backoff.since.is_some() {
            self.rise(waker);
        }
    }

    /// Ends a rest: tells the port and `waker` that the worker polls again.
    pub fn rise(&mut self, waker: Option<&Waker>) {
        if self.backoff.armed {
            if let Some(waker) = waker {
                waker.awake();
            }
            self.port.waited();
        }
        self.backoff = Backoff::default();
    }

    fn idle(&mut self, now: Time, waker: Option<&Waker>, limit: Span) {
        let Idle::Adaptive { spin, yield_for, sleep } = self.idle else { return std::hint::spin_loop() };
        let idle = now.since(*self.backoff.since.get_or_insert(now));
        if idle < spin {
            std::hint::spin_loop();
        } else if idle < spin.plus(yield_for) {
            std::thread::yield_now();
        } else if !self.backoff.armed {
            self.backoff.armed = true;
            if let Some(waker) = waker {
                waker.fall_asleep();
            }
            self.port.waitable();
        } else {
            self.sleep(now, sleep.min(limit), waker);
            let since = self.backoff.since;
            self.rise(waker);
            // The next turn finds what has arrived. If nothing has, the worker sleeps again, without spinning first.
            self.backoff.since = since;
        }
    }

    /// How long the worker may sleep from `now` on, `longest` at most, if nothing but a frame at its port wakes it:
    /// until its next timer, and no longer than [`Idle::BLIND`] if the port cannot tell of frames, or has not taken all
    /// that was to be sent.
    pub fn sleep_limit(&mut self, now: Time, longest: Span) -> Span {
        let timer = self.next_timer().map_or(longest, |at| at.since(now).min(longest));
        // The port has not taken all frames yet, or had no buffer for a packet.
        let stuck = !self.tx.is_empty() || self.fep.wants_to_transmit();
        if stuck || self.port.waitable().is_none() { timer.min(Idle::BLIND) } else { timer }
    }

    fn sleep(&mut self, now: Time, longest: Span, waker: Option<&Waker>) {
        let span = self.sleep_limit(now, longest);
        let port = self.port.waitable();
        if span < NOT_WORTH_IT {
            return std::hint::spin_loop();
        }
        super::wait::sleep(waker, port, span);
    }
}
