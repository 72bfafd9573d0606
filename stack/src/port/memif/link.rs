//! A link that is up: it moves frames into and out of the rings.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use super::config::{MemifConfig, Role};
use super::event;
use super::link_layout::{LinkLayout, Offer, RingPlace};
use super::ring::{
    Buffers, Chain, Checked, Descriptor, DescriptorRingError, RING_ALIGNMENT, RxRing, SHORT, SHORTEST,
    TxBuffers, TxRing, create, ring_bytes,
};
use super::signal::Signals;
use crate::packet::Payload;
use crate::port::borrowed::{BorrowBatch, BorrowedFrame, HEAD, RxHeaders};
use crate::port::{Frame, FramePool, MIN_FRAME, RxBurst, TxBurst};
use crate::region::{Region, RegionBytes, SharedRegion};

/// The frames that one call has moved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    pub(super) frames: usize,
    pub(super) bytes: usize,
    /// Frames dropped: longer than the port's longest, or than all buffers of the peer together.
    pub(super) errors: u64,
}

/// One end of a link: a ring for each direction.
#[derive(Debug)]
pub(super) struct Link {
    headers: RxHeaders,
    rx_ring: RxRing,
    tx_ring: TxRing,
    /// Whether the peer has been asked to announce frames.
    listens: bool,
    /// The eventfd that is readable when the peer has announced frames.
    announced: OwnedFd,
    /// The eventfd by which frames are announced to the peer.
    announce: OwnedFd,
    signals: &'static Signals,
}

/// The layout of a client's memory: both rings, then the buffers that it sends from, then those that it receives in.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) to_client: u32,
    pub(super) sending: TxBuffers,
    pub(super) receiving: Buffers,
    pub(super) len: usize,
}

impl Layout {
    /// The configuration has been checked ([`MemifConfig::check`]), so all offsets fit 32 bits.
    pub(super) fn of(log2_size: u8, buffer_size: u32) -> Layout {
        let ring = ring_bytes(log2_size).next_multiple_of(RING_ALIGNMENT as usize);
        let mut len = 2 * ring;
        let mut buffers = |size: u32| {
            let offset = len as u32;
            len += (size as usize) << log2_size;
            Buffers { region: 0, offset, size }
        };
        let sending = TxBuffers { short: buffers(SHORT), long: buffers(buffer_size) };
        Layout { to_client: ring as u32, sending, receiving: buffers(buffer_size), len }
    }
}

/// Allocates the memory that a client offers; the `registered` regions follow its own.
pub(super) fn offer(config: &MemifConfig, registered: &[SharedRegion]) -> io::Result<Offer> {
    let log2_size = config.log2_ring;
    let layout = Layout::of(log2_size, config.buffer_bytes());
    let (region, file) = Region::share(layout.len)?;
    let place = |offset| {
        create(&region, offset, log2_size);
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok::<_, io::Error>(RingPlace { region: 0, offset, log2_size, event })
    };
    let (to_server, to_client) = (place(0)?, place(layout.to_client)?);
    let role = Role::Client;
    let (mut regions, mut files) = (vec![region], vec![file]);
    for memory in registered {
        let (region, file) = memory.try_clone()?.into_parts();
        regions.push(region);
        files.push(file);
    }
    Ok(Offer { layout: LinkLayout { role, regions, to_server, to_client, peer: String::new() }, files })
}

