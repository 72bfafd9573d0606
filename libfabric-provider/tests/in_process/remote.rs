//! Registered memory, reads, writes and atomic operations, by every function of their tables.

use crate::common;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use crate::common::fabric::{Entry, Failed, How, Side, Wish, close, table};
use crate::common::inside;
use crate::common::server::{Server, server, servers};
use weft_fi::sys;

/// Where the endpoints of a test are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At UDP ports of their own: their workers access memory themselves.
    OwnPorts,
    /// In one server.
    Server,
    /// In two servers.
    Servers,
}

/// A test for each place.
macro_rules! everywhere {
    ($($test:ident: $body:ident, $place:ident;)*) => {
        $(
            #[test]
            fn $test() {
                if inside(stringify!($test)) {
                    $body(Place::$place);
                }
            }
        )*
    };
}

everywhere! {
    memory_is_written_and_read_by_every_call: every_call, OwnPorts;
    memory_is_written_and_read_by_every_call_through_a_server: every_call, Server;
    memory_is_written_and_read_by_every_call_through_two_servers: every_call, Servers;
    one_access_goes_to_several_places: several_places, OwnPorts;
    one_access_goes_to_several_places_through_servers: several_places, Servers;
    accesses_without_permission_fail_and_change_nothing: without_permission, OwnPorts;
    accesses_without_permission_through_servers_fail_and_change_nothing: without_permission, Servers;
    memory_of_basic_mode_has_addresses_and_keys_of_the_provider: basic_mode, OwnPorts;
    memory_of_basic_mode_has_them_through_servers: basic_mode, Servers;
    raw_keys_are_the_bytes_of_keys: raw_keys, OwnPorts;
    keys_are_drawn_for_those_who_can_deal_with_them: drawn_keys, OwnPorts;
    keys_are_drawn_through_servers_for_those_who_can_deal_with_them: drawn_keys, Servers;
    atomic_operations_are_done_by_every_call: atomic_operations, OwnPorts;
    atomic_operations_are_done_by_every_call_through_servers: atomic_operations, Servers;
    operations_and_datatypes_are_named_or_refused: named_or_refused, OwnPorts;
    operations_and_datatypes_are_named_or_refused_by_servers: named_or_refused, Server;
    counters_tell_reads_from_writes_and_count_none_of_peers: counters, OwnPorts;
    counters_tell_them_from_each_other_through_servers: counters, Servers;
}

/// Two endpoints, the number of the second in the first, and the memory of the second that the first may access.
struct Pair {
    a: Side,
    b: Side,
    to_b: u64,
    _servers: Vec<Server>,
    _directory: tempfile::TempDir,
}

const KEY: u64 = 0x1234;
const ANY: u64 = sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;

fn pair(mode: c_int, place: Place) -> Pair {
    let scalable: fn(&mut sys::fi_info) = |_| ();
    // SAFETY: new hints have all their parts.
    let basic: fn(&mut sys::fi_info) =
        |hints| unsafe { (*hints.domain_attr).mr_mode = sys::FI_MR_BASIC as c_int };
    pair_with(if mode == 0 { scalable } else { basic }, place)
}

fn pair_with(change: fn(&mut sys::fi_info), place: Place) -> Pair {
    let caps = sys::FI_MSG | sys::FI_RMA | sys::FI_ATOMIC;
    let how = || How { counters: Some(sys::FI_WAIT_FD), ..How::default() };
    let directory = tempfile::tempdir().unwrap();
    // Tests run at the same time, each at addresses of its own.
    let first = 100 + (std::process::id() % 50) as u8 * 2;
    let servers = match place {
        Place::OwnPorts => Vec::new(),
        Place::Server => vec![server(&directory, first, |builder| builder)],
        Place::Servers => Vec::from(servers(&directory, first)),
    };
    let open = |server: Option<&Server>| {
        Side::open(&Wish { caps, change, domain: server.map(Server::name), ..Wish::default() }, how())
    };
    let (a, b) = (open(servers.first()), open(servers.last()));
    let (to_b, _) = (a.insert(&b.name()), b.insert(&a.name()));
    Pair { a, b, to_b, _servers: servers, _directory: directory }
}

