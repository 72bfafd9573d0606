//! Two processes call every function of every table that the provider fills: those that are there do what they should with
//! every byte in its place, and the others say that they are not there. The provider's source says which tables there are.

use std::any::type_name;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_int, c_void};
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::Mutex;

use crate::common::fabric::{
    Cntr, Entry, Failed, How, Side, Wish, close, descriptor, getinfo, message, one, table,
};
use crate::common::inside;
use crate::common::processes::{self, Process};
use weft_fi::sys;
use weft_fi::sys::FI_ADDR_UNSPEC;

const NAME: &str = "two_processes_call_every_function_of_every_table";
const NOT_THERE: i64 = -(sys::FI_ENOSYS as i64);

/// The type of a table and its place: several are of one type.
type Table = (&'static str, usize);

/// The functions of each table that have been called, and how many it has.
static CALLED: Mutex<BTreeMap<Table, (usize, BTreeSet<&str>)>> = Mutex::new(BTreeMap::new());

fn note<T>(table: *const T, function: &'static str) {
    let mut all = CALLED.lock().unwrap();
    // Each begins with its size, and the rest is functions.
    let count = size_of::<T>() / size_of::<usize>() - 1;
    let name = type_name::<T>().rsplit("::").next().unwrap();
    all.entry((name, table.addr())).or_insert_with(|| (count, BTreeSet::new())).1.insert(function);
}

/// How many tables of each type the provider's source has: each is written as `fi_ops_cq {`, with its type, which no other code does.
fn tables_of_the_source() -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    let mut directories = vec![PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let source = std::fs::read_to_string(path).unwrap();
            let code = source.split("\n#[cfg(test)]\nmod tests {\n").next().unwrap();
            for (at, _) in code.match_indices("fi_ops") {
                let end = code[at..].find(|c: char| !c.is_alphanumeric() && c != '_').unwrap();
                let (name, rest) = code[at..].split_at(end);
                if rest.starts_with(" {") {
                    *all.entry(name.to_owned()).or_default() += 1;
                }
            }
        }
    }
    all
}

/// Calls a function of a table, and notes that it was.
macro_rules! call {
    ($object:expr, $table:ident . $function:ident ( $($argument:expr),* )) => {{
        let object = $object;
        // SAFETY: the object is open, and its tables are whole.
        note(unsafe { (*object).$table }, stringify!($function));
        table!(object, $table.$function($($argument),*))
    }};
    // Functions that take the descriptor's common part.
    ($object:expr, $table:ident : $function:ident ( $($argument:expr),* )) => {{
        let object = $object;
        // SAFETY: as above.
        unsafe {
            note((*object).$table, stringify!($function));
            ((*(*object).$table).$function.unwrap())(object.cast(), $($argument),*)
        }
    }};
}

/// The same of functions that are not there.
macro_rules! refused {
    ($object:expr, $table:ident $separator:tt $function:ident ( $($argument:expr),* )) => {
        let answer = call!($object, $table $separator $function($($argument),*));
        assert_eq!(i64::from(answer as i32), NOT_THERE, stringify!($function));
    };
}

/// Functions that a table does not have: libfabric says itself that they are not there.
macro_rules! absent {
    ($object:expr, $table:ident . $function:ident) => {{
        let object = $object;
        // SAFETY: as above.
        unsafe {
            note((*object).$table, stringify!($function));
            assert!((*(*object).$table).$function.is_none());
        }
    }};
}

/// Messages without tags, and with this one.
const TAG: u64 = 0x77;
/// Context of sends, receives and accesses.
const SENT: *mut c_void = 4 as *mut c_void;
const RECEIVED: *mut c_void = 2 as *mut c_void;
const ACCESSED: *mut c_void = 3 as *mut c_void;
/// Keys of memory that is registered by each of the three calls.
const KEYS: [u64; 3] = [10, 11, 12];
const ANY: u64 = sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;

/// Bytes of the step `step` of process `number`.
fn content(number: usize, step: usize, len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + step * 31 + number * 101 + n / 256) as u8).collect()
}

/// A process of the two.
struct Half {
    side: Side,
    own: usize,
    other: u64,
}

impl Half {
    /// Reads entries until these contexts have had one each; announcements of writes are returned.
    fn complete(&self, contexts: &[*mut c_void]) -> Vec<Entry> {
        let mut missing: BTreeSet<usize> = contexts.iter().map(|context| context.addr()).collect();
        let mut others = Vec::new();
        while !missing.is_empty() {
            let entry = self.side.cq.next().unwrap();
            if !missing.remove(&entry.context) {
                others.push(entry);
            }
        }
        others
    }

    /// Both processes have come here. Each message, and write, of before has arrived.
    fn meet(&self) {
        let (ep, other) = (self.side.ep, self.other);
        self.side.post(|| table!(ep, tagged.recv(null_mut(), 0, null_mut(), other, u64::MAX, 0, RECEIVED)));
        self.side.post(|| table!(ep, tagged.send(null(), 0, null_mut(), other, u64::MAX, SENT)));
        self.complete(&[SENT, RECEIVED]);
    }