impl Link {
    /// One end of the link with this layout. `buffer_size` is the length of the long buffers that a client has offered.
    ///
    /// # Errors
    /// A ring does not lie in its region.
    pub(super) fn of(layout: LinkLayout, buffer_size: u32, signals: &'static Signals) -> Checked<Link> {
        let LinkLayout { role, regions, to_server, to_client, .. } = layout;
        let own = (role == Role::Client).then(|| Layout::of(to_server.log2_size, buffer_size));
        let region = |place: &RingPlace| regions.get(usize::from(place.region));
        let misplaced = |place: &RingPlace| {
            let &RingPlace { region, offset, log2_size, .. } = place;
            Box::new(DescriptorRingError::Place { region, offset, log2_size })
        };
        let rx_ring = |place: &RingPlace, buffers| {
            let ring =
                region(place).and_then(|region| RxRing::at(region, place.offset, place.log2_size, buffers));
            ring.ok_or_else(|| misplaced(place))
        };
        let tx_ring = |place: &RingPlace, buffers| {
            let ring =
                region(place).and_then(|region| TxRing::at(region, place.offset, place.log2_size, buffers));
            ring.ok_or_else(|| misplaced(place))
        };
        let (rx_ring, tx_ring, announced, announce) = match own {
            None => {
                (rx_ring(&to_server, None)?, tx_ring(&to_client, None)?, to_server.event, to_client.event)
            }
            Some(Layout { sending, receiving, .. }) => (
                rx_ring(&to_client, Some(receiving))?,
                tx_ring(&to_server, Some(sending))?,
                to_client.event,
                to_server.event,
            ),
        };
        let headers = RxHeaders::new(regions);
        Ok(Link { headers, rx_ring, tx_ring, listens: false, announced, announce, signals })
    }

    /// Moves frames that have arrived into `burst`: borrowed ones, if the burst takes such, else copies in buffers of
    /// `pool`.
    ///
    /// # Errors
    /// The peer has written an invalid value into the ring: the link cannot be used any more. `burst` is as it was.
    #[inline]
    pub(super) fn receive(
        &mut self,
        burst: &mut RxBurst,
        pool: &FramePool,
        max_frame: usize,
    ) -> Checked<Moved> {
        let Link { headers, rx_ring, .. } = self;
        let waiting = rx_ring.in_view()?;
        let (regions, mut batch) = headers.lend(usize::from(waiting).min(burst.room()));
        let all_are_back = batch.is_some();
        if all_are_back {
            rx_ring.give_back();
        }
        let mut moved = Moved::default();
        let mut at = 0;
        while at < waiting && burst.room() > 0 {
            if at + AHEAD < waiting {
                fetch(regions, rx_ring.peek(at + AHEAD));
            }
            let lender = batch.as_mut().filter(|_| burst.takes_tails());
            let (chain, frame) = match frame_at(regions, rx_ring, at..waiting, lender, pool, max_frame) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(error) if at == 0 => return Err(error),
                // The frames before it are valid. The next call begins with this one, and fails.
                Err(_) => break,
            };
            at += chain.count;
            let Some(frame) = frame else {
                moved.errors += 1;
                continue;
            };
            (moved.frames, moved.bytes) = (moved.frames + 1, moved.bytes + chain.len);
            let pushed = burst.push(frame);
            debug_assert!(pushed.is_ok(), "there is room");
        }
        rx_ring.advance(at);
        if all_are_back && !burst.takes_tails() {
            rx_ring.give_back();
        }
        Ok(moved)
    }

    /// Copies frames from the front of `burst` into the ring's empty buffers, as many as there are.
    ///
    /// # Errors
    /// As [`Link::receive`].
    #[inline]
    pub(super) fn transmit(&mut self, burst: &mut TxBurst) -> Checked<Moved> {
        self.tell();
        let regions = self.headers.regions();
        let mut room = self.tx_ring.room();
        let mut moved = Moved::default();
        let mut used = 0;
        for frame in burst.iter() {
            let mut put_in = put(regions, &mut self.tx_ring, frame, used, room)?;
            if matches!(put_in, Put::NoRoom) {
                room = self.tx_ring.look()?;
                put_in = put(regions, &mut self.tx_ring, frame, used, room)?;
            }
            match put_in {
                Put::In(count) => {
                    used += count;
                    moved.bytes += frame.total_len();
                }
                Put::NoRoom => break,
                Put::Never => moved.errors += 1,
            }
            moved.frames += 1;
        }
        burst.reuse_front(moved.frames);
        moved.frames -= moved.errors as usize;
        if used > 0 && self.tx_ring.send(used) {
            self.announce();
        }
        Ok(moved)
    }

    /// Whether the peer has received all frames that refer to registered memory.
    ///
    /// # Errors
    /// As [`Link::receive`].
    pub(super) fn is_taken_in(&mut self) -> Checked<bool> {
        self.tell();
        self.tx_ring.look()?;
        Ok(!self.tx_ring.refers())
    }

    /// Takes back the frames that refer to registered memory, unless the peer has begun to read them. The link cannot
    /// be used any more.
    pub(super) fn take_back(&mut self) {
        if self.tx_ring.refers() {
            self.tx_ring.take_back();
        }
    }

    /// Announces frames that were sent just when the peer was about to sleep. To be called soon after
    /// [`transmit`](Self::transmit), which also calls it first, and before this end waits for anything.
    #[inline]
    pub(super) fn tell(&mut self) {
        if self.tx_ring.tell() {
            self.announce();
        }
    }

    fn announce(&self) {
        event::raise(self.signals, &self.announce);
    }

    /// Asks the peer to announce frames. Returns whether there may be frames that it has not announced: those that came
    /// before the first call since the link came up, or since [`look_out`](Self::look_out).
    pub(super) fn listen(&mut self) -> bool {
        if std::mem::replace(&mut self.listens, true) {
            return false;
        }
        self.rx_ring.announce(true);
        // If the peer's index is invalid, `receive` returns the error.
        self.rx_ring.has_news()
    }

    /// Polls again: the peer need not announce frames any more.
    pub(super) fn look_out(&mut self) {
        self.listens = false;
        self.rx_ring.announce(false);
        event::clear(&self.announced);
    }

    /// Readable when frames have been announced.
    pub(super) fn announced(&self) -> BorrowedFd<'_> {
        self.announced.as_fd()
    }
}

