//! Messages that wait for receives are looked at, claimed and discarded; and receives take many messages.

use std::ptr::null_mut;
use std::time::Instant;

use crate::common::fabric::{BOUND, Entry, Failed, How, Side, Wish, table};
use crate::common::{inside, inside_with};
use weft_fi::sys;
use weft_fi::sys::FI_ADDR_UNSPEC;

const PEEK: u64 = sys::FI_PEEK;
const CLAIM: u64 = sys::FI_CLAIM;
const DISCARD: u64 = sys::FI_DISCARD;

/// Two endpoints; the number of the second in the first, and of the first in the second.
fn pair() -> (Side, Side, u64, u64) {
    let open = || Side::open(&Wish::default(), How::default());
    let (a, b) = (open(), open());
    let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
    (a, b, to_b, from_a)
}

fn receive(side: &Side, room: &mut [u8], tags: (u64, u64), flags: u64, context: usize) -> isize {
    let piece = sys::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    let message = sys::fi_msg_tagged {
        msg_iov: &piece,
        desc: null_mut(),
        iov_count: 1,
        addr: FI_ADDR_UNSPEC,
        tag: tags.0,
        ignore: tags.1,
        context: context as *mut _,
        data: 0,
    };
    table!(side.ep, tagged.recvmsg(&message, flags))
}

/// The entry of a call with these flags.
fn answer(side: &Side, room: &mut [u8], tags: (u64, u64), flags: u64) -> Result<Entry, Failed> {
    assert_eq!(receive(side, room, tags, flags, 5), 0);
    side.cq.next()
}

/// The entry of a look at what waits, once something does.
fn found(side: &Side, tags: (u64, u64), flags: u64) -> Entry {
    let begin = Instant::now();
    loop {
        match answer(side, &mut [], tags, flags) {
            Ok(entry) => return entry,
            Err(none) => assert_eq!((none.context, none.error), (5, sys::FI_ENOMSG)),
        }
        assert!(begin.elapsed() < BOUND, "nothing comes");
    }
}

#[test]
fn a_message_that_waits_is_seen_claimed_and_received() {
    if !inside("a_message_that_waits_is_seen_claimed_and_received") {
        return;
    }
    let (a, b, to_b, from_a) = pair();
    // It is longer than what is kept of messages without a receive.
    let long: Vec<u8> = (0..80_000_000u32).map(|n| (n >> 4) as u8).collect();
    let (at, len) = (long.as_ptr().cast(), long.len());
    a.post(|| table!(a.ep, tagged.senddata(at, len, null_mut(), 0xfeed, to_b, 1, 11 as *mut _)));
    a.send(to_b, b"second", Some(1), 12);
    let flags = sys::FI_TAGGED | sys::FI_RECV;
    let first = Entry {
        context: 5,
        flags: flags | sys::FI_REMOTE_CQ_DATA,
        len,
        data: 0xfeed,
        tag: 1,
        source: from_a,
    };
    let second = Entry { context: 5, flags, len: 6, data: 0, tag: 1, source: from_a };
    // Whoever asks for it drives the sender as well.
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| [a.cq.next(), a.cq.next()]);
        assert_eq!(found(&b, (1, 0), PEEK), first);
        assert_eq!(found(&b, (0, u64::MAX), PEEK), first, "it stays where it is");
        assert_eq!(found(&b, (1, 0), PEEK | CLAIM), first);
        assert_eq!(receive(&b, &mut [], (1, 0), PEEK | CLAIM, 5), -(sys::FI_EBUSY as isize));
        let (mut room, mut other) = (vec![0; len], vec![0; 10]);
        // The first one is taken: this is for the second.
        b.receive(&mut other, FI_ADDR_UNSPEC, Some((1, 0)), 6);
        assert_eq!(receive(&b, &mut room, (1, 0), CLAIM, 5), 0);
        let mut entries = [b.cq.next(), b.cq.next()];
        entries.sort_by_key(|entry| entry.unwrap().context);
        assert_eq!(entries, [Ok(first), Ok(Entry { context: 6, ..second })]);
        assert!(room == long && other[..6] == *b"second");
        assert!(sender.join().unwrap().iter().all(Result::is_ok));
    });
    assert_eq!(receive(&b, &mut [], (1, 0), CLAIM, 5), -(sys::FI_ENOENT as isize), "it was received");
    assert_eq!(receive(&b, &mut [], (1, 0), CLAIM | PEEK | DISCARD, 5), -(sys::FI_EBADFLAGS as isize));
}

