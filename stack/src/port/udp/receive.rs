//! From datagrams to frames.
//!
//! The kernel writes straight into frames, behind room for their headers. With GRO one message can be
//! up to 64 KiB of datagrams of equal length. It is received into several frames, cut at
//! the length seen last. While that guess is right, as it nearly always is with full packets, no byte
//! is copied; when it is wrong the message is cut anew into other frames.

use std::io::IoSliceMut;
use std::net::IpAddr;
#[cfg(any(test, feature = "fuzzing"))]
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use arrayvec::ArrayVec;
use std::collections::VecDeque;
use weft_cc::Span;

use super::UdpCounters;
use super::control::{Control, nanoseconds, number};
use super::headers::{self, Inbound};
use super::peers::Peers;
use super::system::{self, Arrival, MESSAGES};
use crate::port::{BURST, ChecksumStatus, Frame, FramePool, PortCounters, RxBurst};
use crate::wire::class::DscpClasses;
use crate::wire::frame::DEFAULT_TTL;

/// The most frames that one message is received into.
const PARTS: usize = 64;
/// Bytes of the longest message with GRO.
const JOINED: usize = 65_535;
/// The most datagrams that the kernel joins.
const MAX_JOINED: usize = 64;
/// How often the kernel is asked for messages in a call: twice as often as it takes to fill a burst, as some datagrams become no frame.
const PULLS: usize = 2 * BURST / MESSAGES;
/// Bytes behind a trimmed datagram that tell its original UDP length; see `transmit`.
pub(super) const TRAILER: usize = 2;

/// The receiving half of a port.
pub(super) struct Receiver {
    pool: FramePool,
    armed: Box<[ArrayVec<Frame, PARTS>; MESSAGES]>,
    arrivals: Box<[Arrival; MESSAGES]>,
    /// Frames for the next bursts, each with the time at which the kernel took it in.
    ready: VecDeque<(Frame, Stamp)>,
    own: IpAddr,
    /// Bytes of headers in front of each payload.
    headers: usize,
    /// The longest payload accepted, bytes.
    longest: usize,
    /// The length at which messages are cut.
    cut: usize,
    joins: bool,
    classes: DscpClasses,
}

/// The control messages of a received message.
#[derive(Clone, Copy)]
struct Told {
    tos: u8,
    ttl: u8,
    /// The length of the datagrams that were joined.
    segment: Option<usize>,
    arrived: Stamp,
}

/// A time of the system's clock, which the kernel stamps datagrams with: ns since 1970; 0 if unknown.
type Stamp = u64;

/// A datagram that seems to have waited for longer was stamped before the clock was set.
const LONGEST_WAIT: Span = Span::from_ms(1_000);

