//! The interface of applications: see [`Endpoint`].

mod access;
mod buffer;
mod builder;
mod completion;
mod direct;
mod error;
mod memory;
mod readiness;
mod remote;
mod setup;
mod thread;
mod zone;

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use weft_stack::cc::{CcSnapshot, Time};
use weft_stack::fep::ConnectOptions;
use weft_stack::packet::Addr;
use weft_stack::ses::Claim;
use weft_stack::worker::session::Found;
use weft_stack::worker::{TurnResult, Worker};

use self::completion::ConnectionName;
use self::direct::Direct;
use self::remote::Remote;
use crate::port::{AnyPort, PeerSpec};

pub use self::access::RemoteMemory;
pub use self::buffer::{ReceiveBuffer, SendBuffer};
pub use self::builder::Builder;
pub use self::completion::{Completion, ConnectionId, OperationId, ReceiveOptions, SendOptions};
pub use self::error::{BuildError, Error, PeerError, PostError};
pub use self::memory::{Memory, MemorySlice};
pub use self::setup::{Attachment, BOOK, LinkRate, Settings, Setup};
pub use self::zone::ZoneSettings;

/// The longest message that [`Endpoint::send_copy`] takes, bytes.
pub const MAX_COPY: usize = 4096;

/// An endpoint: it opens connections to peers, sends messages and receives them.
///
/// The name from which it is [built](Endpoint::builder) says which network it uses: `udp:ADDRESS` (kernel UDP),
/// `memif:SOCKET,role=…`, `dpdk:DEVICE`, or `serve:SOCKET`, where a `weft serve` owns the port and several applications
/// share it. The *worker* sends and receives the packets. The builder says where it runs: in the caller's thread, which
/// has to call [`Endpoint::poll`] or [`Endpoint::wait`] often, or with [`Builder::on_thread`] on a thread of its own.
/// The code of an application is the same for all of these.
///
/// ```
/// use std::time::Duration;
/// use weft::{Completion, Endpoint};
///
/// let mut alice = Endpoint::builder("udp:127.20.0.1").build()?;
/// let mut bob = Endpoint::builder("udp:127.20.0.2").on_thread(None).build()?;
///
/// bob.receive(vec![0; 100])?;
/// let peer = alice.peer("127.20.0.2")?;
/// let connection = alice.connect(peer)?;
/// alice.send(connection, b"hello")?;
/// while let Some(completion) = alice.wait(Duration::from_secs(5))? {
///     if let Completion::Sent { result, .. } = completion {
///         result?;
///         break;
///     }
/// }
/// let received = bob.wait(Duration::from_secs(5))?.expect("a message");
/// assert_eq!(received.message().unwrap(), &b"hello"[..]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Operations
/// [`Endpoint::send`] and [`Endpoint::receive`] post an operation and return at once. The buffer belongs to the
/// endpoint until the operation's [`Completion`], which hands it back. Each operation completes once; so does each
/// connection, with [`Completion::Closed`]. If a call returns an error, nothing was begun. A worker that runs elsewhere
/// may refuse the operation later; then the completion has the error.
///
/// # Back-pressure
/// Posting fails while a limit is reached, a ring is full or memory is used up ([`Error::is_back_pressure`]). The
/// [`PostError`] hands the buffer back: poll, then post again.
///
/// # When the worker is gone
/// When a server ends or is killed, or the thread of a worker panics, all operations complete and all connections close
/// with [`Error::Gone`], and after that all calls fail with it. [`Endpoint::wait`], and a wait on the descriptor, end at
/// once; an application that polls hears of it within 4,096 polls that find nothing.
///
/// This holds for a panic in builds that unwind, as Cargo's are unless the profile says otherwise. With `panic = "abort"`,
/// as in a release build of the `weft` command, a panic of the worker's thread ends the whole process.
pub struct Endpoint {
    backend: Backend,
}

enum Backend {
    Direct(Box<Direct>),
    Remote(Box<Remote>),
}

