//! Shared memory: links to VPP, DPDK and other ends of memif 2.0, without DPDK.
//!
//! Two processes meet at a Unix socket. The client allocates memory with a ring for each direction and passes it to the
//! server; from then on frames need no system calls.
//!
//! ```no_run
//! use std::time::Duration;
//! use weft_stack::port::memif::{MemifConfig, MemifPort, SocketName};
//!
//! let port = MemifPort::open(&MemifConfig::client(SocketName::parse("/run/memif.sock")))?;
//! port.wait_for_link(Duration::from_secs(10))?;
//! # Ok::<(), weft_stack::port::memif::MemifError>(())
//! ```
//!
//! A frame is copied once on the way out, headers and payload from where they are into the shared memory, and once on
//! the way in, from there to its final address. Payload in memory that a client has [registered](Port::register) is
//! not copied on the way out. The worker copies the first frame of each peer, and frames with unusual headers, into
//! one buffer before it reads them: one copy more ([`gathered`](crate::worker::WorkerCounters::gathered)). (DPDK's
//! own `net_memif` copies each frame into a buffer of its own in between, at either end.)
//!
//! Neither end trusts the other. Everything in shared memory is checked each time it is read, and is never lent as a
//! slice; memory that its owner could shorten is refused. A peer that writes invalid values, or dies, costs this end
//! its link and nothing else. A control thread watches the socket and makes the next link; the port itself drops a
//! link that is lost, between two bursts.

mod client;
mod config;
mod connector;
mod control_thread;
mod event;
mod handshake_error;
mod link;
mod link_layout;
mod link_state;
mod listener;
#[cfg(any(test, feature = "fuzzing"))]
mod meanwhile;
mod message;
#[cfg(any(test, feature = "fuzzing"))]
mod pair;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod properties;
mod ring;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod ring_properties;
mod server;
mod signal;
mod socket;
#[cfg(test)]
mod tests;

pub use config::{
    MAX_LOG2_RING, MAX_NAME, MAX_SECRET, MAX_SOCKET_NAME, MemifConfig, MemifError, Role, SocketName,
};

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::epoll;

use self::control_thread::ControlThread;
use self::link::{Link, Moved};
use self::link_layout::MAX_REGIONS;
use self::link_state::{LinkState, is_up};
use self::ring::DescriptorRingError;
use self::signal::Signals;
use super::{BURST, FramePool, MIN_FRAME, Port, PortCaps, PortCounters, RxBurst, TxBurst};
use crate::region::SharedRegion;

/// The time between two checks in [`MemifPort::wait_for_link`].
const LINK_POLL: Duration = Duration::from_millis(1);

/// Buffers for frames being written, and for received frames that came in several parts or that a burst takes only
/// whole.
const BUFFERS: usize = 16 * BURST;

/// The longest wait of [`Port::recall`]. A peer that runs empties a whole ring in less, even if it has to wait for a
/// processor.
const RECALL: Duration = Duration::from_millis(10);

/// The reason for replacing a link after memory has been registered.
const MORE_MEMORY: &str = "there is more memory to be shared";

/// One end of a link.
#[derive(Debug)]
pub struct MemifPort {
    link: Option<Link>,
    /// The generation of `link_state` when `link` was taken.
    generation: u32,
    /// The generation of the last link that was given up: odd, or 0 if none was.
    given_up: u32,
    link_state: Arc<LinkState>,
    config: MemifConfig,
    pool: FramePool,
    counters: PortCounters,
    /// The memory that a client's next link has beside its buffers.
    registered: Arc<Mutex<Vec<SharedRegion>>>,
    /// An epoll descriptor for a sleeping worker: readable when `link_state` has changed or the peer announces frames.
    alarm: OwnedFd,
    /// Whether `alarm` covers every wake-up source.
    wakes: bool,
    /// The means to announce frames to the peer.
    signals: &'static Signals,
    /// Ends the thread when the port is dropped.
    _control_thread: ControlThread,
}