/// Registers memory.
fn register(side: &Side, memory: &mut [u8], access: u64, key: u64) -> Result<*mut sys::fid_mr, c_int> {
    let mut mr = null_mut();
    // SAFETY: the domain is open, and the memory stays until the test closes it.
    let answer = unsafe {
        let reg = (*(*side.domain).mr).reg.unwrap();
        let (at, len) = (memory.as_ptr().cast(), memory.len());
        reg(side.domain.cast(), at, len, access, 0, key, 0, &mut mr, null_mut())
    };
    if answer == 0 { Ok(mr) } else { Err(-answer) }
}

impl Pair {
    /// The entry of the operation that `call` posts with context 7, while both sides work.
    fn done(&self, call: impl FnMut() -> isize) -> Result<Entry, Failed> {
        self.a.post(call);
        self.entry()
    }

    fn entry(&self) -> Result<Entry, Failed> {
        let begin = std::time::Instant::now();
        loop {
            assert_eq!(self.b.cq.read(), None);
            if let Some(entry) = self.a.cq.read() {
                return entry;
            }
            assert!(begin.elapsed() < common::fabric::BOUND, "no entry");
        }
    }

    /// As [`Pair::done`], of one that succeeds.
    fn ok(&self, flags: u64, call: impl FnMut() -> isize) {
        let entry = self.done(call).unwrap();
        assert_eq!((entry.context, entry.flags), (7, flags));
    }

    /// Waits until what was injected has arrived.
    fn settled(&self, memory: impl Fn() -> bool) {
        let begin = std::time::Instant::now();
        while !memory() {
            assert_eq!((self.a.cq.read(), self.b.cq.read()), (None, None));
            assert!(begin.elapsed() < common::fabric::BOUND, "nothing arrives");
        }
    }
}

const CONTEXT: *mut c_void = 7 as *mut c_void;
const WRITE: u64 = sys::FI_RMA | sys::FI_WRITE;
const READ: u64 = sys::FI_RMA | sys::FI_READ;

/// What is in memory that others write to.
fn peek(memory: &[u8], range: std::ops::Range<usize>) -> Vec<u8> {
    // SAFETY: the bytes are there.
    range.map(|at| unsafe { memory.as_ptr().add(at).read_volatile() }).collect()
}

fn every_call(place: Place) {
    let mut memory = vec![0u8; 300_000];
    let pair = pair(0, place);
    let mr = register(&pair.b, &mut memory, ANY, KEY).unwrap();
    // SAFETY: it is open.
    assert_eq!(unsafe { (*mr).key }, KEY);
    let Pair { a, to_b, .. } = &pair;
    let bytes: Vec<u8> = (0..200_000u32).map(|n| (n / 3) as u8).collect();
    let at = bytes.as_ptr().cast();
    pair.ok(WRITE, || table!(a.ep, rma.write(at, bytes.len(), null_mut(), *to_b, 10, KEY, CONTEXT)));
    assert_eq!(peek(&memory, 10..200_010), bytes);
    let mut room = vec![0u8; bytes.len()];
    let place = room.as_mut_ptr().cast();
    pair.ok(READ, || table!(a.ep, rma.read(place, bytes.len(), null_mut(), *to_b, 10, KEY, CONTEXT)));
    assert_eq!(room, bytes);

    let piece =
        |at: usize, len| sys::iovec { iov_base: bytes[at..].as_ptr().cast_mut().cast(), iov_len: len };
    let iov = [piece(0, 5), piece(100, 7)];
    let gathered = [&bytes[..5], &bytes[100..107]].concat();
    pair.ok(WRITE, || table!(a.ep, rma.writev(iov.as_ptr(), null_mut(), 2, *to_b, 250_000, KEY, CONTEXT)));
    assert_eq!(peek(&memory, 250_000..250_012), gathered);
    let mut halves = [[0u8; 6]; 2];
    let rooms = halves.each_mut().map(|half| sys::iovec { iov_base: half.as_mut_ptr().cast(), iov_len: 6 });
    pair.ok(READ, || table!(a.ep, rma.readv(rooms.as_ptr(), null_mut(), 2, *to_b, 250_000, KEY, CONTEXT)));
    assert_eq!(halves.concat(), gathered);

    let places = [sys::fi_rma_iov { addr: 260_000, len: 12, key: KEY }];
    let message = |iov: &[sys::iovec; 2]| sys::fi_msg_rma {
        msg_iov: iov.as_ptr(),
        desc: null_mut(),
        iov_count: 2,
        addr: *to_b,
        rma_iov: places.as_ptr(),
        rma_iov_count: 1,
        context: CONTEXT,
        data: 0x1_0000_0017,
    };
    let flags = sys::FI_REMOTE_CQ_DATA | sys::FI_DELIVERY_COMPLETE;
    a.post(|| table!(a.ep, rma.writemsg(&message(&iov), flags)));
    let announced = pair.b.cq.next().unwrap();
    let remote = sys::FI_RMA | sys::FI_REMOTE_WRITE | sys::FI_REMOTE_CQ_DATA;
    assert_eq!((announced.flags, announced.data, announced.len), (remote, 0x17, 12));
    assert_eq!(pair.entry().unwrap().flags, WRITE);
    halves = [[0; 6]; 2];
    pair.ok(READ, || table!(a.ep, rma.readmsg(&message(&rooms), 0)));
    assert_eq!(halves.concat(), gathered);

    // Not the first bytes, which are zeros, as the memory is.
    let few = &bytes[30..33];
    a.post(|| table!(a.ep, rma.inject(few.as_ptr().cast(), 3, *to_b, 270_000, KEY)));
    pair.settled(|| peek(&memory, 270_000..270_003) == few);
    a.post(|| table!(a.ep, rma.writedata(at, 300, null_mut(), 5, *to_b, 280_000, KEY, CONTEXT)));
    assert_eq!(pair.b.cq.next().unwrap().data, 5);
    assert_eq!(pair.entry().unwrap().flags, WRITE);
    assert_eq!(peek(&memory, 280_000..280_300), bytes[..300]);
    a.post(|| table!(a.ep, rma.injectdata(at, 300, 6, *to_b, 290_000, KEY)));
    assert_eq!(pair.b.cq.next().unwrap().data, 6);
    assert_eq!(peek(&memory, 290_000..290_300), bytes[..300]);
    assert_eq!(table!(a.ep, rma.inject(at, 4097, *to_b, 0, KEY)), -(sys::FI_EMSGSIZE as isize));
    assert_eq!(close(mr.cast()), 0);
}