    /// A step in which each process sends a message to the other one.
    fn swap(
        &self,
        step: usize,
        len: usize,
        completes: bool,
        receive: impl Fn(&[sys::iovec; 2]) -> isize,
        send: impl Fn(&[sys::iovec; 2]) -> isize,
    ) {
        let (mut room, bytes) = (vec![0u8; len], content(self.own, step, len));
        let halves = |at: *mut u8| {
            let piece = |from: usize, to: usize| sys::iovec {
                iov_base: at.wrapping_add(from).cast(),
                iov_len: to - from,
            };
            [piece(0, len / 3), piece(len / 3, len)]
        };
        let (rooms, pieces) = (halves(room.as_mut_ptr()), halves(bytes.as_ptr().cast_mut()));
        self.side.post(|| receive(&rooms));
        self.side.post(|| send(&pieces));
        let contexts = if completes { [SENT, RECEIVED].to_vec() } else { [RECEIVED].to_vec() };
        assert_eq!(self.complete(&contexts), []);
        assert!(room == content(1 - self.own, step, len), "step {step}");
    }
}

fn messages(half: &Half) {
    let (ep, to) = (half.side.ep, half.other);
    let none: *mut c_void = null_mut();
    let message = |pieces: &[sys::iovec; 2], context, data| message(pieces, to, context, data);
    let receive = |rooms: &[sys::iovec; 2]| {
        let (at, len) = one(rooms);
        call!(ep, msg.recv(at, len, none, FI_ADDR_UNSPEC, RECEIVED))
    };
    half.swap(1, 100, true, receive, |pieces| {
        let (at, len) = one(pieces);
        call!(ep, msg.send(at, len, none, to, SENT))
    });
    half.swap(
        2,
        60_000,
        true,
        |rooms| call!(ep, msg.recvv(rooms.as_ptr(), null_mut(), 2, FI_ADDR_UNSPEC, RECEIVED)),
        |pieces| call!(ep, msg.sendv(pieces.as_ptr(), null_mut(), 2, to, SENT)),
    );
    half.swap(
        3,
        5_000,
        true,
        |rooms| call!(ep, msg.recvmsg(&message(rooms, RECEIVED, 0), 0)),
        |pieces| call!(ep, msg.sendmsg(&message(pieces, SENT, 9), sys::FI_REMOTE_CQ_DATA)),
    );
    half.swap(4, 50, false, receive, |pieces| {
        let (at, len) = one(pieces);
        call!(ep, msg.inject(at, len, to))
    });
    half.swap(5, 4_000, true, receive, |pieces| {
        let (at, len) = one(pieces);
        call!(ep, msg.senddata(at, len, none, 5, to, SENT))
    });
    half.swap(6, 4_000, false, receive, |pieces| {
        let (at, len) = one(pieces);
        call!(ep, msg.injectdata(at, len, 6, to))
    });
}

fn tagged(half: &Half) {
    let (ep, to) = (half.side.ep, half.other);
    let none: *mut c_void = null_mut();
    let message = |pieces: &[sys::iovec; 2], context, data| sys::fi_msg_tagged {
        msg_iov: pieces.as_ptr(),
        desc: null_mut(),
        iov_count: 2,
        addr: to,
        tag: TAG,
        ignore: 0,
        context,
        data,
    };
    let receive = |rooms: &[sys::iovec; 2]| {
        let (at, len) = one(rooms);
        call!(ep, tagged.recv(at, len, none, to, TAG ^ 1, 1, RECEIVED))
    };
    half.swap(11, 100, true, receive, |pieces| {
        let (at, len) = one(pieces);
        call!(ep, tagged.send(at, len, none, to, TAG, SENT))
    });
    half.swap(
        12,
        60_000,
        true,
        |rooms| call!(ep, tagged.recvv(rooms.as_ptr(), null_mut(), 2, to, TAG, 0, RECEIVED)),
        |pieces| call!(ep, tagged.sendv(pieces.as_ptr(), null_mut(), 2, to, TAG, SENT)),
    );
    half.swap(
        13,
        5_000,
        true,
        |rooms| call!(ep, tagged.recvmsg(&message(rooms, RECEIVED, 0), 0)),
        |pieces| call!(ep, tagged.sendmsg(&message(pieces, SENT, 9), sys::FI_REMOTE_CQ_DATA)),
    );
    half.swap(14, 50, false, receive, |pieces| {
        let (at, len) = one(pieces);
        call!(ep, tagged.inject(at, len, to, TAG))
    });
    half.swap(15, 4_000, true, receive, |pieces| {
        let (at, len) = one(pieces);
        call!(ep, tagged.senddata(at, len, none, 5, to, TAG, SENT))
    });
    half.swap(16, 4_000, false, receive, |pieces| {
        let (at, len) = one(pieces);
        call!(ep, tagged.injectdata(at, len, 6, to, TAG))
    });
}

/// Registers the three pieces of memory, each by another call.
fn register(half: &Half, memory: &mut [Vec<u8>; 3]) -> Vec<*mut sys::fid_mr> {
    let domain = half.side.domain;
    let pieces = memory
        .each_mut()
        .map(|bytes| sys::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() });
    let mut all = [null_mut(); 3];
    let attr = sys::fi_mr_attr {
        mr_iov: &pieces[2],
        iov_count: 1,
        access: ANY,
        requested_key: KEYS[2],
        // Ignored, as nobody has asked for FI_HMEM.
        iface: sys::FI_HMEM_CUDA,
        ..sys::fi_mr_attr::default()
    };
    let sys::iovec { iov_base, iov_len } = pieces[0];
    let answers = [
        call!(domain, mr: reg(iov_base, iov_len, ANY, 0, KEYS[0], 0, &mut all[0], null_mut())),
        call!(domain, mr: regv(&pieces[1], 1, ANY, 0, KEYS[1], 0, &mut all[1], null_mut())),
        call!(domain, mr: regattr(&attr, 0, &mut all[2])),
    ];
    assert_eq!(answers, [0; 3]);
    all.to_vec()
}

