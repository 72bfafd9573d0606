//! Endpoints of servers, as `weft serve` is one: several share a port, and are told apart by their processes.

use crate::common;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::common::fabric::{BOUND, Entry, Events, Failed, How, Side, Wish, getinfo, table};
use crate::common::inside;
use crate::common::server::{Server, address, open, server, servers};
use crate::waiting::{QUEUE, stay_with_their_sender};
use weft::{Endpoint, Span};
use weft_fi::sys::{self, FI_ADDR_UNSPEC};

/// The message of side `from` to side `to`: of one packet, of some, and of many.
fn content(from: usize, to: usize, round: usize) -> Vec<u8> {
    let len = [10, 9_000, 700_000][round % 3];
    (0..len).map(|n: usize| (n * 11 + (n >> 8) * 3 + from * 31 + to * 7 + round) as u8).collect()
}

#[test]
fn endpoints_of_one_server_and_of_two_exchange_messages() {
    if !inside("endpoints_of_one_server_and_of_two_exchange_messages") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 1);
    let sides = [0, 0, 1, 1].map(|number: usize| open(&servers[number]));
    let names = sides.each_ref().map(Side::name);
    assert_eq!(
        names.map(|name| name[4..8].to_vec()),
        [1, 1, 2, 2].map(|host| address(host).octets().to_vec())
    );
    let port = |name: &[u8; 16]| u16::from_be_bytes([name[2], name[3]]);
    assert!(names.iter().all(|name| (1..4096).contains(&port(name))) && port(&names[0]) != port(&names[1]));
    let numbers = sides.each_ref().map(|side| names.each_ref().map(|name| side.insert(name)));
    for round in 0..6 {
        // All to all, each to itself as well.
        let mut rooms: Vec<Vec<Vec<u8>>> = (0..4).map(|_| vec![vec![0; 700_001]; 4]).collect();
        for (to, rooms) in rooms.iter_mut().enumerate() {
            for (from, room) in rooms.iter_mut().enumerate() {
                sides[to].receive(room, numbers[to][from], Some((round, 0)), from);
            }
        }
        let messages: Vec<Vec<Vec<u8>>> =
            (0..4).map(|from| (0..4).map(|to| content(from, to, round as usize)).collect()).collect();
        for (from, messages) in messages.iter().enumerate() {
            for (to, message) in messages.iter().enumerate() {
                sides[from].send(numbers[from][to], message, Some(round), 10 + to);
            }
        }
        for (number, side) in sides.iter().enumerate() {
            for _ in 0..8 {
                let entry = side.cq.next().unwrap();
                if let Some(from) = Some(entry.context).filter(|context| *context < 10) {
                    let message = &messages[from][number];
                    assert_eq!((entry.len, entry.source), (message.len(), numbers[number][from]));
                    assert!(rooms[number][from][..entry.len] == message[..], "{from} to {number}");
                }
            }
        }
    }
}

#[test]
fn a_sender_that_is_not_in_the_vector_has_no_number_until_it_is_inserted() {
    if !inside("a_sender_that_is_not_in_the_vector_has_no_number_until_it_is_inserted") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 3, |builder| builder);
    let (a, b) = (open(&server), open(&server));
    let to_b = a.insert(&b.name());
    let mut room = [0; 5];
    for inserted in [false, true] {
        let number = if inserted { b.insert(&a.name()) } else { sys::FI_ADDR_NOTAVAIL };
        b.receive(&mut room, FI_ADDR_UNSPEC, None, 1);
        a.send(to_b, b"hello", None, 2);
        assert_eq!(b.cq.next().unwrap().source, number);
        assert_eq!((a.cq.next().unwrap().context, &room), (2, b"hello"));
    }
}

