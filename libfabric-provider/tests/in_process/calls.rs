//! Calls of each table, made as programs make them: through libfabric, which has loaded the provider.

use crate::common;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::common::fabric::{Entry, Failed, How, Opened, Side, Wish, descriptor, getinfo, table};
use crate::common::inside;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft_fi::sys;
use weft_fi::sys::FI_ADDR_UNSPEC;

const TAGGED: u64 = sys::FI_TAGGED;
const UNTAGGED: u64 = sys::FI_MSG;

fn open() -> Side {
    Side::open(&Wish::default(), How::default())
}

/// Two endpoints that know each other, and the numbers of the other in each.
fn pair(how: How) -> (Side, Side, u64, u64) {
    let (a, b) = (Side::open(&Wish::default(), how), Side::open(&Wish::default(), how));
    let (to_b, to_a) = (a.insert(&b.name()), b.insert(&a.name()));
    (a, b, to_b, to_a)
}

fn sent(context: usize, kind: u64) -> Result<Entry, Failed> {
    let flags = kind | sys::FI_SEND;
    Ok(Entry { context, flags, source: FI_ADDR_UNSPEC, ..Entry::default() })
}

#[test]
fn messages_arrive_with_tag_data_and_source() {
    if !inside("messages_arrive_with_tag_data_and_source") {
        return;
    }
    let (a, b, to_b, from_a) = pair(How::default());
    let payload: Vec<u8> = (0..300_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
    let mut rooms = [vec![0; 300_000], vec![0; 300_000], vec![0; 10]];
    let [first, second, third] = &mut rooms;
    b.receive(first, FI_ADDR_UNSPEC, None, 1);
    b.receive(second, FI_ADDR_UNSPEC, Some((0x10, 0xf)), 2);
    a.send(to_b, &payload, Some(0x1a), 3);
    a.send(to_b, &payload[..1000], None, 4);
    let mut entries = [b.cq.next(), b.cq.next()];
    entries.sort_by_key(|entry| entry.unwrap().context);
    let received = |context, kind, len, tag| {
        Ok(Entry { context, flags: kind | sys::FI_RECV, len, tag, source: from_a, data: 0 })
    };
    assert_eq!(entries[0], received(1, UNTAGGED, 1000, 0));
    assert_eq!(entries[1], received(2, TAGGED, 300_000, 0x1a));
    let mut entries = [a.cq.next(), a.cq.next()];
    entries.sort_by_key(|entry| entry.unwrap().context);
    assert_eq!(entries, [sent(3, TAGGED), sent(4, UNTAGGED)]);

    let bytes = *b"injected";
    let at = bytes.as_ptr().cast();
    a.post(|| table!(a.ep, tagged.injectdata(at, 8, 0xdead_beef, to_b, 5)));
    b.receive(third, from_a, Some((5, 0)), 6);
    let flags = TAGGED | sys::FI_RECV | sys::FI_REMOTE_CQ_DATA;
    assert_eq!(
        b.cq.next(),
        Ok(Entry { context: 6, flags, len: 8, data: 0xdead_beef, tag: 5, source: from_a })
    );
    assert_eq!(a.cq.read(), None, "injected messages have no entry");
    assert!(rooms[0][..1000] == payload[..1000] && rooms[1] == payload && rooms[2][..8] == bytes);
}

#[test]
fn messages_in_pieces_are_put_together() {
    if !inside("messages_in_pieces_are_put_together") {
        return;
    }
    let (a, b, to_b, _) = pair(How::default());
    let text = b"in three pieces".to_vec();
    let mut rooms = [vec![0u8; 4], vec![0u8; 0], vec![0u8; 20]];
    let piece =
        |bytes: &[u8]| sys::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let out = [piece(&text[..2]), piece(&text[2..9]), piece(&text[9..])];
    let within =
        rooms.each_mut().map(|room| sys::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() });
    b.post(|| table!(b.ep, msg.recvv(within.as_ptr(), null_mut(), 3, FI_ADDR_UNSPEC, null_mut())));
    a.post(|| table!(a.ep, msg.sendv(out.as_ptr(), null_mut(), 3, to_b, null_mut())));
    assert_eq!(b.cq.next().unwrap().len, text.len());
    assert_eq!((&rooms[0][..], &rooms[2][..11]), (&b"in t"[..], &b"hree pieces"[..]));
}

#[test]
fn messages_of_one_sender_keep_their_order() {
    if !inside("messages_of_one_sender_keep_their_order") {
        return;
    }
    const COUNT: usize = 200;
    let (a, b, to_b, _) = pair(How::default());
    // Long and short ones, half of them before their receives.
    let payloads: Vec<Vec<u8>> =
        (0..COUNT).map(|n| vec![n as u8; if n % 3 == 0 { 20_000 } else { n }]).collect();
    let mut rooms = vec![vec![0; 20_000]; COUNT];
    for (n, payload) in payloads.iter().enumerate() {
        if n == COUNT / 2 {
            for (n, room) in rooms.iter_mut().enumerate() {
                b.receive(room, FI_ADDR_UNSPEC, Some((7, 0)), n);
            }
        }
        a.send(to_b, payload, Some(7), n);
    }
    let mut lengths = vec![usize::MAX; COUNT];
    for _ in 0..COUNT {
        assert!(a.cq.next().is_ok());
    }
    for _ in 0..COUNT {
        let entry = b.cq.next().unwrap();
        lengths[entry.context] = entry.len;
    }
    for ((room, payload), len) in rooms.iter().zip(&payloads).zip(lengths) {
        assert!(len == payload.len() && room[..len] == payload[..]);
    }
}

