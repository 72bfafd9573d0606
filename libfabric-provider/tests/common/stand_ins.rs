//! Long messages for which something stands until their receivers fetch them, wherever the endpoints are.

use std::ptr::null_mut;
use std::time::Instant;

use weft_fi::sys;

use super::fabric::{BOUND, Entry, Failed, Side, table};

/// The next entries of both sides, one of each.
fn ends(a: &Side, b: &Side) -> [Result<Entry, Failed>; 2] {
    [a.cq.next(), b.cq.next()]
}

/// Sends `message` from `a` to `b` again and again. Something stands for it each time. It meets receives with less room, as much and
/// more than that, before and after it is there; it is looked at, claimed, received then, and dropped.
pub(crate) fn every_end(a: &Side, b: &Side, to_b: u64, from_a: u64, message: &[u8]) {
    let whole = message.len();
    let mut room = vec![0u8; whole];
    let at = room.as_mut_ptr();
    let send = |data: u64| {
        let bytes = message.as_ptr().cast();
        a.post(|| table!(a.ep, tagged.senddata(bytes, whole, null_mut(), data, to_b, 6, 11 as *mut _)));
    };
    let call = |room: usize, context: usize, flags: u64| {
        // Two pieces, of which the first has no more than 7 bytes.
        let first = room.min(7);
        let pieces = [
            sys::iovec { iov_base: at.cast(), iov_len: first },
            // SAFETY: there are so many bytes.
            sys::iovec { iov_base: unsafe { at.add(first) }.cast(), iov_len: room - first },
        ];
        let call = sys::fi_msg_tagged {
            msg_iov: pieces.as_ptr(),
            desc: null_mut(),
            iov_count: 2,
            addr: from_a,
            tag: 6,
            ignore: 0,
            context: context as *mut _,
            data: 0,
        };
        b.post(|| table!(b.ep, tagged.recvmsg(&call, flags)));
    };
    // SAFETY: the bytes are there, and nothing writes to them when the receive has ended.
    let has =
        |len: usize| assert!(unsafe { std::slice::from_raw_parts(at, len) } == &message[..len], "{len}");
    // Rooms that are shorter than what stands for the message, as long, longer, and long enough. Posted before and after it.
    let stand_in = 16 + whole % 1024;
    for len in [0, 7, 15, 16, 17, stand_in - 1, stand_in, stand_in + 1, 40_000, whole - 1, whole] {
        for is_expected in [true, false] {
            if is_expected {
                call(len, 2, 0);
            }
            send(len as u64);
            if !is_expected {
                call(0, 3, sys::FI_PEEK);
                let begin = Instant::now();
                // Until it is there.
                loop {
                    match b.cq.next() {
                        Ok(entry) => {
                            let found = (entry.context, entry.len, entry.data, entry.tag, entry.source);
                            assert_eq!(found, (3, whole, len as u64, 6, from_a));
                            break;
                        }
                        Err(failed) => assert_eq!((failed.context, failed.error), (3, sys::FI_ENOMSG)),
                    }
                    assert!(begin.elapsed() < BOUND);
                    call(0, 3, sys::FI_PEEK);
                }
                call(len, 2, 0);
            }
            let [sent, received] = ends(a, b);
            assert_eq!(sent.unwrap().context, 11);
            let error = sys::FI_ETRUNC as i32;
            match received {
                Ok(entry) => assert_eq!((entry.context, entry.len, entry.data), (2, whole, len as u64)),
                Err(failed) => assert_eq!(failed, Failed { context: 2, error, beyond: whole - len }),
            }
            assert_eq!(received.is_err(), len < whole);
            has(len);
        }
    }
    // Found and claimed, then received or dropped; or dropped at once. Its sender is told each time.
    for ends_by in [sys::FI_CLAIM, sys::FI_CLAIM | sys::FI_DISCARD, sys::FI_DISCARD] {
        room.fill(0);
        send(9);
        let begin = Instant::now();
        let looks = sys::FI_PEEK | if ends_by == sys::FI_DISCARD { ends_by } else { sys::FI_CLAIM };
        let found = loop {
            call(0, 4, looks);
            match b.cq.next() {
                Ok(entry) => break entry,
                Err(failed) => assert_eq!(failed.error, sys::FI_ENOMSG),
            }
            assert!(begin.elapsed() < BOUND);
        };
        assert_eq!((found.context, found.len, found.data), (4, whole, 9));
        if ends_by != sys::FI_DISCARD {
            assert_eq!(a.cq.read_within(200), None);
            call(whole, 4, ends_by);
            let entry = b.cq.next().unwrap();
            assert_eq!((entry.context, entry.len, entry.data), (4, whole, 9));
        }
        assert_eq!(a.cq.next().unwrap().context, 11);
        if ends_by == sys::FI_CLAIM {
            has(whole);
        }
    }
    // One that nobody has received cannot be cancelled, and one that waits for a message can.
    call(whole, 5, 0);
    // SAFETY: the endpoint is open.
    assert_eq!(unsafe { (*(*b.ep).ops).cancel.unwrap()(b.ep.cast(), 5 as *mut _) }, 0);
    assert_eq!(b.cq.next(), Err(Failed { context: 5, error: sys::FI_ECANCELED, beyond: 0 }));
}

/// Looks for a message with this tag until it is there, or what stands for it.
pub(crate) fn until_there(side: &Side, tag: u64) {
    let call = sys::fi_msg_tagged {
        msg_iov: std::ptr::null(),
        desc: null_mut(),
        iov_count: 0,
        addr: sys::FI_ADDR_UNSPEC,
        tag,
        ignore: 0,
        context: 99 as *mut _,
        data: 0,
    };
    let begin = Instant::now();
    loop {
        side.post(|| table!(side.ep, tagged.recvmsg(&call, sys::FI_PEEK)));
        match side.cq.next() {
            Ok(entry) => return assert_eq!((entry.context, entry.tag), (99, tag)),
            Err(failed) => assert_eq!((failed.context, failed.error), (99, sys::FI_ENOMSG)),
        }
        assert!(begin.elapsed() < BOUND, "no message");
    }
}