/// What is in memory that the other process writes to.
fn peek(memory: &[u8], begin: usize, len: usize) -> Vec<u8> {
    // SAFETY: the bytes are there.
    (begin..begin + len).map(|at| unsafe { memory.as_ptr().add(at).read_volatile() }).collect()
}

fn remote(half: &Half, memory: &[Vec<u8>; 3]) {
    let (ep, to) = (half.side.ep, half.other);
    let none: *mut c_void = null_mut();
    const LEN: usize = 30_000;
    const SHORT: usize = 3_000;
    let bytes: Vec<Vec<u8>> = (0..6).map(|n| content(half.own, 20 + n, LEN)).collect();
    let at = |n: usize| -> *const c_void { bytes[n].as_ptr().cast() };
    let pieces = |at: *const c_void| {
        let second = at.cast::<u8>().wrapping_add(LEN / 3).cast_mut().cast();
        [
            sys::iovec { iov_base: at.cast_mut(), iov_len: LEN / 3 },
            sys::iovec { iov_base: second, iov_len: LEN - LEN / 3 },
        ]
    };
    let message = |pieces: &[sys::iovec; 2], place: &sys::fi_rma_iov| sys::fi_msg_rma {
        msg_iov: pieces.as_ptr(),
        desc: null_mut(),
        iov_count: 2,
        addr: to,
        rma_iov: place,
        rma_iov_count: 1,
        context: ACCESSED,
        data: 22,
    };
    let done = || half.complete(&[ACCESSED]);
    let offset = LEN as u64;
    let place = |key| sys::fi_rma_iov { addr: 0, len: LEN, key };
    let mut announced = Vec::new();
    half.side.post(|| call!(ep, rma.write(at(0), LEN, none, to, 0, KEYS[0], ACCESSED)));
    announced.extend(done());
    half.side.post(|| call!(ep, rma.writev(pieces(at(1)).as_ptr(), null_mut(), 2, to, 0, KEYS[1], ACCESSED)));
    announced.extend(done());
    half.side
        .post(|| call!(ep, rma.writemsg(&message(&pieces(at(2)), &place(KEYS[2])), sys::FI_REMOTE_CQ_DATA)));
    announced.extend(done());
    half.side.post(|| call!(ep, rma.inject(at(3), SHORT, to, offset, KEYS[0])));
    half.side.post(|| call!(ep, rma.writedata(at(4), LEN, none, 24, to, offset, KEYS[1], ACCESSED)));
    announced.extend(done());
    half.side.post(|| call!(ep, rma.injectdata(at(5), SHORT, 25, to, offset, KEYS[2])));
    while announced.len() < 3 {
        announced.push(half.side.cq.next().unwrap());
    }
    let mut data: Vec<u64> = announced.iter().map(|entry| entry.data).collect();
    data.sort_unstable();
    assert_eq!(data, [22, 24, 25]);
    assert!(announced.iter().all(|entry| entry.flags & sys::FI_REMOTE_WRITE != 0), "{announced:?}");
    // Reads wait for what was injected before: nothing says when that is done.
    let mut room = vec![0u8; LEN];
    let there: *mut c_void = room.as_mut_ptr().cast();
    loop {
        half.side.post(|| call!(ep, rma.read(there, SHORT, none, to, offset, KEYS[0], ACCESSED)));
        done();
        if peek(&room, 0, SHORT) == bytes[3][..SHORT] {
            break;
        }
    }
    half.side.post(|| call!(ep, rma.readv(pieces(there).as_ptr(), null_mut(), 2, to, 0, KEYS[1], ACCESSED)));
    done();
    assert!(peek(&room, 0, LEN) == bytes[1]);
    half.side.post(|| call!(ep, rma.readmsg(&message(&pieces(there), &place(KEYS[2])), 0)));
    done();
    assert!(peek(&room, 0, LEN) == bytes[2]);
    half.meet();
    for (n, (piece, begin, len)) in
        [(0, 0, LEN), (1, 0, LEN), (2, 0, LEN), (0, LEN, SHORT), (1, LEN, LEN), (2, LEN, SHORT)]
            .into_iter()
            .enumerate()
    {
        let expected = &content(1 - half.own, 20 + n, LEN)[..len];
        assert!(peek(&memory[piece], begin, len) == expected, "write number {n}");
    }
}