fn several_places(at: Place) {
    let (mut memory, mut other) = (vec![0u8; 100_000], vec![0u8; 1000]);
    let pair = pair(0, at);
    let mr = register(&pair.b, &mut memory, ANY, KEY).unwrap();
    let second = register(&pair.b, &mut other, ANY, KEY + 1).unwrap();
    let Pair { a, to_b, .. } = &pair;
    let bytes: Vec<u8> = (0..60_000u32).map(|n| (n % 251) as u8).collect();
    let cut = |at: *mut u8| {
        [(0, 20_000), (20_000, 0), (20_000, 40_000)]
            .map(|(from, len)| sys::iovec { iov_base: at.wrapping_add(from).cast(), iov_len: len })
    };
    let place = |addr, len, key| sys::fi_rma_iov { addr, len, key };
    let places =
        [place(7, 50_000, KEY), place(30, 0, KEY + 1), place(31, 900, KEY + 1), place(60_000, 9_100, KEY)];
    let message = |iov: &[sys::iovec; 3], places: &[sys::fi_rma_iov]| sys::fi_msg_rma {
        msg_iov: iov.as_ptr(),
        desc: null_mut(),
        iov_count: 3,
        addr: *to_b,
        rma_iov: places.as_ptr(),
        rma_iov_count: places.len(),
        context: CONTEXT,
        data: 5,
    };
    let pieces = cut(bytes.as_ptr().cast_mut());
    a.post(|| table!(a.ep, rma.writemsg(&message(&pieces, &places), sys::FI_REMOTE_CQ_DATA)));
    // All bytes are there when the data are.
    let announced = pair.b.cq.next().unwrap();
    assert_eq!(announced.data, 5);
    assert_eq!(peek(&memory, 7..50_007), bytes[..50_000]);
    assert_eq!(peek(&other, 31..931), bytes[50_000..50_900]);
    assert_eq!(peek(&memory, 60_000..69_100), bytes[50_900..]);
    assert_eq!(pair.entry().unwrap().flags, WRITE);
    let mut room = vec![0u8; bytes.len()];
    let rooms = cut(room.as_mut_ptr());
    pair.ok(READ, || table!(a.ep, rma.readmsg(&message(&rooms, &places), 0)));
    assert!(room == bytes);
    // One that is injected is copied at the call, places that come later included.
    let mut few = *b"abcdef";
    let pieces = [(0, 1), (1, 1), (2, 4)]
        .map(|(from, len)| sys::iovec { iov_base: few.as_mut_ptr().wrapping_add(from).cast(), iov_len: len });
    let places = [place(500, 3, KEY + 1), place(600, 3, KEY + 1)];
    a.post(|| table!(a.ep, rma.writemsg(&message(&pieces, &places), sys::FI_INJECT | sys::FI_COMPLETION)));
    few.fill(b'x');
    assert_eq!(pair.entry().unwrap().flags, WRITE);
    assert_eq!((&peek(&other, 500..503)[..], &peek(&other, 600..603)[..]), (&b"abc"[..], &b"def"[..]));
    // One that fails has not gone beyond the place that is wrong, and announces nothing.
    let (places, before) =
        ([place(700, 3, KEY + 1), place(0, 1, KEY + 2), place(800, 2, KEY + 1)], peek(&other, 800..802));
    let failed = pair.done(|| table!(a.ep, rma.writemsg(&message(&pieces, &places), sys::FI_REMOTE_CQ_DATA)));
    assert_eq!(failed.unwrap_err().error, sys::FI_EKEYREJECTED);
    assert_eq!((peek(&other, 700..703), peek(&other, 800..802)), (b"xxx".to_vec(), before));
    // Atomic operations likewise.
    let (place, ones) = (|addr, count| sys::fi_rma_ioc { addr, count, key: KEY }, [1u64, 2, 3]);
    let places = [place(80_000, 1), place(90_000, 2)];
    let own = [(0, 2), (2, 1)]
        .map(|(from, count)| sys::fi_ioc { addr: ones[from..].as_ptr().cast_mut().cast(), count });
    let atomic = |places: &[sys::fi_rma_ioc], datatype| sys::fi_msg_atomic {
        msg_iov: own.as_ptr(),
        desc: null_mut(),
        iov_count: 2,
        addr: *to_b,
        rma_iov: places.as_ptr(),
        rma_iov_count: places.len(),
        datatype,
        op: sys::FI_SUM,
        context: CONTEXT,
        data: 0,
    };
    let sum = atomic(&places, sys::FI_UINT64);
    pair.ok(sys::FI_ATOMIC | sys::FI_WRITE, || table!(a.ep, atomic.writemsg(&sum, 0)));
    let mut fetched = [[0u64; 1], [0; 1], [0; 1]];
    let results = fetched.each_mut().map(|one| sys::fi_ioc { addr: one.as_mut_ptr().cast(), count: 1 });
    let fetch = |results: *const sys::fi_ioc| {
        table!(a.ep, atomic.readwritemsg(&sum, results.cast_mut(), null_mut(), 3, 0))
    };
    pair.ok(sys::FI_ATOMIC | sys::FI_READ, || fetch(results.as_ptr()));
    assert_eq!(fetched, [[1], [2], [3]]);
    let values =
        [80_000, 90_000, 90_008].map(|at| u64::from_le_bytes(peek(&memory, at..at + 8).try_into().unwrap()));
    assert_eq!(values, [2, 4, 6]);
    let short = [place(80_000, 1), place(90_000, 1)];
    let refused = table!(a.ep, atomic.writemsg(&atomic(&short, sys::FI_UINT64), 0));
    assert_eq!(refused, -(sys::FI_EINVAL as isize), "as many values here as there");
    let place = |addr, len, key| sys::fi_rma_iov { addr, len, key };
    let wrong = [place(0, 3, KEY), place(0, 4, KEY)];
    let invalid = -(sys::FI_EINVAL as isize);
    assert_eq!(
        table!(a.ep, rma.writemsg(&message(&pieces, &wrong), 0)),
        invalid,
        "as many bytes here as there"
    );
    assert_eq!(table!(a.ep, rma.writemsg(&message(&pieces, &[]), 0)), invalid);
    assert_eq!((close(mr.cast()), close(second.cast())), (0, 0));
}

