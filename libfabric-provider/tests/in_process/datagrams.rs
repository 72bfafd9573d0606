//! Endpoints for datagrams (FI_EP_DGRAM), at ports of their own, at named ports and at servers: two processes call every function
//! of their tables, datagrams arrive with every byte in its place or are lost, and nothing waits for those that are.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::Instant;

use crate::common::fabric::{BOUND, Entry, Failed, How, Opened, Side, Wish, getinfo, message, one, table};
use crate::common::processes::{self, Process};
use crate::common::server::servers;
use crate::common::{inside, inside_with};
use crate::every_function::refused_for_datagrams;
use weft_fi::sys;
use weft_fi::sys::FI_ADDR_UNSPEC;

const SENT: usize = 4;
const RECEIVED: usize = 2;
const CANCELLED: usize = 8;
/// The variable that names the server of a further process.
const SERVER: &str = "WEFT_FI_SERVER";

fn wish(caps: u64) -> Wish {
    Wish { caps, kind: sys::FI_EP_DGRAM, ..Wish::default() }
}

fn open() -> Side {
    Side::open(&wish(sys::FI_MSG | sys::FI_SOURCE), How::default())
}

fn at(server: String) -> Wish {
    Wish { domain: Some(server), ..wish(sys::FI_MSG | sys::FI_SOURCE) }
}

/// The most bytes of a datagram.
fn longest() -> usize {
    longest_of(&wish(0))
}

fn longest_of(wish: &Wish) -> usize {
    // SAFETY: an info of libfabric's has all its parts.
    unsafe { (*getinfo(wish).unwrap().get().ep_attr).max_msg_size }
}

fn content(step: usize, len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + step * 31 + n / 256) as u8).collect()
}

fn context(number: usize) -> *mut c_void {
    number as *mut c_void
}

/// The other process of a test and what it is told, by pipes: datagrams say nothing about whether they are expected.
struct Other<'a>(Option<&'a mut Process>);

impl Other<'_> {
    fn tell(&mut self, line: &str) {
        match &mut self.0 {
            Some(process) => process.tell(line),
            None => println!("line {line}"),
        }
    }

    fn told(&mut self) -> String {
        match &mut self.0 {
            Some(process) => process.says("line "),
            None => processes::told(),
        }
    }

    fn swap_names(&mut self, side: &Side) -> u64 {
        self.tell(&u128::from_be_bytes(side.name()).to_string());
        side.insert(&self.told().parse::<u128>().unwrap().to_be_bytes())
    }
}

/// Runs `play` in two processes, which know their numbers.
fn in_two_processes(name: &str, play: impl Fn(usize, Other<'_>)) {
    if !inside(name) {
        return;
    }
    if processes::number().is_some() {
        return play(1, Other(None));
    }
    let mut process = Process::start(name, 1, &[]);
    play(0, Other(Some(&mut process)));
    assert!(process.child.wait().unwrap().success());
}

/// A step: process `sender` sends a datagram when the other one is ready for it.
struct Step<'a> {
    side: &'a Side,
    own: usize,
    other: Other<'a>,
    /// The number of the other process.
    peer: u64,
    step: usize,
}

impl Step<'_> {
    /// Both processes send and receive; `completes` says whether the sender has an entry for it.
    fn both(
        &mut self,
        len: usize,
        completes: bool,
        data: Option<u64>,
        receive: impl Fn(&[sys::iovec; 2]) -> isize,
        send: impl Fn(&[sys::iovec; 2]) -> isize,
    ) {
        for sender in 0..2 {
            self.step += 1;
            let bytes = content(self.step, len);
            if sender == self.own {
                assert_eq!(self.other.told(), "ready");
                self.side.post(|| send(&halves(bytes.as_ptr().cast_mut(), len)));
                if completes {
                    let flags = sys::FI_MSG | sys::FI_SEND;
                    let entry = self.side.cq.next().unwrap();
                    assert_eq!((entry.context, entry.flags), (SENT, flags));
                }
                assert_eq!(self.other.told(), "got it");
                continue;
            }
            let mut room = vec![0u8; len];
            let pieces = halves(room.as_mut_ptr(), len);
            self.side.post(|| receive(&pieces));
            is_posted(self.side);
            self.other.tell("ready");
            let flags = sys::FI_MSG | sys::FI_RECV | if data.is_some() { sys::FI_REMOTE_CQ_DATA } else { 0 };
            let entry = self.side.cq.next().unwrap();
            let (context, data) = (RECEIVED, data.unwrap_or(0));
            assert_eq!(entry, Entry { context, flags, len, data, tag: 0, source: self.peer });
            assert!(room == bytes, "step {}", self.step);
            self.other.tell("got it");
        }
        assert_eq!(self.side.cq.read(), None);
    }
}