#[test]
fn messages_that_nobody_wants_are_discarded() {
    if !inside("messages_that_nobody_wants_are_discarded") {
        return;
    }
    let (a, b, to_b, _) = pair();
    // More than what is kept of messages that wait: the discarded ones take no room.
    let long = vec![7; 10_000_000];
    for n in 0..16 {
        a.send(to_b, &long, Some(n), 3);
        let flags = if n % 2 == 0 { PEEK | DISCARD } else { PEEK | CLAIM };
        assert_eq!((found(&b, (0, u64::MAX), flags).tag, found_nothing(&b)), (n, true));
        if n % 2 == 1 {
            assert_eq!(answer(&b, &mut [], (0, 0), CLAIM | DISCARD).unwrap().tag, n);
        }
        let begin = Instant::now();
        // The sender hears that it was delivered.
        while a.cq.read().is_none() {
            assert_eq!(b.cq.read(), None);
            assert!(begin.elapsed() < BOUND);
            std::thread::yield_now();
        }
    }
}

fn found_nothing(side: &Side) -> bool {
    answer(side, &mut [], (0, u64::MAX), PEEK).is_err_and(|none| none.error == sys::FI_ENOMSG)
}

/// A receive that was cancelled in time has no message: the message can be seen. One that was too late has it.
#[test]
fn a_cancelled_receive_and_a_look_never_get_the_same_message() {
    if !inside("a_cancelled_receive_and_a_look_never_get_the_same_message") {
        return;
    }
    let (a, b, to_b, _) = pair();
    let (mut cancelled, mut received, context) = (0, 0, 1usize);
    for n in 0..200usize {
        let mut room = vec![0; 8];
        b.receive(&mut room, FI_ADDR_UNSPEC, Some((9, 0)), 1);
        a.send(to_b, &n.to_ne_bytes(), Some(9), 2);
        // The message may be anywhere now.
        for _ in 0..n % 7 {
            let _ = a.cq.read();
            let _ = table!(b.cq.0, ops.read(null_mut(), 0));
        }
        // SAFETY: the endpoint is open.
        let asked = unsafe { (*(*b.ep).ops).cancel.unwrap()(b.ep.cast(), context as *mut _) };
        assert!(asked == 0 || asked == -(sys::FI_ENOENT as isize), "{asked}");
        match b.cq.next() {
            Ok(entry) => {
                assert_eq!((entry.context, entry.len), (1, 8));
                received += 1;
            }
            Err(failed) => {
                assert_eq!((failed.context, failed.error), (1, sys::FI_ECANCELED));
                assert_eq!(found(&b, (9, 0), PEEK | CLAIM).len, 8);
                assert!(answer(&b, &mut room, (9, 0), CLAIM).is_ok());
                cancelled += 1;
            }
        }
        assert_eq!(room, n.to_ne_bytes());
    }
    assert!(cancelled > 0 && received > 0, "{cancelled} {received}");
}

/// Posts a receive for many messages.
pub(crate) fn receive_many(side: &Side, room: &mut [u8], context: usize) -> isize {
    let piece = sys::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    let message = sys::fi_msg {
        msg_iov: &piece,
        desc: null_mut(),
        iov_count: 1,
        addr: FI_ADDR_UNSPEC,
        context: context as *mut _,
        data: 0,
    };
    table!(side.ep, msg.recvmsg(&message, sys::FI_MULTI_RECV))
}

/// `fi_setopt` and `fi_getopt` of FI_OPT_MIN_MULTI_RECV.
fn set_least(side: &Side, least: usize) {
    let (level, name) = (sys::FI_OPT_ENDPOINT as i32, sys::FI_OPT_MIN_MULTI_RECV as i32);
    let (at, mut back, mut len) = ((&raw const least).cast(), 0usize, size_of::<usize>());
    // SAFETY: the endpoint is open, and the places have their lengths.
    let answers = unsafe {
        let ops = &*(*side.ep).ops;
        let set = ops.setopt.unwrap()(side.ep.cast(), level, name, at, len);
        (set, ops.getopt.unwrap()(side.ep.cast(), level, name, (&raw mut back).cast(), &mut len))
    };
    assert_eq!((answers, back), ((0, 0), least));
}

/// They arrive in the order of their packets, as these have one path.
#[test]
fn messages_for_whose_entries_there_is_no_room_stay_with_their_sender() {
    const NAME: &str = "messages_for_whose_entries_there_is_no_room_stay_with_their_sender";
    if inside_with(NAME, &[("FI_WEFT_ENTROPIES", "1")]) {
        let [a, b] = [0, QUEUE].map(|queue| Side::open(&Wish::default(), How { queue, ..How::default() }));
        stay_with_their_sender(&a, &b, QUEUE);
    }
}

/// The entries of a queue for whose messages [`stay_with_their_sender`] has no room.
pub(crate) const QUEUE: usize = 8;