#[test]
fn failures_have_entries_of_their_own() {
    if !inside("failures_have_entries_of_their_own") {
        return;
    }
    let (a, b, to_b, _) = pair(How::default());
    let (mut short, mut never) = ([0; 10], [0; 10]);
    b.receive(&mut short, FI_ADDR_UNSPEC, None, 1);
    b.receive(&mut never, FI_ADDR_UNSPEC, Some((1, 0)), 2);
    a.send(to_b, &[5; 100], None, 3);
    let truncated = Failed { context: 1, error: sys::FI_ETRUNC as i32, beyond: 90 };
    assert_eq!(b.cq.next(), Err(truncated));
    assert_eq!(short, [5; 10]);
    // SAFETY: the endpoint is open.
    let cancel = |context: usize| unsafe { (*(*b.ep).ops).cancel.unwrap()(b.ep.cast(), context as *mut _) };
    assert_eq!(cancel(7), -(sys::FI_ENOENT as isize));
    assert_eq!(cancel(2), 0);
    assert_eq!(b.cq.next(), Err(Failed { context: 2, error: sys::FI_ECANCELED, beyond: 0 }));
    assert_eq!((a.cq.next(), b.cq.read()), (sent(3, UNTAGGED), None));
}

/// No message needs more than 2³² − 1 bytes, but an application may have more room.
#[test]
fn receives_may_be_longer_than_any_message() {
    if !inside("receives_may_be_longer_than_any_message") {
        return;
    }
    const ROOM: usize = 5 << 30;
    let (a, b, to_b, _) = pair(How::default());
    // SAFETY: new memory, of which the system provides what is used.
    let room = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(null_mut(), ROOM, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    assert_ne!(room, libc::MAP_FAILED);
    let message: Vec<u8> = (0..100_000).map(|n: usize| (n * 3 + (n >> 8)) as u8).collect();
    let expect = |len: usize, at: *mut std::ffi::c_void| {
        assert_eq!(b.cq.next().map(|entry| entry.len), Ok(len));
        assert!(a.cq.next().is_ok());
        // SAFETY: so many bytes were received there.
        assert!(unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) } == &message[..len]);
    };
    b.post(|| table!(b.ep, msg.recv(room, ROOM, null_mut(), FI_ADDR_UNSPEC, null_mut())));
    a.send(to_b, &message, None, 1);
    expect(message.len(), room);
    b.post(|| table!(b.ep, tagged.recv(room, ROOM, null_mut(), FI_ADDR_UNSPEC, 5, 0, null_mut())));
    a.send(to_b, &message[..70_000], Some(5), 1);
    expect(70_000, room);
    b.receive_many(room, ROOM);
    a.send(to_b, &message[..60_000], None, 1);
    expect(60_000, room);
    drop((a, b));
    // SAFETY: nobody uses it any more.
    unsafe { libc::munmap(room, ROOM) };
}

#[test]
fn calls_that_make_no_sense_or_are_not_there_are_refused() {
    if !inside("calls_that_make_no_sense_or_are_not_there_are_refused") {
        return;
    }
    let a = open();
    let own = a.insert(&a.name());
    let bytes = [0u8; 5000];
    let at = bytes.as_ptr().cast();
    let no = |error: i32| -(error as isize);
    assert_eq!(table!(a.ep, msg.inject(at, 4097, own)), no(sys::FI_EMSGSIZE));
    let room = at.cast_mut();
    assert_eq!(table!(a.ep, msg.send(at, usize::MAX, null_mut(), own, null_mut())), no(sys::FI_EMSGSIZE));
    assert_eq!(table!(a.ep, msg.recv(room, usize::MAX, null_mut(), own, null_mut())), no(sys::FI_EINVAL));
    let long = [sys::iovec { iov_base: room, iov_len: usize::MAX }; 2];
    let iov = long.as_ptr();
    assert_eq!(table!(a.ep, msg.sendv(iov, null_mut(), 2, own, null_mut())), no(sys::FI_EMSGSIZE));
    assert_eq!(table!(a.ep, msg.recvv(iov, null_mut(), 2, own, null_mut())), no(sys::FI_EINVAL));
    assert_eq!(table!(a.ep, msg.send(std::ptr::null(), 1, null_mut(), own, null_mut())), no(sys::FI_EINVAL));
    assert_eq!(table!(a.ep, msg.send(at, 1, null_mut(), own + 1, null_mut())), no(sys::FI_EINVAL));
    assert_eq!(table!(a.ep, collective.barrier(own, null_mut())), no(sys::FI_ENOSYS));
    let result = table!(
        a.ep,
        collective.allreduce(
            at,
            1,
            null_mut(),
            room,
            null_mut(),
            own,
            sys::FI_INT8,
            sys::FI_SUM,
            0,
            null_mut()
        )
    );
    assert_eq!(result, no(sys::FI_ENOSYS));
    let piece = sys::iovec { iov_base: at.cast_mut().cast(), iov_len: 10 };
    let message = sys::fi_msg_tagged {
        msg_iov: &piece,
        desc: null_mut(),
        iov_count: 1,
        addr: own,
        tag: 1,
        ignore: 0,
        context: null_mut(),
        data: 0,
    };
    assert_eq!(
        table!(a.ep, tagged.recvmsg(&message, sys::FI_CLAIM)),
        no(sys::FI_ENOENT),
        "nothing was claimed"
    );
    let many = table!(a.ep, tagged.recvmsg(&message, sys::FI_MULTI_RECV));
    assert_eq!(many, no(sys::FI_EBADFLAGS as i32), "many messages have no tags");
    assert_eq!(table!(a.ep, tagged.sendmsg(&message, sys::FI_FENCE)), no(sys::FI_EBADFLAGS as i32));
    let many = sys::fi_msg_tagged { iov_count: 9, ..message };
    assert_eq!(table!(a.ep, tagged.sendmsg(&many, 0)), no(sys::FI_EINVAL));
    assert_eq!(a.cq.read(), None);
}