fn without_permission(place: Place) {
    let (mut memory, mut other) = (vec![1u8; 1000], vec![1u8; 1000]);
    let pair = pair(0, place);
    let mr = register(&pair.b, &mut memory, sys::FI_REMOTE_READ, KEY).unwrap();
    assert_eq!(register(&pair.b, &mut other, ANY, KEY).unwrap_err(), sys::FI_ENOKEY as i32);
    let second = register(&pair.b, &mut other, ANY, KEY + 1).unwrap();
    let Pair { a, to_b, .. } = &pair;
    let bytes = [9u8; 8];
    let at = bytes.as_ptr().cast();
    let write = |addr, key| {
        pair.done(|| table!(a.ep, rma.write(at, 8, null_mut(), *to_b, addr, key, CONTEXT))).unwrap_err().error
    };
    assert_eq!(write(0, KEY), sys::FI_EACCES);
    assert_eq!(write(993, KEY + 1), sys::FI_EREMOTEIO);
    assert_eq!(write(0, KEY + 2), sys::FI_EKEYREJECTED);
    // Memory that may be read only is fetched from, by operations that change nothing.
    let fetch = |op, room: &mut [u64; 1]| {
        let (none, u64s, place) = (null_mut(), sys::FI_UINT64, room.as_mut_ptr().cast());
        pair.done(|| {
            table!(a.ep, atomic.readwrite(at, 1, none, place, none, *to_b, 8, KEY, u64s, op, CONTEXT))
        })
    };
    let mut fetched = [0];
    assert!(fetch(sys::FI_ATOMIC_READ, &mut fetched).is_ok());
    assert_eq!(fetched[0].to_le_bytes(), [1; 8]);
    for op in [sys::FI_SUM, sys::FI_ATOMIC_WRITE] {
        assert_eq!(fetch(op, &mut fetched).unwrap_err().error, sys::FI_EACCES, "{op}");
    }
    // Memory that may be written only is not read, nor fetched.
    let mut sink = [1u64; 4];
    // SAFETY: they are the bytes of those numbers.
    let bytes_of_sink = unsafe { std::slice::from_raw_parts_mut(sink.as_mut_ptr().cast::<u8>(), 32) };
    let third = register(&pair.b, bytes_of_sink, sys::FI_REMOTE_WRITE, KEY + 3).unwrap();
    let (mut room, key) = ([0u64; 1], KEY + 3);
    let place: *mut c_void = room.as_mut_ptr().cast();
    let read = pair.done(|| table!(a.ep, rma.read(place, 8, null_mut(), *to_b, 0, key, CONTEXT)));
    assert_eq!(read.unwrap_err().error, sys::FI_EACCES);
    for op in [sys::FI_SUM, sys::FI_ATOMIC_READ] {
        let fetched = pair.done(|| {
            let (none, u64s) = (null_mut(), sys::FI_UINT64);
            table!(a.ep, atomic.readwrite(at, 1, none, place, none, *to_b, 0, key, u64s, op, CONTEXT))
        });
        assert_eq!(fetched.unwrap_err().error, sys::FI_EACCES, "{op}");
    }
    assert_eq!(room, [0]);
    assert_eq!(close(third.cast()), 0);
    assert_eq!(sink, [1; 4]);
    let (op, datatype) = (sys::FI_SUM, sys::FI_UINT64);
    let failed =
        pair.done(|| table!(a.ep, atomic.write(at, 1, null_mut(), *to_b, 0, KEY, datatype, op, CONTEXT)));
    assert_eq!(failed.unwrap_err().error, sys::FI_EACCES);
    assert_eq!(close(second.cast()), 0);
    assert_eq!(write(0, KEY + 1), sys::FI_EKEYREJECTED);
    assert_eq!(close(mr.cast()), 0);
    assert!(memory.iter().chain(&other).all(|byte| *byte == 1));
}