fn atomics(half: &Half, memory: &[u8]) {
    let (ep, to) = (half.side.ep, half.other);
    let none: *mut c_void = null_mut();
    let (key, u64s, sum, cswap) = (KEYS[0], sys::FI_UINT64, sys::FI_SUM, sys::FI_CSWAP);
    // Behind what was written.
    let place = |n: usize| (70_000 + 8 * n) as u64;
    let operand = [5u64 + half.own as u64];
    let at: *const c_void = operand.as_ptr().cast();
    let mut before = [0u64];
    let result: *mut c_void = before.as_mut_ptr().cast();
    let ioc = |at: *const c_void| sys::fi_ioc { addr: at.cast_mut(), count: 1 };
    let message = |n, op, pieces: &sys::fi_ioc, places: &mut sys::fi_rma_ioc| {
        *places = sys::fi_rma_ioc { addr: place(n), count: 1, key };
        sys::fi_msg_atomic {
            msg_iov: pieces,
            desc: null_mut(),
            iov_count: 1,
            addr: to,
            rma_iov: places,
            rma_iov_count: 1,
            datatype: u64s,
            op,
            context: ACCESSED,
            data: 0,
        }
    };
    let (own, mut places) = (ioc(at), sys::fi_rma_ioc::default());
    let done = || assert_eq!(half.complete(&[ACCESSED]), []);
    let seen = |expected: u64| {
        // SAFETY: it is there.
        assert_eq!(unsafe { result.cast::<u64>().read_volatile() }, expected);
    };
    // The first value, after the arguments that functions have in different numbers.
    macro_rules! access {
        ($function:ident($($first:expr),*), $op:expr) => {
            call!(ep, atomic.$function($($first,)* to, place(0), key, u64s, $op, ACCESSED))
        };
    }
    half.side.post(|| access!(write(at, 1, none), sum));
    done();
    half.side.post(|| access!(writev(&own, null_mut(), 1), sum));
    done();
    let plain = message(0, sum, &own, &mut places);
    half.side.post(|| call!(ep, atomic.writemsg(&plain, 0)));
    done();
    half.side.post(|| call!(ep, atomic.inject(at, 1, to, place(1), key, u64s, sum)));
    half.side.post(|| access!(readwrite(at, 1, none, result, none), sum));
    done();
    seen(3 * operand[0]);
    let mut results = ioc(result);
    half.side.post(|| access!(readwritev(&own, null_mut(), 1, &raw mut results, null_mut(), 1), sum));
    done();
    seen(4 * operand[0]);
    half.side.post(|| call!(ep, atomic.readwritemsg(&plain, &mut results, null_mut(), 1, 0)));
    done();
    seen(5 * operand[0]);
    let expected = [6 * operand[0]];
    let compare: *const c_void = expected.as_ptr().cast();
    half.side.post(|| access!(compwrite(at, 1, none, compare, none, result, none), cswap));
    done();
    seen(6 * operand[0]);
    let compares = ioc(at);
    half.side.post(|| {
        let (none, results) = (null_mut(), &raw mut results);
        access!(compwritev(&own, none, 1, &compares, none, 1, results, none, 1), cswap)
    });
    done();
    seen(operand[0]);
    let swap = message(2, cswap, &own, &mut places);
    half.side.post(|| {
        call!(ep, atomic.compwritemsg(&swap, &compares, null_mut(), 1, &mut results, null_mut(), 1, 0))
    });
    done();
    seen(0);
    half.meet();
    let value = |n| u64::from_le_bytes(peek(memory, place(n) as usize, 8).try_into().unwrap());
    let theirs = 5 + (1 - half.own as u64);
    assert_eq!((value(0), value(2)), (theirs, 0));
    // What was injected may still be under way.
    while value(1) != theirs {
        assert_eq!(half.side.cq.read(), None);
    }
    half.meet();
    let mut count = 0;
    assert_eq!(call!(ep, atomic.writevalid(u64s, sum, &mut count)), 0);
    assert_eq!(call!(ep, atomic.readwritevalid(u64s, sum, &mut count)), 0);
    assert_eq!(call!(ep, atomic.compwritevalid(u64s, cswap, &mut count)), 0);
}