/// Waits until all receives of the side are posted: a server learns of them a little later.
fn is_posted(side: &Side) {
    let mut room = [0u8; 1];
    side.receive(&mut room, FI_ADDR_UNSPEC, None, CANCELLED);
    // SAFETY: the endpoint is open.
    assert_eq!(unsafe { (*(*side.ep).ops).cancel.unwrap()(side.ep.cast(), context(CANCELLED)) }, 0);
    let cancelled = Failed { context: CANCELLED, error: sys::FI_ECANCELED, beyond: 0 };
    assert_eq!(side.cq.next(), Err(cancelled));
}

fn halves(at: *mut u8, len: usize) -> [sys::iovec; 2] {
    let piece =
        |from: usize, to: usize| sys::iovec { iov_base: at.wrapping_add(from).cast(), iov_len: to - from };
    [piece(0, len / 3), piece(len / 3, len)]
}

#[test]
fn two_processes_call_every_function_for_datagrams() {
    in_two_processes("two_processes_call_every_function_for_datagrams", |own, other| {
        call_every_function(own, other, &wish(sys::FI_MSG | sys::FI_SOURCE));
    });
}

#[test]
fn two_processes_call_every_function_for_datagrams_at_servers() {
    const NAME: &str = "two_processes_call_every_function_for_datagrams_at_servers";
    if !inside(NAME) {
        return;
    }
    if processes::number().is_some() {
        return call_every_function(1, Other(None), &at(std::env::var(SERVER).unwrap()));
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 90);
    let mut process = Process::start(NAME, 1, &[(SERVER, &servers[1].name())]);
    call_every_function(0, Other(Some(&mut process)), &at(servers[0].name()));
    assert!(process.child.wait().unwrap().success());
}

fn call_every_function(own: usize, mut other: Other<'_>, wish: &Wish) {
    let side = Side::open(wish, How::default());
    let longest = longest_of(wish);
    let peer = other.swap_names(&side);
    let ep = side.ep;
    refused_for_datagrams(ep);
    // All functions of the table have a name here.
    // SAFETY: the endpoint is open, and its tables are whole.
    let sys::fi_ops_msg { size: _, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata } =
        unsafe { *(*ep).msg };
    let (to, none) = (peer, null_mut());
    let (sent, received) = (context(SENT), context(RECEIVED));
    let message = |pieces: &[sys::iovec; 2], context, data| message(pieces, to, context, data);
    let into = |rooms: &[sys::iovec; 2]| {
        let (at, len) = one(rooms);
        // SAFETY: the endpoint is open, and the room lives until its entry.
        unsafe { recv.unwrap()(ep, at, len, none, FI_ADDR_UNSPEC, received) }
    };
    let mut step = Step { side: &side, own, other, peer, step: 0 };
    // SAFETY: as above, of all calls here.
    unsafe {
        for len in [0, 1, 100, longest] {
            step.both(len, true, None, into, |pieces| {
                let (at, len) = one(pieces);
                send.unwrap()(ep, at, len, none, to, sent)
            });
        }
        step.both(
            3_000,
            true,
            None,
            |rooms| recvv.unwrap()(ep, rooms.as_ptr(), null_mut(), 2, FI_ADDR_UNSPEC, received),
            |pieces| sendv.unwrap()(ep, pieces.as_ptr(), null_mut(), 2, to, sent),
        );
        step.both(
            4_000,
            true,
            Some(9),
            |rooms| recvmsg.unwrap()(ep, &message(rooms, received, 0), 0),
            |pieces| sendmsg.unwrap()(ep, &message(pieces, sent, 9), sys::FI_REMOTE_CQ_DATA),
        );
        step.both(4_096, false, None, into, |pieces| {
            let (at, len) = one(pieces);
            inject.unwrap()(ep, at, len, to)
        });
        step.both(4_000, true, Some(5), into, |pieces| {
            let (at, len) = one(pieces);
            senddata.unwrap()(ep, at, len, none, 5, to, sent)
        });
        step.both(40, false, Some(6), into, |pieces| {
            let (at, len) = one(pieces);
            injectdata.unwrap()(ep, at, len, 6, to)
        });
    }
}