/// Raw keys are the bytes of keys, for programs that ask for them whatever the mode is.
fn raw_keys(place: Place) {
    let mut memory = vec![0u8; 64];
    let pair = pair(1, place);
    let mr = register(&pair.b, &mut memory, ANY, KEY).unwrap();
    let control = |fid: *mut sys::fid, command, arg: *mut c_void| {
        // SAFETY: it is open, and what is passed belongs to the command.
        unsafe { (*(*fid).ops).control.unwrap()(fid, command, arg) }
    };
    let (mut base, mut raw, mut len) = (0, [0u8; 8], 4);
    let mut ask = |len: &mut usize, flags| {
        let (base_addr, raw_key) = (&raw mut base, raw.as_mut_ptr());
        let mut attr = sys::fi_mr_raw_attr { flags, base_addr, raw_key, key_size: &raw mut *len };
        control(mr.cast(), sys::FI_GET_RAW_MR as c_int, (&raw mut attr).cast())
    };
    assert_eq!((ask(&mut len, 0), len), (-(sys::FI_ETOOSMALL as c_int), 8));
    assert_eq!(ask(&mut len, 1), -(sys::FI_EBADFLAGS as c_int));
    assert_eq!((ask(&mut len, 0), len), (0, 8));
    assert_eq!(base, memory.as_ptr().addr() as u64);
    let Pair { a, to_b, .. } = &pair;
    let mut key = 0;
    let mut map = |key_size| {
        let (raw_key, key) = (raw.as_mut_ptr(), &raw mut key);
        let mut map = sys::fi_mr_map_raw { flags: 0, base_addr: base, raw_key, key_size, key };
        control(a.domain.cast(), sys::FI_MAP_RAW_MR as c_int, (&raw mut map).cast())
    };
    assert_eq!([map(7), map(8)], [-sys::FI_EINVAL, 0]);
    let at = [5u8; 4].as_ptr().cast();
    pair.ok(WRITE, || table!(a.ep, rma.write(at, 4, null_mut(), *to_b, base + 8, key, CONTEXT)));
    assert_eq!(peek(&memory, 7..13), [0, 5, 5, 5, 5, 0]);
    assert_eq!(control(a.domain.cast(), sys::FI_UNMAP_KEY as c_int, (&raw mut key).cast()), 0);
    assert_eq!(close(mr.cast()), 0);
}