macro_rules! each {
    ($endpoint:expr, $inner:ident => $do:expr) => {
        match &mut $endpoint.backend {
            Backend::Direct($inner) => $do,
            Backend::Remote($inner) => $do,
        }
    };
}

// Below the macro, which it uses.
mod datagram;

impl Endpoint {
    /// A builder of an endpoint at the port, or with the server, that `spec` names: `udp` (at an address of this host),
    /// `udp:ADDRESS[,port=N][,entropies=N][,shared=on|off][,called=ADDRESS][,gso=on|off][,gro=on|off]`, `memif:SOCKET,role=server|client[,…]`,
    /// `dpdk:DEVICE[,ARGUMENTS]`, or `serve:SOCKET`. The IP address of a `memif:` or `dpdk:` port may stand in its name, as
    /// `,ip=ADDRESS`.
    pub fn builder(spec: impl Into<String>) -> Builder {
        Builder::new(spec.into())
    }

    /// An endpoint whose worker was put together elsewhere; it runs in the caller's thread. `memory` is what
    /// [`Endpoint::memory`] will be: [`Memory::for_port`] of the worker's port, or [`Memory::default`] for none.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn from_worker(worker: Worker<AnyPort>, memory: Memory) -> Result<Endpoint, BuildError> {
        let direct = Direct::new(worker, None, 0, memory)
            .map_err(|error| builder::system("a descriptor to wait for", error))?;
        Ok(Endpoint { backend: Backend::Direct(Box::new(direct)) })
    }

    /// The process number of this endpoint, 0 to 4095. Peers name it in [`ConnectOptions::process`], and see it as the
    /// [`Source::process`](weft_stack::ses::Source::process) of its messages.
    pub fn process(&self) -> u16 {
        match &self.backend {
            Backend::Direct(direct) => direct.process(),
            Backend::Remote(remote) => remote.process(),
        }
    }

    /// The IP address under which peers reach this endpoint. `None` only for a server that has not said.
    pub fn ip(&self) -> Option<IpAddr> {
        match &self.backend {
            Backend::Direct(direct) => Some(direct.worker.book().called()),
            Backend::Remote(remote) => remote.ip(),
        }
    }

    /// The peer at an address: `"192.0.2.2"`, an [`IpAddr`](std::net::IpAddr), `"192.0.2.2/02:00:00:00:00:02"` with its
    /// Ethernet address, or `"192.0.2.2:5000"` with its UDP port if endpoints share addresses (`shared=on`). A peer
    /// that is not known yet is entered into the address book. A worker that runs elsewhere has to be asked, which
    /// takes microseconds, and 5 s at most.
    ///
    /// # Errors
    /// The text is no address, the port cannot reach it, or there is no room for another peer.
    pub fn peer<P>(&mut self, peer: P) -> Result<Addr, PeerError>
    where
        P: TryInto<PeerSpec>,
        PeerError: From<P::Error>,
    {
        let peer = peer.try_into()?;
        each!(self, inner => inner.peer(&peer))
    }

    /// As [`Endpoint::peer`], but waits for the answer of a worker elsewhere for at most `bound`. If that is too short,
    /// the worker may enter the peer later, and a further call returns it.
    ///
    /// # Errors
    /// As [`Endpoint::peer`]; [`Error::NoReply`] after that time.
    pub fn peer_within<P>(&mut self, peer: P, bound: Duration) -> Result<Addr, PeerError>
    where
        P: TryInto<PeerSpec>,
        PeerError: From<P::Error>,
    {
        let peer = peer.try_into()?;
        match &mut self.backend {
            Backend::Direct(direct) => direct.peer(&peer),
            Backend::Remote(remote) => remote.peer_within(&peer, bound),
        }
    }

    /// Lets a peer that [`Endpoint::peer`] has returned be forgotten: when the address book is full, another one may take its
    /// room, if there is no connection to it and none from it. Whoever asks for the peer again gets it, perhaps under another
    /// address. A worker elsewhere keeps it until this endpoint ends.
    pub fn let_go(&mut self, peer: Addr) {
        if let Backend::Direct(direct) = &mut self.backend {
            direct.let_go(peer);
        }
    }

    /// Opens a connection to process 0 of a peer. Messages may be posted on it at once. [`Completion::Connected`]
    /// follows when the peer can be reached, or after some three seconds [`Completion::Closed`] with
    /// [`CallError::Unreachable`](weft_stack::fep::CallError::Unreachable), if its Ethernet address has to be asked for
    /// and nobody answers. Only a message shows whether an endpoint is there.
    ///
    /// # Errors
    /// The peer is not known, a limit is reached, or the worker is gone.
    pub fn connect(&mut self, peer: Addr) -> Result<ConnectionId, Error> {
        self.connect_with(peer, ConnectOptions::default())
    }

    /// As [`Endpoint::connect`], with a delivery mode, a traffic class, and the process of the peer that messages are for.
    ///
    /// # Errors
    /// As [`Endpoint::connect`].
    pub fn connect_with(&mut self, peer: Addr, options: ConnectOptions) -> Result<ConnectionId, Error> {
        each!(self, inner => inner.connect(peer, options))
    }

    /// Sends an untagged message, as [`Endpoint::send_with`].
    ///
    /// # Errors
    /// As [`Endpoint::send_with`].
    #[inline]
    pub fn send(
        &mut self,
        connection: ConnectionId,
        buffer: impl Into<SendBuffer>,
    ) -> Result<OperationId, PostError<SendBuffer>> {
        self.send_with(connection, buffer, SendOptions::default())
    }

    /// Sends a message of at most 2³² − 1 bytes. [`Completion::Sent`] tells when all of it has arrived.
    ///
    /// ```
    /// use std::time::Duration;
    /// use weft::{Completion, Endpoint, ReceiveOptions, SendOptions};
    ///
    /// // An endpoint reaches itself at its own address.
    /// let mut endpoint = Endpoint::builder("udp:127.20.0.5").build()?;
    /// let own = endpoint.peer("127.20.0.5")?;
    /// let connection = endpoint.connect(own)?;
    ///
    /// endpoint.receive_with(vec![0; 100], ReceiveOptions::default().tag(7).context(1))?;
    /// endpoint.send_with(connection, b"for tag 7", SendOptions::default().tag(7).context(2))?;
    /// loop {
    ///     let completion = endpoint.wait(Duration::from_secs(5))?.expect("a completion");
    ///     let message = completion.message();
    ///     match completion {
    ///         Completion::Received { context, tag, result, .. } => {
    ///             result?;
    ///             assert_eq!((context, tag), (1, Some(7)));
    ///             assert_eq!(message.unwrap(), &b"for tag 7"[..]);
    ///             break;
    ///         }
    ///         Completion::Closed { result, .. } => result?, // the connection has failed
    ///         _ => {}
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The connection is not open, the message is too long, there is no room for it now
    /// ([`Error::is_back_pressure`]), or the worker is gone; with the buffer.
    // Inlined always: a completion or a buffer that is put together and then moved costs more than the call.
    #[inline(always)]
    pub fn send_with(
        &mut self,
        connection: ConnectionId,
        buffer: impl Into<SendBuffer>,
        options: SendOptions,
    ) -> Result<OperationId, PostError<SendBuffer>> {
        each!(self, inner => inner.send(connection, buffer.into(), options))
    }

    /// Sends a message of at most [`MAX_COPY`] bytes, which are copied at the call. Its completion has no buffer.
    ///
    /// # Errors
    /// As [`Endpoint::send_with`]; [`Error::TooLongToCopy`].
    #[inline]
    pub fn send_copy(
        &mut self,
        connection: ConnectionId,
        bytes: &[u8],
        options: SendOptions,
    ) -> Result<OperationId, Error> {
        if bytes.len() > MAX_COPY {
            return Err(Error::TooLongToCopy { len: bytes.len(), most: MAX_COPY });
        }
        each!(self, inner => inner.send_copy(connection, bytes, options))
    }

    /// Makes room for an untagged message of any sender, as [`Endpoint::receive_with`].
    ///
    /// # Errors
    /// As [`Endpoint::receive_with`].
    #[inline]
    pub fn receive(
        &mut self,
        buffer: impl Into<ReceiveBuffer>,
    ) -> Result<OperationId, PostError<ReceiveBuffer>> {
        self.receive_with(buffer, ReceiveOptions::default())
    }

    /// Makes room for a message, which may have arrived already. [`Completion::Received`] brings it.
    ///
    /// # Errors
    /// There is no room for another receive now ([`Error::is_back_pressure`]), or the worker is gone; with the buffer.
    // Inlined always: a completion or a buffer that is put together and then moved costs more than the call.
    #[inline(always)]
    pub fn receive_with(
        &mut self,
        buffer: impl Into<ReceiveBuffer>,
        options: ReceiveOptions,
    ) -> Result<OperationId, PostError<ReceiveBuffer>> {
        each!(self, inner => inner.receive(buffer.into(), options))
    }

    /// Makes room for many messages: each gets the beginning of what is left of the buffer, as many bytes as it has, until
    /// fewer than `least` bytes are left. A message that is longer than what is left gets all of it, and is truncated.
    /// [`Completion::Received`] brings each, with its part of the buffer; that which says that there are no more comes when
    /// all messages that have met the receive have ended.
    ///
    /// # Errors
    /// As [`Endpoint::receive_with`]; [`CallError::NotDivisible`](weft_stack::fep::CallError::NotDivisible) unless the buffer is a
    /// `BytesMut`, or an [`OwnedBytes::divisible`](weft_stack::buffer::OwnedBytes::divisible).
    pub fn receive_many(
        &mut self,
        buffer: impl Into<ReceiveBuffer>,
        least: NonZeroU32,
        options: ReceiveOptions,
    ) -> Result<OperationId, PostError<ReceiveBuffer>> {
        each!(self, inner => inner.receive_many(buffer.into(), least, options))
    }

    /// Lets receives for many messages take `more` further ones than they may now. Before the first such call they take any number. When
    /// it is used up, messages that would meet one stay with their senders, and so may those behind them. A message of several packets
    /// counts when it ends. Whoever reads completions late bounds with this how many of them there are.
    ///
    /// # Errors
    /// Back-pressure, or the worker is gone.
    pub fn allow_many(&mut self, more: u64) -> Result<(), Error> {
        each!(self, inner => inner.allow_many(more))
    }

    /// Looks for a message that waits for a receive like this, and says in [`Completion::Peeked`] whether there is one. A
    /// message waits once its first packet is here and those of all messages before it on their connection.
    ///
    /// # Errors
    /// Back-pressure, or the worker is gone.
    pub fn peek(&mut self, options: ReceiveOptions, found: Found) -> Result<OperationId, Error> {
        each!(self, inner => inner.peek(options, found))
    }

    /// Receives a message that was claimed by [`Endpoint::peek`]. [`Completion::Received`] brings it, with `context`.
    ///
    /// # Errors
    /// As [`Endpoint::receive_with`]; [`CallError::NotClaimed`](weft_stack::fep::CallError::NotClaimed) if the message is not there
    /// any more.
    pub fn receive_claimed(
        &mut self,
        claim: Claim,
        buffer: impl Into<ReceiveBuffer>,
        context: u64,
    ) -> Result<OperationId, PostError<ReceiveBuffer>> {
        each!(self, inner => inner.receive_claimed(claim, buffer.into(), context))
    }

    /// Drops a message that was claimed by [`Endpoint::peek`]. Its sender hears that it was delivered.
    ///
    /// # Errors
    /// [`CallError::NotClaimed`](weft_stack::fep::CallError::NotClaimed) if it is not there any more, back-pressure, or the worker is
    /// gone.
    pub fn discard(&mut self, claim: Claim) -> Result<(), Error> {
        each!(self, inner => inner.discard(claim))
    }

    /// Asks for an operation to be cancelled. Its completion tells whether it was: with
    /// [`SendError::Cancelled`](weft_stack::fep::SendError::Cancelled) or
    /// [`ReceiveError::Cancelled`](weft_stack::fep::ReceiveError::Cancelled), or as usual if it was too late.
    ///
    /// # Errors
    /// [`Error::Completed`] if it is known to be over, back-pressure, or the worker is gone.
    pub fn cancel(&mut self, operation: OperationId) -> Result<(), Error> {
        each!(self, inner => inner.cancel(operation))
    }

    /// Closes a connection once its messages are delivered. [`Completion::Closed`] tells when.
    ///
    /// # Errors
    /// It is not open, back-pressure, or the worker is gone.
    pub fn close(&mut self, connection: ConnectionId) -> Result<(), Error> {
        each!(self, inner => inner.close(connection, false))
    }

    /// Closes a connection without sending the messages that wait, which complete as cancelled.
    ///
    /// # Errors
    /// As [`Endpoint::close`].
    pub fn abort(&mut self, connection: ConnectionId) -> Result<(), Error> {
        each!(self, inner => inner.close(connection, true))
    }

    /// The next completion, if there is one. Never waits. If there is none, a worker in the caller's thread makes one
    /// turn of its loop. It works only in these calls, so call this or [`Endpoint::wait`] again and again.
    ///
    /// # Errors
    /// The worker is gone, and all that was posted has completed.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Completion>, Error> {
        match &mut self.backend {
            Backend::Direct(direct) => Ok(direct.poll()),
            Backend::Remote(remote) => remote.poll(),
        }
    }

    /// The next completion; `None` if there is none within `bound`. The call looks for completions and then sleeps, as
    /// [`Builder::idle`] says. It returns as soon after `bound` as the system's scheduler allows.
    ///
    /// # Errors
    /// As [`Endpoint::poll`].
    pub fn wait(&mut self, bound: Duration) -> Result<Option<Completion>, Error> {
        match &mut self.backend {
            Backend::Direct(direct) => Ok(direct.wait(bound)),
            Backend::Remote(remote) => remote.wait(bound),
        }
    }

    /// The next completion that is there already; [`Endpoint::poll`] without a turn of the worker's loop. Only
    /// [`Endpoint::poll`] and [`Endpoint::wait`] report that the worker is gone.
    // Inlined always, and no `Result`: a completion that is put together and then moved costs more than the call.
    #[inline(always)]
    pub fn next_completion(&mut self) -> Option<Completion> {
        match &mut self.backend {
            Backend::Direct(direct) => direct.next(),
            Backend::Remote(remote) => remote.next(),
        }
    }

    /// One turn of the loop of a worker in the caller's thread, at `now`: a time of the worker's
    /// [`Clock`](weft_stack::worker::Clock), not before that of an earlier turn. For programs that drive several endpoints
    /// in turn, or measure their loop; they take the completions with [`Endpoint::next_completion`], and let the worker
    /// [`rest`](Worker::rest) themselves. A worker elsewhere turns without this.
    #[inline]
    pub fn turn_at(&mut self, now: Time) -> TurnResult {
        match &mut self.backend {
            Backend::Direct(direct) => direct.turn_at(now),
            Backend::Remote(_) => TurnResult::default(),
        }
    }

    /// Prepares for a sleep on the endpoint's descriptor ([`AsFd`]), with `poll` or, level-triggered, with `epoll`. Returns
    /// whether the caller may sleep; if not, there is something to poll already. In a loop: poll until there is nothing, then
    /// `arm`, and if it returns true sleep until the descriptor is readable. It becomes so too when a worker in the caller's
    /// thread has to turn, at the latest after 100 ms, or every 50 µs where the port cannot be waited for (DPDK without
    /// interrupts).
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn arm(&mut self) -> Result<bool, Error> {
        each!(self, inner => inner.arm())
    }

    /// Whether a sleep that [`Endpoint::arm`] has allowed will still be ended by what arrives: no call has looked for completions since.
    /// For programs of which one thread sleeps on the descriptor while others make calls.
    pub fn is_armed(&self) -> bool {
        match &self.backend {
            Backend::Direct(direct) => direct.is_armed(),
            Backend::Remote(remote) => remote.is_armed(),
        }
    }

    /// The registered memory, to allocate and free slices. Its size is [`Builder::memory`]'s. Messages are sent from it and
    /// received into it without a copy by a worker elsewhere. A worker in the caller's thread sends from it without a
    /// copy into the rings too, at the client's end of a memif port; **whoever is at the other end can then read and write
    /// all of it.** A worker elsewhere copies into the rings, also over memif.
    pub fn memory(&mut self) -> &mut Memory {
        each!(self, inner => &mut inner.memory)
    }

    /// The worker, if it runs in the caller's thread: for counters, its clock and its address book.
    pub fn worker(&self) -> Option<&Worker<AnyPort>> {
        match &self.backend {
            Backend::Direct(direct) => Some(&direct.worker),
            Backend::Remote(_) => None,
        }
    }

    /// As [`Endpoint::worker`]. Completions that are taken from the worker itself are lost to the endpoint.
    pub fn worker_mut(&mut self) -> Option<&mut Worker<AnyPort>> {
        match &mut self.backend {
            Backend::Direct(direct) => Some(&mut direct.worker),
            Backend::Remote(_) => None,
        }
    }

    /// The state of a connection's congestion control, if its worker runs in the caller's thread.
    pub fn congestion(&self, connection: ConnectionId) -> Option<CcSnapshot> {
        match (&self.backend, connection.0) {
            (Backend::Direct(direct), ConnectionName::Direct(id)) => direct.worker.fep().congestion(id),
            _ => None,
        }
    }

    /// A line for each connection that waits, saying for what; nothing if the worker runs elsewhere. For people
    /// who look for a flow that is stuck.
    pub fn explain(&self) -> Vec<String> {
        self.worker().map_or_else(Vec::new, |worker| worker.fep().explain(worker.clock().now()))
    }

    /// Closes all connections, and ends the endpoint once they are closed and peers have had their answers. For the
    /// latter a worker that is not in a server waits until no packet has come for two retransmission timeouts, which
    /// are 200 ms by default; on a thread of its own it waits no longer than a second. If an endpoint whose worker runs
    /// in the caller's thread is dropped instead, peers may get no answer to their last messages, and report them as
    /// failed. Completions that come during the call are dropped.
    ///
    /// An endpoint whose worker runs in the caller's thread asks its peers meanwhile to close their idle connections to it,
    /// which end with [`Failure::ClosedByPeer`](crate::Failure::ClosedByPeer): then they open new ones to an endpoint that
    /// comes at its address later.
    ///
    /// # Errors
    /// [`Error::Busy`] if connections are open, datagrams have not left, or packets of peers still arrive, after `bound`.
    pub fn shutdown(mut self, bound: Duration) -> Result<(), Error> {
        let begin = Instant::now();
        each!(self, inner => inner.close_all());
        loop {
            let quiet = each!(self, inner => inner.is_quiet());
            if let Backend::Direct(direct) = &mut self.backend
                && !quiet
            {
                direct.ask_to_close();
            }
            let waited = begin.elapsed();
            match self.wait(bound.saturating_sub(waited).min(LOOK)) {
                Ok(None) if quiet => return Ok(()),
                Err(Error::Gone) if quiet => return Ok(()),
                Ok(_) if waited < bound => {}
                Ok(_) => return Err(Error::Busy(bound)),
                Err(error) => return Err(error),
            }
        }
    }
}

/// How often an endpoint that is shut down looks whether all is done.
const LOOK: Duration = Duration::from_millis(10);

impl AsFd for Endpoint {
    /// To be waited for as [`Endpoint::arm`] says.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.backend {
            Backend::Direct(direct) => direct.descriptor(),
            Backend::Remote(remote) => remote.descriptor(),
        }
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = match &self.backend {
            Backend::Direct(_) => "in the caller's thread",
            Backend::Remote(_) => "elsewhere",
        };
        f.debug_struct("Endpoint").field("worker", &place).field("process", &self.process()).finish()
    }
}