#[test]
fn datagrams_that_do_not_fit_are_refused_or_cut_off() {
    if !inside("datagrams_that_do_not_fit_are_refused_or_cut_off") {
        return;
    }
    let (a, b) = (open(), open());
    let to = a.insert(&b.name());
    let bytes = vec![7u8; longest() + 1];
    let send = |len, context| table!(a.ep, msg.send(bytes.as_ptr().cast(), len, null_mut(), to, context));
    assert_eq!(send(bytes.len(), null_mut()), -(sys::FI_EMSGSIZE as isize));
    let injected = table!(a.ep, msg.inject(bytes.as_ptr().cast(), 4_097, to));
    assert_eq!(injected, -(sys::FI_EMSGSIZE as isize));
    // An error entry says how much is missing; the beginning is there.
    let mut room = [0u8; 100];
    b.receive(&mut room, FI_ADDR_UNSPEC, None, 1);
    a.send(to, &bytes[1..], None, 2);
    assert_eq!(a.cq.next().unwrap().context, 2);
    let beyond = longest() - 100;
    assert_eq!(b.cq.next(), Err(Failed { context: 1, error: sys::FI_ETRUNC as i32, beyond }));
    assert_eq!(room, [7; 100]);
    // Flags of what datagrams do not have.
    let message = sys::fi_msg { addr: to, ..sys::fi_msg::default() };
    for flags in [sys::FI_DELIVERY_COMPLETE, sys::FI_PEEK] {
        assert_eq!(table!(a.ep, msg.sendmsg(&message, flags)), -(sys::FI_EBADFLAGS as isize));
    }
    for flags in [sys::FI_MULTI_RECV, sys::FI_PEEK, sys::FI_CLAIM, sys::FI_DISCARD] {
        assert_eq!(table!(a.ep, msg.recvmsg(&message, flags)), -(sys::FI_EBADFLAGS as isize));
    }
}

#[test]
fn datagrams_without_a_receive_are_lost_and_hold_nothing_up() {
    in_two_processes("datagrams_without_a_receive_are_lost_and_hold_nothing_up", |own, mut other| {
        const FLOOD: usize = 20_000;
        let side = open();
        let peer = other.swap_names(&side);
        if own == 0 {
            assert_eq!(other.told(), "ready");
            let bytes = vec![3u8; 1_000];
            let mut done = 0;
            let begin = Instant::now();
            for n in 0..FLOOD {
                side.send(peer, &bytes, None, n);
                while let Some(entry) = side.cq.read() {
                    assert!(entry.is_ok(), "{entry:?}");
                    done += 1;
                }
            }
            while done < FLOOD {
                side.cq.next().unwrap();
                done += 1;
            }
            assert!(begin.elapsed() < BOUND);
            other.tell("sent");
            // The other one still receives.
            assert_eq!(other.told(), "again");
            side.send(peer, b"last", None, SENT);
            assert_eq!(side.cq.next().unwrap().context, SENT);
            assert_eq!(other.told(), "bye");
            return;
        }
        let mut rooms = vec![[0u8; 1_000]; 10];
        for (n, room) in rooms.iter_mut().enumerate() {
            side.receive(room, FI_ADDR_UNSPEC, None, n);
        }
        other.tell("ready");
        for _ in 0..10 {
            let entry = side.cq.next().unwrap();
            assert_eq!((entry.len, entry.source), (1_000, peer));
        }
        assert!(rooms.iter().all(|room| *room == [3; 1_000]));
        assert_eq!(other.told(), "sent");
        // What still arrives is lost as well: nobody may have posted a receive for it.
        let quiet = Instant::now();
        let mut reads = 0;
        // Reads as well as time: this process may be kept from running.
        while quiet.elapsed().as_millis() < 300 || reads < 10_000 {
            assert_eq!(side.cq.read(), None);
            reads += 1;
        }
        let mut room = [0u8; 10];
        side.receive(&mut room, FI_ADDR_UNSPEC, None, RECEIVED);
        other.tell("again");
        let entry = side.cq.next().unwrap();
        assert_eq!((entry.context, entry.len, &room[..4]), (RECEIVED, 4, &b"last"[..]));
        other.tell("bye");
    });
}