fn endpoint(half: &Half) {
    let Half { side, other, .. } = half;
    let ep = side.ep;
    let mut room = [0u8; 8];
    side.receive(&mut room, *other, Some((1, 0)), 2);
    assert_eq!(call!(ep, ops: cancel(RECEIVED)), 0);
    let cancelled = Failed { context: 2, error: sys::FI_ECANCELED, beyond: 0 };
    assert_eq!(side.cq.next(), Err(cancelled));
    let (level, name) = (sys::FI_OPT_ENDPOINT as c_int, sys::FI_OPT_MIN_MULTI_RECV as c_int);
    let (mut value, mut len) = (100usize, size_of::<usize>());
    assert_eq!(call!(ep, ops: setopt(level, name, (&raw const value).cast(), len)), 0);
    assert_eq!(call!(ep, ops: getopt(level, name, (&raw mut value).cast(), &mut len)), 0);
    assert_eq!(value, 100);
    assert!(call!(ep, ops.rx_size_left()) > 0 && call!(ep, ops.tx_size_left()) > 0);
    refused!(ep, ops.tx_ctx(0, null_mut(), null_mut(), null_mut()));
    refused!(ep, ops.rx_ctx(0, null_mut(), null_mut(), null_mut()));
    let mut name = [0u8; 16];
    let mut len = name.len();
    assert_eq!(call!(ep, cm: getname(name.as_mut_ptr().cast(), &mut len)), 0);
    assert_eq!(name, side.name());
    refused!(ep, cm: setname(null_mut(), 0));
    refused!(ep, cm.getpeer(null_mut(), null_mut()));
    refused!(ep, cm.connect(null(), null(), 0));
    refused!(ep, cm: listen());
    refused!(ep, cm.accept(null(), 0));
    refused!(ep, cm: reject(null_mut(), null(), 0));
    refused!(ep, cm.shutdown(0));
    refused!(ep, cm.join(null(), 0, null_mut(), null_mut()));
    let none: *mut c_void = null_mut();
    refused!(ep, collective.barrier(0, none));
    refused!(ep, collective.broadcast(none, 0, none, 0, 0, 0, 0, none));
    refused!(ep, collective.alltoall(none, 0, none, none, none, 0, 0, 0, none));
    refused!(ep, collective.allreduce(none, 0, none, none, none, 0, 0, 0, 0, none));
    refused!(ep, collective.allgather(none, 0, none, none, none, 0, 0, 0, none));
    refused!(ep, collective.reduce_scatter(none, 0, none, none, none, 0, 0, 0, 0, none));
    refused!(ep, collective.reduce(none, 0, none, none, none, 0, 0, 0, 0, 0, none));
    refused!(ep, collective.scatter(none, 0, none, none, none, 0, 0, 0, 0, none));
    refused!(ep, collective.gather(none, 0, none, none, none, 0, 0, 0, 0, none));
    refused!(ep, collective.msg(null(), null_mut(), null_mut(), 0, 0));
    refused!(ep, collective.barrier2(0, 0, none));
}

fn addresses(half: &Half) {
    let (av, name) = (half.side.av, half.side.name());
    let (mut number, mut back, mut len) = (0, [0u8; 16], 16);
    assert_eq!(call!(av, ops.insert(name.as_ptr().cast(), 1, &mut number, 0, null_mut())), 1);
    assert_eq!(call!(av, ops.lookup(number, back.as_mut_ptr().cast(), &mut len)), 0);
    assert_eq!(back, name);
    let mut text = [0; 64];
    let mut len = text.len();
    let said = call!(av, ops.straddr(name.as_ptr().cast(), text.as_mut_ptr(), &mut len));
    // SAFETY: it is the text.
    let said = unsafe { CStr::from_ptr(said) }.to_str().unwrap();
    assert!(said.starts_with("fi_sockaddr_in://127.0.0.1:"), "{said}");
    assert_eq!(call!(av, ops.remove(&mut number, 1, 0)), 0);
    let (node, service) = (c"127.0.0.1".as_ptr(), c"4000".as_ptr());
    assert_eq!(call!(av, ops.insertsvc(node, service, &mut number, 0, null_mut())), 1);
    let mut numbers = [0; 4];
    assert_eq!(call!(av, ops.insertsym(node, 2, service, 2, numbers.as_mut_ptr(), 0, null_mut())), 4);
    for (number, end) in numbers.into_iter().zip(["1:4000", "1:4001", "2:4000", "2:4001"]) {
        let (mut addr, mut len, mut room) = ([0u8; 16], 16, text.len());
        assert_eq!(call!(av, ops.lookup(number, addr.as_mut_ptr().cast(), &mut len)), 0);
        let said = call!(av, ops.straddr(addr.as_ptr().cast(), text.as_mut_ptr(), &mut room));
        // SAFETY: it is the text.
        let said = unsafe { CStr::from_ptr(said) }.to_str().unwrap();
        assert_eq!(said, format!("fi_sockaddr_in://127.0.0.{end}"));
    }
    refused!(av, ops.av_set(null_mut(), null_mut(), null_mut()));
}

/// Functions that read a queue, of which some sleep, and counters.
fn queues(half: &Half) {
    let Half { side, other, .. } = half;
    let cq = side.cq.0;
    let mut entry = sys::fi_cq_tagged_entry::default();
    let (at, mut source): (*mut c_void, u64) = ((&raw mut entry).cast(), 0);
    let again = -(sys::FI_EAGAIN as isize);
    assert_eq!(call!(cq, ops.signal()), 0);
    assert_eq!(call!(cq, ops.sread(at, 1, null(), 60_000)), again, "the signal ends it");
    assert_eq!(call!(cq, ops.sreadfrom(at, 1, &mut source, null(), 1)), again);
    assert_eq!(call!(cq, ops.readfrom(at, 1, &mut source)), again);
    assert_eq!(call!(cq, ops.read(at, 1)), again);
    // What is too long for its receive is an entry that says so.
    side.receive(&mut [], *other, Some((2, 0)), 2);
    side.send(*other, &[9; 8], Some(2), 1);
    half.meet_after_failure();
    let mut text = [0; 64];
    let said = call!(cq, ops.strerror(sys::FI_ETRUNC as c_int, null(), text.as_mut_ptr(), text.len()));
    // SAFETY: it is a text.
    assert_eq!(unsafe { CStr::from_ptr(said) }.to_str(), Ok("Truncation error"));

    let Cntr(cntr) = side.counters[0];
    assert!(call!(cntr, ops.read()) > 0 && call!(cntr, ops.readerr()) == 0);
    assert_eq!((call!(cntr, ops.set(7)), call!(cntr, ops.add(3))), (0, 0));
    assert_eq!((call!(cntr, ops.seterr(1)), call!(cntr, ops.adderr(1))), (0, 0));
    assert_eq!((call!(cntr, ops.read()), call!(cntr, ops.readerr())), (10, 2));
    assert_eq!(call!(cntr, ops.wait(10, 60_000)), 0);
}