fn basic_mode(place: Place) {
    let mut memory = vec![0u8; 64];
    let pair = pair(1, place);
    let mr = register(&pair.b, &mut memory, ANY, KEY).unwrap();
    // SAFETY: it is open.
    let key = unsafe { (*mr).key };
    assert_ne!(key, KEY);
    let Pair { a, to_b, .. } = &pair;
    let (at, base) = ([5u8; 4].as_ptr().cast(), memory.as_ptr().addr() as u64);
    pair.ok(WRITE, || table!(a.ep, rma.write(at, 4, null_mut(), *to_b, base + 8, key, CONTEXT)));
    assert_eq!(peek(&memory, 7..13), [0, 5, 5, 5, 5, 0]);
    let outside = pair.done(|| table!(a.ep, rma.write(at, 4, null_mut(), *to_b, base - 2, key, CONTEXT)));
    assert_eq!(outside.unwrap_err().error, sys::FI_EREMOTEIO);
    assert_eq!(close(mr.cast()), 0);
}

/// Programs that can deal with keys of the provider get keys that nobody can guess.
fn drawn_keys(at: Place) {
    let mut memories = vec![[0u8; 8]; 50];
    // SAFETY: new hints have all their parts.
    let offer: fn(&mut sys::fi_info) = |hints| unsafe {
        let bits = sys::FI_MR_LOCAL | sys::FI_MR_VIRT_ADDR | sys::FI_MR_ALLOCATED | sys::FI_MR_PROV_KEY;
        (*hints.domain_attr).mr_mode = bits as c_int;
    };
    let info = common::fabric::getinfo(&Wish { change: offer, ..Wish::default() }).unwrap();
    // SAFETY: an info has all its parts.
    assert_eq!(unsafe { (*info.get().domain_attr).mr_mode }, sys::FI_MR_PROV_KEY as c_int);
    let pair = pair_with(offer, at);
    let mut registered = Vec::new();
    for memory in &mut memories {
        registered.push(register(&pair.b, memory, ANY, KEY).unwrap());
    }
    // SAFETY: they are open.
    let keys: Vec<u64> = registered.iter().map(|mr| unsafe { (**mr).key }).collect();
    let differ = |one: u64, other: u64| one.abs_diff(other) > u32::MAX.into();
    for (n, key) in keys.iter().enumerate() {
        assert!(keys[..n].iter().chain([&KEY]).all(|other| differ(*key, *other)), "{keys:x?}");
    }
    let Pair { a, to_b, .. } = &pair;
    let (at, write) = ([5u8; 4].as_ptr().cast(), WRITE);
    pair.ok(write, || table!(a.ep, rma.write(at, 4, null_mut(), *to_b, 2, keys[7], CONTEXT)));
    assert_eq!(peek(&memories[7], 0..8), [0, 0, 5, 5, 5, 5, 0, 0]);
    let refused = pair.done(|| table!(a.ep, rma.write(at, 4, null_mut(), *to_b, 2, KEY, CONTEXT)));
    assert_eq!(refused.unwrap_err().error, sys::FI_EKEYREJECTED);
    assert!(registered.into_iter().all(|mr| close(mr.cast()) == 0));
}