#[test]
fn an_endpoint_without_an_address_of_its_own_gets_one() {
    if !inside("an_endpoint_without_an_address_of_its_own_gets_one") {
        return;
    }
    // The domain is the loopback interface, as the info says.
    let (a, b, to_b, _) = pair(How { anywhere: true, ..How::default() });
    assert_eq!(a.name()[4..8], [127, 0, 0, 1]);
    let mut room = [0; 5];
    b.receive(&mut room, FI_ADDR_UNSPEC, None, 1);
    a.send(to_b, b"hello", None, 2);
    assert_eq!((b.cq.next().unwrap().len, &room), (5, b"hello"));
}

#[test]
fn an_endpoint_of_one_direction_needs_a_queue_for_that_one_only() {
    if !inside("an_endpoint_of_one_direction_needs_a_queue_for_that_one_only") {
        return;
    }
    let one = |direction| {
        let wish = Wish { caps: sys::FI_MSG | direction, ..Wish::default() };
        Side::open(&wish, How { bind: direction, ..How::default() })
    };
    let (a, b) = (one(sys::FI_SEND), one(sys::FI_RECV));
    let (to_b, to_a) = (a.insert(&b.name()), b.insert(&a.name()));
    let (bytes, mut room) = (*b"one way", [0; 7]);
    b.receive(&mut room, FI_ADDR_UNSPEC, None, 1);
    a.send(to_b, &bytes, None, 2);
    assert_eq!((a.cq.next(), b.cq.next().unwrap().context), (sent(2, UNTAGGED), 1));
    assert_eq!(room, bytes);
    let at = room.as_mut_ptr().cast();
    let no = -(sys::FI_EOPNOTSUPP as isize);
    assert_eq!(table!(a.ep, msg.recv(at, 7, null_mut(), to_b, null_mut())), no);
    assert_eq!(table!(b.ep, msg.send(at, 7, null_mut(), to_a, null_mut())), no);
    // One for both directions needs both.
    for bind in [sys::FI_SEND, sys::FI_RECV] {
        Side::open(&Wish::default(), How { bind, enabled: -(sys::FI_ENOCQ as i32), ..How::default() });
    }
}