#[test]
fn receives_of_pieces_many_messages_and_probes_work_through_a_server() {
    if !inside("receives_of_pieces_many_messages_and_probes_work_through_a_server") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 1);
    let (a, b) = (open(&servers[0]), open(&servers[1]));
    let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
    // In pieces.
    let mut rooms = [vec![0u8; 4], vec![0u8; 20]];
    let within =
        rooms.each_mut().map(|room| sys::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() });
    b.post(|| table!(b.ep, msg.recvv(within.as_ptr(), null_mut(), 2, FI_ADDR_UNSPEC, null_mut())));
    let bytes = *b"injected";
    a.post(|| table!(a.ep, msg.injectdata(bytes.as_ptr().cast(), 8, 7, to_b)));
    let entry = b.cq.next().unwrap();
    assert_eq!((entry.len, entry.data, entry.source), (8, 7, from_a));
    assert_eq!((&rooms[0][..], &rooms[1][..4]), (&b"inje"[..], &b"cted"[..]));
    // Many messages in one piece.
    let mut room = vec![0u8; 1000];
    b.receive_many(room.as_mut_ptr().cast(), 1000);
    for n in 0..4u8 {
        a.send(to_b, &vec![n; 245], None, 0);
        a.cq.next().unwrap();
        let entry = b.cq.next().unwrap();
        assert_eq!((entry.len, entry.flags & sys::FI_MULTI_RECV != 0), (245, n == 3));
    }
    assert!(room[..980].chunks(245).zip(0..).all(|(part, n)| part == [n; 245]));
    // A look at a message that waits, and its receive.
    a.send(to_b, b"waits", Some(5), 0);
    a.cq.next().unwrap();
    let piece = sys::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: 1000 };
    let look = sys::fi_msg_tagged {
        msg_iov: &piece,
        desc: null_mut(),
        iov_count: 1,
        addr: from_a,
        tag: 5,
        ignore: 0,
        context: 9 as *mut _,
        data: 0,
    };
    b.post(|| table!(b.ep, tagged.recvmsg(&look, sys::FI_PEEK | sys::FI_CLAIM)));
    assert_eq!(b.cq.next().unwrap().len, 5);
    b.post(|| table!(b.ep, tagged.recvmsg(&look, sys::FI_CLAIM)));
    let claimed = b.cq.next().unwrap();
    assert_eq!((claimed.context, claimed.len, claimed.source), (9, 5, from_a));
    assert_eq!(&room[..5], b"waits");
}

#[test]
fn messages_for_whose_entries_there_is_no_room_stay_with_their_sender_through_servers() {
    if !inside("messages_for_whose_entries_there_is_no_room_stay_with_their_sender_through_servers") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 1);
    let open = |server: &Server, queue| {
        let wish = Wish { domain: Some(server.name()), ..Wish::default() };
        Side::open(&wish, How { queue, ..How::default() })
    };
    // Messages that overtake others are let in as long as one may be.
    stay_with_their_sender(&open(&servers[0], 0), &open(&servers[1], QUEUE), 10 * QUEUE);
}

/// Each ignores other bits of the tag, and has a message of its own.
fn receive_by_masks(a: &Side, b: &Side) {
    const KINDS: usize = 150;
    let (to_b, _) = (a.insert(&b.name()), b.insert(&a.name()));
    let mut rooms = vec![[0u8; 8]; KINDS];
    for (n, room) in rooms.iter_mut().enumerate() {
        b.receive(room, FI_ADDR_UNSPEC, Some(((n as u64) << 8, n as u64)), n);
    }
    // Messages that meet only the receive of their own number, the last one first.
    for n in (0..KINDS).rev() {
        a.send(to_b, &(n as u64).to_le_bytes(), Some((n as u64) << 8 | n as u64), KINDS);
    }
    for _ in 0..KINDS {
        assert_eq!(a.cq.next().map(|entry| entry.context), Ok(KINDS));
        assert!(b.cq.next().is_ok());
    }
    assert!(rooms.iter().enumerate().all(|(n, room)| *room == (n as u64).to_le_bytes()));
}

#[test]
fn receives_may_be_of_more_kinds_than_are_looked_up_by_themselves() {
    if !inside("receives_may_be_of_more_kinds_than_are_looked_up_by_themselves") {
        return;
    }
    let side = || Side::open(&Wish::default(), How::default());
    receive_by_masks(&side(), &side());
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 77);
    receive_by_masks(&open(&servers[0]), &open(&servers[1]));
}

