//! The longest messages, accesses and pieces of memory, of 2^32 - 1 bytes, and longer ones, which are refused. The bytes are in mappings
//! whose pages are mostly untouched, so that they take no memory, and receivers want few of them, so that the others are not sent.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr::null_mut;
use std::time::Instant;

use crate::common::fabric::{BOUND, Failed, How, Side, Wish, close, getinfo, table};
use crate::common::inside;
use crate::common::server::{Server, servers};
use weft_fi::sys::{self, FI_ADDR_UNSPEC};

/// Bytes of the longest message.
const MOST: usize = u32::MAX as usize;
const TOO_LONG: isize = -(sys::FI_EMSGSIZE as isize);
const KEY: u64 = 0x77;

/// As many bytes as the longest message has and a page more, all of them zeros at first.
struct Mapping(*mut c_void);

impl Mapping {
    const LEN: usize = MOST + 4_097;

    fn new() -> Mapping {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: it is a new mapping.
        let at = unsafe { libc::mmap(null_mut(), Mapping::LEN, protection, flags, -1, 0) };
        assert!(at != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Mapping(at)
    }

    /// Nothing else writes to these bytes meanwhile.
    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= Mapping::LEN);
        // SAFETY: there are so many bytes.
        unsafe { self.0.cast::<u8>().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn read(&self, range: Range<usize>) -> Vec<u8> {
        assert!(range.end <= Mapping::LEN);
        // SAFETY: the bytes are there.
        range.map(|at| unsafe { self.0.cast::<u8>().add(at).read_volatile() }).collect()
    }

    /// Two pieces that have `len` bytes together.
    fn pieces(&self, len: usize) -> [sys::iovec; 2] {
        let first = 1 << 31;
        // SAFETY: there are so many bytes.
        let second = unsafe { self.0.cast::<u8>().add(first) }.cast();
        [(self.0, first), (second, len - first)].map(|(iov_base, iov_len)| sys::iovec { iov_base, iov_len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        assert_eq!(unsafe { libc::munmap(self.0, Mapping::LEN) }, 0);
    }
}

/// Two endpoints, in these servers if there are any, and the number of the other one in each.
fn pair(servers: Option<&[Server; 2]>) -> ([Side; 2], [u64; 2]) {
    let sides = [0, 1].map(|n| {
        let caps = sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA;
        let wish = Wish { domain: servers.map(|servers| servers[n].name()), caps, ..Wish::default() };
        let info = getinfo(&wish).unwrap_or_else(|error| panic!("{error}"));
        // SAFETY: an info has all its parts.
        assert_eq!(unsafe { (*info.get().ep_attr).max_msg_size }, MOST);
        Side::open(&wish, How::default())
    });
    let to = [sides[0].insert(&sides[1].name()), sides[1].insert(&sides[0].name())];
    (sides, to)
}

/// Sends the longest message. It meets a receive with less room, or is looked at and dropped.
fn send_the_longest([a, b]: &[Side; 2], [to_b, from_a]: [u64; 2], message: &Mapping, tags: &[Option<u64>]) {
    message.write(0, b"the beginning");
    for tag in tags {
        let send = || match tag {
            Some(tag) => table!(a.ep, tagged.send(message.0, MOST, null_mut(), to_b, *tag, 7 as *mut _)),
            None => table!(a.ep, msg.send(message.0, MOST, null_mut(), to_b, 7 as *mut _)),
        };
        for is_expected in [true, false] {
            let mut room = [7u8; 5_000];
            let receive = |room: &mut [u8]| b.receive(room, from_a, tag.map(|tag| (tag, 0)), 2);
            if is_expected {
                receive(&mut room);
            }
            a.post(send);
            if !is_expected {
                assert_eq!(find(b, *tag, sys::FI_PEEK), MOST);
                receive(&mut room);
            }
            let beyond = MOST - room.len();
            let truncated = Err(Failed { context: 2, error: sys::FI_ETRUNC as i32, beyond });
            assert_eq!(b.cq.next(), truncated, "{tag:?}");
            assert_eq!(a.cq.next().map(|sent| sent.context), Ok(7), "{tag:?}");
            assert!(room.starts_with(b"the beginning") && room[13..] == [0; 4_987], "{tag:?}");
        }
        a.post(send);
        assert_eq!(find(b, *tag, sys::FI_PEEK | sys::FI_DISCARD), MOST);
        assert_eq!(a.cq.next().map(|sent| sent.context), Ok(7), "{tag:?}");
    }
}

/// Looks for a message until it is there. Returns its length.
fn find(side: &Side, tag: Option<u64>, flags: u64) -> usize {
    let (msg_iov, desc, iov_count, addr, context, data) =
        (std::ptr::null(), null_mut(), 0, FI_ADDR_UNSPEC, 3 as *mut _, 0);
    let begin = Instant::now();
    loop {
        side.post(|| match tag {
            Some(tag) => {
                let look =
                    sys::fi_msg_tagged { msg_iov, desc, iov_count, addr, tag, ignore: 0, context, data };
                table!(side.ep, tagged.recvmsg(&look, flags))
            }
            None => {
                let look = sys::fi_msg { msg_iov, desc, iov_count, addr, context, data };
                table!(side.ep, msg.recvmsg(&look, flags))
            }
        });
        match side.cq.next() {
            Ok(entry) => return entry.len,
            Err(failed) => assert_eq!((failed.context, failed.error), (3, sys::FI_ENOMSG)),
        }
        assert!(begin.elapsed() < BOUND, "no message");
    }
}

/// Each call for a byte more is refused.
fn refuse_longer(a: &Side, to: u64, message: &Mapping) {
    let (at, len, none, context) = (message.0, MOST + 1, null_mut(), 7 as *mut c_void);
    let pieces = message.pieces(len);
    let iov = pieces.as_ptr();
    let refused = [
        table!(a.ep, msg.send(at, len, none, to, context)),
        table!(a.ep, msg.senddata(at, len, none, 5, to, context)),
        table!(a.ep, msg.sendv(iov, null_mut(), 2, to, context)),
        table!(a.ep, tagged.send(at, len, none, to, 5, context)),
        table!(a.ep, tagged.senddata(at, len, none, 5, to, 5, context)),
        table!(a.ep, tagged.sendv(iov, null_mut(), 2, to, 5, context)),
        table!(a.ep, rma.write(at, len, none, to, 0, KEY, context)),
        table!(a.ep, rma.writedata(at, len, none, 5, to, 0, KEY, context)),
        table!(a.ep, rma.writev(iov, null_mut(), 2, to, 0, KEY, context)),
        table!(a.ep, rma.read(at, len, none, to, 0, KEY, context)),
        table!(a.ep, rma.readv(iov, null_mut(), 2, to, 0, KEY, context)),
    ];
    assert_eq!(refused, [TOO_LONG; 11]);
    // To and from several places, each of which is short enough.
    let places = pieces.map(|piece| sys::fi_rma_iov { addr: 0, len: piece.iov_len, key: KEY });
    let access = sys::fi_msg_rma {
        msg_iov: iov,
        desc: null_mut(),
        iov_count: 2,
        addr: to,
        rma_iov: places.as_ptr(),
        rma_iov_count: 2,
        context,
        data: 0,
    };
    let refused = [table!(a.ep, rma.writemsg(&access, 0)), table!(a.ep, rma.readmsg(&access, 0))];
    assert_eq!(refused, [TOO_LONG; 2]);
    assert_eq!(a.cq.read(), None);
}

/// The longest piece of memory is accessed at its end. The longest access, which is refused, moves nothing.
fn access_the_longest([a, b]: &[Side; 2], to_b: u64, memory: &Mapping, own: &Mapping) {
    let register = |len: usize| {
        let (mut mr, access) = (null_mut(), sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE);
        // SAFETY: the domain is open, and the memory outlives the registration.
        let answer = unsafe {
            let reg = (*(*b.domain).mr).reg.unwrap();
            reg(b.domain.cast(), memory.0, len, access, 0, KEY, 0, &mut mr, null_mut())
        };
        (answer, mr)
    };
    assert_eq!(register(MOST + 1).0 as isize, TOO_LONG);
    let (answer, mr) = register(MOST);
    assert_eq!(answer, 0);
    let done = |call: &dyn Fn() -> isize| {
        a.post(call);
        a.cq.next()
    };
    let (none, context, last) = (null_mut(), 7 as *mut c_void, MOST as u64 - 8);
    own.write(0, b"the last");
    assert!(done(&|| table!(a.ep, rma.write(own.0, 8, none, to_b, last, KEY, context))).is_ok());
    assert_eq!(memory.read(MOST - 9..MOST + 1), b"\0the last\0");
    memory.write(MOST - 8, b"the end.");
    assert!(done(&|| table!(a.ep, rma.read(own.0, 8, none, to_b, last, KEY, context))).is_ok());
    assert_eq!(own.read(0..9), b"the end.\0");
    // All bytes of the access are beyond the memory.
    let refused = done(&|| table!(a.ep, rma.read(own.0, MOST, none, to_b, MOST as u64, KEY, context)));
    assert_eq!(refused, Err(Failed { context: 7, error: sys::FI_EREMOTEIO, beyond: 0 }));
    assert_eq!(own.read(0..9), b"the end.\0");
    assert_eq!(close(mr.cast()), 0);
}

#[test]
fn messages_have_at_most_as_many_bytes_as_max_msg_size_says() {
    if !inside("messages_have_at_most_as_many_bytes_as_max_msg_size_says") {
        return;
    }
    let (sides, to) = pair(None);
    let message = Mapping::new();
    refuse_longer(&sides[0], to[0], &message);
    send_the_longest(&sides, to, &message, &[Some(5)]);
}

#[test]
fn messages_through_servers_have_at_most_as_many_bytes_as_max_msg_size_says() {
    if !inside("messages_through_servers_have_at_most_as_many_bytes_as_max_msg_size_says") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 81);
    let (sides, to) = pair(Some(&servers));
    let message = Mapping::new();
    refuse_longer(&sides[0], to[0], &message);
    send_the_longest(&sides, to, &message, &[Some(5), None]);
}

#[test]
fn memory_has_at_most_as_many_bytes_as_an_access() {
    if !inside("memory_has_at_most_as_many_bytes_as_an_access") {
        return;
    }
    let (sides, to) = pair(None);
    access_the_longest(&sides, to[0], &Mapping::new(), &Mapping::new());
}

#[test]
fn memory_through_servers_has_at_most_as_many_bytes_as_an_access() {
    if !inside("memory_through_servers_has_at_most_as_many_bytes_as_an_access") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 83);
    let (sides, to) = pair(Some(&servers));
    access_the_longest(&sides, to[0], &Mapping::new(), &Mapping::new());
}