#[test]
fn endpoints_and_queues_that_cannot_be_opened_say_why() {
    if !inside("endpoints_and_queues_that_cannot_be_opened_say_why") {
        return;
    }
    let side = open();
    let mut info = getinfo(&Wish::default()).unwrap_or_else(|error| panic!("{error}"));
    let domain = Opened::new(&info);
    let mut at = |ip: [u8; 4], port: u16| {
        info.set_source(ip, port);
        domain.endpoint(&info)
    };
    let name = side.name();
    let taken = u16::from_be_bytes([name[2], name[3]]);
    assert_eq!(at([127, 0, 0, 1], taken), -sys::FI_EADDRINUSE);
    assert_eq!(at([203, 0, 113, 7], 0), -sys::FI_EADDRNOTAVAIL);
    assert_eq!(at([224, 0, 0, 1], 0), -sys::FI_EADDRNOTAVAIL);
    assert_eq!(at([127, 0, 0, 1], 4001), -sys::FI_EINVAL, "no multiple of the number of entropies");
    assert_eq!(at([127, 0, 0, 1], 0), 0);
    // No descriptors are left. The process is this test's alone.
    let limit = |rlim_cur| {
        let limit = libc::rlimit { rlim_cur, rlim_max: 1024 };
        // SAFETY: it is a limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    };
    // An endpoint that could not be enabled is enabled by the next call, and can be bound before that.
    let lacks = How { bind: sys::FI_SEND, enabled: -(sys::FI_ENOCQ as i32), ..How::default() };
    let late = Side::open(&Wish::default(), lacks);
    let (bind, enable) = (
        // SAFETY: both are open.
        || unsafe { (*(*late.ep).fid.ops).bind.unwrap()(late.ep.cast(), late.cq.0.cast(), sys::FI_RECV) },
        // SAFETY: it is open.
        || unsafe {
            (*(*late.ep).fid.ops).control.unwrap()(late.ep.cast(), sys::FI_ENABLE as i32, null_mut())
        },
    );
    limit(0);
    let mut room = [0u8; 4];
    let at_room = room.as_mut_ptr().cast();
    assert_eq!(enable(), -(sys::FI_ENOCQ as i32));
    assert_eq!(bind(), 0);
    assert_eq!(enable(), -sys::FI_EMFILE);
    let receive = || table!(late.ep, msg.recv(at_room, 4, null_mut(), FI_ADDR_UNSPEC, null_mut()));
    assert_eq!(receive(), -(sys::FI_EOPBADSTATE as isize));
    limit(1024);
    assert_eq!((enable(), receive()), (0, 0));
    let to_late = side.insert(&late.name());
    side.send(to_late, b"late", None, 1);
    assert_eq!((side.cq.next(), late.cq.next().unwrap().len), (sent(1, UNTAGGED), 4));
    assert_eq!(&room, b"late");
    limit(0);
    assert_eq!(at([127, 0, 0, 1], 0), -sys::FI_EMFILE);
    let mut attr = sys::fi_cq_attr { wait_obj: sys::FI_WAIT_FD, ..sys::fi_cq_attr::default() };
    let mut cq = null_mut();
    assert_eq!(table!(domain.domain, ops.cq_open(&mut attr, &mut cq, null_mut())), -sys::FI_EMFILE);
}

/// The provider needs as much memory as the pieces have, to put a message together. The process is this test's alone.
#[test]
fn calls_with_pieces_for_which_there_is_no_memory_are_refused() {
    if !inside("calls_with_pieces_for_which_there_is_no_memory_are_refused") {
        return;
    }
    const LEN: usize = 1 << 30;
    let side = open();
    let own = side.insert(&side.name());
    // Nobody reads the bytes or writes to them, so that they use no memory.
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: it is new memory.
    let at = unsafe { libc::mmap(null_mut(), 2 * LEN, protection, flags | libc::MAP_NORESERVE, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    let second = at.wrapping_byte_add(LEN);
    let pieces = |len: usize| [at, second].map(|iov_base| sys::iovec { iov_base, iov_len: len });
    let limit = |rlim_cur| {
        let limit = libc::rlimit { rlim_cur, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: it is a limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    };
    let receive =
        |len| table!(side.ep, msg.recvv(pieces(len).as_ptr(), null_mut(), 2, FI_ADDR_UNSPEC, 4 as *mut _));
    let read = |len| table!(side.ep, rma.readv(pieces(len).as_ptr(), null_mut(), 2, own, 0, 5, 5 as *mut _));
    let send = |pieces: [sys::iovec; 2]| {
        table!(side.ep, msg.sendv(pieces.as_ptr(), null_mut(), 2, own, 6 as *mut _))
    };
    let write =
        |len| table!(side.ep, rma.writev(pieces(len).as_ptr(), null_mut(), 2, own, 0, 5, 7 as *mut _));
    let used = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = used.split(' ').next().unwrap().parse().unwrap();
    limit(pages * 4096 + LEN as u64);
    let no_memory = -(sys::FI_ENOMEM as isize);
    assert_eq!([receive(LEN), read(LEN), send(pieces(LEN)), write(LEN)], [no_memory; 4]);
    limit(libc::RLIM_INFINITY);
    // Nothing has begun, and later calls are as others.
    let sent =
        [b"pie", b"ces"].map(|part| sys::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: 3 });
    assert_eq!([receive(3), read(3), send(sent), write(3)], [0; 4]);
    let mut ended: Vec<_> = (0..4)
        .map(|_| match side.cq.next() {
            Ok(entry) => (entry.context, 0),
            Err(failed) => (failed.context, failed.error),
        })
        .collect();
    ended.sort_unstable();
    let refused = sys::FI_EKEYREJECTED;
    assert_eq!(ended, [(4, 0), (5, refused), (6, 0), (7, refused)]);
    // SAFETY: the message is there.
    let arrived = unsafe { [at, second].map(|at| at.cast::<[u8; 3]>().read()) };
    assert_eq!(arrived, [*b"pie", *b"ces"]);
}

#[test]
fn addresses_are_looked_up_printed_and_removed() {
    if !inside("addresses_are_looked_up_printed_and_removed") {
        return;
    }
    let (a, b) = (open(), open());
    let name = b.name();
    let number = a.insert(&name);
    let (mut found, mut len) = ([0u8; 16], 16);
    assert_eq!(table!(a.av, ops.lookup(number, found.as_mut_ptr().cast(), &mut len)), 0);
    assert_eq!((found, len), (name, 16));
    let port = u16::from_be_bytes([name[2], name[3]]);
    assert!(port.is_multiple_of(4) && port != 0);
    let (mut text, mut len) = ([0u8; 64], 64);
    table!(a.av, ops.straddr(name.as_ptr().cast(), text.as_mut_ptr().cast(), &mut len));
    assert_eq!(&text[..len - 1], format!("fi_sockaddr_in://127.0.0.1:{port}").as_bytes());
    let mut by_name = 0;
    let service = std::ffi::CString::new(port.to_string()).unwrap();
    let (node, service) = (c"localhost".as_ptr(), service.as_ptr());
    assert_eq!(table!(a.av, ops.insertsvc(node, service, &mut by_name, 0, null_mut())), 1);
    assert_ne!(by_name, number);

    let mut names = [name, [0; 16], name];
    names[2][2..4].fill(0);
    let (mut numbers, mut errors) = ([5; 3], [5i32; 3]);
    let (at, context) = (names.as_ptr().cast(), errors.as_mut_ptr().cast());
    assert_eq!(table!(a.av, ops.insert(at, 3, numbers.as_mut_ptr(), sys::FI_SYNC_ERR, context)), 1);
    assert_eq!(errors, [0, sys::FI_EINVAL, sys::FI_EINVAL], "neither is an address of an endpoint");
    assert_eq!(numbers[1..], [sys::FI_ADDR_NOTAVAIL; 2]);

    // A sender that is not in the vector any more has no number.
    let to_a = b.insert(&a.name());
    let mut all = [number, by_name, numbers[0]];
    for (n, source) in [(0, number), (1, by_name), (2, numbers[0]), (3, sys::FI_ADDR_NOTAVAIL)] {
        let mut room = [0; 1];
        a.receive(&mut room, FI_ADDR_UNSPEC, None, n);
        b.send(to_a, &[1], None, n);
        assert_eq!(a.cq.next().unwrap().source, source);
        assert!(b.cq.next().is_ok());
        if n < 3 {
            assert_eq!(table!(a.av, ops.remove(&mut all[n], 1, 0)), 0);
        }
    }
    assert_eq!(table!(a.av, ops.remove(&mut all[0], 1, 0)), -sys::FI_EINVAL);
}

#[test]
fn a_full_completion_queue_holds_up_what_would_end_there() {
    if !inside("a_full_completion_queue_holds_up_what_would_end_there") {
        return;
    }
    let (a, b, to_b, _) = pair(How { queue: 4, ..How::default() });
    let (bytes, mut begun) = ([1u8; 8], 0);
    let at = bytes.as_ptr().cast();
    let begin = Instant::now();
    let refused = loop {
        match table!(a.ep, msg.send(at, 8, null_mut(), to_b, null_mut())) {
            0 => begun += 1,
            error => break error,
        }
        // Lets the endpoint work, and takes no entry.
        table!(a.cq.0, ops.read(null_mut(), 0));
        let _ = b.cq.read();
        assert!(begin.elapsed() < common::fabric::BOUND);
    };
    assert_eq!(refused, -(sys::FI_EAGAIN as isize));
    assert!(begun >= 4, "{begun}");
    for _ in 0..begun {
        assert!(a.cq.next().is_ok(), "no entry is lost");
    }
    assert_eq!(table!(a.ep, msg.send(at, 8, null_mut(), to_b, null_mut())), 0);
}

#[test]
fn a_send_that_is_repeated_finds_room_without_reading_the_queue() {
    if !inside("a_send_that_is_repeated_finds_room_without_reading_the_queue") {
        return;
    }
    const COUNT: usize = 10_000;
    let (a, b, to_b, _) = pair(How::default());
    let bytes = [1u8; 4096];
    std::thread::scope(|scope| {
        let b = &b;
        scope.spawn(move || {
            let mut room = [0; 4096];
            for n in 0..COUNT {
                b.receive(&mut room, FI_ADDR_UNSPEC, None, n);
                assert_eq!(b.cq.next().unwrap().len, 4096);
            }
        });
        let begin = Instant::now();
        for _ in 0..COUNT {
            while table!(a.ep, msg.inject(bytes.as_ptr().cast(), 4096, to_b)) != 0 {
                assert!(begin.elapsed() < common::fabric::BOUND, "no room is given back");
                std::thread::yield_now();
            }
        }
        // `a` must not be closed before all is received: nobody sends again afterwards.
    });
}

#[test]
fn selective_completion_reports_what_was_asked_for() {
    if !inside("selective_completion_reports_what_was_asked_for") {
        return;
    }
    let bind = sys::FI_SEND | sys::FI_RECV | sys::FI_SELECTIVE_COMPLETION;
    let (a, b, to_b, _) = pair(How { bind, ..How::default() });
    let (bytes, mut rooms) = ([1u8; 50], [[0u8; 50]; 2]);
    let [first, second] = &mut rooms;
    b.receive(first, FI_ADDR_UNSPEC, None, 1);
    let piece = sys::iovec { iov_base: second.as_mut_ptr().cast(), iov_len: 50 };
    let message = |iov: &sys::iovec, addr, context: usize| sys::fi_msg {
        msg_iov: &raw const *iov,
        desc: null_mut(),
        iov_count: 1,
        addr,
        context: context as *mut _,
        data: 0,
    };
    let receive = message(&piece, FI_ADDR_UNSPEC, 2);
    b.post(|| table!(b.ep, msg.recvmsg(&receive, sys::FI_COMPLETION)));
    let out = sys::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: 50 };
    a.send(to_b, &bytes, None, 3);
    let send = message(&out, to_b, 4);
    a.post(|| table!(a.ep, msg.sendmsg(&send, sys::FI_COMPLETION)));
    assert_eq!((a.cq.next().unwrap().context, b.cq.next().unwrap().context), (4, 2));
    assert_eq!((a.cq.read(), b.cq.read()), (None, None));
    assert_eq!(rooms, [[1; 50]; 2]);
}

#[test]
fn counters_count_what_has_ended_and_wake_those_who_wait() {
    if !inside("counters_count_what_has_ended_and_wake_those_who_wait") {
        return;
    }
    // Nothing has an entry but what fails.
    let bind = sys::FI_SEND | sys::FI_RECV | sys::FI_SELECTIVE_COMPLETION;
    let how = How { bind, counters: Some(sys::FI_WAIT_FD), ..How::default() };
    let (a, b, to_b, _) = pair(how);
    let ([sent, ..], [_, received, ..]) = (&a.counters[..], &b.counters[..]) else { panic!("four each") };
    assert_eq!((sent.read(), received.read()), ((0, 0), (0, 0)));
    assert_eq!(sent.wait(1, 0), -sys::FI_ETIMEDOUT);
    let mut rooms = [[0; 8]; 10];
    for (n, room) in rooms.iter_mut().enumerate() {
        let tags = (n % 2 == 1).then_some((7, 0));
        b.receive(room, FI_ADDR_UNSPEC, tags, n);
    }
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| received.wait(9, 60_000));
        for n in 0..9u64 {
            let bytes = n.to_ne_bytes();
            let at = bytes.as_ptr().cast();
            match n {
                8 => a.post(|| table!(a.ep, msg.inject(at, 8, to_b))),
                _ => a.send(to_b, &bytes, (n % 2 == 1).then_some(7), 0),
            }
            // The bytes are lent until then.
            assert_eq!(sent.wait(n + 1, 60_000), 0);
        }
        assert_eq!(waits.join().unwrap(), 0);
    });
    assert_eq!((sent.read(), received.read()), ((9, 0), (9, 0)));
    for (n, room) in rooms[..9].iter().enumerate() {
        assert_eq!(u64::from_ne_bytes(*room), n as u64);
    }

    // A failure ends every wait, and is counted apart.
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| received.wait(100, 60_000));
        std::thread::sleep(Duration::from_millis(20));
        // SAFETY: the endpoint is open.
        let cancelled = unsafe { (*(*b.ep).ops).cancel.unwrap()(b.ep.cast(), 9 as *mut _) };
        assert_eq!(cancelled, 0);
        while !waits.is_finished() {
            // It may have begun to wait only after the operation was cancelled.
            assert_eq!(table!(received.0, ops.adderr(1)), 0);
            std::thread::yield_now();
        }
        assert_eq!(waits.join().unwrap(), -(sys::FI_EAVAIL as i32));
    });
    assert_eq!(b.cq.next().unwrap_err().context, 9);
    assert!(received.read().1 >= 1);

    // The descriptor tells of changes by applications as well.
    let changes: [(&dyn Fn() -> i32, u64); 2] =
        [(&|| table!(sent.0, ops.add(3)), 12), (&|| table!(sent.0, ops.set(5)), 5)];
    for (change, value) in changes {
        while !a.try_wait_for(sent.0.cast()) {}
        assert_eq!(change(), 0);
        // SAFETY: the counter is open, and so is its descriptor.
        let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor(sent.0.cast())) };
        let mut waits = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
        let bound = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(poll(&mut waits, Some(&bound)), Ok(1));
        assert_eq!(sent.read(), (value, 0));
    }
    assert_eq!(table!(sent.0, ops.seterr(2)), 0);
    assert_eq!(sent.read(), (5, 2));
}

