//! Two processes use what an endpoint can beside plain messages and accesses: FI_SOURCE, FI_DIRECTED_RECV, FI_MULTI_RECV, FI_RMA_EVENT,
//! and looks at messages (FI_PEEK, FI_CLAIM, FI_DISCARD), over ports of their own and through servers. `every_function.rs` has the rest.

use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};
use std::time::Instant;

use crate::common::fabric::{BOUND, Entry, Exposed, Failed, How, Side, Wish, close, table};
use crate::common::inside;
use crate::common::processes::{self, Process};
use crate::common::server::servers;
use weft_fi::sys::{self, FI_ADDR_UNSPEC};

const NAME: &str = "two_processes_use_every_capability";
const SERVED: &str = "two_processes_use_every_capability_through_servers";
/// The variable that names the server of the second process, if it has one.
const SERVER: &str = "WEFT_FI_SERVER";
/// Contexts.
const SENT: usize = 1;
const MET: usize = 2;
const OTHER: usize = 3;
/// The tag of messages by which both processes meet.
const MEETS: u64 = 1 << 40;
const KEY: u64 = 4;

/// Bytes of a message of process `from`.
fn content(from: usize, step: usize, len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + step * 31 + from * 101 + n / 256) as u8).collect()
}

/// One of the two processes.
struct Half {
    own: usize,
    side: Side,
    /// A second endpoint, so that there are two senders.
    second: Side,
    /// Both endpoints of the other process, for the first endpoint; and its first one, for the second.
    theirs: [u64; 2],
    from_second: u64,
}

impl Half {
    /// Opens the endpoints of process `own`. `swap` hands a line to the other process and returns one of it.
    fn open(own: usize, domain: Option<String>, mut swap: impl FnMut(String) -> String) -> Half {
        let messages = sys::FI_MSG | sys::FI_TAGGED | sys::FI_SOURCE | sys::FI_DIRECTED_RECV;
        let caps = messages | sys::FI_MULTI_RECV | sys::FI_RMA | sys::FI_ATOMIC | sys::FI_RMA_EVENT;
        let open = || {
            let wish = Wish { caps, domain: domain.clone(), ..Wish::default() };
            let counters = Some(sys::FI_WAIT_UNSPEC);
            Side::open(&wish, How { counters, of_peers: true, ..How::default() })
        };
        let [side, second] = [open(), open()];
        let [a, b] = [&side, &second].map(|side| u128::from_be_bytes(side.name()));
        let names = swap(format!("{a} {b}"));
        let names: Vec<[u8; 16]> =
            names.split(' ').map(|name| name.parse::<u128>().unwrap().to_be_bytes()).collect();
        let theirs = [side.insert(&names[0]), side.insert(&names[1])];
        let from_second = second.insert(&names[0]);
        // Servers let in whom they have been told of.
        swap("knows".to_owned());
        Half { own, side, second, theirs, from_second }
    }

    /// The bytes of a message of the other process.
    fn expected(&self, step: usize, len: usize) -> Vec<u8> {
        content(1 - self.own, step, len)
    }

    /// The next two entries, of which one is that of a send. Returns the other one.
    fn next_beside_send(&self) -> Entry {
        let [one, two] = [(); 2].map(|()| self.side.cq.next().unwrap());
        let (sent, other) = if one.context == SENT { (one, two) } else { (two, one) };
        assert_eq!(sent.context, SENT, "{other:?}");
        other
    }

    /// Sends messages with or without a tag, and waits until the other process has them, though it receives none yet.
    fn send(&self, messages: &[Vec<u8>], tag: Option<u64>) {
        for message in messages {
            self.side.send(self.theirs[0], message, tag, SENT);
            assert_eq!(self.side.cq.next().map(|entry| entry.context), Ok(SENT));
        }
    }

    /// Both processes have come here, and all that either has sent before is there.
    fn meet(&self) {
        self.side.receive(&mut [], self.theirs[0], Some((MEETS, 0)), MET);
        self.side.send(self.theirs[0], &[], Some(MEETS), OTHER);
        let mut ends = [(); 2].map(|()| self.side.cq.next().unwrap().context);
        ends.sort_unstable();
        assert_eq!(ends, [MET, OTHER]);
    }
}

/// The message of the first sender gets the second receive, which takes those of that one only; each entry names its sender.
fn directed(half: &Half) {
    let Half { side, theirs, .. } = half;
    let mut rooms = [[0u8; 40]; 2];
    let [of_second, of_first] = &mut rooms;
    side.receive(of_second, theirs[1], Some((5, 0)), 11);
    side.receive(of_first, theirs[0], Some((5, 0)), 10);
    half.meet();
    half.side.send(theirs[0], &content(half.own, 0, 40), Some(5), SENT);
    let first = half.next_beside_send();
    assert_eq!((first.context, first.source, first.len), (10, theirs[0], 40));
    // The other process has got that of this one's first endpoint, too.
    half.meet();
    half.second.send(half.from_second, &content(half.own, 1, 40), Some(5), SENT);
    let second = side.cq.next().unwrap();
    assert_eq!((second.context, second.source, second.len), (11, theirs[1], 40));
    assert_eq!(half.second.cq.next().map(|entry| entry.context), Ok(SENT));
    assert_eq!(rooms.map(|room| room.to_vec()), [1, 0].map(|step| half.expected(step, 40)));
    half.meet();
}