impl Half {
    /// Waits until the message that is too long was sent, and the other one's was received.
    fn meet_after_failure(&self) {
        let (mut sent, mut failed) = (false, false);
        while !(sent && failed) {
            let mut entry = sys::fi_cq_tagged_entry::default();
            match call!(self.side.cq.0, ops.read((&raw mut entry).cast(), 1)) {
                1 => sent = true,
                error if error == -(sys::FI_EAVAIL as isize) => {
                    let mut entry = sys::fi_cq_err_entry::default();
                    assert_eq!(call!(self.side.cq.0, ops.readerr(&mut entry, 0)), 1);
                    assert_eq!((entry.err, entry.olen), (sys::FI_ETRUNC as c_int, 8));
                    failed = true;
                }
                none => assert_eq!(none, -(sys::FI_EAGAIN as isize)),
            }
        }
        self.meet();
    }
}

/// Functions that open objects, and those of event queues and poll sets.
fn objects(half: &Half) {
    let (fabric, domain) = (half.side.fabric, half.side.domain);
    let info = getinfo(&Wish::default()).unwrap();
    let (mut other, mut ep, mut av, mut cq, mut cntr, mut eq, mut poll) =
        (null_mut(), null_mut(), null_mut(), null_mut(), null_mut(), null_mut(), null_mut());
    for _ in 0..2 {
        assert_eq!(call!(fabric, ops.domain(info.0, &mut other, null_mut())), 0);
        assert_eq!(close(other.cast()), 0);
        assert_eq!(call!(fabric, ops.domain2(info.0, &mut other, 0, null_mut())), 0);
        assert_eq!(close(other.cast()), 0);
        assert_eq!(call!(domain, ops.endpoint(info.0, &mut ep, null_mut())), 0);
        assert_eq!(close(ep.cast()), 0);
        assert_eq!(call!(domain, ops.endpoint2(info.0, &mut ep, 0, null_mut())), 0);
        assert_eq!(close(ep.cast()), 0);
    }
    assert_eq!(call!(domain, ops.av_open(&mut sys::fi_av_attr::default(), &mut av, null_mut())), 0);
    let mut attr = sys::fi_cq_attr { wait_obj: sys::FI_WAIT_FD, ..sys::fi_cq_attr::default() };
    assert_eq!(call!(domain, ops.cq_open(&mut attr, &mut cq, null_mut())), 0);
    assert_eq!(call!(domain, ops.cntr_open(&mut sys::fi_cntr_attr::default(), &mut cntr, null_mut())), 0);
    let mut attr =
        sys::fi_eq_attr { wait_obj: sys::FI_WAIT_FD, flags: sys::FI_WRITE, ..sys::fi_eq_attr::default() };
    assert_eq!(call!(fabric, ops.eq_open(&mut attr, &mut eq, null_mut())), 0);
    assert_eq!(call!(domain, ops.poll_open(&mut sys::fi_poll_attr::default(), &mut poll)), 0);
    let mut fids: [*mut sys::fid; 2] = [cq.cast(), eq.cast()];
    assert_eq!(call!(fabric, ops.trywait(fids.as_mut_ptr(), 2)), 0);
    assert!(fids.into_iter().map(descriptor).all(|descriptor| descriptor >= 0));
    let mut attr = sys::fi_atomic_attr::default();
    assert_eq!(call!(domain, ops.query_atomic(sys::FI_INT8, sys::FI_SUM, &mut attr, 0)), 0);
    refused!(fabric, ops.passive_ep(null_mut(), null_mut(), null_mut()));
    refused!(domain, ops.scalable_ep(null_mut(), null_mut(), null_mut()));
    refused!(domain, ops.stx_ctx(null_mut(), null_mut(), null_mut()));
    refused!(domain, ops.srx_ctx(null_mut(), null_mut(), null_mut()));
    refused!(domain, ops.query_collective(0, null_mut(), 0));

    let (written, mut room, mut number) = ([1u8, 2, 3], [0u8; 8], 0);
    let there: *mut c_void = room.as_mut_ptr().cast();
    for _ in 0..2 {
        assert_eq!(call!(eq, ops.write(77, written.as_ptr().cast(), 3, 0)), 3);
    }
    assert_eq!(call!(eq, ops.read(&mut number, there, 8, 0)), 3);
    assert_eq!(call!(eq, ops.sread(&mut number, there, 8, 60_000, 0)), 3);
    assert_eq!((number, peek(&room, 0, 3)), (77, written.to_vec()));
    let again = -(sys::FI_EAGAIN as isize);
    assert_eq!(call!(eq, ops.readerr(&mut sys::fi_eq_err_entry::default(), 0)), again);
    let mut text = [0; 64];
    assert!(!call!(eq, ops.strerror(sys::FI_ENOMEM as c_int, null(), text.as_mut_ptr(), 64)).is_null());
    assert_eq!(call!(poll, ops.poll_add(cq.cast(), 0)), 0);
    assert_eq!(call!(poll, ops.poll(null_mut(), 0)), 0);
    assert_eq!(call!(poll, ops.poll_del(cq.cast(), 0)), 0);
    let (mut set, mut waited) = (null_mut(), null_mut());
    let mut attr = sys::fi_wait_attr { wait_obj: sys::FI_WAIT_UNSPEC, flags: 0 };
    assert_eq!(call!(fabric, ops.wait_open(&mut attr, &mut set)), 0);
    let wait_obj = sys::FI_WAIT_SET;
    let mut attr = sys::fi_cq_attr { wait_obj, wait_set: set, ..sys::fi_cq_attr::default() };
    assert_eq!(call!(domain, ops.cq_open(&mut attr, &mut waited, null_mut())), 0);
    assert_eq!(call!(set, ops.wait(1)), -sys::FI_ETIMEDOUT);
    for fid in [waited.cast(), set.cast(), poll.cast(), eq.cast(), cntr.cast(), cq.cast(), av.cast()] {
        assert_eq!(close(fid), 0);
    }
}