fn system_time() -> Stamp {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// The time from `arrived` to `now`; zero if it is unknown or makes no sense.
fn waited(arrived: Stamp, now: Stamp) -> Span {
    let waited = Span::from_ns(now.saturating_sub(arrived));
    if arrived == 0 || waited > LONGEST_WAIT { Span::ZERO } else { waited }
}

/// The number of frames that receiving needs at once, for full datagrams, or for one message however short those are that
/// it joins.
pub(super) fn frames_needed(longest: usize, joins: bool) -> usize {
    (MESSAGES * parts(longest, joins)).max(parts(shortest_cut(longest), joins))
}

/// The least length at which messages are cut.
fn shortest_cut(longest: usize) -> usize {
    longest.min(JOINED.div_ceil(PARTS))
}

/// Frames that one message is received into.
fn parts(cut: usize, joins: bool) -> usize {
    if joins { JOINED.div_ceil(cut) } else { 1 }
}

/// Whether messages of joined datagrams can be received into frames of this length.
pub(super) fn can_join(longest: usize) -> bool {
    parts(longest, true) <= PARTS
}

impl Receiver {
    pub(super) fn new(
        pool: FramePool,
        own: IpAddr,
        longest: usize,
        joins: bool,
        classes: DscpClasses,
    ) -> Receiver {
        Receiver {
            pool,
            armed: Box::new(std::array::from_fn(|_| ArrayVec::new())),
            arrivals: Box::new(std::array::from_fn(|_| Arrival::new())),
            ready: VecDeque::with_capacity(MESSAGES * MAX_JOINED),
            own,
            headers: headers::len(own.is_ipv6()),
            longest,
            cut: longest,
            joins,
            classes,
        }
    }

    /// Appends frames that have arrived to `burst`, as many as it has room for. More may wait: datagrams that become no frame may come
    /// as fast as they are taken from the kernel, and must not keep the worker here.
    pub(super) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        peers: &mut Peers,
        burst: &mut RxBurst,
        counters: (&mut PortCounters, &mut UdpCounters),
    ) -> usize {
        let (port, udp) = counters;
        let (mut count, mut pulls) = (0, 0);
        // The worker's turn, whose time the endpoint takes for now, has just begun: what arrives from here on has not
        // waited.
        let now = system_time();
        loop {
            while burst.room() > 0
                && let Some((mut frame, arrived)) = self.ready.pop_front()
            {
                frame.set_waited(waited(arrived, now));
                port.received(&frame);
                let pushed = burst.push(frame);
                debug_assert!(pushed.is_ok(), "there is room");
                count += 1;
            }
            if burst.room() == 0 || pulls == PULLS {
                return count;
            }
            pulls = if self.pull(fd, peers, port, udp) { pulls + 1 } else { PULLS };
        }
    }

    /// Whether the kernel joins datagrams.
    pub(super) fn joins(&self) -> bool {
        self.joins
    }

    /// Takes messages from the kernel. Returns whether there may be more.
    fn pull(
        &mut self,
        fd: BorrowedFd<'_>,
        peers: &mut Peers,
        port: &mut PortCounters,
        udp: &mut UdpCounters,
    ) -> bool {
        let slots = self.arm();
        if slots == 0 {
            // Datagrams wait in the kernel until frames come back.
            return false;
        }
        let (cut, headers) = (self.cut, self.headers);
        let mut parts: ArrayVec<ArrayVec<IoSliceMut<'_>, PARTS>, MESSAGES> = ArrayVec::new();
        for frames in &mut self.armed[..slots] {
            parts.push(frames.iter_mut().map(|f| IoSliceMut::new(&mut f[headers..headers + cut])).collect());
        }
        udp.receive_calls += 1;
        // The error belongs to no received datagram. If it lasts, the next call reports it again.
        let got = system::receive(fd, &mut parts, &mut self.arrivals[..slots]).unwrap_or(0);
        drop(parts);
        for slot in 0..got {
            self.take(slot, cut, peers, port, udp);
        }
        got == slots
    }

    /// Prepares frames to receive messages into. Returns for how many messages there are enough.
    fn arm(&mut self) -> usize {
        let wanted = parts(self.cut, self.joins);
        for slot in 0..MESSAGES {
            let (frames, later) = self.armed[slot..].split_first_mut().expect("there is this slot");
            frames.truncate(wanted);
            while frames.len() < wanted {
                // The frames of later messages may be all that the pool has.
                let spare = || later.iter_mut().rev().find_map(ArrayVec::pop);
                match self.pool.allocate(self.headers + self.longest).or_else(spare) {
                    Some(frame) => frames.push(frame),
                    None => return slot,
                }
            }
        }
        MESSAGES
    }

    /// A message of `content` arrives as the kernel would hand it over, from `from` with these control messages. Returns
    /// the frames that it becomes.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn take_invented(
        &mut self,
        content: &[u8],
        (from, control, is_cut): (SocketAddr, &[u8], bool),
        peers: &mut Peers,
        counters: (&mut PortCounters, &mut UdpCounters),
    ) -> Vec<Frame> {
        let (port, udp) = counters;
        assert!(self.arm() > 0, "all frames have come back, and none can be received into");
        let (cut, headers) = (self.cut, self.headers);
        for (frame, bytes) in self.armed[0].iter_mut().zip(content.chunks(cut)) {
            frame[headers..headers + bytes.len()].copy_from_slice(bytes);
        }
        let len = content.len().min(cut * parts(cut, self.joins));
        self.arrivals[0] = Arrival::invented(control, from, len, is_cut || len < content.len());
        self.take(0, cut, peers, port, udp);
        self.ready.drain(..).map(|(frame, _)| frame).collect()
    }

    /// Makes frames of the message in `slot`.
    fn take(
        &mut self,
        slot: usize,
        cut: usize,
        peers: &mut Peers,
        port: &mut PortCounters,
        udp: &mut UdpCounters,
    ) {
        let arrival = &self.arrivals[slot];
        let (len, is_cut) = (arrival.len, arrival.is_cut());
        let told = Told::read(&arrival.control);
        let named = peers.name(arrival.from());
        let segment = told.segment.unwrap_or(len).min(len);
        let count = if segment == 0 { 1 } else { len.div_ceil(segment) };
        udp.rx_joined += u64::from(count > 1);
        let fits = !is_cut && segment <= self.longest;
        let Some((src, source_port)) = named.filter(|(src, _)| fits && src.is_ipv4() == self.own.is_ipv4())
        else {
            port.rx_errors += count as u64;
            return;
        };
        let of = Inbound { src, dst: self.own, source_port, tos: told.tos, ttl: told.ttl };
        if count == 1 && len <= cut || segment == cut {
            for (at, frame) in self.armed[slot].drain(..count).enumerate() {
                let present = segment.min(len - at * segment);
                match finish(frame, &of, self.headers, present, &self.classes) {
                    Some(frame) => self.ready.push_back((frame, told.arrived)),
                    None => port.rx_errors += 1,
                }
            }
            return;
        }
        udp.rx_copied += count as u64;
        for at in 0..count {
            let begin = at * segment;
            let present = segment.min(len - begin);
            match self.pool.allocate(self.headers + self.longest) {
                Some(mut frame) => {
                    let place = &mut frame[self.headers..self.headers + present];
                    gather(&self.armed[slot], self.headers, cut, begin, place);
                    match finish(frame, &of, self.headers, present, &self.classes) {
                        Some(frame) => self.ready.push_back((frame, told.arrived)),
                        None => port.rx_errors += 1,
                    }
                }
                None => port.rx_missed += 1,
            }
        }
        if len > cut {
            self.cut = segment.clamp(shortest_cut(self.longest), self.longest);
        }
    }
}