impl MemifPort {
    /// Listens at the socket as the server, or begins to connect to it as the client. The link comes up later:
    /// [`wait_for_link`](Self::wait_for_link). Until then, and while the link is lost, nothing arrives, and frames that
    /// are sent are [dropped](PortCounters::tx_no_link).
    ///
    /// # Errors
    /// The configuration is invalid, another server has the socket, or the system refuses it. So it does where the system
    /// refuses `io_setup`, or is older than Linux 5.8: a peer could stop the worker there.
    pub fn open(config: &MemifConfig) -> Result<MemifPort, MemifError> {
        let signals = event::means()?;
        let registered = Arc::new(Mutex::new(Vec::new()));
        let offered = Arc::clone(&registered);
        let control_thread =
            ControlThread::start(config, Box::new(move |config| link::offer(config, &locked(&offered))))?;
        let link_state = Arc::clone(control_thread.link_state());
        let system = |error: rustix::io::Errno| MemifError::System {
            what: "watch",
            socket: config.socket.clone(),
            error: error.into(),
        };
        let alarm = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        watch(&alarm, link_state.bell()).map_err(system)?;
        let pool =
            FramePool::heap(BUFFERS, config.mtu + MIN_FRAME).map_err(|_| MemifError::Mtu(config.mtu))?;
        let counters = PortCounters::default();
        let (socket, role) = (&config.socket, config.role);
        tracing::info!(?socket, ?role, mtu = config.mtu, "memif port opened");
        let config = config.clone();
        Ok(MemifPort {
            link: None,
            generation: 0,
            given_up: 0,
            link_state,
            config,
            pool,
            counters,
            registered,
            alarm,
            wakes: true,
            signals,
            _control_thread: control_thread,
        })
    }

    /// Whether there is a link to a peer.
    pub fn link_is_up(&self) -> bool {
        let generation = self.link_state.generation();
        is_up(generation) && generation != self.given_up && self.is_complete(self.link_state.regions())
    }

    /// Whether a link with this many regions has all the memory that has been registered. If not, memory was registered
    /// during its handshake, and the link is replaced.
    fn is_complete(&self, regions: usize) -> bool {
        self.config.role == Role::Server || regions == 1 + locked(&self.registered).len()
    }

    /// The names of the peer's application and interface, as it tells them; none without a peer.
    pub fn peer(&self) -> Option<String> {
        self.link_state.peer()
    }

    /// Waits until there is a peer, at most `limit`.
    ///
    /// # Errors
    /// There is no peer after `limit`. The error says what went wrong last.
    pub fn wait_for_link(&self, limit: Duration) -> Result<(), MemifError> {
        let begin = Instant::now();
        while !self.link_is_up() {
            let generation = self.link_state.generation();
            if is_up(generation) && !self.is_complete(self.link_state.regions()) {
                self.link_state.give_up(generation, MORE_MEMORY);
            }
            if begin.elapsed() >= limit {
                let socket = self.config.socket.clone();
                return Err(MemifError::NoLink { socket, limit, why: self.link_state.why() });
            }
            std::thread::sleep(LINK_POLL);
        }
        Ok(())
    }

    /// Drops a link that is lost, and takes a new one.
    #[inline]
    fn keep_up(&mut self) {
        if self.link_state.generation() != self.generation {
            self.change();
        }
    }

    #[cold]
    fn change(&mut self) {
        self.let_go();
        let (generation, layout) = self.link_state.take();
        self.generation = generation;
        let Some(layout) = layout else { return };
        if !self.is_complete(layout.regions.len()) {
            return self.part(MORE_MEMORY);
        }
        match Link::of(layout, self.config.buffer_bytes(), self.signals) {
            Ok(link) => {
                self.wakes = watch(&self.alarm, link.announced()).is_ok();
                self.link = Some(link);
            }
            Err(error) => self.give_up(&error),
        }
    }

    /// Ends a link whose peer has written an invalid value into a ring, and tells the peer which.
    #[cold]
    fn give_up(&mut self, error: &DescriptorRingError) {
        self.part(&error.to_string());
    }

    /// Ends the link. The control thread makes another one.
    #[cold]
    fn part(&mut self, reason: &str) {
        self.let_go();
        self.given_up = self.generation;
        self.link_state.give_up(self.generation, reason);
    }

