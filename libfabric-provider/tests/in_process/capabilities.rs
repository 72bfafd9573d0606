//! An endpoint does what its capabilities say, and lets peers do what they say, and nothing else.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::Instant;

use crate::common::fabric::{BOUND, Entry, Exposed, Failed, How, Side, Wish, table};
use crate::common::inside;
use crate::common::server::{Server, server};
use weft_fi::sys;
use weft_fi::sys::FI_ADDR_UNSPEC;

const KEY: u64 = 0x77;
/// Refused calls answer so.
const NO: isize = -(sys::FI_EOPNOTSUPP as isize);
const MESSAGES: [u64; 2] = [sys::FI_SEND, sys::FI_RECV];
const ACCESSES: [u64; 4] = [sys::FI_READ, sys::FI_WRITE, sys::FI_REMOTE_READ, sys::FI_REMOTE_WRITE];

/// A call on messages, or an access to remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Send,
    TaggedSend,
    Receive,
    TaggedReceive,
    Peek,
    Read,
    Write,
    Sum,
    Fetch,
    FetchAndSum,
    Swap,
}

use Call::*;

/// The calls, and the capabilities that each needs where it is made.
const CALLS: [(Call, u64); 11] = [
    (Send, sys::FI_MSG | sys::FI_SEND),
    (TaggedSend, sys::FI_TAGGED | sys::FI_SEND),
    (Receive, sys::FI_MSG | sys::FI_RECV),
    (TaggedReceive, sys::FI_TAGGED | sys::FI_RECV),
    (Peek, sys::FI_TAGGED | sys::FI_RECV),
    (Read, sys::FI_RMA | sys::FI_READ),
    (Write, sys::FI_RMA | sys::FI_WRITE),
    (Sum, sys::FI_ATOMIC | sys::FI_WRITE),
    (Fetch, sys::FI_ATOMIC | sys::FI_READ),
    (FetchAndSum, sys::FI_ATOMIC | sys::FI_READ | sys::FI_WRITE),
    (Swap, sys::FI_ATOMIC | sys::FI_READ | sys::FI_WRITE),
];

/// The accesses, and the capabilities that each needs where the memory is.
const OF_PEERS: [(Call, u64); 6] = [
    (Read, sys::FI_RMA | sys::FI_REMOTE_READ),
    (Write, sys::FI_RMA | sys::FI_REMOTE_WRITE),
    (Sum, sys::FI_ATOMIC | sys::FI_REMOTE_WRITE),
    (Fetch, sys::FI_ATOMIC | sys::FI_REMOTE_READ),
    (FetchAndSum, sys::FI_ATOMIC | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE),
    (Swap, sys::FI_ATOMIC | sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE),
];

/// Bytes that calls use, which live as long as their endpoints.
struct Bytes {
    own: u64,
    result: u64,
}

/// Makes a call, with context 7.
fn make(call: Call, side: &Side, to: u64, bytes: &mut Bytes) -> isize {
    let (own, result) = ((&raw mut bytes.own).cast::<c_void>(), (&raw mut bytes.result).cast::<c_void>());
    let (context, none) = (7 as *mut c_void, null_mut());
    let (ep, u64s) = (side.ep, sys::FI_UINT64);
    match call {
        Send => table!(ep, msg.send(own, 8, none, to, context)),
        TaggedSend => table!(ep, tagged.send(own, 8, none, to, 5, context)),
        Receive => table!(ep, msg.recv(result, 8, none, FI_ADDR_UNSPEC, context)),
        TaggedReceive => table!(ep, tagged.recv(result, 8, none, FI_ADDR_UNSPEC, 5, 0, context)),
        Peek => {
            let (addr, tag, ignore, data) = (FI_ADDR_UNSPEC, 6, 0, 0);
            let (msg_iov, desc, iov_count) = (std::ptr::null(), null_mut(), 0);
            let look = sys::fi_msg_tagged { msg_iov, desc, iov_count, addr, tag, ignore, context, data };
            table!(ep, tagged.recvmsg(&look, sys::FI_PEEK))
        }
        Read => table!(ep, rma.read(result, 8, none, to, 0, KEY, context)),
        Write => table!(ep, rma.write(own, 8, none, to, 0, KEY, context)),
        Sum => table!(ep, atomic.write(own, 1, none, to, 0, KEY, u64s, sys::FI_SUM, context)),
        Fetch | FetchAndSum => {
            let op = if matches!(call, Fetch) { sys::FI_ATOMIC_READ } else { sys::FI_SUM };
            table!(ep, atomic.readwrite(own, 1, none, result, none, to, 0, KEY, u64s, op, context))
        }
        Swap => {
            let (op, compare) = (sys::FI_CSWAP, own);
            table!(
                ep,
                atomic.compwrite(own, 1, none, compare, none, result, none, to, 0, KEY, u64s, op, context)
            )
        }
    }
}

/// Makes a call as often as it takes.
fn post(call: Call, side: &Side, to: u64, bytes: &mut Bytes) {
    side.post(|| make(call, side, to, bytes));
}

/// The next entry of `side`, while the other one works as well.
fn end(side: &Side, other: &Side) -> Result<Entry, Failed> {
    let begin = Instant::now();
    loop {
        if let Some(entry) = side.cq.read() {
            return entry;
        }
        table!(other.cq.0, ops.read(null_mut(), 0));
        assert!(begin.elapsed() < BOUND, "no entry");
    }
}

/// Capabilities with all directions, if they name none.
fn whole(caps: u64) -> u64 {
    let add = |kinds: u64, directions: &[u64]| {
        let all = directions.iter().fold(0, |all, bit| all | bit);
        if caps & kinds != 0 && caps & all == 0 { all } else { 0 }
    };
    caps | add(sys::FI_MSG | sys::FI_TAGGED, &MESSAGES) | add(sys::FI_RMA | sys::FI_ATOMIC, &ACCESSES)
}