/// How many frames ahead of the one being received the first lines are fetched.
const AHEAD: u16 = 8;

#[inline]
fn bytes_of(regions: &[Region], descriptor: Descriptor) -> Checked<RegionBytes<'_>> {
    find(regions, descriptor).ok_or_else(|| no_such_buffer(regions, descriptor))
}

#[inline]
fn find(regions: &[Region], Descriptor { region, offset, len, .. }: Descriptor) -> Option<RegionBytes<'_>> {
    regions.get(usize::from(region))?.bytes(offset.into(), len)
}

#[cold]
fn no_such_buffer(regions: &[Region], descriptor: Descriptor) -> Box<DescriptorRingError> {
    let Descriptor { region, offset, len, .. } = descriptor;
    Box::new(match regions.get(usize::from(region)) {
        Some(found) => DescriptorRingError::Outside { region, offset, len, region_len: found.len() },
        None => DescriptorRingError::Region { found: region, last: regions.len() - 1 },
    })
}

#[cold]
fn other_length(expected: usize, found: usize) -> Box<DescriptorRingError> {
    Box::new(DescriptorRingError::Length { expected, found })
}

#[cold]
fn short_buffer(found: u32) -> Box<DescriptorRingError> {
    Box::new(DescriptorRingError::ShortBuffer { found })
}

#[inline]
fn fetch(regions: &[Region], descriptor: Descriptor) {
    if let Some(bytes) = find(regions, descriptor) {
        bytes.first(HEAD as u32).prefetch();
    }
}