#[test]
fn datagrams_and_messages_do_not_meet() {
    if !inside("datagrams_and_messages_do_not_meet") {
        return;
    }
    let (datagrams, messages) = (open(), Side::open(&Wish::default(), How::default()));
    let (to, own) = (datagrams.insert(&messages.name()), messages.insert(&messages.name()));
    let mut room = [0u8; 8];
    messages.receive(&mut room, FI_ADDR_UNSPEC, None, RECEIVED);
    for n in 0..100 {
        datagrams.send(to, b"datagram", None, n);
        datagrams.cq.next().unwrap();
        assert_eq!(messages.cq.read(), None);
    }
    messages.send(own, b"message", None, SENT);
    let mut ends = [messages.cq.next().unwrap(), messages.cq.next().unwrap()];
    ends.sort_by_key(|entry| entry.context);
    assert_eq!((ends[0].context, ends[0].len, &room[..7]), (RECEIVED, 7, &b"message"[..]));
}

/// Short messages would be kept for receives, and long ones offered again and again.
#[test]
fn messages_to_an_endpoint_for_datagrams_are_refused() {
    if !inside("messages_to_an_endpoint_for_datagrams_are_refused") {
        return;
    }
    let (datagrams, messages) = (open(), Side::open(&Wish::default(), How::default()));
    let (to, own) = (messages.insert(&datagrams.name()), datagrams.insert(&datagrams.name()));
    let mut room = [0u8; 8];
    datagrams.receive(&mut room, FI_ADDR_UNSPEC, None, RECEIVED);
    let bytes = content(1, 1 << 20);
    for (len, tag) in [(10, None), (10, Some(3)), (1 << 20, None), (1 << 20, Some(3))] {
        messages.send(to, &bytes[..len], tag, SENT);
        let refused = Failed { context: SENT, error: sys::FI_ECONNREFUSED, beyond: 0 };
        assert_eq!(messages.cq.next(), Err(refused), "{len} bytes, tag {tag:?}");
        assert_eq!(datagrams.cq.read(), None);
    }
    datagrams.send(own, b"datagram", None, SENT);
    let mut ends = [datagrams.cq.next().unwrap(), datagrams.cq.next().unwrap()];
    ends.sort_by_key(|entry| entry.context);
    assert_eq!((ends[0].context, ends[0].len, &room), (RECEIVED, 8, b"datagram"));
}

#[test]
fn a_receive_of_a_datagram_can_be_cancelled() {
    if !inside("a_receive_of_a_datagram_can_be_cancelled") {
        return;
    }
    let side = open();
    let own = side.insert(&side.name());
    let (mut first, mut second) = ([0u8; 4], [0u8; 4]);
    side.receive(&mut first, FI_ADDR_UNSPEC, None, 1);
    side.receive(&mut second, FI_ADDR_UNSPEC, None, RECEIVED);
    // SAFETY: the endpoint is open.
    let cancel = || unsafe { (*(*side.ep).ops).cancel.unwrap()(side.ep.cast(), context(1)) };
    assert_eq!(cancel(), 0);
    assert_eq!(side.cq.next(), Err(Failed { context: 1, error: sys::FI_ECANCELED, beyond: 0 }));
    assert_eq!(cancel(), -(sys::FI_ENOENT as isize));
    side.send(own, b"self", None, SENT);
    let mut ends = [side.cq.next().unwrap(), side.cq.next().unwrap()];
    ends.sort_by_key(|entry| entry.context);
    assert_eq!((ends[0].context, second), (RECEIVED, *b"self"));
}