fn atomic_operations(place: Place) {
    let mut memory = vec![0u8; 64];
    let pair = pair(0, place);
    let mr = register(&pair.b, &mut memory, ANY, KEY).unwrap();
    let Pair { a, to_b, .. } = &pair;
    let (u64s, sum) = (sys::FI_UINT64, sys::FI_SUM);
    let numbers = |range| -> Vec<u64> {
        peek(&memory, range).chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect()
    };
    let two = [3u64, 5];
    let at: *const c_void = two.as_ptr().cast();
    const PLAIN: u64 = sys::FI_ATOMIC | sys::FI_WRITE;
    const FETCH: u64 = sys::FI_ATOMIC | sys::FI_READ;
    pair.ok(PLAIN, || table!(a.ep, atomic.write(at, 2, null_mut(), *to_b, 0, KEY, u64s, sum, CONTEXT)));
    assert_eq!(numbers(0..16), [3, 5]);
    let ioc = [sys::fi_ioc { addr: at.cast_mut(), count: 2 }];
    pair.ok(PLAIN, || {
        table!(a.ep, atomic.writev(ioc.as_ptr(), null_mut(), 1, *to_b, 0, KEY, u64s, sum, CONTEXT))
    });
    let places = [sys::fi_rma_ioc { addr: 0, count: 2, key: KEY }];
    let message = |op| sys::fi_msg_atomic {
        msg_iov: ioc.as_ptr(),
        desc: null_mut(),
        iov_count: 1,
        addr: *to_b,
        rma_iov: places.as_ptr(),
        rma_iov_count: 1,
        datatype: u64s,
        op,
        context: CONTEXT,
        data: 0,
    };
    pair.ok(PLAIN, || table!(a.ep, atomic.writemsg(&message(sum), 0)));
    a.post(|| table!(a.ep, atomic.inject(at, 2, *to_b, 0, KEY, u64s, sum)));
    pair.settled(|| numbers(0..16) == [12, 20]);

    let mut before = [0u64; 2];
    let result: *mut c_void = before.as_mut_ptr().cast();
    let mut results = [sys::fi_ioc { addr: result, count: 2 }];
    let seen = |expected: [u64; 2]| {
        // SAFETY: it is there.
        assert_eq!(unsafe { result.cast::<[u64; 2]>().read_volatile() }, expected);
    };
    pair.ok(FETCH, || {
        table!(
            a.ep,
            atomic.readwrite(at, 2, null_mut(), result, null_mut(), *to_b, 0, KEY, u64s, sum, CONTEXT)
        )
    });
    seen([12, 20]);
    let read = sys::FI_ATOMIC_READ;
    pair.ok(FETCH, || {
        table!(
            a.ep,
            atomic.readwrite(
                std::ptr::null(),
                2,
                null_mut(),
                result,
                null_mut(),
                *to_b,
                0,
                KEY,
                u64s,
                read,
                CONTEXT
            )
        )
    });
    seen([15, 25]);
    pair.ok(FETCH, || {
        let (iov, results) = (ioc.as_ptr(), results.as_mut_ptr());
        table!(
            a.ep,
            atomic.readwritev(iov, null_mut(), 1, results, null_mut(), 1, *to_b, 0, KEY, u64s, sum, CONTEXT)
        )
    });
    seen([15, 25]);
    pair.ok(FETCH, || {
        table!(a.ep, atomic.readwritemsg(&message(sum), results.as_mut_ptr(), null_mut(), 1, 0))
    });
    seen([18, 30]);

    // 21 is there now.
    let (cswap, compare) = (sys::FI_CSWAP, [21u64]);
    let old: *const c_void = compare.as_ptr().cast();
    pair.ok(FETCH, || {
        table!(
            a.ep,
            atomic.compwrite(
                at,
                1,
                null_mut(),
                old,
                null_mut(),
                result,
                null_mut(),
                *to_b,
                0,
                KEY,
                u64s,
                cswap,
                CONTEXT
            )
        )
    });
    seen([21, 30]);
    assert_eq!(numbers(0..16), [3, 35]);
    let one = [sys::fi_ioc { addr: at.cast_mut(), count: 1 }];
    let olds = [sys::fi_ioc { addr: old.cast_mut(), count: 1 }];
    results[0].count = 1;
    pair.ok(FETCH, || {
        let (iov, olds, results) = (one.as_ptr(), olds.as_ptr(), results.as_mut_ptr());
        table!(
            a.ep,
            atomic.compwritev(
                iov,
                null_mut(),
                1,
                olds,
                null_mut(),
                1,
                results,
                null_mut(),
                1,
                *to_b,
                8,
                KEY,
                u64s,
                cswap,
                CONTEXT
            )
        )
    });
    seen([35, 30]);
    assert_eq!(numbers(0..16), [3, 35], "35 is not 21");
    let mut swap = message(sys::FI_CSWAP_NE);
    swap.msg_iov = one.as_ptr();
    pair.ok(FETCH, || {
        let (olds, results) = (olds.as_ptr(), results.as_mut_ptr());
        table!(a.ep, atomic.compwritemsg(&swap, olds, null_mut(), 1, results, null_mut(), 1, 0))
    });
    seen([3, 30]);
    assert_eq!(close(mr.cast()), 0);
}

