//! Properties of what the kernel hands over: any control messages, any senders, any lengths of joined datagrams. A property
//! test and a fuzz target share them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::UdpCounters;
use super::control::{CAPACITY, Control};
use super::headers::{self, Outbound};
use super::peers::Peers;
use super::receive::{Receiver, can_join, frames_needed};
use super::system::error_in;
use crate::choices::Choices;
use crate::port::{FramePool, PortCounters};
use crate::wire::class::DscpClasses;

/// The longest datagram that is joined with others.
const LONGEST: usize = 1_100;

/// Any bytes are control messages or not: reading them ends, and stays inside.
pub fn any_bytes_are_control_messages_or_none(bytes: &[u8]) {
    let mut control = Control::new();
    let len = bytes.len().min(CAPACITY);
    control.room()[..len].copy_from_slice(&bytes[..len]);
    control.set_len(bytes.len());
    let messages: Vec<_> = control.iter().collect();
    assert!(messages.iter().map(|(.., data)| 16 + data.len()).sum::<usize>() <= CAPACITY);
    error_in(&control);
}

/// Messages of one datagram or several, with any control messages, of any senders: each becomes frames with its bytes in
/// order, each of which has headers that can be read; or it is counted.
pub fn datagrams_become_frames_with_their_bytes_or_are_counted(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let [kind, entropies] = choices.bytes();
    let (v6, joins) = (kind & 1 != 0, kind & 2 != 0 && can_join(LONGEST));
    let own: IpAddr = if v6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let mut peers = match kind & 4 {
        0 => Peers::by_address(4793),
        _ => Peers::by_port(1 + u16::from(entropies % 8)),
    };
    // Few more than one message needs, so that they run out.
    let frames = frames_needed(LONGEST, joins) + usize::from(kind >> 3);
    let pool = FramePool::heap_for_kernel(frames, headers::len(v6) + LONGEST).expect("memory");
    let mut receiver = Receiver::new(pool, own, LONGEST, joins, DscpClasses::default());
    let mut counters = (PortCounters::default(), UdpCounters::default());
    while let Some(choice) = choices.next() {
        let message = Message::draw(&mut choices, choice);
        let before = lost(&counters.0);
        let origin = (message.from, &message.control[..], message.is_cut);
        let (port, udp) = (&mut counters.0, &mut counters.1);
        let frames = receiver.take_invented(&message.content, origin, &mut peers, (port, udp));
        let mut rest = &message.content[..];
        for frame in &frames {
            let read = Outbound::read(frame).expect("headers of the port's own");
            assert_eq!(read.dst, own);
            let is_trimmed = DscpClasses::default().classify(read.dscp()).trim_point().is_some();
            if !is_trimmed && lost(&counters.0) == before {
                let (here, later) = rest.split_at(read.end - read.begin);
                assert!(&frame[read.begin..read.end] == here, "bytes of another place");
                rest = later;
            }
        }
        assert!(!frames.is_empty() || lost(&counters.0) > before || !message.fits(joins));
    }
}

/// Datagrams that were dropped and counted.
fn lost(port: &PortCounters) -> u64 {
    port.rx_errors + port.rx_missed
}

/// What arrives at a socket.
struct Message {
    from: SocketAddr,
    control: Vec<u8>,
    content: Vec<u8>,
    is_cut: bool,
}

impl Message {
    fn draw(choices: &mut Choices<'_>, choice: u8) -> Message {
        let [long, short, host] = choices.bytes();
        let len = match choice % 4 {
            0 => usize::from(short % 70),
            1 => LONGEST - 2 + usize::from(short % 4),
            2 => 16 * usize::from(long),
            _ => 256 * usize::from(long) + usize::from(short),
        };
        let ip: IpAddr =
            if host & 1 == 0 { [127, 0, 0, host].into() } else { Ipv6Addr::from(u128::from(host)).into() };
        let port = u16::from_le_bytes(choices.bytes());
        let content = (0..len.min(65_535)).map(|n| (n * 7 + n / 251) as u8).collect();
        let mut message =
            Message { from: (ip, port).into(), control: Vec::new(), content, is_cut: choice & 0x80 != 0 };
        for _ in 0..choice >> 2 & 3 {
            message.add_control(choices);
        }
        message
    }

