//! From frames to datagrams.
//!
//! The frames of a burst are sorted by source port. Consecutive frames of one source port
//! with equal destination, class and length become one message, which the kernel cuts (GSO). Order is kept
//! among the frames of one source port; no network keeps it among those of several.
//!
//! A trimmed packet's UDP length tells how long the packet was, but the kernel writes that field itself and drops
//! datagrams with fewer bytes. So the length is sent in two bytes behind a trimmed datagram.

use std::io::{self, IoSlice};
use std::net::UdpSocket;
use std::os::fd::AsFd;

use arrayvec::ArrayVec;

use super::control::Control;
use super::headers::Outbound;
use super::peers::Peers;
use super::receive::TRAILER;
use super::system::{self, Message, QueuedError, RawAddr};
use super::{Notice, Notices, UdpCounters};
use crate::port::{BURST, Frame, PortCounters, TxBurst};
use crate::wire::class::DscpClasses;
use crate::wire::frame::DEFAULT_TTL;
use crate::wire::udp::ENTROPY_COUNT;

/// The most errors that are taken out of a socket's queue at once. More may come as fast as they are taken.
const REPORTS: usize = 64;
/// Bytes of the longest message that the length fields of IPv4, IPv6 and UDP all express.
const JOINED: usize = 65_487;

/// The sending half of a port.
pub(super) struct Sender {
    /// The source sockets, by entropy.
    pub(super) sockets: Vec<UdpSocket>,
    pub(super) v6: bool,
    pub(super) gso: bool,
    pub(super) classes: DscpClasses,
}

/// Where sending reports its results.
pub(super) struct Told<'a> {
    pub(super) port: &'a mut PortCounters,
    pub(super) udp: &'a mut UdpCounters,
    pub(super) notices: &'a mut Notices,
}

type Plans = ArrayVec<(Option<Outbound>, [u8; TRAILER]), BURST>;
/// Frames of one message, by place in the burst.
type Run = ArrayVec<u8, BURST>;
/// Frames of a burst, the lowest bit being the first one's.
type Bits = u32;

/// The result of reading the error queue of a socket.
#[derive(Default)]
struct Drained {
    /// Whether a router or a peer has reported the error that a call returned.
    is_reported: bool,
    /// The MTU of the interface, if it was too small for a datagram.
    interface: Option<usize>,
}

/// A burst to be sent, with the destination of each frame.
struct PlannedBurst<'a> {
    frames: &'a [Frame],
    plans: Plans,
    peers: &'a Peers,
}

impl PlannedBurst<'_> {
    /// The plan of a frame that is in a run.
    fn plan(&self, n: u8) -> (&Outbound, &[u8; TRAILER]) {
        let (Some(plan), trailer) = &self.plans[usize::from(n)] else {
            unreachable!("only plans are in runs")
        };
        (plan, trailer)
    }
}

impl Told<'_> {
    /// Counts the frames of a message that the kernel has taken.
    fn sent(&mut self, run: &Run, out: &PlannedBurst<'_>) -> Bits {
        self.udp.tx_joined += u64::from(run.len() > 1);
        run.iter().fold(0, |bits, n| {
            self.port.sent(&out.frames[usize::from(*n)]);
            bits | 1 << n
        })
    }

    /// Counts a frame that can never be sent.
    #[cold]
    fn dropped(
        &mut self,
        n: u8,
        error: &io::Error,
        interface: Option<usize>,
        out: &PlannedBurst<'_>,
    ) -> Bits {
        self.port.tx_errors += 1;
        let packet = out.frames[usize::from(n)].len() - crate::port::MIN_FRAME;
        let errno = error.raw_os_error().unwrap_or(0);
        self.notices.say(match errno {
            libc::EMSGSIZE => Notice::TooLong { packet, interface },
            _ => Notice::Refused { errno },
        });
        1 << n
    }
}