    fn let_go(&mut self) {
        if let Some(mut link) = self.link.take() {
            link.take_back();
            // The peer has the same open file: closing this descriptor would leave it in the epoll set.
            let _ = epoll::delete(&self.alarm, link.announced());
            self.wakes = true;
        }
    }

    /// Drops the frames of a burst for lack of a link, and returns how many there were.
    #[cold]
    fn lose(&mut self, burst: &mut TxBurst) -> usize {
        let lost = burst.len();
        burst.clear();
        self.counters.tx_no_link += lost as u64;
        lost
    }

    fn max_frame(&self) -> usize {
        self.config.mtu + MIN_FRAME
    }
}

/// A panic of another thread does no harm: the list is valid between any two of its operations.
fn locked(registered: &Mutex<Vec<SharedRegion>>) -> MutexGuard<'_, Vec<SharedRegion>> {
    registered.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes `alarm` readable whenever `what` is, until `what` is closed.
fn watch(alarm: &OwnedFd, what: BorrowedFd<'_>) -> rustix::io::Result<()> {
    epoll::add(alarm, what, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
}

impl Drop for MemifPort {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Port for MemifPort {
    #[inline]
    fn receive(&mut self, burst: &mut RxBurst) -> usize {
        self.keep_up();
        let max_frame = self.max_frame();
        let Some(link) = &mut self.link else { return 0 };
        match link.receive(burst, &self.pool, max_frame) {
            Ok(Moved { frames, bytes, errors }) => {
                if frames == 0 {
                    link.tell();
                }
                self.counters.rx_frames += frames as u64;
                self.counters.rx_bytes += bytes as u64;
                self.counters.rx_errors += errors;
                frames
            }
            Err(error) => {
                self.give_up(&error);
                0
            }
        }
    }

    #[inline]
    fn transmit(&mut self, burst: &mut TxBurst) -> usize {
        let refused = burst.drop_unsendable(self.max_frame(), true);
        self.counters.tx_errors += refused as u64;
        self.keep_up();
        let Some(link) = &mut self.link else { return refused + self.lose(burst) };
        match link.transmit(burst) {
            Ok(Moved { frames, bytes, errors }) => {
                self.counters.tx_frames += frames as u64;
                self.counters.tx_bytes += bytes as u64;
                self.counters.tx_errors += errors;
                refused + frames + errors as usize
            }
            Err(error) => {
                self.give_up(&error);
                refused
            }
        }
    }

    fn capabilities(&self) -> PortCaps {
        self.config.capabilities()
    }

    fn pool(&self) -> FramePool {
        self.pool.clone()
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }

    fn waitable(&mut self) -> Option<BorrowedFd<'_>> {
        self.link_state.hush();
        self.keep_up();
        if let Some(link) = &mut self.link {
            link.tell();
            if link.listen() {
                self.link_state.wake();
            }
        }
        self.wakes.then(|| self.alarm.as_fd())
    }

    fn waited(&mut self) {
        if let Some(link) = &mut self.link {
            link.look_out();
        }
    }

    /// Only a client can register memory, because the client provides the memory of a link. The regions of a link are
    /// fixed in its handshake, so a link that is up is replaced. A server that allows fewer regions refuses links
    /// from then on.
    fn register(&mut self, memory: &SharedRegion) -> bool {
        let Ok(memory) = memory.try_clone() else { return false };
        {
            let mut registered = locked(&self.registered);
            if self.config.role == Role::Server || registered.len() + 1 >= MAX_REGIONS {
                return false;
            }
            registered.push(memory);
        }
        self.keep_up();
        if self.link.is_some() {
            self.part(MORE_MEMORY);
        }
        true
    }

    /// Waits until the peer has received the frames that refer to registered memory. If it does not in time, they are
    /// taken back and the link is given up. A peer that stops in the middle of reading a burst cannot be kept from
    /// going on.
    fn recall(&mut self) {
        self.keep_up();
        let begin = Instant::now();
        while let Some(link) = &mut self.link {
            let is_late = begin.elapsed() > RECALL;
            match link.is_taken_in() {
                Ok(true) => return,
                Ok(false) if is_late => self.part("memory is needed of which frames have not been taken in"),
                Ok(false) => std::thread::yield_now(),
                Err(error) => self.give_up(&error),
            }
        }
    }
}