/// Two of one server and one of another: each gets the datagrams that name it and no others, with every byte and their sender.
#[test]
fn endpoints_of_servers_get_their_own_datagrams_and_no_others() {
    if !inside("endpoints_of_servers_get_their_own_datagrams_and_no_others") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 92);
    let sides = [0, 0, 1].map(|server: usize| Side::open(&at(servers[server].name()), How::default()));
    let names = sides.each_ref().map(Side::name);
    let numbers = sides.each_ref().map(|side| names.each_ref().map(|name| side.insert(name)));
    let most = longest_of(&at(servers[0].name()));
    // As long as a packet of the server carries.
    assert_eq!(most, 4096);
    let lens = [0, 1, 300, most];
    for (from, to) in (0..9).map(|n| (n / 3, n % 3)) {
        let mut rooms: Vec<Vec<Vec<u8>>> = vec![vec![vec![0; most]; lens.len()]; 3];
        for (side, rooms) in sides.iter().zip(&mut rooms) {
            rooms.iter_mut().enumerate().for_each(|(n, room)| side.receive(room, FI_ADDR_UNSPEC, None, n));
            is_posted(side);
        }
        // One after the other, as datagrams may overtake each other.
        for (n, len) in lens.into_iter().enumerate() {
            let bytes = content(from * 100 + to * 10 + n, len);
            sides[from].send(numbers[from][to], &bytes, None, SENT + 10);
            let mut ends = [sides[from].cq.next().unwrap(), sides[to].cq.next().unwrap()];
            ends.sort_by_key(|entry| entry.context);
            let [received, sent] = ends;
            assert_eq!((sent.context, received.context), (SENT + 10, n));
            assert_eq!((received.len, received.source), (len, numbers[to][from]));
            assert!(rooms[to][n][..len] == bytes, "{len} bytes from {from} to {to}");
        }
        // The receives of the others are still there, and untouched.
        for (other, side) in sides.iter().enumerate().filter(|(other, _)| *other != to) {
            for n in 0..lens.len() {
                // SAFETY: the endpoint is open.
                let cancelled = unsafe { (*(*side.ep).ops).cancel.unwrap()(side.ep.cast(), context(n)) };
                let end = side.cq.next();
                let expected = Failed { context: n, error: sys::FI_ECANCELED, beyond: 0 };
                assert_eq!((cancelled, end), (0, Err(expected)), "{from} to {to}: {other} has got it");
            }
            assert!(rooms[other].iter().all(|room| *room == vec![0; most]));
        }
    }
    for side in &sides {
        assert_eq!(side.cq.read(), None);
    }
}

/// As many as its queue holds wait there for nobody, and messages to it are refused.
#[test]
fn an_endpoint_of_a_server_is_for_datagrams_alone() {
    if !inside("an_endpoint_of_a_server_is_for_datagrams_alone") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 94);
    let datagrams = Side::open(&at(servers[0].name()), How::default());
    let messages = Side::open(&Wish { domain: Some(servers[1].name()), ..Wish::default() }, How::default());
    let (to, back) = (messages.insert(&datagrams.name()), datagrams.insert(&messages.name()));
    let mut rooms = [[0u8; 8]; 2];
    datagrams.receive(&mut rooms[0], FI_ADDR_UNSPEC, None, RECEIVED);
    messages.receive(&mut rooms[1], FI_ADDR_UNSPEC, None, RECEIVED);
    let bytes = content(1, 1 << 20);
    for (len, tag) in [(10, None), (10, Some(3)), (1 << 20, None), (1 << 20, Some(3))] {
        messages.send(to, &bytes[..len], tag, SENT);
        let refused = Failed { context: SENT, error: sys::FI_ECONNREFUSED, beyond: 0 };
        assert_eq!(messages.cq.next(), Err(refused), "{len} bytes, tag {tag:?}");
        datagrams.send(back, &bytes[..10], None, SENT);
        assert_eq!(datagrams.cq.next().unwrap().context, SENT);
        assert_eq!((datagrams.cq.read(), messages.cq.read()), (None, None));
    }
    // More than it may have under way: each is complete when it has left.
    for n in 0..10_000 {
        datagrams.send(back, &bytes[..100], None, n);
        while let Some(entry) = datagrams.cq.read() {
            assert!(entry.is_ok(), "{entry:?}");
        }
    }
}