#[test]
fn an_endpoint_whose_application_is_away_answers_its_peers() {
    if !inside("an_endpoint_whose_application_is_away_answers_its_peers") {
        return;
    }
    let (a, b, to_b, _) = pair(How::default());
    let mut room = vec![0; 1 << 20];
    b.receive(&mut room, FI_ADDR_UNSPEC, None, 1);
    let payload = vec![9; 1 << 20];
    a.send(to_b, &payload, None, 2);
    a.send(to_b, &payload, None, 3);
    // Nobody calls anything of `b`: the first message meets its receive, the second waits for one.
    assert_eq!((a.cq.next(), a.cq.next()), (sent(2, UNTAGGED), sent(3, UNTAGGED)));
    assert_eq!(b.cq.next().unwrap().len, 1 << 20);
    assert!(room == payload);
}

#[test]
fn an_endpoint_sends_to_itself() {
    if !inside("an_endpoint_sends_to_itself") {
        return;
    }
    let a = open();
    let own = a.insert(&a.name());
    let mut room = [0; 4];
    a.receive(&mut room, own, None, 1);
    a.send(own, b"self", None, 2);
    let mut entries = [a.cq.next().unwrap().context, a.cq.next().unwrap().context];
    entries.sort_unstable();
    assert_eq!((entries, &room), ([1, 2], b"self"));
}