#[test]
fn what_a_server_does_not_offer_is_refused() {
    if !inside("what_a_server_does_not_offer_is_refused") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 4, |builder| builder);
    let wish = |caps| Wish { domain: Some(server.name()), caps, ..Wish::default() };
    // SAFETY: new hints have all their parts.
    let all_bits: fn(&mut sys::fi_info) = |hints| unsafe { (*hints.ep_attr).mem_tag_format = u64::MAX };
    let with_all_bits = Wish { change: all_bits, ..wish(0) };
    assert_eq!(getinfo(&with_all_bits).map(|_| ()), Err(sys::FI_ENODATA));
    let info = getinfo(&wish(0)).unwrap_or_else(|error| panic!("{error}"));
    // SAFETY: an info has all its parts.
    assert_eq!(unsafe { (*info.get().ep_attr).mem_tag_format }, u64::MAX >> 1);
    let nowhere = Wish { domain: Some("serve:/nowhere/at/all".to_owned()), ..Wish::default() };
    assert_eq!(getinfo(&nowhere).map(|_| ()), Err(sys::FI_ENODATA));
    let (a, mut room) = (open(&server), [0u8; 8]);
    let own = a.insert(&a.name());
    let mut wrong = a.name();
    wrong[2..4].copy_from_slice(&4096u16.to_be_bytes());
    let mut number = 0;
    let inserted = table!(a.av, ops.insert(wrong.as_ptr().cast(), 1, &mut number, 0, null_mut()));
    assert_eq!((inserted, number), (0, sys::FI_ADDR_NOTAVAIL), "there is no such process");
    // The first bit of tags is the provider's.
    let (at, tag) = (room.as_mut_ptr().cast(), 1 << 63);
    let sent = table!(a.ep, tagged.send(at, 8, null_mut(), own, tag, null_mut()));
    let received = table!(a.ep, tagged.recv(at, 8, null_mut(), own, tag, 0, null_mut()));
    assert_eq!((sent, received), (-(sys::FI_EINVAL as isize), -(sys::FI_EINVAL as isize)));
}

#[test]
fn a_process_that_is_asked_for_is_the_endpoints_port() {
    if !inside("a_process_that_is_asked_for_is_the_endpoints_port") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 5, |builder| builder);
    let wish = Wish { domain: Some(server.name()), service: Some(77), ..Wish::default() };
    let side = Side::open(&wish, How::default());
    assert_eq!((&side.name()[2..4], &side.name()[4..8]), (&[0, 77][..], &address(5).octets()[..]));
}

#[test]
fn messages_survive_that_their_connection_is_closed_for_its_silence() {
    if !inside("messages_survive_that_their_connection_is_closed_for_its_silence") {
        return;
    }
    const SILENCE: Duration = Duration::from_millis(60);
    let directory = tempfile::tempdir().unwrap();
    let servers = [6, 7].map(|host| {
        let silence = Span::from_ms(SILENCE.as_millis() as u64);
        server(&directory, host, |builder| builder.idle_timeout(silence).rto(Span::from_ms(10)))
    });
    let (a, b) = (open(&servers[0]), open(&servers[1]));
    let to_b = a.insert(&b.name());
    b.insert(&a.name());
    let begin = Instant::now();
    let mut next = 0u64;
    for round in 0..40u64 {
        // Around the time when the connection is closed, three messages at a time.
        let first = next;
        let mut rooms = [[0u8; 8]; 3];
        for (n, room) in rooms.iter_mut().enumerate() {
            b.receive(room, FI_ADDR_UNSPEC, None, n);
        }
        let messages = [first, first + 1, first + 2].map(u64::to_le_bytes);
        for message in &messages {
            a.send(to_b, message, None, 9);
        }
        next += 3;
        for _ in 0..3 {
            a.cq.next().unwrap();
            b.cq.next().unwrap();
        }
        assert_eq!(rooms, messages, "in round {round} they met the receives in another order");
        std::thread::sleep(SILENCE + SILENCE * (round % 20) as u32 / 10);
        assert!(begin.elapsed() < 4 * BOUND);
    }
}