/// Datagrams at a memif port of one's own. The first ones are lost while the link is not up.
#[test]
fn endpoints_at_named_ports_exchange_datagrams() {
    if !inside("endpoints_at_named_ports_exchange_datagrams") {
        return;
    }
    let port = |role: &str, host: u8| {
        let id = std::process::id();
        at(format!("memif:@weft-datagrams-{id},role={role},ip=10.0.0.{host}"))
    };
    let wishes = [port("server", 1), port("client", 2)];
    // 9,000 bytes less the headers of IP, UDP and UET.
    let most = longest_of(&wishes[0]);
    assert_eq!(most, 8_912);
    let mut too_long = getinfo(&wishes[0]).unwrap();
    // SAFETY: an info of libfabric's has all its parts, and nobody else has this one.
    unsafe { (*(*too_long.0).ep_attr).max_msg_size = most + 1 };
    too_long.clear_source();
    assert_eq!(Opened::new(&too_long).endpoint(&too_long), -sys::FI_ENODATA);
    let sides = wishes.each_ref().map(|wish| Side::open(wish, How::default()));
    let to = [sides[0].insert(&sides[1].name()), sides[1].insert(&sides[0].name())];
    for (round, len) in [0, 1, 1_000, most, 17].into_iter().enumerate() {
        let bytes = content(round, len);
        let mut room = vec![0u8; most];
        let (from, into) = (&sides[round % 2], &sides[1 - round % 2]);
        into.receive(&mut room, FI_ADDR_UNSPEC, None, RECEIVED);
        let begin = Instant::now();
        let entry = 'arrives: loop {
            from.send(to[round % 2], &bytes, None, SENT);
            assert_eq!(from.cq.next().unwrap().context, SENT);
            for _ in 0..100 {
                if let Some(entry) = into.cq.read() {
                    break 'arrives entry.unwrap();
                }
                assert_eq!(from.cq.read(), None);
            }
            assert!(begin.elapsed() < BOUND, "no datagram arrives");
        };
        assert_eq!((entry.context, entry.len, entry.source), (RECEIVED, len, to[1 - round % 2]));
        assert!(room[..len] == bytes, "{len} bytes");
        // Those that were sent once more find no receive.
        for _ in 0..100 {
            assert_eq!((into.cq.read(), from.cq.read()), (None, None));
        }
    }
}

#[test]
fn datagrams_are_offered_with_what_they_have() {
    const NAME: &str = "datagrams_are_offered_with_what_they_have";
    if !inside_with(NAME, &[("FI_WEFT_MTU", "1500")]) {
        return;
    }
    let info = getinfo(&wish(0)).unwrap();
    // SAFETY: an info of libfabric's has all its parts.
    let (ep, tx, rx) = unsafe { (*info.get().ep_attr, *info.get().tx_attr, *info.get().rx_attr) };
    assert_eq!(ep.type_, sys::FI_EP_DGRAM);
    let caps = sys::FI_MSG | sys::FI_SEND | sys::FI_RECV | sys::FI_SOURCE;
    assert_eq!(info.get().caps, caps | sys::FI_LOCAL_COMM | sys::FI_REMOTE_COMM);
    assert_eq!((info.get().mode, tx.mode, rx.mode, ep.msg_prefix_size), (0, 0, 0, 0));
    assert_eq!((tx.msg_order, rx.msg_order, tx.rma_iov_limit, rx.total_buffered_recv), (0, 0, 0, 0));
    // 1,500 bytes less the headers of IP, UDP and UET; no more can be injected.
    assert_eq!((ep.max_msg_size, tx.inject_size), (1_412, 1_412));
    let (a, b) = (open(), open());
    let (to, bytes) = (a.insert(&b.name()), content(1, 1_412));
    let mut room = vec![0u8; 1_412];
    b.receive(&mut room, FI_ADDR_UNSPEC, None, RECEIVED);
    let send = |len| table!(a.ep, msg.inject(bytes.as_ptr().cast(), len, to));
    assert_eq!(send(1_412), 0);
    assert_eq!(b.cq.next().unwrap().len, 1_412);
    assert!(room == bytes);
    let named = |domain: &str| Wish { domain: Some(domain.to_owned()), ..wish(0) };
    assert_eq!(getinfo(&named("serve:/nowhere/at/all")).map(drop), Err(sys::FI_ENODATA));
    let ports = ["memif:/nowhere,role=client,ip=10.0.0.1", "udp:127.0.0.1"];
    assert_eq!(ports.map(|port| longest_of(&named(port))), [1_412; 2]);
    // A server that says nothing offers none, and keeps nobody waiting.
    let directory = tempfile::tempdir().unwrap();
    let silent = directory.path().join("silent");
    let _listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    let silent = named(&format!("serve:{}", silent.display()));
    assert_eq!(getinfo(&silent).map(drop), Err(sys::FI_ENODATA));
}
