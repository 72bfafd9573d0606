//! Control messages of `sendmsg` and `recvmsg`: the values that accompany a datagram to and from the kernel.

use libc::c_int;

/// Bytes of a control message's header, and what its data is padded to.
const HEADER: usize = size_of::<libc::cmsghdr>();
const ALIGN: usize = size_of::<usize>();
const LEVEL: usize = std::mem::offset_of!(libc::cmsghdr, cmsg_level);
const TYPE: usize = std::mem::offset_of!(libc::cmsghdr, cmsg_type);

/// Room for all control messages that the port asks for, and for those of an error queue.
pub(super) const CAPACITY: usize = 256;

/// A sequence of control messages, with the alignment that the kernel requires.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl Control {
    pub(super) const fn new() -> Control {
        Control { bytes: [0; CAPACITY], len: 0 }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// All the room, for the kernel to write into; then [`set_len`](Self::set_len).
    pub(super) fn room(&mut self) -> &mut [u8; CAPACITY] {
        &mut self.bytes
    }

    pub(super) fn set_len(&mut self, len: usize) {
        self.len = len.min(CAPACITY);
    }

    /// Appends a message. There must be room: the messages that a port sends take 72 bytes.
    pub(super) fn push(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let at = self.len;
        self.bytes[at..at + ALIGN].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        self.bytes[at + LEVEL..at + LEVEL + 4].copy_from_slice(&level.to_ne_bytes());
        self.bytes[at + TYPE..at + TYPE + 4].copy_from_slice(&kind.to_ne_bytes());
        self.bytes[at + HEADER..at + HEADER + data.len()].copy_from_slice(data);
        self.len = at + HEADER + data.len().next_multiple_of(ALIGN);
    }

    /// Level, type and data of each message.
    pub(super) fn iter(&self) -> impl Iterator<Item = (c_int, c_int, &[u8])> {
        let mut rest = self.bytes();
        std::iter::from_fn(move || {
            let len = usize::from_ne_bytes(rest.get(..ALIGN)?.try_into().ok()?);
            let data = rest.get(HEADER..len)?;
            let word = |at: usize| Some(c_int::from_ne_bytes(rest.get(at..at + 4)?.try_into().ok()?));
            let message = (word(LEVEL)?, word(TYPE)?, data);
            rest = rest.get(len.next_multiple_of(ALIGN)..).unwrap_or(&[]);
            Some(message)
        })
    }
}

/// The number in a control message, which the kernel may write as a byte, a short or an int.
pub(super) fn number(data: &[u8]) -> u32 {
    match *data {
        [a] => u32::from(a),
        [a, b] => u32::from(u16::from_ne_bytes([a, b])),
        [a, b, c, d, ..] => u32::from_ne_bytes([a, b, c, d]),
        _ => 0,
    }
}

/// The time in a control message, a `timespec`, in ns; 0 if it is none.
pub(super) fn nanoseconds(data: &[u8]) -> u64 {
    let word = |at: usize| Some(u64::from_ne_bytes(data.get(at..at + 8)?.try_into().ok()?));
    match (word(0), word(8)) {
        (Some(seconds), Some(nanos)) => seconds.saturating_mul(1_000_000_000).saturating_add(nanos),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_again() {
        let mut control = Control::new();
        control.push(0, 1, &[7]);
        control.push(17, 103, &4096u16.to_ne_bytes());
        control.push(41, 67, &9u32.to_ne_bytes());
        let seen: Vec<_> = control.iter().map(|(l, t, data)| (l, t, number(data))).collect();
        assert_eq!(seen, [(0, 1, 7), (17, 103, 4096), (41, 67, 9)]);
    }

    #[test]
    fn nonsense_ends_the_list() {
        let mut control = Control::new();
        control.push(0, 1, &[7]);
        control.room()[24] = 3;
        control.set_len(100);
        assert_eq!(control.iter().count(), 1);
        control.room()[0] = 255;
        assert_eq!(control.iter().count(), 0);
        assert_eq!(number(&[]), 0);
        assert_eq!(nanoseconds(&[0; 15]), 0);
    }
}