impl Sender {
    /// Sends the frames of `burst`, all that the sockets take. Returns how many left the burst.
    pub(super) fn transmit(&mut self, burst: &mut TxBurst, peers: &Peers, told: &mut Told<'_>) -> usize {
        let (plans, mut gone) = self.plan(burst, told);
        let out = PlannedBurst { frames: burst, plans, peers };
        for source in 0..self.sockets.len() {
            let frames: Run = (0..out.plans.len() as u8)
                .filter(|n| self.source(&out.plans[usize::from(*n)].0) == Some(source))
                .collect();
            if !frames.is_empty() {
                gone |= self.send(source, &frames, self.gso, &out, told);
            }
        }
        burst.remove(gone);
        gone.count_ones() as usize
    }

    /// Reads all headers. Frames that are no datagrams are dropped.
    fn plan(&self, frames: &[Frame], told: &mut Told<'_>) -> (Plans, Bits) {
        let (mut plans, mut gone) = (Plans::new(), 0);
        for (n, frame) in frames.iter().enumerate() {
            let plan = Outbound::read(frame).ok().filter(|plan| plan.dst.is_ipv6() == self.v6);
            if plan.is_none() {
                told.port.tx_errors += 1;
                gone |= 1 << n;
            }
            plans.push((plan, plan.map_or([0; TRAILER], |plan| plan.udp_length.to_be_bytes())));
        }
        (plans, gone)
    }

    /// The socket of the entropy that a frame's source port stands for.
    fn source(&self, plan: &Option<Outbound>) -> Option<usize> {
        plan.as_ref().map(|plan| usize::from(plan.source_port & (ENTROPY_COUNT - 1)) % self.sockets.len())
    }

    fn is_trimmed(&self, plan: &Outbound) -> bool {
        self.classes.classify(plan.dscp()).trim_point().is_some()
    }

    /// Sends these frames from the socket `source`, joined or not. Returns those that are sent, or dropped.
    fn send(
        &mut self,
        source: usize,
        frames: &[u8],
        join: bool,
        out: &PlannedBurst<'_>,
        told: &mut Told<'_>,
    ) -> Bits {
        let runs = self.runs(frames, join, &out.plans);
        let mut parts: ArrayVec<IoSlice<'_>, { 2 * BURST }> = ArrayVec::new();
        let mut ends: ArrayVec<usize, BURST> = ArrayVec::new();
        let mut heads: ArrayVec<(RawAddr, Control), BURST> = ArrayVec::new();
        for run in &runs {
            self.gather(run, out, &mut parts);
            ends.push(parts.len());
            let (first, _) = out.plan(run[0]);
            heads.push((out.peers.place(first.dst), control(first, run.len(), self.v6)));
        }
        let mut begin = 0;
        let messages: ArrayVec<Message<'_>, BURST> = heads
            .iter()
            .zip(&ends)
            .map(|((to, control), end)| {
                let message = Message { to, control, parts: &parts[begin..*end] };
                begin = *end;
                message
            })
            .collect();
        let (mut at, mut tried, mut gone) = (0, false, 0);
        while at < messages.len() {
            told.udp.send_calls += 1;
            match system::send(self.sockets[source].as_fd(), &messages[at..]) {
                Ok(count) => {
                    gone |= runs[at..at + count].iter().fold(0, |bits, run| bits | told.sent(run, out));
                    (at, tried) = (at + count, false);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_full(&error) => break,
                // The kernel has perhaps told what was reported of an earlier datagram instead of sending this one.
                Err(error) => {
                    let drained = self.drain_errors(source, &error, told);
                    match (tried, drained.is_reported) {
                        (false, _) => tried = true,
                        // Reports come faster than they are read. The frames wait for the next call.
                        (true, true) => break,
                        (true, false) => {
                            gone |= self.refused((&error, drained.interface), source, &runs[at], out, told);
                            (at, tried) = (at + 1, false);
                        }
                    }
                }
            }
        }
        gone
    }

    /// The pieces of a message.
    fn gather<'a>(
        &self,
        run: &Run,
        out: &'a PlannedBurst<'_>,
        parts: &mut ArrayVec<IoSlice<'a>, { 2 * BURST }>,
    ) {
        for n in run {
            let (plan, trailer) = out.plan(*n);
            parts.push(IoSlice::new(&out.frames[usize::from(*n)][plan.begin..plan.end]));
            if self.is_trimmed(plan) {
                parts.push(IoSlice::new(trailer));
            }
        }
    }