#[test]
fn sleepers_are_woken_by_messages() {
    if !inside("sleepers_are_woken_by_messages") {
        return;
    }
    let (a, b, to_b, _) = pair(How::default());
    let begin = Instant::now();
    assert_eq!(b.cq.read_within(30), None);
    assert!(begin.elapsed() >= Duration::from_millis(30));
    let (mut first, mut second) = ([0; 8], [0; 8]);
    b.receive(&mut first, FI_ADDR_UNSPEC, None, 1);
    b.receive(&mut second, FI_ADDR_UNSPEC, None, 2);
    std::thread::scope(|scope| {
        let cq = &b.cq;
        let sleeper = scope.spawn(move || cq.read_within(60_000));
        std::thread::sleep(Duration::from_millis(30));
        a.send(to_b, b"wake up!", None, 3);
        assert_eq!(sleeper.join().unwrap().unwrap().unwrap().context, 1);
    });
    // The same through the descriptor.
    while b.try_wait() {
        a.send(to_b, b"and once", None, 4);
        // SAFETY: the queue is open, and so is its descriptor.
        let descriptor = unsafe { BorrowedFd::borrow_raw(b.cq.descriptor()) };
        let mut waits = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
        let bound = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(poll(&mut waits, Some(&bound)), Ok(1));
        if let Some(entry) = b.cq.read() {
            assert_eq!(entry.unwrap().context, 2);
            return;
        }
    }
    panic!("there was nothing to be read, and no leave to sleep");
}

#[test]
fn two_sides_that_sleep_until_each_message_exchange_all_of_them() {
    if !inside("two_sides_that_sleep_until_each_message_exchange_all_of_them") {
        return;
    }
    const ROUNDS: usize = 500;
    let (a, b, to_b, to_a) = pair(How::default());
    let play = |side: &Side, to: u64, begins: bool| {
        let mut room = [0; 8];
        for round in 0..ROUNDS {
            side.receive(&mut room, FI_ADDR_UNSPEC, None, 1);
            let answer = round.to_ne_bytes();
            if begins {
                side.send(to, &answer, None, 2);
            }
            // Messages that were sent have entries as well.
            while side.cq.read_within(60_000).expect("an entry within a minute").unwrap().context != 1 {}
            assert_eq!(usize::from_ne_bytes(room), round);
            if !begins {
                side.send(to, &answer, None, 2);
            }
        }
    };
    std::thread::scope(|scope| {
        let (a, b) = (&a, &b);
        scope.spawn(move || play(a, to_b, true));
        scope.spawn(move || play(b, to_a, false));
    });
}