/// The frame that begins at descriptor `waiting.start` of those that wait. `None` if the frame is incomplete, or the
/// pool has no buffer for it; a chain without a frame if it is too short or too long.
#[inline]
fn frame_at(
    regions: &[Region],
    rx_ring: &mut RxRing,
    waiting: Range<u16>,
    lender: Option<&mut BorrowBatch<'_>>,
    pool: &FramePool,
    max_frame: usize,
) -> Checked<Option<(Chain, Option<Frame>)>> {
    let at = waiting.start;
    let Some(chain) = rx_ring.chain(at, waiting.end)? else { return Ok(None) };
    if !(MIN_FRAME..=max_frame).contains(&chain.len) {
        return Ok(Some((chain, None)));
    }
    let loan = match lender {
        Some(batch) => lend(regions, chain, batch)?,
        // Frames of an earlier burst are still borrowed.
        None => None,
    };
    let frame = match loan {
        Some(loan) => Some(Frame::from(loan)),
        None => gather(regions, rx_ring, at, chain, pool)?,
    };
    Ok(frame.map(|frame| (chain, Some(frame))))
}

/// The frame borrowed where it lies, if it lies in one buffer, or has its headers in one and its payload in another.
#[inline]
fn lend(regions: &[Region], chain: Chain, batch: &mut BorrowBatch<'_>) -> Checked<Option<BorrowedFrame>> {
    let first = bytes_of(regions, chain.first)?;
    match chain.count {
        1 => Ok(Some(batch.frame(first))),
        2 if (MIN_FRAME..=HEAD).contains(&(first.len() as usize)) => {
            let last = bytes_of(regions, chain.last)?;
            // The peer may have changed a length since the lengths were added up.
            let len = first.len() as usize + last.len() as usize;
            if len == chain.len {
                Ok(Some(batch.frame_of_two(first, last)))
            } else {
                Err(other_length(chain.len, len))
            }
        }
        _ => Ok(None),
    }
}

/// A copy of the frame that begins at the `at`th descriptor; none if the pool has no buffer.
fn gather(
    regions: &[Region],
    rx_ring: &RxRing,
    at: u16,
    chain: Chain,
    pool: &FramePool,
) -> Checked<Option<Frame>> {
    let Some(mut frame) = pool.allocate(chain.len) else { return Ok(None) };
    let mut rest = &mut frame[..];
    for ahead in at..at + chain.count {
        let bytes = bytes_of(regions, rx_ring.peek(ahead))?;
        // The peer may have changed a length since the lengths were added up.
        let len = bytes.len() as usize;
        if len > rest.len() {
            return Err(other_length(chain.len, chain.len - rest.len() + len));
        }
        let (part, more) = rest.split_at_mut(len);
        bytes.copy_to(part);
        rest = more;
    }
    match rest.len() {
        0 => Ok(Some(frame)),
        missing => Err(other_length(chain.len, chain.len - missing)),
    }
}

/// The result of putting a frame into the ring.
enum Put {
    /// It fills this many buffers.
    In(u16),
    /// There are not enough empty buffers now.
    NoRoom,
    /// There will never be enough, judging by the lengths of the peer's buffers so far.
    Never,
}

/// Puts `frame` into empty buffers, beginning with the `used`th of `room`.
#[inline]
fn put(regions: &[Region], tx_ring: &mut TxRing, frame: &Frame, used: u16, room: u16) -> Checked<Put> {
    let Some(tail) = frame.tail() else {
        // Most frames are in one piece and fit one buffer. For these there is no loop, and nothing is kept on the
        // stack: stores leave in order, and would wait behind those whose lines come from the other processor.
        let len = frame.len() as u32;
        if used < room
            && let buffer = tx_ring.buffer(used, len)
            && len <= buffer.len
        {
            let whole = Descriptor { goes_on: false, len, ..buffer };
            bytes_of(regions, whole)?.write(frame);
            tx_ring.fill(used, whole);
            return Ok(Put::In(1));
        }
        return copy(regions, tx_ring, frame, used, room);
    };
    if let Some(place) = place_of_tail(regions, tx_ring, frame, tail) {
        return put_head(regions, tx_ring, frame, place, used, room);
    }
    copy(regions, tx_ring, frame, used, room)
}