    /// A control message that the kernel sends, or one that nearly is.
    fn add_control(&mut self, choices: &mut Choices<'_>) {
        let [kind, value, more, change] = choices.bytes();
        let (level, name, data): (i32, i32, Vec<u8>) = match kind % 8 {
            0 => (libc::IPPROTO_IP, libc::IP_TOS, vec![value]),
            1 => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, i32::from(value).to_ne_bytes().into()),
            2 => (libc::IPPROTO_IP, libc::IP_TTL, i32::from(value).to_ne_bytes().into()),
            3 => (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, i32::from(value).to_ne_bytes().into()),
            4 => (libc::SOL_UDP, libc::UDP_GRO, u16::from_le_bytes([value, more % 8]).to_ne_bytes().into()),
            5 => (
                libc::SOL_UDP,
                libc::UDP_GRO,
                (LONGEST as i32 - 2 + i32::from(value % 4)).to_ne_bytes().into(),
            ),
            6 => (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, vec![value; usize::from(more % 32)]),
            _ => (i32::from(value), i32::from(more), vec![value; usize::from(change % 9)]),
        };
        let mut one = Control::new();
        one.push(level, name, &data);
        let mut bytes = one.bytes().to_vec();
        if change & 0xc0 == 0xc0
            && let Some(byte) = bytes.get_mut(usize::from(change % 32))
        {
            *byte ^= more;
        }
        self.control.extend(bytes);
        any_bytes_are_control_messages_or_none(&self.control);
    }

    /// Whether the kernel could have handed it over whole.
    fn fits(&self, joins: bool) -> bool {
        !self.is_cut && (joins || self.content.len() <= LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The seeds of the fuzz target: control messages as the kernel sends them, and datagrams, one and several together.
    #[test]
    fn the_seeds_are_control_messages_and_datagrams() {
        let mut control = Control::new();
        control.push(libc::IPPROTO_IP, libc::IP_TOS, &[0x29]);
        control.push(libc::IPPROTO_IP, libc::IP_TTL, &64i32.to_ne_bytes());
        control.push(libc::SOL_UDP, libc::UDP_GRO, &(LONGEST as i32).to_ne_bytes());
        // What arrives, its length and sender, and its control messages.
        let one = [4, 0, 50, 2, 0xb9, 0x12, 0, 0x29, 0, 0];
        let joined = [6, 69, 0, 2, 0xb9, 0x12, 5, 2, 0, 0];
        let seeds = [
            ("control_messages", control.bytes().to_vec()),
            ("one_datagram", [&[0, 0][..], &one].concat()),
            ("joined_datagrams", [&[0x1a, 0][..], &joined, &one].concat()),
            ("ipv6_by_port", [&[0x1d, 7][..], &[0, 0, 50, 3, 0, 0xc0], &one].concat()),
        ];
        crate::seeds::check("udp_messages", &seeds, |bytes| {
            any_bytes_are_control_messages_or_none(bytes);
            datagrams_become_frames_with_their_bytes_or_are_counted(bytes);
        });
    }

    proptest! {
        #[test]
        fn any_bytes_as_control_messages(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            any_bytes_are_control_messages_or_none(&bytes);
        }

        #[test]
        fn datagrams_become_frames_or_are_counted(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            datagrams_become_frames_with_their_bytes_or_are_counted(&bytes);
        }
    }
    /// The port has no more frames than it needs, and its frames for later messages are all that it has when datagrams
    /// become shorter.
    #[test]
    fn short_datagrams_after_long_ones_find_frames() {
        let longest = 4_096;
        let pool =
            FramePool::heap_for_kernel(frames_needed(longest, true), headers::len(false) + longest).unwrap();
        let own = Ipv4Addr::LOCALHOST.into();
        let mut receiver = Receiver::new(pool, own, longest, true, DscpClasses::default());
        let mut peers = Peers::by_address(4793);
        let (mut port, mut udp) = (PortCounters::default(), UdpCounters::default());
        let from = SocketAddr::from(([127, 0, 0, 9], 4793));
        for _ in 0..4 {
            let mut control = Control::new();
            control.push(libc::SOL_UDP, libc::UDP_GRO, &1_000u32.to_ne_bytes());
            let origin = (from, control.bytes(), false);
            let frames = receiver.take_invented(&[7; 20_000], origin, &mut peers, (&mut port, &mut udp));
            assert_eq!(frames.len() as u64 + port.rx_missed, 20);
            port.rx_missed = 0;
        }
    }
}
