//! Registered memory, reads, writes and atomic operations, by every function of their tables.

use crate::common;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use crate::common::fabric::{Entry, Failed, How, Opened, Side, Wish, close, getinfo, table};
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
    writes_are_copied_at_the_call_if_a_flag_says_so: injected_by_flags, OwnPorts;
    writes_through_servers_are_copied_at_the_call_if_a_flag_says_so: injected_by_flags, Servers;
    writes_with_data_wait_for_room_in_the_queue: full_queue, OwnPorts;
    writes_with_data_through_servers_wait_for_room_in_the_queue: full_queue, Servers;
    atomic_operations_through_two_endpoints_are_atomic_to_each_other: two_targets, OwnPorts;
    atomic_operations_through_two_endpoints_of_servers_are_atomic_to_each_other: two_targets, Servers;
    an_endpoint_that_is_enabled_twice_is_enabled_once: enabled_twice, OwnPorts;
    an_endpoint_of_a_server_that_is_enabled_twice_is_enabled_once: enabled_twice, Servers;
    programs_that_are_away_for_long_lose_no_connection: away, OwnPorts;
    programs_that_are_away_for_long_lose_none_through_servers: away, Servers;
    one_access_goes_to_several_places: several_places, OwnPorts;
    one_access_goes_to_several_places_through_servers: several_places, Servers;
    accesses_without_permission_fail_and_change_nothing: without_permission, OwnPorts;
    accesses_without_permission_through_servers_fail_and_change_nothing: without_permission, Servers;
    memory_of_basic_mode_has_addresses_and_keys_of_the_provider: basic_mode, OwnPorts;
    memory_of_basic_mode_has_them_through_servers: basic_mode, Servers;
    raw_keys_are_the_bytes_of_keys: raw_keys, OwnPorts;
    keys_of_the_provider_are_in_use: reserved_keys, OwnPorts;
    no_key_is_the_providers_through_a_server: reserved_keys, Server;
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
    let (servers, directory) = servers_of(place);
    let (a, b, to_b) = two(change, &servers, 0);
    Pair { a, b, to_b, _servers: servers, _directory: directory }
}

/// The servers of a place, and the directory of their sockets.
fn servers_of(place: Place) -> (Vec<Server>, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    // Tests run at the same time, each at addresses of its own.
    let first = 100 + (std::process::id() % 50) as u8 * 2;
    let servers = match place {
        Place::OwnPorts => Vec::new(),
        Place::Server => vec![server(&directory, first, |builder| builder)],
        Place::Servers => Vec::from(servers(&directory, first)),
    };
    (servers, directory)
}