/// An endpoint with these capabilities, beside one that has all. Returns it.
fn check(caps: u64, other: &Side, domain: Option<String>) -> Side {
    let side = Side::open(&Wish { caps, domain, ..Wish::default() }, How::default());
    let (to_other, to_side) = (side.insert(&other.name()), other.insert(&side.name()));
    let (mut bytes, mut others) = (Bytes { own: 1, result: 0 }, Bytes { own: 1, result: 0 });
    for (call, needs) in CALLS {
        if whole(caps) & needs != needs {
            assert_eq!(make(call, &side, to_other, &mut bytes), NO, "{caps:x}: {call:?}");
            assert_eq!(side.cq.read(), None, "{caps:x}: {call:?}");
            continue;
        }
        match call {
            Send => post(Receive, other, to_side, &mut others),
            TaggedSend => post(TaggedReceive, other, to_side, &mut others),
            _ => {}
        }
        post(call, &side, to_other, &mut bytes);
        match call {
            Receive => post(Send, other, to_side, &mut others),
            TaggedReceive => post(TaggedSend, other, to_side, &mut others),
            _ => {}
        }
        let ended = end(&side, other);
        match call {
            Peek => assert_eq!(ended.unwrap_err().error, sys::FI_ENOMSG, "{caps:x}"),
            _ => assert!(ended.is_ok(), "{caps:x}: {call:?}: {ended:?}"),
        }
        if matches!(call, Send | TaggedSend | Receive | TaggedReceive) {
            assert!(end(other, &side).is_ok(), "{caps:x}: {call:?}");
        }
    }
    let mut memory = [3u8; 8];
    let exposed = Exposed::new(&side, &mut memory, KEY);
    for (call, needs) in OF_PEERS {
        // What peers may read by reads they may read by atomic operations, and the other way round.
        if call == Read && caps & sys::FI_ATOMIC != 0 || call == Fetch && caps & sys::FI_RMA != 0 {
            continue;
        }
        post(call, other, to_side, &mut others);
        let ended = end(other, &side);
        if whole(caps) & needs == needs {
            assert!(ended.is_ok(), "{caps:x}: {call:?} of a peer: {ended:?}");
        } else {
            let is_open = whole(caps) & (sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE) != 0;
            let why = if is_open { sys::FI_EACCES } else { sys::FI_EKEYREJECTED };
            assert_eq!(ended.unwrap_err().error, why, "{caps:x}: {call:?} of a peer");
        }
    }
    drop(exposed);
    if whole(caps) & sys::FI_REMOTE_WRITE == 0 {
        assert_eq!(memory, [3; 8], "{caps:x}");
    }
    side
}

/// All kinds of operations, each with each direction alone, and with all.
fn check_all(server: Option<&Server>) {
    let domain = || server.map(Server::name);
    let other = Side::open(&Wish { domain: domain(), ..Wish::default() }, How::default());
    let mut memory = vec![0u8; 8];
    let exposed = Exposed::new(&other, &mut memory, KEY);
    // They stay open until the end, so that none has the port of an earlier one: it would refuse the first operation of the other
    // endpoint, whose connection is to the earlier one, if the other has not heard in time that that was closed.
    let mut sides = Vec::new();
    for kind in [sys::FI_MSG, sys::FI_TAGGED] {
        sides.extend(
            MESSAGES.into_iter().chain([0]).map(|direction| check(kind | direction, &other, domain())),
        );
    }
    for kind in [sys::FI_RMA, sys::FI_ATOMIC] {
        sides.extend(
            ACCESSES.into_iter().chain([0]).map(|direction| check(kind | direction, &other, domain())),
        );
    }
    drop((sides, exposed));
}

#[test]
fn endpoints_do_and_let_do_what_their_capabilities_say() {
    if inside("endpoints_do_and_let_do_what_their_capabilities_say") {
        check_all(None);
    }
}

#[test]
fn endpoints_of_servers_do_and_let_do_what_their_capabilities_say() {
    if inside("endpoints_of_servers_do_and_let_do_what_their_capabilities_say") {
        let directory = tempfile::tempdir().unwrap();
        check_all(Some(&server(&directory, 61, |builder| builder)));
    }
}

/// Who accesses memory needs a queue for the ends of that, and one whose memory is accessed none. No messages come to either.
#[test]
fn accesses_need_no_queue_for_messages() {
    if !inside("accesses_need_no_queue_for_messages") {
        return;
    }
    let open = |caps, bind, enabled| {
        Side::open(&Wish { caps, ..Wish::default() }, How { bind, enabled, ..How::default() })
    };
    let no_queue = -(sys::FI_ENOCQ as i32);
    let (initiates, is_target) = (sys::FI_RMA | sys::FI_READ, sys::FI_RMA | sys::FI_REMOTE_READ);
    open(initiates, sys::FI_RECV, no_queue);
    let (a, b) = (open(initiates, sys::FI_SEND, 0), open(is_target, sys::FI_RECV, 0));
    open(is_target | sys::FI_RMA_EVENT, sys::FI_SEND, 0);
    open(sys::FI_TAGGED | sys::FI_RMA | sys::FI_READ, sys::FI_SEND, no_queue);
    let (to_b, _) = (a.insert(&b.name()), b.insert(&a.name()));
    let (mut memory, mut bytes) = (9u64.to_ne_bytes(), Bytes { own: 0, result: 0 });
    let exposed = Exposed::new(&b, &mut memory, KEY);
    post(Read, &a, to_b, &mut bytes);
    assert!(end(&a, &b).is_ok());
    assert_eq!(bytes.result, 9);
    drop(exposed);
}