/// Messages of no bytes, which take nothing of the buffer, from `a` to `b`, whose queue has room for [`QUEUE`] entries: no more than `most`
/// of them are received until it is read.
pub(crate) fn stay_with_their_sender(a: &Side, b: &Side, most: usize) {
    const COUNT: usize = 200;
    let to_b = a.insert(&b.name());
    b.insert(&a.name());
    let mut room = [0; 100];
    assert_eq!(receive_many(b, &mut room, 1), 0);
    // A server learns of the receive a little later, and it takes what waits then whatever the queue has room for.
    b.receive(&mut [], FI_ADDR_UNSPEC, Some((1, 0)), 2);
    // SAFETY: the endpoint is open.
    b.post(|| unsafe { (*(*b.ep).ops).cancel.unwrap()(b.ep.cast(), 2 as *mut _) });
    assert!(b.cq.next().is_err_and(|failed| failed.context == 2));
    for n in 0..COUNT {
        a.send(to_b, &[], None, n);
    }
    let mut sent = 0;
    while let Some(end) = a.cq.read_within(500) {
        end.unwrap();
        sent += 1;
    }
    assert!((1..=most).contains(&sent), "{sent} messages have been received");
    for n in 0..COUNT {
        let entry = b.cq.next().unwrap();
        assert_eq!(
            (entry.context, entry.len, entry.flags),
            (1, 0, sys::FI_MSG | sys::FI_RECV),
            "message {n}"
        );
    }
    (sent..COUNT).for_each(|_| _ = a.cq.next().unwrap());
    assert_eq!(b.cq.read(), None);
}

#[test]
fn receives_for_many_messages_release_their_buffers_with_the_last() {
    if !inside("receives_for_many_messages_release_their_buffers_with_the_last") {
        return;
    }
    const ROOM: usize = 60_000;
    const LEAST: usize = 20_000;
    let (a, b, to_b, _) = pair();
    set_least(&b, LEAST);
    let mut rooms = [vec![0u8; ROOM], vec![0u8; ROOM]];
    let begins = rooms.each_mut().map(|room| room.as_mut_ptr().addr());
    // The first messages are there before the receives.
    let length = |n: usize| [1, 20_000, 0, 9_000, 13][n % 5];
    let payload = |n: usize| vec![n as u8; length(n)];
    let payloads: Vec<Vec<u8>> = (0..60).map(payload).collect();
    let mut posted = 0;
    for payload in &payloads[..10] {
        a.send(to_b, payload, None, 0);
        posted += 1;
    }
    for (n, room) in rooms.iter_mut().enumerate() {
        assert_eq!(receive_many(&b, room, n), 0);
    }
    // Each byte of a buffer belongs to one message at most until the buffer is released.
    let (mut got, mut spans, begin) = (0, [Vec::new(), Vec::new()], Instant::now());
    while got < payloads.len() {
        assert!(begin.elapsed() < BOUND, "{got} messages");
        if posted < payloads.len() && posted < got + 10 {
            a.send(to_b, &payloads[posted], None, 0);
            posted += 1;
        }
        let _ = a.cq.read();
        let Some((entry, at)) = b.cq.read_with_place() else { continue };
        let Entry { context, len, flags, .. } = entry;
        assert_eq!(flags & !sys::FI_MULTI_RECV, sys::FI_MSG | sys::FI_RECV);
        let span = at - begins[context]..at - begins[context] + len;
        assert!(span.end <= ROOM);
        spans[context].push(span.clone());
        // They are short enough to arrive in order, each in one or a few packets; the numbers tell them apart.
        let bytes = &rooms[context][span];
        if let Some(first) = bytes.first() {
            assert!(bytes.iter().all(|byte| byte == first) && len == length(*first as usize));
        }
        got += 1;
        if flags & sys::FI_MULTI_RECV != 0 {
            let mut all = std::mem::take(&mut spans[context]);
            all.sort_by_key(|span| (span.start, span.end));
            assert!(all.windows(2).all(|two| two[0].end == two[1].start), "{all:?}");
            assert!(ROOM - all.last().unwrap().end < LEAST, "released too early");
            rooms[context].fill(0);
            assert_eq!(receive_many(&b, &mut rooms[context], context), 0);
        }
    }
    for context in 0..2 {
        // SAFETY: the endpoint is open.
        let asked = unsafe { (*(*b.ep).ops).cancel.unwrap()(b.ep.cast(), context as *mut _) };
        assert_eq!(asked, 0);
        assert_eq!(b.cq.next(), Err(Failed { context, error: sys::FI_ECANCELED, beyond: 0 }));
    }
}
