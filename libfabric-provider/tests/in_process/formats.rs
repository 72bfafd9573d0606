//! Completion queues with entries of each format.

use std::ptr::null_mut;
use std::time::Instant;

use crate::common::fabric::{BOUND, How, Side, Wish, table};
use crate::common::inside;
use crate::common::server::servers;
use weft_fi::sys;

const PLAIN: &str = "entries_of_every_format_have_their_fields";
const SERVED: &str = "entries_of_every_format_have_their_fields_through_servers";

const TAG: u64 = 0x0123_4567_89ab_cdef;
const DATA: u64 = 0xfeed_beef;
/// What is behind the entries that were asked for.
const UNTOUCHED: u64 = 0x5555_5555_5555_5555;

/// Words of an entry of each format.
const FORMATS: [(sys::fi_cq_format, usize); 5] = [
    (sys::FI_CQ_FORMAT_UNSPEC, 1),
    (sys::FI_CQ_FORMAT_CONTEXT, 1),
    (sys::FI_CQ_FORMAT_MSG, 3),
    (sys::FI_CQ_FORMAT_DATA, 5),
    (sys::FI_CQ_FORMAT_TAGGED, 6),
];

/// Three messages are received, of which two entries are read at a time.
fn every_format(domains: [Option<String>; 2]) {
    for (format, words) in FORMATS {
        let [a, b] = domains
            .clone()
            .map(|domain| Side::open(&Wish { domain, ..Wish::default() }, How { format, ..How::default() }));
        let (to_b, _) = (a.insert(&b.name()), b.insert(&a.name()));
        let mut rooms = [[0u8; 64]; 3];
        for (n, room) in rooms.iter_mut().enumerate() {
            b.receive(room, sys::FI_ADDR_UNSPEC, Some((TAG + n as u64, 0)), 10 + n);
        }
        let message = [7u8; 40];
        for n in 0..3 {
            let (len, tag) = (20 + n, TAG + n as u64);
            a.post(|| {
                table!(a.ep, tagged.injectdata(message.as_ptr().cast(), len, DATA + n as u64, to_b, tag))
            });
        }
        let (mut entries, begin) = (Vec::new(), Instant::now());
        while entries.len() < 3 * words {
            let mut some = [UNTOUCHED; 2 * 6];
            let read = table!(b.cq.0, ops.read(some.as_mut_ptr().cast(), 2));
            assert!(begin.elapsed() < BOUND, "no entry");
            let count = if read == -(sys::FI_EAGAIN as isize) { 0 } else { usize::try_from(read).unwrap() };
            assert!(count <= 2 && some[count * words..].iter().all(|word| *word == UNTOUCHED));
            entries.extend_from_slice(&some[..count * words]);
            assert_eq!(table!(a.cq.0, ops.read(null_mut(), 0)), -(sys::FI_EAGAIN as isize));
            std::thread::yield_now();
        }
        let mut entries: Vec<&[u64]> = entries.chunks(words).collect();
        // Messages may complete in any order.
        entries.sort();
        let flags = sys::FI_TAGGED | sys::FI_RECV | sys::FI_REMOTE_CQ_DATA;
        for (n, entry) in entries.iter().enumerate() {
            let n = n as u64;
            let all = [10 + n, flags, 20 + n, 0, DATA + n, TAG + n];
            for (at, (is, expected)) in entry.iter().zip(all).enumerate() {
                // The buffer is named for receives of several messages only.
                assert!(
                    at == 3 || *is == expected,
                    "format {format}, word {at}: {is:#x} is not {expected:#x}"
                );
            }
        }
        assert!(rooms.iter().all(|room| room[..20] == message[..20]));
    }
}

#[test]
fn entries_of_every_format_have_their_fields() {
    if inside(PLAIN) {
        every_format([None, None]);
    }
}

#[test]
fn entries_of_every_format_have_their_fields_through_servers() {
    if inside(SERVED) {
        let directory = tempfile::tempdir().unwrap();
        let servers = servers(&directory, 62);
        every_format([Some(servers[0].name()), Some(servers[1].name())]);
    }
}