fn named_or_refused(place: Place) {
    let pair = pair(0, place);
    let (a, mut count) = (&pair.a, 0);
    let no = -sys::FI_EOPNOTSUPP;
    assert_eq!(table!(a.ep, atomic.writevalid(sys::FI_INT8, sys::FI_SUM, &mut count)), 0);
    assert_eq!(count, 1024);
    assert_eq!(table!(a.ep, atomic.writevalid(sys::FI_INT8, sys::FI_ATOMIC_READ, &mut count)), no);
    assert_eq!(table!(a.ep, atomic.readwritevalid(sys::FI_DOUBLE, sys::FI_ATOMIC_READ, &mut count)), 0);
    assert_eq!(table!(a.ep, atomic.readwritevalid(sys::FI_DOUBLE, sys::FI_BOR, &mut count)), no);
    assert_eq!(table!(a.ep, atomic.compwritevalid(sys::FI_FLOAT, sys::FI_CSWAP_LT, &mut count)), 0);
    assert_eq!(count, 1);
    assert_eq!(table!(a.ep, atomic.compwritevalid(sys::FI_FLOAT, sys::FI_SUM, &mut count)), no);
    let mut attr = sys::fi_atomic_attr::default();
    let mut query = |datatype, op, flags| table!(a.domain, ops.query_atomic(datatype, op, &mut attr, flags));
    for datatype in [sys::FI_LONG_DOUBLE, sys::FI_LONG_DOUBLE_COMPLEX, sys::FI_INT128, sys::FI_UINT128] {
        assert_eq!(query(datatype, sys::FI_SUM, 0), no);
    }
    assert_eq!(query(sys::FI_UINT16, sys::FI_MSWAP, sys::FI_COMPARE_ATOMIC), 0);
    assert_eq!(query(sys::FI_UINT16, sys::FI_SUM, sys::FI_TAGGED), no);
    assert_eq!((attr.size, attr.count), (2, 1));
}

fn counters(place: Place) {
    let mut memory = vec![0u8; 100];
    let pair = pair(0, place);
    let mr = register(&pair.b, &mut memory, ANY, KEY).unwrap();
    let Pair { a, b, to_b, .. } = &pair;
    let [_, _, read, written] = &a.counters[..] else { panic!("four") };
    let mut bytes = [9u8; 8];
    let at = bytes.as_mut_ptr();
    for _ in 0..3 {
        pair.ok(WRITE, || table!(a.ep, rma.write(at.cast(), 8, null_mut(), *to_b, 0, KEY, CONTEXT)));
    }
    pair.ok(READ, || table!(a.ep, rma.read(at.cast(), 8, null_mut(), *to_b, 0, KEY, CONTEXT)));
    assert_eq!((read.read(), written.read()), ((1, 0), (3, 0)));
    // A write that is refused is counted as failed.
    pair.done(|| table!(a.ep, rma.write(at.cast(), 8, null_mut(), *to_b, 99, KEY, CONTEXT))).unwrap_err();
    assert_eq!((read.read(), written.read()), ((1, 0), (3, 1)));

    // The endpoint was opened without FI_RMA_EVENT.
    for kind in [sys::FI_REMOTE_READ, sys::FI_REMOTE_WRITE, sys::FI_WRITE | sys::FI_REMOTE_WRITE] {
        let counter = b.counters[3].0.cast();
        // SAFETY: the endpoint and the counter are open.
        let answer = unsafe { (*(*b.ep).fid.ops).bind.unwrap()(b.ep.cast(), counter, kind) };
        assert_eq!(answer, -(sys::FI_EBADFLAGS as c_int), "{kind:#x}");
    }
    assert_eq!(close(mr.cast()), 0);
}