/// Functions that objects of all kinds have, each called on one of each kind.
fn common() {
    let info = getinfo(&Wish::default()).unwrap();
    let (mut fabric, mut domain, mut ep, mut av, mut mr) =
        (null_mut(), null_mut(), null_mut(), null_mut(), null_mut());
    let (mut cq, mut cntr, mut eq, mut poll, mut set) =
        (null_mut(), null_mut(), null_mut(), null_mut(), null_mut());
    let done = |answer: c_int| assert_eq!(answer, 0);
    let wait_obj = sys::FI_WAIT_FD;
    // SAFETY: libfabric fills what it is given a place for.
    done(unsafe { sys::fi_fabric(info.get().fabric_attr, &mut fabric, null_mut()) });
    done(table!(fabric, ops.domain(info.0, &mut domain, null_mut())));
    let mut attr = sys::fi_eq_attr { wait_obj, ..sys::fi_eq_attr::default() };
    done(table!(fabric, ops.eq_open(&mut attr, &mut eq, null_mut())));
    done(table!(fabric, ops.wait_open(&mut sys::fi_wait_attr { wait_obj, flags: 0 }, &mut set)));
    done(table!(domain, ops.endpoint(info.0, &mut ep, null_mut())));
    let mut attr = sys::fi_av_attr { flags: sys::FI_EVENT, ..sys::fi_av_attr::default() };
    done(table!(domain, ops.av_open(&mut attr, &mut av, null_mut())));
    let mut attr = sys::fi_cq_attr { wait_obj, ..sys::fi_cq_attr::default() };
    done(table!(domain, ops.cq_open(&mut attr, &mut cq, null_mut())));
    let mut attr = sys::fi_cntr_attr { wait_obj, ..sys::fi_cntr_attr::default() };
    done(table!(domain, ops.cntr_open(&mut attr, &mut cntr, null_mut())));
    done(table!(domain, ops.poll_open(&mut sys::fi_poll_attr::default(), &mut poll)));
    let mut memory = [0u8; 8];
    done(call!(domain, mr: reg(memory.as_mut_ptr().cast(), 8, ANY, 0, 1, 0, &mut mr, null_mut())));

    // No object is closed before those that refer to it.
    let all: [*mut sys::fid; 10] = [
        ep.cast(),
        mr.cast(),
        poll.cast(),
        av.cast(),
        cq.cast(),
        cntr.cast(),
        domain.cast(),
        set.cast(),
        eq.cast(),
        fabric.cast(),
    ];
    let [ep, mr, poll, av, cq, cntr, domain, set, eq, fabric] = all;
    done(call!(domain, ops.bind(eq, 0)));
    done(call!(av, ops.bind(eq, 0)));
    done(call!(mr, ops.bind(cntr, sys::FI_REMOTE_WRITE)));
    done(call!(ep, ops.bind(av, 0)));
    done(call!(ep, ops.bind(cq, sys::FI_SEND | sys::FI_RECV)));
    for fid in [poll, cq, cntr, set, eq, fabric] {
        refused!(fid, ops.bind(eq, 0));
    }
    for fid in [ep, mr] {
        done(call!(fid, ops.control(sys::FI_ENABLE as c_int, null_mut())));
    }
    let (mut raw, mut key) = (77u64.to_ne_bytes(), 0);
    let mut map =
        sys::fi_mr_map_raw { flags: 0, base_addr: 0, raw_key: raw.as_mut_ptr(), key_size: 8, key: &mut key };
    done(call!(domain, ops.control(sys::FI_MAP_RAW_MR as c_int, (&raw mut map).cast())));
    assert_eq!(key, 77);
    for fid in [cq, cntr, set, eq] {
        let mut kind = sys::FI_WAIT_NONE;
        done(call!(fid, ops.control(sys::FI_GETWAITOBJ as c_int, (&raw mut kind).cast())));
        assert_eq!(kind, wait_obj);
    }
    for fid in [poll, av, fabric] {
        refused!(fid, ops.control(sys::FI_ENABLE as c_int, null_mut()));
    }
    for fid in all {
        refused!(fid, ops.ops_open(null(), 0, null_mut(), null_mut()));
        absent!(fid, ops.tostr);
        absent!(fid, ops.ops_set);
    }
    for fid in all {
        done(call!(fid, ops.close()));
    }
}