/// One receive gets messages of both senders, one behind the other, until too little of it is left.
fn many(half: &Half) {
    const LENGTHS: [usize; 5] = [1_000, 70, 2_000, 900, 80];
    /// The message of the second endpoint.
    const OF_SECOND: usize = 1;
    let Half { side, second, theirs, .. } = half;
    let mut room = vec![0u8; 4_096];
    let begin = room.as_mut_ptr();
    side.receive_many(begin.cast(), room.len());
    half.meet();
    let messages: Vec<_> = LENGTHS.iter().enumerate().map(|(n, len)| content(half.own, n, *len)).collect();
    for (n, message) in messages.iter().enumerate() {
        if n == OF_SECOND {
            second.send(half.from_second, message, None, SENT);
        } else {
            side.send(theirs[0], message, None, SENT);
        }
    }
    assert_eq!(second.cq.next().map(|entry| entry.context), Ok(SENT));
    let (mut received, mut sent, started) = (Vec::new(), 0, Instant::now());
    while received.len() < LENGTHS.len() || sent < LENGTHS.len() - 1 {
        assert!(started.elapsed() < BOUND, "{received:?}, {sent} sent");
        match side.cq.read_at() {
            Some((Ok(Entry { context: SENT, .. }), _)) => sent += 1,
            Some((entry, at)) => received.push((entry.unwrap(), at)),
            None => std::thread::yield_now(),
        }
    }
    let mut from = 0;
    for (n, (entry, at)) in received.iter().enumerate() {
        assert_eq!(*at, begin.addr() + from, "one behind the other");
        let step = LENGTHS.iter().position(|len| *len == entry.len).expect("a length of a message");
        assert_eq!(entry.source, theirs[usize::from(step == OF_SECOND)]);
        assert_eq!(entry.flags & sys::FI_MULTI_RECV != 0, n + 1 == LENGTHS.len(), "entry {n}");
        assert!(peek(&room, from, entry.len) == half.expected(step, entry.len), "message {step}");
        from += entry.len;
    }
    assert_eq!(from, LENGTHS.iter().sum());
    half.meet();
}

/// What is in memory that others write to.
fn peek(memory: &[u8], begin: usize, len: usize) -> Vec<u8> {
    // SAFETY: the bytes are there.
    (begin..begin + len).map(|at| unsafe { memory.as_ptr().add(at).read_volatile() }).collect()
}

/// Looks at messages with tags, and without: finds, claims, drops and receives them.
fn looks(half: &Half) {
    const LENGTHS: [usize; 4] = [10, 3_000, 30, 40];
    let Half { side, theirs, .. } = half;
    let messages: Vec<_> = LENGTHS.iter().enumerate().map(|(n, len)| content(half.own, n, *len)).collect();
    for tag in [Some(9), None] {
        half.send(&messages, tag);
        half.meet();
        let mut room = vec![0u8; 4_000];
        let piece = sys::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        let call = |context: usize, flags: u64, from: u64, wanted: u64| {
            let (msg_iov, desc, context): (_, _, *mut c_void) =
                (&raw const piece, null_mut(), without_provenance_mut(context));
            let (iov_count, addr, data) = (1, from, 0);
            if tag.is_some() {
                let look = sys::fi_msg_tagged {
                    msg_iov,
                    desc,
                    iov_count,
                    addr,
                    tag: wanted,
                    ignore: 0,
                    context,
                    data,
                };
                side.post(|| table!(side.ep, tagged.recvmsg(&look, flags)));
            } else {
                let look = sys::fi_msg { msg_iov, desc, iov_count, addr, context, data };
                side.post(|| table!(side.ep, msg.recvmsg(&look, flags)));
            }
            side.cq.next()
        };
        let is = |entry: Result<Entry, Failed>, context: usize, n: usize| {
            let entry = entry.unwrap();
            let found = (entry.context, entry.len, entry.tag, entry.source);
            assert_eq!(found, (context, LENGTHS[n], tag.unwrap_or(0), theirs[0]), "message {n}");
        };
        // A message of the other sender, or with another tag, is not there.
        let none = Err(Failed { context: 20, error: sys::FI_ENOMSG, beyond: 0 });
        assert_eq!(call(20, sys::FI_PEEK, theirs[1], 9), none);
        if tag.is_some() {
            assert_eq!(call(20, sys::FI_PEEK, theirs[0], 8), none);
        }
        is(call(21, sys::FI_PEEK, FI_ADDR_UNSPEC, 9), 21, 0);
        is(call(22, sys::FI_PEEK | sys::FI_DISCARD, theirs[0], 9), 22, 0);
        is(call(23, sys::FI_PEEK | sys::FI_CLAIM, FI_ADDR_UNSPEC, 9), 23, 1);
        // Nobody but the one who has claimed a message receives it.
        is(call(24, 0, FI_ADDR_UNSPEC, 9), 24, 2);
        assert!(peek(&room, 0, LENGTHS[2]) == half.expected(2, LENGTHS[2]));
        is(call(23, sys::FI_CLAIM, FI_ADDR_UNSPEC, 9), 23, 1);
        assert!(peek(&room, 0, LENGTHS[1]) == half.expected(1, LENGTHS[1]));
        is(call(25, sys::FI_PEEK | sys::FI_CLAIM, theirs[0], 9), 25, 3);
        is(call(25, sys::FI_CLAIM | sys::FI_DISCARD, theirs[0], 9), 25, 3);
        assert_eq!(call(20, sys::FI_PEEK, FI_ADDR_UNSPEC, 9), none);
        half.meet();
    }
}