#[test]
fn operations_end_with_errors_when_the_server_does() {
    if !inside("operations_end_with_errors_when_the_server_does") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 8, |builder| builder);
    let with = |events| How { counters: Some(sys::FI_WAIT_FD), events, ..How::default() };
    let wish = Wish { domain: Some(server.name()), ..Wish::default() };
    let (side, idle) =
        (Side::open(&wish, with(Events::OfEndpoint)), Side::open(&wish, with(Events::OfDomain)));
    let own = side.insert(&side.name());
    let (mut set, mut attr) = (null_mut(), sys::fi_poll_attr::default());
    assert_eq!(table!(side.domain, ops.poll_open(&mut attr, &mut set)), 0);
    let (queue, counter): (*mut sys::fid, *mut sys::fid) = (side.cq.0.cast(), side.counters[1].0.cast());
    for fid in [queue, counter] {
        assert_eq!(table!(set, ops.poll_add(fid, 0)), 0);
    }
    let poll = || table!(set, ops.poll([null_mut(); 2].as_mut_ptr(), 2));
    let try_wait = |mut fid: *mut sys::fid| table!(side.fabric, ops.trywait(&mut fid, 1));
    let mut room = [0; 8];
    side.receive(&mut room, FI_ADDR_UNSPEC, None, 1);
    // An access of more pieces than are asked for at a time, to a process that answers none.
    let silent = Endpoint::builder(server.name()).build().unwrap();
    let mut name = side.name();
    name[2..4].copy_from_slice(&silent.process().to_be_bytes());
    let (owner, mut bytes) = (side.insert(&name), vec![0u8; 1 << 20]);
    let at = bytes.as_mut_ptr().cast();
    side.post(|| table!(side.ep, rma.read(at, 1 << 20, null_mut(), owner, 0, 7, 2 as *mut _)));
    assert_eq!(side.cq.read_within(200), None);
    assert_eq!(poll(), 0);
    drop(server);
    // Entries and counts come before the error.
    let begin = Instant::now();
    while poll() == 0 {
        assert!(begin.elapsed() < BOUND);
    }
    assert!(poll() > 0);
    assert_eq!((try_wait(queue), try_wait(counter)), (-sys::FI_EAGAIN, -sys::FI_EAGAIN));
    let mut ends = [side.cq.next(), side.cq.next()];
    ends.sort_by_key(|end| end.map_or_else(|failed| failed.context, |entry| entry.context));
    assert_eq!(ends, [1, 2].map(|context| Err(Failed { context, error: sys::FI_ESHUTDOWN, beyond: 0 })));
    let gone = -sys::FI_ESHUTDOWN;
    while poll() > 0 {
        assert!(begin.elapsed() < BOUND);
    }
    assert_eq!((poll(), try_wait(queue), try_wait(counter)), (gone, gone, gone));
    for side in [&side, &idle] {
        let mut event = 0;
        let read = table!(side.eq, ops.sread(&mut event, null_mut(), 0, 60_000, 0));
        assert_eq!(read, -(sys::FI_EAVAIL as isize));
        let mut failed = sys::fi_eq_err_entry::default();
        assert!(table!(side.eq, ops.readerr(&mut failed, 0)) > 0);
        assert_eq!((failed.fid.addr(), failed.err), (side.ep.addr(), sys::FI_ESHUTDOWN));
        let again = table!(side.eq, ops.read(&mut event, null_mut(), 0, 0));
        assert_eq!(again, -(sys::FI_EAGAIN as isize), "it is said once");
        assert_eq!(common::fabric::close(side.eq.cast()), -sys::FI_EBUSY, "it is bound");
    }
    let at = room.as_ptr().cast();
    let sent = table!(side.ep, msg.send(at, 8, null_mut(), own, null_mut()));
    assert_eq!(sent, -(sys::FI_ESHUTDOWN as isize));
    let counts: Vec<_> = side.counters.iter().map(|counter| counter.read()).collect();
    assert_eq!(counts, [(0, 0), (0, 1), (0, 1), (0, 0)], "sent, received, read and written");
    assert_eq!(Entry::default().len, 0);
    assert_eq!(common::fabric::close(set.cast()), 0);
}