/// Calls everything that is not there for datagrams.
pub(crate) fn refused_for_datagrams(ep: *mut sys::fid_ep) {
    let (none, nothing, descs): (*mut c_void, *const c_void, *mut *mut c_void) =
        (null_mut(), null(), null_mut());
    refused!(ep, tagged.recv(none, 0, none, 0, 0, 0, none));
    refused!(ep, tagged.recvv(null(), descs, 0, 0, 0, 0, none));
    refused!(ep, tagged.recvmsg(null(), 0));
    refused!(ep, tagged.send(nothing, 0, none, 0, 0, none));
    refused!(ep, tagged.sendv(null(), descs, 0, 0, 0, none));
    refused!(ep, tagged.sendmsg(null(), 0));
    refused!(ep, tagged.inject(nothing, 0, 0, 0));
    refused!(ep, tagged.senddata(nothing, 0, none, 0, 0, 0, none));
    refused!(ep, tagged.injectdata(nothing, 0, 0, 0, 0));
    refused!(ep, rma.read(none, 0, none, 0, 0, 0, none));
    refused!(ep, rma.readv(null(), descs, 0, 0, 0, 0, none));
    refused!(ep, rma.readmsg(null(), 0));
    refused!(ep, rma.write(nothing, 0, none, 0, 0, 0, none));
    refused!(ep, rma.writev(null(), descs, 0, 0, 0, 0, none));
    refused!(ep, rma.writemsg(null(), 0));
    refused!(ep, rma.inject(nothing, 0, 0, 0, 0));
    refused!(ep, rma.writedata(nothing, 0, none, 0, 0, 0, 0, none));
    refused!(ep, rma.injectdata(nothing, 0, 0, 0, 0, 0));
    let (ioc, iocs) = (null(), null_mut());
    refused!(ep, atomic.write(nothing, 0, none, 0, 0, 0, 0, 0, none));
    refused!(ep, atomic.writev(ioc, descs, 0, 0, 0, 0, 0, 0, none));
    refused!(ep, atomic.writemsg(null(), 0));
    refused!(ep, atomic.inject(nothing, 0, 0, 0, 0, 0, 0));
    refused!(ep, atomic.readwrite(nothing, 0, none, none, none, 0, 0, 0, 0, 0, none));
    refused!(ep, atomic.readwritev(ioc, descs, 0, iocs, descs, 0, 0, 0, 0, 0, 0, none));
    refused!(ep, atomic.readwritemsg(null(), iocs, descs, 0, 0));
    refused!(ep, atomic.compwrite(nothing, 0, none, nothing, none, none, none, 0, 0, 0, 0, 0, none));
    refused!(ep, atomic.compwritev(ioc, descs, 0, ioc, descs, 0, iocs, descs, 0, 0, 0, 0, 0, 0, none));
    refused!(ep, atomic.compwritemsg(null(), ioc, descs, 0, iocs, descs, 0, 0));
    refused!(ep, atomic.writevalid(sys::FI_UINT64, sys::FI_SUM, null_mut()));
    refused!(ep, atomic.readwritevalid(sys::FI_UINT64, sys::FI_SUM, null_mut()));
    refused!(ep, atomic.compwritevalid(sys::FI_UINT64, sys::FI_SUM, null_mut()));
}

/// What each of the two processes does.
fn play(own: usize, swap_names: impl FnOnce(String) -> String) {
    let caps = sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA | sys::FI_ATOMIC;
    let side = Side::open(
        &Wish { caps, ..Wish::default() },
        How { counters: Some(sys::FI_WAIT_FD), ..How::default() },
    );
    let name = swap_names(u128::from_be_bytes(side.name()).to_string());
    let other = side.insert(&name.parse::<u128>().unwrap().to_be_bytes());
    let half = Half { side, own, other };
    let mut memory = [vec![0u8; 80_000], vec![0u8; 80_000], vec![0u8; 80_000]];
    let registered = register(&half, &mut memory);
    half.meet();
    messages(&half);
    tagged(&half);
    remote(&half, &memory);
    atomics(&half, &memory[0]);
    endpoint(&half);
    addresses(&half);
    objects(&half);
    common();
    let wish = Wish { kind: sys::FI_EP_DGRAM, ..Wish::default() };
    refused_for_datagrams(Side::open(&wish, How::default()).ep);
    half.meet();
    queues(&half);
    half.meet();
    for mr in registered {
        assert_eq!(close(mr.cast()), 0);
    }
    let mut tables = BTreeMap::new();
    for ((name, _), (count, called)) in &*CALLED.lock().unwrap() {
        assert_eq!(called.len(), *count, "functions of {name} that were called: {called:?}");
        *tables.entry((*name).to_owned()).or_default() += 1;
    }
    assert_eq!(
        tables,
        tables_of_the_source(),
        "tables whose functions were called, and those that there are"
    );
}

#[test]
fn two_processes_call_every_function_of_every_table() {
    if !inside(NAME) {
        return;
    }
    if processes::number().is_some() {
        return play(1, |own| {
            println!("name {own}");
            processes::told()
        });
    }
    let mut process = Process::start(NAME, 1, &[]);
    play(0, |own| {
        process.tell(&own);
        process.says("name ")
    });
    assert!(process.child.wait().unwrap().success());
}