/// Counters of the endpoint, and of the memory, say what the other process has done with it.
fn counts(half: &Half) {
    const LEN: usize = 5_000;
    let Half { side, theirs, .. } = half;
    let mut memory = vec![0u8; 2 * LEN + 8];
    let exposed = Exposed::new(side, &mut memory, KEY);
    let (changes, answer) = exposed.count(side, sys::FI_REMOTE_WRITE);
    assert_eq!(answer, 0);
    half.meet();
    let (ep, to, none, context) = (side.ep, theirs[0], null_mut(), without_provenance_mut(30));
    let ended = || assert_eq!(side.cq.next().map(|entry| entry.context), Ok(30));
    let bytes = content(half.own, 7, LEN);
    for n in 0..2u64 {
        let (at, place) = (bytes.as_ptr().cast(), 8 + n * LEN as u64);
        side.post(|| table!(ep, rma.write(at, LEN, none, to, place, KEY, context)));
        ended();
    }
    let mut room = vec![0u8; LEN];
    let at: *mut c_void = room.as_mut_ptr().cast();
    for _ in 0..3 {
        side.post(|| table!(ep, rma.read(at, LEN, none, to, 8, KEY, context)));
        ended();
    }
    assert!(peek(&room, 0, LEN) == bytes);
    let (one, u64s, sum) = (1u64, sys::FI_UINT64, sys::FI_SUM);
    let operand = (&raw const one).cast();
    side.post(|| table!(ep, atomic.write(operand, 1, none, to, 0, KEY, u64s, sum, context)));
    ended();
    side.post(|| table!(ep, atomic.readwrite(operand, 1, none, at, none, to, 0, KEY, u64s, sum, context)));
    ended();
    assert_eq!(peek(&room, 0, 8), 1u64.to_le_bytes());
    // Both sums, and both writes.
    let minute = BOUND.as_millis() as i32;
    assert_eq!(changes.wait(4, minute), 0);
    half.meet();
    let of_peers = [side.counters[4].read(), side.counters[5].read()];
    assert_eq!((of_peers, changes.read()), ([(4, 0), (3, 0)], (4, 0)));
    let expected = [2u64.to_le_bytes().to_vec(), half.expected(7, LEN), half.expected(7, LEN)].concat();
    assert!(peek(&memory, 0, memory.len()) == expected);
    half.meet();
    drop(exposed);
    assert_eq!(close(changes.0.cast()), 0);
}

fn play(own: usize, domain: Option<String>, swap: impl FnMut(String) -> String) {
    let half = Half::open(own, domain, swap);
    half.meet();
    directed(&half);
    many(&half);
    looks(&half);
    counts(&half);
}

fn two_processes(domains: [Option<String>; 2]) {
    let [own, other] = domains;
    let variables: Vec<(&str, &str)> = other.iter().map(|name| (SERVER, name.as_str())).collect();
    let mut process = Process::start(NAME, 1, &variables);
    play(0, own, |line| {
        process.tell(&line);
        process.says("says ")
    });
    assert!(process.child.wait().unwrap().success());
}

#[test]
fn two_processes_use_every_capability() {
    if !inside(NAME) {
        return;
    }
    if processes::number().is_none() {
        return two_processes([None, None]);
    }
    play(1, std::env::var(SERVER).ok(), |line| {
        println!("says {line}");
        processes::told()
    });
}

#[test]
fn two_processes_use_every_capability_through_servers() {
    if !inside(SERVED) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 41);
    two_processes(servers.each_ref().map(|server| Some(server.name())));
}