    /// Handles a refused message, with its error and perhaps the MTU of its interface. If it had several datagrams they
    /// are sent one by one, to find out which one the error is about.
    #[cold]
    fn refused(
        &mut self,
        (error, interface): (&io::Error, Option<usize>),
        source: usize,
        run: &Run,
        out: &PlannedBurst<'_>,
        told: &mut Told<'_>,
    ) -> Bits {
        if run.len() == 1 {
            return told.dropped(run[0], error, interface, out);
        }
        self.without_gso(error, told);
        self.send(source, run, false, out, told)
    }

    /// Groups these frames into messages.
    fn runs(&self, frames: &[u8], join: bool, plans: &Plans) -> ArrayVec<Run, BURST> {
        let mut runs: ArrayVec<Run, BURST> = ArrayVec::new();
        // Of the last run: its first plan, and whether its last datagram is as long as the first.
        let mut open: Option<(Outbound, usize)> = None;
        for n in frames {
            let Some(plan) = plans[usize::from(*n)].0 else { continue };
            let len = plan.end - plan.begin;
            let fits = open.is_some_and(|(first, total)| {
                let segment = first.end - first.begin;
                let same = (first.dst, first.tos, first.ttl) == (plan.dst, plan.tos, plan.ttl);
                join && same
                    && segment > 0
                    && total.is_multiple_of(segment)
                    && (1..=segment).contains(&len)
                    && total + len <= JOINED
                    && !self.is_trimmed(&plan)
            });
            match (runs.last_mut(), &mut open) {
                (Some(run), Some((_, total))) if fits => {
                    run.push(*n);
                    *total += len;
                }
                _ => {
                    runs.push(ArrayVec::from_iter([*n]));
                    open = Some((plan, len));
                }
            }
        }
        runs
    }

    /// Takes errors out of a socket's queue after a call that returned `error`, and notes what the network has reported. A local
    /// firewall may both refuse a datagram and report it, with another error: then it is refused.
    #[cold]
    fn drain_errors(&self, source: usize, error: &io::Error, told: &mut Told<'_>) -> Drained {
        let mut drained = Drained::default();
        let next = || system::next_error(self.sockets[source].as_fd());
        for QueuedError { errno, is_local, mtu } in std::iter::from_fn(next).take(REPORTS) {
            if is_local {
                drained.interface = (errno == libc::EMSGSIZE).then_some(mtu as usize);
                continue;
            }
            drained.is_reported |= error.raw_os_error() == Some(errno);
            told.udp.unreachable += 1;
            told.notices.say(match errno {
                libc::EMSGSIZE => Notice::ShortPath { path: mtu as usize },
                _ => Notice::Unreachable { errno },
            });
        }
        drained
    }

    /// Handles a refused message of joined datagrams. If the device cannot send such messages, no more are made; if
    /// the interface's MTU is the reason, its datagrams are sent one by one to find out which.
    #[cold]
    fn without_gso(&mut self, error: &io::Error, told: &mut Told<'_>) {
        if matches!(error.raw_os_error(), Some(libc::EIO | libc::EOPNOTSUPP | libc::ENOPROTOOPT)) {
            self.gso = false;
            told.notices.say(Notice::NoGso);
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
        || matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

/// The control messages of a message of `count` datagrams.
fn control(first: &Outbound, count: usize, v6: bool) -> Control {
    let mut control = Control::new();
    let (level, tos, ttl) = if v6 {
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT)
    } else {
        (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
    };
    control.push(level, tos, &libc::c_int::from(first.tos).to_ne_bytes());
    // The sockets have the usual one, and the kernel refuses zero.
    if first.ttl != DEFAULT_TTL && first.ttl != 0 {
        control.push(level, ttl, &libc::c_int::from(first.ttl).to_ne_bytes());
    }
    if count > 1 {
        let segment = (first.end - first.begin) as u16;
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
    }
    control
}