/// Two endpoints, in the first and the last of these servers if there are any, and the number of the second in the first. The queue of
/// the second has room for so many entries, as many as usual if that is 0.
fn two(change: fn(&mut sys::fi_info), servers: &[Server], queue: usize) -> (Side, Side, u64) {
    let caps = sys::FI_MSG | sys::FI_RMA | sys::FI_ATOMIC;
    let open = |server: Option<&Server>, queue| {
        let how = How { counters: Some(sys::FI_WAIT_FD), queue, ..How::default() };
        Side::open(&Wish { caps, change, domain: server.map(Server::name), ..Wish::default() }, how)
    };
    let (a, b) = (open(servers.first(), 0), open(servers.last(), queue));
    let (to_b, _) = (a.insert(&b.name()), b.insert(&a.name()));
    (a, b, to_b)
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
            std::thread::yield_now();
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
            std::thread::yield_now();
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

/// The flag may be one of the call, or one that the endpoint was opened with or has been given, for calls without flags.
fn injected_by_flags(at: Place) {
    const LONG: usize = 8 << 20;
    let mut memory = vec![0u8; LONG + 4 * 4096];
    // SAFETY: new hints have all their parts.
    let opened: fn(&mut sys::fi_info) = |hints| unsafe { (*hints.tx_attr).op_flags = sys::FI_INJECT };
    for is_opened_so in [true, false] {
        memory.fill(0);
        let pair = pair_with(if is_opened_so { opened } else { |_| () }, at);
        let mr = register(&pair.b, &mut memory, ANY, KEY).unwrap();
        let Pair { a, to_b, .. } = &pair;
        if !is_opened_so {
            let mut flags = sys::FI_TRANSMIT | sys::FI_INJECT;
            // SAFETY: the endpoint is open, and flags belong to this command.
            let set = unsafe {
                let control = (*(*a.ep).fid.ops).control.unwrap();
                control(a.ep.cast(), sys::FI_SETOPSFLAG as c_int, (&raw mut flags).cast())
            };
            assert_eq!(set, 0);
        }
        // The writes wait behind this one, whose call has flags of its own, so that nothing of them has left when their calls
        // return.
        let long = vec![5u8; LONG];
        let before = [sys::iovec { iov_base: long.as_ptr().cast_mut().cast(), iov_len: LONG }];
        let places = [sys::fi_rma_iov { addr: 0, len: LONG, key: KEY }];
        let message = sys::fi_msg_rma {
            msg_iov: before.as_ptr(),
            desc: null_mut(),
            iov_count: 1,
            addr: *to_b,
            rma_iov: places.as_ptr(),
            rma_iov_count: 1,
            context: CONTEXT,
            data: 0,
        };
        a.post(|| table!(a.ep, rma.writemsg(&message, 0)));
        let mut bytes = [0u8; 4096];
        let place = bytes.as_mut_ptr();
        let (far, none) = (|n: u64| LONG as u64 + n * 4096, null_mut());
        bytes.fill(11);
        a.post(|| table!(a.ep, rma.write(place.cast(), 4096, none, *to_b, far(0), KEY, CONTEXT)));
        bytes.fill(12);
        let halves =
            [0, 2048].map(|from| sys::iovec { iov_base: place.wrapping_add(from).cast(), iov_len: 2048 });
        a.post(|| table!(a.ep, rma.writev(halves.as_ptr(), null_mut(), 2, *to_b, far(1), KEY, CONTEXT)));
        bytes.fill(13);
        a.post(|| table!(a.ep, rma.writedata(place.cast(), 4096, none, 3, *to_b, far(2), KEY, CONTEXT)));
        bytes.fill(14);
        // Unlike `fi_inject_write` these calls have entries.
        let mut ends = 0;
        let mut announced = None;
        let begin = std::time::Instant::now();
        while ends < 4 || announced.is_none() {
            assert!(begin.elapsed() < common::fabric::BOUND, "{ends} entries");
            ends += a.cq.read().map_or(0, |end| usize::from(end.unwrap().flags == WRITE));
            announced = announced.or(pair.b.cq.read().map(|end| end.unwrap().data));
            std::thread::yield_now();
        }
        assert_eq!(announced, Some(3));
        for (n, byte) in [(0, 11), (1, 12), (2, 13)] {
            let begin = LONG + n * 4096;
            assert!(peek(&memory, begin..begin + 4096) == [byte; 4096], "{byte}: {}", memory[begin]);
        }
        let too_long = [0u8; 4097];
        let refused = table!(a.ep, rma.write(too_long.as_ptr().cast(), 4097, none, *to_b, 0, KEY, CONTEXT));
        assert_eq!(refused, -(sys::FI_EMSGSIZE as isize));
        assert_eq!(close(mr.cast()), 0);
    }
}

/// An application that reads no entries has no more of them than its queue has room for.
fn full_queue(at: Place) {
    const ROOM: usize = 8;
    const ALL: usize = 100;
    let mut memory = vec![0u8; ALL];
    let (servers, _directory) = servers_of(at);
    let (a, b, to_b) = two(|_| (), &servers, ROOM);
    let mr = register(&b, &mut memory, ANY, KEY).unwrap();
    let bytes: Vec<u8> = (0..ALL).map(|n| n as u8 + 1).collect();
    for (n, byte) in bytes.iter().enumerate() {
        let (at, to) = (std::ptr::from_ref(byte).cast(), n as u64);
        a.post(|| table!(a.ep, rma.writedata(at, 1, null_mut(), to, to_b, to, KEY, CONTEXT)));
    }
    let (mut done, begin) = (0, std::time::Instant::now());
    let works = |done: &mut usize| {
        b.try_wait();
        *done += a.cq.read().map_or(0, |end| usize::from(end.unwrap().flags == WRITE));
        assert!(begin.elapsed() < common::fabric::BOUND, "{done} are done");
        std::thread::yield_now();
    };
    while done < ROOM {
        works(&mut done);
    }
    for _ in 0..2_000 {
        works(&mut done);
    }
    assert_eq!(done, ROOM, "the others wait");
    // Each entry that is read makes room for one.
    let mut announced = Vec::new();
    while done < ALL || announced.len() < ALL {
        works(&mut done);
        announced.extend(b.cq.read().map(|entry| entry.unwrap().data));
        assert!(done <= announced.len() + ROOM, "{done} are done, and {} entries were read", announced.len());
    }
    announced.sort_unstable();
    assert!(announced.iter().copied().eq(0..ALL as u64));
    assert_eq!(close(mr.cast()), 0);
    assert_eq!(memory, bytes);
}

/// Two endpoints expose the same memory, and each performs operations on a thread of its own.
fn two_targets(at: Place) {
    const VALUES: usize = 128;
    const TIMES: usize = 3_000;
    let mut memory = vec![0u8; 8 * VALUES];
    let (servers, _directory) = servers_of(at);
    let pairs = [(); 2].map(|()| two(|_| (), &servers, 0));
    let registered = [0, 1].map(|n| register(&pairs[n].1, &mut memory, ANY, KEY).unwrap());
    let ones = vec![1u64; VALUES];
    let add_to = |(a, b, to_b): &(Side, Side, u64)| {
        let (at, u64s, begin) = (ones.as_ptr().cast(), sys::FI_UINT64, std::time::Instant::now());
        let (mut posted, mut ended) = (0, 0);
        while ended < TIMES {
            let call = || {
                table!(a.ep, atomic.write(at, VALUES, null_mut(), *to_b, 0, KEY, u64s, sys::FI_SUM, CONTEXT))
            };
            if posted < TIMES && posted < ended + 64 {
                match call() {
                    0 => posted += 1,
                    again => assert_eq!(again, -(sys::FI_EAGAIN as isize)),
                }
            }
            ended += a.cq.read().map_or(0, |end| usize::from(end.is_ok()));
            assert_eq!(b.cq.read(), None);
            assert!(begin.elapsed() < common::fabric::BOUND, "{ended} have ended");
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        for pair in &pairs {
            scope.spawn(|| add_to(pair));
        }
    });
    for mr in registered {
        assert_eq!(close(mr.cast()), 0);
    }
    let values = memory.chunks(8).map(|value| u64::from_le_bytes(value.try_into().unwrap()));
    let lost: Vec<u64> = values.map(|value| (2 * TIMES) as u64 - value).collect();
    assert_eq!(lost, [0; VALUES], "operations that are lost");
}

/// Memory that is registered afterwards is exposed once.
fn enabled_twice(at: Place) {
    let mut memory = vec![0u8; 8];
    let pair = pair(0, at);
    // SAFETY: the endpoint is open.
    let enable = || unsafe {
        (*(*pair.b.ep).fid.ops).control.unwrap()(pair.b.ep.cast(), sys::FI_ENABLE as c_int, null_mut())
    };
    assert_eq!([enable(), enable()], [0, 0]);
    let mr = register(&pair.b, &mut memory, ANY, KEY).unwrap();
    assert_eq!(enable(), 0);
    let (at, Pair { a, to_b, .. }) = ([5u8; 8].as_ptr().cast(), &pair);
    pair.ok(WRITE, || table!(a.ep, rma.write(at, 8, null_mut(), *to_b, 0, KEY, CONTEXT)));
    assert_eq!(close(mr.cast()), 0);
    assert_eq!(memory, [5; 8]);
}

/// The owners of memory make no call for longer than twice the 10 s after which a connection that is silent is given up. One of them is
/// used meanwhile, the other is not.
fn away(at: Place) {
    const SLEEPS: usize = 25;
    const BYTES: usize = 20_000;
    let (servers, _directory) = servers_of(at);
    let pairs = [(); 2].map(|()| two(|_| (), &servers, 0));
    let mut memories = [(); 2].map(|()| vec![1u8; 16]);
    let mut registered = Vec::new();
    for ((_, b, _), memory) in pairs.iter().zip(&mut memories) {
        registered.push(register(b, memory, ANY, KEY).unwrap());
    }
    let mut rooms = vec![vec![0u8; BYTES]; 8];
    let (posted, later) = rooms.split_at_mut(4);
    for (room, which) in posted.iter_mut().zip([0, 0, 0, 1]) {
        pairs[which].1.receive(room, sys::FI_ADDR_UNSPEC, None, 3);
    }
    let (mut read, one, mut before) = ([0u8; 8], 1u64, 0u64);
    let message = vec![9u8; BYTES];
    let mut use_it = |which: usize, times: u64| {
        let (a, _, to_b) = &pairs[which];
        let (operand, fetched, none) = ((&raw const one).cast(), (&raw mut before).cast(), null_mut());
        let (u64s, sum) = (sys::FI_UINT64, sys::FI_SUM);
        a.send(*to_b, &message, None, 1);
        a.post(|| table!(a.ep, rma.read(read.as_mut_ptr().cast(), 8, none, *to_b, 0, KEY, CONTEXT)));
        a.post(|| {
            table!(a.ep, atomic.readwrite(operand, 1, none, fetched, none, *to_b, 8, KEY, u64s, sum, CONTEXT))
        });
        for _ in 0..3 {
            a.cq.next().unwrap();
        }
        assert_eq!((read, before), ([1; 8], u64::from_le_bytes([1; 8]) + times));
    };
    use_it(1, 0);
    for sleep in 0..SLEEPS {
        if sleep % 12 == 0 {
            use_it(0, sleep as u64 / 12);
        }
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    // All messages have arrived, and connections go on in both directions.
    for ((a, b, _), count) in pairs.iter().zip([3, 1]) {
        for _ in 0..count {
            assert_eq!(b.cq.next().unwrap().len, BYTES);
        }
        let to_a = b.insert(&a.name());
        let (mut back, bytes) = ([0u8; 4], *b"back");
        a.receive(&mut back, sys::FI_ADDR_UNSPEC, None, 4);
        b.send(to_a, &bytes, None, 5);
        assert_eq!((b.cq.next().unwrap().context, a.cq.next().unwrap().context), (5, 4));
        assert_eq!(back, bytes);
    }
    for (which, times, room) in [(0, 3, 0), (1, 1, 1)] {
        pairs[which].1.receive(&mut later[room], sys::FI_ADDR_UNSPEC, None, 6);
        use_it(which, times);
        assert_eq!(pairs[which].1.cq.next().unwrap().context, 6);
    }
    for mr in registered {
        assert_eq!(close(mr.cast()), 0);
    }
    assert!(rooms[..6].iter().all(|room| *room == message));
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

/// Also before there is an endpoint that has them.
fn reserved_keys(place: Place) {
    let directory = tempfile::tempdir().unwrap();
    let server = (place == Place::Server).then(|| server(&directory, 74, |builder| builder));
    let wish = Wish { domain: server.as_ref().map(Server::name), ..Wish::default() };
    let opened = Opened::new(&getinfo(&wish).unwrap_or_else(|error| panic!("{error}")));
    let memory = [1u8; 100];
    for key in [0, 1, 2, 3, 4, 5].map(|n| u64::MAX - 5 + n) {
        let mut mr = null_mut();
        // SAFETY: the domain is open, and the memory stays until the registration is closed.
        let answer = unsafe {
            let reg = (*(*opened.domain).mr).reg.unwrap();
            reg(opened.domain.cast(), memory.as_ptr().cast(), 100, ANY, 0, key, 0, &mut mr, null_mut())
        };
        let is_reserved = place == Place::OwnPorts && (u64::MAX - 4..u64::MAX).contains(&key);
        assert_eq!(answer, if is_reserved { -(sys::FI_ENOKEY as c_int) } else { 0 }, "{key:#x}");
        if answer == 0 {
            assert_eq!(close(mr.cast()), 0);
        }
    }
}

fn without_permission(place: Place) {
    let (mut memory, mut other) = (vec![1u8; 1000], vec![1u8; 1000]);
    let pair = pair(0, place);
    // Neither an offset, which fi_mr(3) reserves, nor 4 GiB. Nobody looks at the memory.
    let refused = [(8, 1_000), (0, 1 << 32)].map(|(offset, len)| {
        let (at, mut mr) = (memory.as_ptr().cast(), null_mut());
        // SAFETY: the domain is open.
        unsafe {
            let reg = (*(*pair.b.domain).mr).reg.unwrap();
            reg(pair.b.domain.cast(), at, len, ANY, offset, KEY, 0, &mut mr, null_mut())
        }
    });
    assert_eq!(refused, [-sys::FI_EINVAL, -(sys::FI_EMSGSIZE as c_int)]);
    // Some programs ask for all memory in this way.
    let mut mr = null_mut();
    // SAFETY: the domain is open.
    let refused = unsafe {
        let reg = (*(*pair.b.domain).mr).reg.unwrap();
        reg(pair.b.domain.cast(), std::ptr::null(), usize::MAX, ANY, 0, KEY, 0, &mut mr, null_mut())
    };
    assert_eq!(refused, -(sys::FI_EMSGSIZE as c_int));
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