/// Copies bytes from `begin` on of a message received into `frames`, `cut` bytes each.
fn gather(frames: &[Frame], headers: usize, cut: usize, mut begin: usize, mut place: &mut [u8]) {
    while !place.is_empty() {
        let (frame, offset) = (&frames[begin / cut], begin % cut);
        let count = place.len().min(cut - offset);
        let (now, later) = place.split_at_mut(count);
        now.copy_from_slice(&frame[headers + offset..headers + offset + count]);
        (begin, place) = (begin + count, later);
    }
}

/// Gives a frame its headers and its length; `None` if they do not fit together.
#[inline]
fn finish(
    mut frame: Frame,
    of: &Inbound,
    headers: usize,
    present: usize,
    classes: &DscpClasses,
) -> Option<Frame> {
    let trimmed = classes.classify(of.tos >> 2).trim_point().is_some();
    let lengths =
        if trimmed { original(&frame[headers..headers + present]) } else { Some((present, present)) };
    let (present, announced) = lengths?;
    of.write(&mut frame, present, announced).ok()?;
    frame.truncate(headers + present);
    frame.set_checksum_status(ChecksumStatus::Good);
    Some(frame)
}

/// The bytes of payload that a trimmed datagram has, and those that it had before.
#[cold]
fn original(bytes: &[u8]) -> Option<(usize, usize)> {
    let (rest, trailer) = bytes.split_last_chunk::<TRAILER>()?;
    let announced = usize::from(u16::from_be_bytes(*trailer)).checked_sub(crate::wire::udp::HEADER_LEN)?;
    (announced >= rest.len()).then_some((rest.len(), announced))
}

impl Told {
    fn read(control: &Control) -> Told {
        let mut told = Told { tos: 0, ttl: DEFAULT_TTL, segment: None, arrived: 0 };
        for (level, kind, data) in control.iter() {
            let value = number(data);
            match (level, kind) {
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    told.tos = value as u8;
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    told.ttl = value as u8;
                }
                (libc::SOL_UDP, libc::UDP_GRO) => told.segment = Some((value as usize).max(1)),
                (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS) => told.arrived = nanoseconds(data),
                _ => {}
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;
    use crate::port::Port;
    use crate::port::udp::{UdpConfig, UdpPort};

    #[test]
    fn a_call_ends_while_datagrams_wait_that_become_no_frame() {
        let config = UdpConfig::at([127, 0, 0, 1].into()).with_free_ports();
        let mut port = UdpPort::open(&config).unwrap();
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        // Trimmed packets end with two bytes that say how long they were, and these have one.
        let tos = libc::c_int::from(DscpClasses::default().trimmed) << 2;
        system::set(stranger.as_fd(), libc::IPPROTO_IP, libc::IP_TOS, tos).unwrap();
        for _ in 0..PULLS * MESSAGES + 9 {
            stranger.send_to(&[0], port.as_peer().socket).unwrap();
        }
        let mut burst = RxBurst::new();
        assert_eq!(port.receive(&mut burst), 0);
        assert_eq!(port.counters().rx_errors, (PULLS * MESSAGES) as u64);
        assert_eq!(port.receive(&mut burst), 0);
        assert_eq!(port.counters().rx_errors, (PULLS * MESSAGES) as u64 + 9);
    }
}