#[test]
fn hints_are_honoured_or_refused() {
    if !inside("hints_are_honoured_or_refused") {
        return;
    }
    let refused: [fn(&mut sys::fi_info); 12] = [
        |hints| hints.caps = sys::FI_MSG | sys::FI_HMEM,
        |hints| hints.addr_format = sys::FI_SOCKADDR_IN6,
        // SAFETY: new hints have all their parts.
        |hints| unsafe { (*hints.ep_attr).type_ = sys::FI_EP_MSG },
        // SAFETY: as before.
        |hints| unsafe { (*hints.ep_attr).max_msg_size = 1 << 32 },
        // SAFETY: as before.
        |hints| unsafe { (*hints.tx_attr).inject_size = 4097 },
        // SAFETY: as before.
        |hints| unsafe { (*hints.tx_attr).msg_order = sys::FI_ORDER_SAS | sys::FI_ORDER_RAW },
        // SAFETY: as before.
        |hints| unsafe { (*hints.rx_attr).comp_order = sys::FI_ORDER_STRICT },
        // SAFETY: as before.
        |hints| unsafe { (*hints.tx_attr).op_flags = sys::FI_COMMIT_COMPLETE },
        // SAFETY: as before.
        |hints| unsafe { (*hints.domain_attr).cq_data_size = 8 },
        // SAFETY: as before.
        |hints| unsafe { (*hints.domain_attr).name = libc::strdup(c"eth99".as_ptr()) },
        // SAFETY: as before.
        |hints| unsafe { (*hints.tx_attr).tclass = sys::FI_TC_LOW_LATENCY },
        // SAFETY: as before.
        |hints| unsafe { (*hints.rx_attr).iov_limit = 9 },
    ];
    for (n, change) in refused.into_iter().enumerate() {
        let info = getinfo(&Wish { change, ..Wish::default() });
        assert_eq!(info.err(), Some(sys::FI_ENODATA), "number {n}");
    }
    let info = getinfo(&Wish {
        caps: sys::FI_TAGGED | sys::FI_DIRECTED_RECV,
        service: Some(4000),
        domain: None,
        kind: sys::FI_EP_UNSPEC,
        // SAFETY: as before.
        change: |hints| unsafe {
            (*hints.domain_attr).threading = sys::FI_THREAD_DOMAIN;
            (*hints.domain_attr).data_progress = sys::FI_PROGRESS_MANUAL;
            (*hints.domain_attr).mr_mode = sys::FI_MR_LOCAL as i32;
            (*hints.domain_attr).av_type = sys::FI_AV_MAP;
            (*hints.tx_attr).msg_order = sys::FI_ORDER_SAS;
            hints.mode = sys::FI_CONTEXT;
        },
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let offered = info.get();
    assert_eq!(offered.caps & (sys::FI_MSG | sys::FI_SOURCE), 0);
    assert_ne!(offered.caps & sys::FI_DIRECTED_RECV, 0);
    assert_eq!(offered.mode, 0);
    // SAFETY: an info has all its parts.
    let domain = unsafe { &*offered.domain_attr };
    assert_eq!((domain.threading, domain.data_progress), (sys::FI_THREAD_DOMAIN, sys::FI_PROGRESS_MANUAL));
    assert_eq!((domain.mr_mode, domain.av_type), (0, sys::FI_AV_MAP));
    let wrong = getinfo(&Wish { service: Some(4001), ..Wish::default() });
    assert_eq!(wrong.err(), Some(sys::FI_ENODATA), "no multiple of the number of entropies");
}

/// Controls an object.
fn control<T>(fid: *mut sys::fid, command: u32, argument: &mut T) -> i32 {
    // SAFETY: it is open, and what is passed belongs to the command.
    unsafe { (*(*fid).ops).control.unwrap()(fid, command as i32, (&raw mut *argument).cast()) }
}

#[test]
fn objects_say_what_they_are_waited_for_with() {
    if !inside("objects_say_what_they_are_waited_for_with") {
        return;
    }
    for wait in [sys::FI_WAIT_NONE, sys::FI_WAIT_UNSPEC, sys::FI_WAIT_FD] {
        let side = Side::open(&Wish::default(), How { wait, counters: Some(wait), ..How::default() });
        let mut eq = null_mut();
        let mut attr = sys::fi_eq_attr { wait_obj: wait, ..sys::fi_eq_attr::default() };
        assert_eq!(table!(side.fabric, ops.eq_open(&mut attr, &mut eq, null_mut())), 0);
        for fid in [side.cq.0.cast(), side.counters[0].0.cast(), eq.cast()] {
            let mut found = 99;
            assert_eq!((control(fid, sys::FI_GETWAITOBJ, &mut found), found), (0, wait));
        }
        assert_eq!(common::fabric::close(eq.cast()), 0);
    }
}

#[test]
fn flags_of_calls_that_have_none_of_their_own_can_be_changed() {
    if !inside("flags_of_calls_that_have_none_of_their_own_can_be_changed") {
        return;
    }
    let bind = sys::FI_SEND | sys::FI_RECV | sys::FI_SELECTIVE_COMPLETION;
    let (a, b, to_b, _) = pair(How { bind, ..How::default() });
    let get = |side: &Side, mut flags| (control(side.ep.cast(), sys::FI_GETOPSFLAG, &mut flags), flags);
    let set = |side: &Side, mut flags: u64| control(side.ep.cast(), sys::FI_SETOPSFLAG, &mut flags);
    assert_eq!([get(&a, sys::FI_TRANSMIT), get(&a, sys::FI_RECV)], [(0, 0); 2]);
    let invalid = -sys::FI_EINVAL;
    assert_eq!((get(&a, 0).0, get(&a, sys::FI_TRANSMIT | sys::FI_RECV).0), (invalid, invalid));
    assert_eq!(set(&a, sys::FI_COMPLETION), invalid);
    assert_eq!(set(&a, sys::FI_RECV | sys::FI_INJECT), -(sys::FI_EBADFLAGS as i32));
    assert_eq!(set(&a, sys::FI_TRANSMIT | sys::FI_COMPLETION), 0);
    assert_eq!([get(&a, sys::FI_TRANSMIT), get(&a, sys::FI_RECV)], [(0, sys::FI_COMPLETION), (0, 0)]);
    assert_eq!(set(&b, sys::FI_RECV | sys::FI_COMPLETION), 0);
    let mut rooms = [[0; 4]; 2];
    for (n, room) in rooms.iter_mut().enumerate() {
        b.receive(room, FI_ADDR_UNSPEC, None, n);
        a.send(to_b, &[7; 4], None, 10 + n);
        // The second one has none at its sender.
        if n == 0 {
            assert_eq!(a.cq.next().unwrap().context, 10);
            assert_eq!(set(&a, sys::FI_TRANSMIT), 0);
        }
        assert_eq!(b.cq.next().unwrap().context, n);
    }
    assert_eq!((rooms, a.cq.read()), ([[7; 4]; 2], None));
    let mut alias = 0u64;
    assert_eq!(control(a.ep.cast(), sys::FI_ALIAS, &mut alias), -sys::FI_ENOSYS);
    let (level, option, value) = (sys::FI_OPT_ENDPOINT, sys::FI_OPT_FI_HMEM_P2P, sys::FI_HMEM_P2P_REQUIRED);
    // SAFETY: the endpoint is open, and there are so many bytes.
    let answer = unsafe {
        let set = (*(*a.ep).ops).setopt.unwrap();
        set(a.ep.cast(), level as i32, option as i32, (&raw const value).cast(), size_of_val(&value))
    };
    assert_eq!(answer, -sys::FI_EOPNOTSUPP);
}

/// Flags of single calls, and as many pieces as there may be.
#[test]
fn messages_of_eight_pieces_with_flags_arrive() {
    if !inside("messages_of_eight_pieces_with_flags_arrive") {
        return;
    }
    let (a, b, to_b, _) = pair(How::default());
    let text = b"the message of 8 pieces.".to_vec();
    let mut room = vec![0u8; text.len()];
    let cut = |at: *mut u8, iov_len| {
        [0, 1, 2, 3, 4, 5, 6, 7, 8].map(|n| sys::iovec { iov_base: at.wrapping_add(3 * n).cast(), iov_len })
    };
    let (out, within) = (cut(text.as_ptr().cast_mut(), 3), cut(room.as_mut_ptr(), 3));
    let message = |iov: &[sys::iovec; 9], addr, iov_count| {
        let (msg_iov, desc, context, data) = (iov.as_ptr(), null_mut(), null_mut(), 0);
        sys::fi_msg { msg_iov, desc, iov_count, addr, context, data }
    };
    let (receive, send) =
        (|count| message(&within, FI_ADDR_UNSPEC, count), |count| message(&out, to_b, count));
    let invalid = -(sys::FI_EINVAL as isize);
    assert_eq!(table!(b.ep, msg.recvmsg(&receive(9), 0)), invalid);
    assert_eq!(table!(a.ep, msg.sendmsg(&send(9), 0)), invalid);
    let complete = [sys::FI_INJECT_COMPLETE, sys::FI_TRANSMIT_COMPLETE, sys::FI_DELIVERY_COMPLETE];
    for (n, level) in complete.into_iter().enumerate() {
        // A receive is complete when all its bytes are there.
        let flags = if level == sys::FI_TRANSMIT_COMPLETE { level } else { 0 };
        for _ in 0..2 {
            b.post(|| table!(b.ep, msg.recvmsg(&receive(8), flags | sys::FI_MORE)));
        }
        // The first of them may wait for the second.
        a.post(|| table!(a.ep, msg.sendmsg(&send(8), level | sys::FI_MORE)));
        a.post(|| table!(a.ep, msg.sendmsg(&send(8), level)));
        for _ in 0..2 {
            assert_eq!(b.cq.next().unwrap().len, text.len(), "{n}");
            assert_eq!(a.cq.next().unwrap().flags, UNTAGGED | sys::FI_SEND);
        }
        assert_eq!(room, text);
        room.fill(0);
    }
}

/// In a table an address gets the lowest index that is free, in a map a number that nobody has had.
#[test]
fn tables_use_numbers_again_and_maps_do_not() {
    if !inside("tables_use_numbers_again_and_maps_do_not") {
        return;
    }
    let side = open();
    let name = side.name();
    for (type_, again) in [(sys::FI_AV_TABLE, 1), (sys::FI_AV_UNSPEC, 1), (sys::FI_AV_MAP, 3)] {
        let (mut av, mut attr) = (null_mut(), sys::fi_av_attr { type_, ..sys::fi_av_attr::default() });
        assert_eq!(table!(side.domain, ops.av_open(&mut attr, &mut av, null_mut())), 0);
        let insert = || {
            let mut number = 99;
            assert_eq!(table!(av, ops.insert(name.as_ptr().cast(), 1, &mut number, 0, null_mut())), 1);
            number
        };
        assert_eq!([(); 3].map(|()| insert()), [0, 1, 2]);
        for mut number in [2, 1] {
            assert_eq!(table!(av, ops.remove(&mut number, 1, 0)), 0);
        }
        let (mut found, mut len) = ([0u8; 16], 16);
        let mut look_up = |number| table!(av, ops.lookup(number, found.as_mut_ptr().cast(), &mut len));
        assert_eq!(look_up(1), -sys::FI_EINVAL, "nothing is there");
        assert_eq!(insert(), again);
        assert_eq!(look_up(again), 0);
        assert_eq!(found, name);
        assert_eq!(common::fabric::close(av.cast()), 0);
    }
}

/// After `fi_getinfo` an application may write into what it got.
#[test]
fn endpoints_with_other_contexts_than_their_own_are_refused() {
    if !inside("endpoints_with_other_contexts_than_their_own_are_refused") {
        return;
    }
    let info = getinfo(&Wish::default()).unwrap();
    let opened = Opened::new(&info);
    let shared = sys::FI_SHARED_CONTEXT as usize;
    for (tx, rx, answer) in
        [(1, 1, 0), (shared, 1, -sys::FI_ENODATA), (1, shared, -sys::FI_ENODATA), (2, 1, -sys::FI_ENODATA)]
    {
        // SAFETY: the provider has filled all parts.
        unsafe {
            let attr = &mut *info.get().ep_attr;
            (attr.tx_ctx_cnt, attr.rx_ctx_cnt) = (tx, rx);
        }
        assert_eq!(opened.endpoint(&info), answer, "{tx} and {rx} contexts");
    }
}
