//! The loop of a thread that drives a worker for applications: `weft serve`, or a thread beside the application's own.

use std::path::Path;

use weft_cc::{Span, Time};

use super::client::Client;
use super::config::{OpenError, SessionConfig};
use super::listener::{ListenError, SessionListener};
use super::served::{PlacePeer, Placing};
use super::server::{Ended, Sessions};
use crate::port::Port;
use crate::worker::{Clock, ClockSource, Waker, Worker};

/// How long peers may take to hear that the applications are gone, when the server is told to end.
const FAREWELL: Span = Span::from_ms(1000);
/// How often it is checked whether the clock still reads the counter.
const CLOCK_CHECK: Span = Span::from_ms(1000);

/// A worker's applications, and the loop that serves them.
pub struct SessionServer<P> {
    sessions: Sessions,
    listener: Option<SessionListener>,
    place: Option<PlacePeer<P>>,
    waker: Waker,
    /// Applications have been told that the worker sleeps.
    asleep: bool,
}

/// Something that the owner of a [`SessionServer`] may want to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerEvent {
    /// An application has joined through the socket.
    Joined {
        /// The application's process number.
        process: u16,
    },
    /// The session of an application has ended.
    Ended {
        /// The application's process number.
        process: u16,
        /// How it ended.
        how: Ended,
    },
    /// The clock does not read the processor's counter any more.
    ClockChanged {
        /// Its source from now on.
        source: ClockSource,
    },
}

impl<P: Port> SessionServer<P> {
    /// A server for `worker` with room for `capacity` applications, which `waker` wakes and stops. Closes the
    /// endpoint's process 0, so that messages to it are refused until an application opens it.
    pub fn new(worker: &mut Worker<P>, capacity: usize, waker: Waker) -> SessionServer<P> {
        // It may be closed already.
        let _ = worker.fep_mut().close_process(0);
        SessionServer {
            sessions: Sessions::with_waker(capacity, waker.clone()).with_host(worker.book().called()),
            listener: None,
            place: None,
            waker,
            asleep: false,
        }
    }

    /// Opens a session for an application in this process: see [`Sessions::open`].
    ///
    /// # Errors
    /// As [`Sessions::open`].
    pub fn open(
        &mut self,
        worker: &mut Worker<P>,
        config: &SessionConfig,
        process: Option<u16>,
    ) -> Result<Client, OpenError> {
        self.sessions.open(worker.fep_mut(), config, process)
    }

    /// Lets applications of other processes join at the Unix socket `path`, with resources up to those of `most`.
    ///
    /// # Errors
    /// As [`SessionListener::open`].
    pub fn listen(&mut self, path: &Path, most: SessionConfig) -> Result<(), ListenError> {
        self.listener = Some(SessionListener::open(path, most, self.waker.clone())?);
        Ok(())
    }

    /// Lets applications have no more than `memory` bytes together, rings included.
    pub fn limit_memory(&mut self, memory: u64) {
        self.sessions.limit_memory(memory);
    }

    /// Makes `place` find the Ethernet addresses of peers that applications add. Without it, the worker asks for them
    /// on the link.
    pub fn place_peers(&mut self, place: PlacePeer<P>) {
        self.place = Some(place);
    }

    /// Serves until the waker is [stopped](Waker::stop). Peers that still have to hear that the applications are gone, or
    /// to get the answers to their last packets, then have up to a second to do so.
    pub fn run(mut self, mut worker: Worker<P>, mut on_event: impl FnMut(ServerEvent)) {
        let waker = self.waker.clone();
        let mut watch = ClockWatch::new(worker.clock());
        worker.run_with(&waker, |worker, now| {
            if let Some(source) = watch.change(now) {
                tracing::warn!(%source, "the clock does not read the processor's counter any more");
                on_event(ServerEvent::ClockChanged { source });
            }
            self.step(worker, now, &mut on_event)
        });
        let now = worker.clock().now();
        self.sessions.close_all(worker.fep_mut(), now);
        // A peer whose last acknowledgement was lost sends again within a retransmission timeout; timers are not exact.
        let silence = worker.fep().config().zones.longest_rto().times(2);
        let mut heard = (*worker.fep().counters(), now);
        // Peers that have not heard of it when the time is up will notice by themselves.
        let _ = worker.run_until(FAREWELL, |fep, now| {
            self.sessions.serve(fep, now);
            if *fep.counters() != heard.0 {
                heard = (*fep.counters(), now);
            }
            let answered = fep.open_targets() == 0 || now.since(heard.1) >= silence;
            answered && self.sessions.is_empty() && !fep.wants_to_transmit()
        });
    }

    /// A turn of the worker's loop, apart from the port. Returns whether there was anything to do.
    fn step(&mut self, worker: &mut Worker<P>, now: Time, on_event: &mut impl FnMut(ServerEvent)) -> bool {
        if let Some(listener) = &mut self.listener
            && let Some(id) = listener.attend(&mut self.sessions, worker.fep_mut(), now)
            && let Some(process) = self.sessions.process(id)
        {
            tracing::info!(process, "an application has joined");
            on_event(ServerEvent::Joined { process });
        }
        let served = match &mut self.place {
            Some(place) => self.sessions.serve(&mut Placing { worker, place }, now),
            None => self.sessions.serve(worker, now),
        };
        while let Some((_, process, how)) = self.sessions.poll_ended() {
            tracing::info!(process, ?how, "the session of an application has ended");
            on_event(ServerEvent::Ended { process, how });
        }
        // An application that waits for memory may not wait for ever.
        let mut busy = served > 0 || self.listener.as_ref().is_some_and(SessionListener::makes_wait);
        if self.waker.is_asleep() {
            self.asleep = true;
            busy |= !self.sessions.may_sleep(worker.fep());
        } else if std::mem::take(&mut self.asleep) {
            self.sessions.woken();
        }
        busy
    }
}

/// Notices when the clock stops reading the counter.
struct ClockWatch {
    clock: Clock,
    checked: Time,
    counts: bool,
}

impl ClockWatch {
    fn new(clock: Clock) -> ClockWatch {
        let counts = matches!(clock.source(), ClockSource::Counter { .. });
        ClockWatch { clock, checked: clock.now(), counts }
    }

    /// The clock's source, once, if it is not the counter any more.
    fn change(&mut self, now: Time) -> Option<ClockSource> {
        if !self.counts || now.since(self.checked) < CLOCK_CHECK {
            return None;
        }
        self.checked = now;
        let source = self.clock.source();
        self.counts = matches!(source, ClockSource::Counter { .. });
        (!self.counts).then_some(source)
    }
}