/// The descriptor of the payload attached to `frame`, if that lies in registered memory and the bytes before it fit a
/// buffer.
#[inline]
fn place_of_tail(
    regions: &[Region],
    tx_ring: &TxRing,
    frame: &Frame,
    tail: Payload<'_>,
) -> Option<Descriptor> {
    // The first region holds the rings and buffers.
    let [_, registered @ ..] = regions else { return None };
    if registered.is_empty() || frame.len() > tx_ring.own_buffer()? {
        return None;
    }
    let Payload::Region(tail) = tail else { return None };
    let (number, offset) = (1..).zip(registered).find_map(|(n, region)| Some((n, region.place_of(tail)?)))?;
    Some(Descriptor { goes_on: false, region: number, len: tail.len(), offset })
}

/// Copies the head of `frame` into a buffer, and refers to its payload by the next descriptor.
#[inline]
fn put_head(
    regions: &[Region],
    tx_ring: &mut TxRing,
    frame: &Frame,
    place: Descriptor,
    used: u16,
    room: u16,
) -> Checked<Put> {
    if used + 2 > room {
        // Not `Never`: a ring has two slots at least.
        return Ok(Put::NoRoom);
    }
    let len = frame.len() as u32;
    let head = Descriptor { goes_on: true, len, ..tx_ring.buffer(used, len) };
    bytes_of(regions, head)?.write(frame);
    tx_ring.fill(used, head);
    tx_ring.fill(used + 1, place);
    tx_ring.refer(used + 2);
    Ok(Put::In(2))
}

/// Copies `frame` into several empty buffers, beginning with the `used`th of `room`. It looks at one for each 64 bytes of the
/// frame at most.
#[inline(never)]
fn copy(regions: &[Region], tx_ring: &mut TxRing, frame: &Frame, used: u16, room: u16) -> Checked<Put> {
    let total = frame.total_len() as u32;
    let mut done = 0;
    for ahead in used..room {
        let buffer = tx_ring.buffer(ahead, total);
        if buffer.len < SHORTEST {
            return Err(short_buffer(buffer.len));
        }
        let len = buffer.len.min(total - done);
        let place = bytes_of(regions, Descriptor { len, ..buffer })?;
        copy_part(frame, done, place);
        done += len;
        // Each buffer but the last is full, so its descriptor keeps the length that the peer gave it, and can be used
        // anew if the frame does not fit after all.
        tx_ring.fill(ahead, Descriptor { goes_on: done < total, len, ..buffer });
        if done == total {
            return Ok(Put::In(ahead + 1 - used));
        }
    }
    let is_never = most_room(tx_ring, used..room, done).is_some_and(|most| u64::from(total) > most);
    Ok(if is_never { Put::Never } else { Put::NoRoom })
}

/// An upper bound for the bytes that all buffers of the ring can hold: those in `seen` hold `bytes`, and each of the
/// others, which the peer has not given yet, is taken to be as long as the longest of these. None if `seen` is empty.
#[cold]
fn most_room(tx_ring: &TxRing, seen: Range<u16>, bytes: u32) -> Option<u64> {
    let others = u64::from(tx_ring.size()).saturating_sub(seen.len() as u64);
    let longest = seen.map(|ahead| tx_ring.buffer(ahead, u32::MAX).len).max()?;
    Some(u64::from(bytes) + others * u64::from(longest))
}

/// Fills `place` with the bytes of `frame` from `start` on.
#[inline]
fn copy_part(frame: &Frame, start: u32, place: RegionBytes<'_>) {
    let head = frame.get(start as usize..).unwrap_or_default();
    let from_head = head.len().min(place.len() as usize);
    place.first(from_head as u32).write(&head[..from_head]);
    let place = place.after(from_head as u32);
    let skip = start.saturating_sub(frame.len() as u32);
    match frame.tail() {
        Some(Payload::Bytes(tail)) => place.write(&tail[skip as usize..][..place.len() as usize]),
        Some(Payload::Region(tail)) => place.copy_from(tail.after(skip).first(place.len())),
        Some(Payload::Virtual(_)) | None => {}
    }
}
