//! Event queues of address vectors, and poll sets.

use crate::common;
use std::ffi::c_void;
use std::ptr::null_mut;

use crate::common::fabric::{How, Opened, Side, Wish, getinfo, table};
use crate::common::inside;
use weft_fi::sys;
use weft_fi::sys::{FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC};

fn close(fid: *mut sys::fid) -> i32 {
    // SAFETY: it is open.
    unsafe { ((*(*fid).ops).close.unwrap())(fid) }
}

/// An IPv4 address and port, as FI_SOCKADDR_IN.
fn address(port: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&[192, 0, 2, 1]);
    bytes
}

#[test]
fn insertions_that_were_asked_to_be_events_are() {
    if !inside("insertions_that_were_asked_to_be_events_are") {
        return;
    }
    let info = getinfo(&Wish::default()).unwrap_or_else(|error| panic!("{error}"));
    let opened = Opened::new(&info);
    let (mut eq, mut av) = (null_mut(), null_mut());
    let mut attr = sys::fi_eq_attr { wait_obj: sys::FI_WAIT_FD, ..sys::fi_eq_attr::default() };
    assert_eq!(table!(opened.fabric, ops.eq_open(&mut attr, &mut eq, null_mut())), 0);
    let mut attr = sys::fi_av_attr { flags: sys::FI_EVENT, ..sys::fi_av_attr::default() };
    assert_eq!(table!(opened.domain, ops.av_open(&mut attr, &mut av, null_mut())), 0);

    // The second one has no port.
    let all = [address(4), address(0), address(8)].concat();
    let mut numbers = [7; 3];
    let context = 0x1234 as *mut c_void;
    let insert = |numbers: &mut [u64; 3]| {
        table!(av, ops.insert(all.as_ptr().cast(), 3, numbers.as_mut_ptr(), 0, context))
    };
    assert_eq!(insert(&mut numbers), -(sys::FI_ENOEQ as i32), "it is bound to no queue");
    // SAFETY: both are open.
    let bind = |flags| unsafe { (*(*av).fid.ops).bind.unwrap()(av.cast(), eq.cast(), flags) };
    assert_eq!([bind(1), bind(0)], [-(sys::FI_EBADFLAGS as i32), 0]);
    assert_eq!(close(eq.cast()), -sys::FI_EBUSY, "it is bound");
    assert_eq!(insert(&mut numbers), 0);
    assert_eq!(numbers, [0, FI_ADDR_NOTAVAIL, 1]);

    let (mut number, mut entry) = (0, sys::fi_eq_entry::default());
    let len = size_of::<sys::fi_eq_entry>();
    let mut read = |entry: &mut sys::fi_eq_entry| {
        table!(eq, ops.sread(&mut number, (&raw mut *entry).cast(), len, 60_000, 0))
    };
    assert_eq!(read(&mut entry), -(sys::FI_EAVAIL as isize));
    let mut failed = sys::fi_eq_err_entry::default();
    assert_eq!(table!(eq, ops.readerr(&mut failed, 0)), size_of_val(&failed) as isize);
    assert_eq!((failed.fid.addr(), failed.context, failed.data), (av.addr(), context, 1));
    assert_eq!(failed.err, sys::FI_EINVAL);
    assert_eq!(read(&mut entry), len as isize);
    assert_eq!((entry.fid.addr(), entry.context, entry.data), (av.addr(), context, 2));
    assert_eq!(number, sys::FI_AV_COMPLETE);
    assert_eq!(table!(eq, ops.readerr(&mut failed, 0)), -(sys::FI_EAGAIN as isize));
    assert_eq!((close(av.cast()), close(eq.cast())), (0, 0));

    // Without events, each address has an error number of its own.
    let mut attr = sys::fi_av_attr::default();
    assert_eq!(table!(opened.domain, ops.av_open(&mut attr, &mut av, null_mut())), 0);
    let mut errors = [7; 3];
    let at = errors.as_mut_ptr().cast();
    let inserted = table!(av, ops.insert(all.as_ptr().cast(), 3, numbers.as_mut_ptr(), sys::FI_SYNC_ERR, at));
    assert_eq!((inserted, errors), (2, [0, sys::FI_EINVAL, 0]));
    assert_eq!(close(av.cast()), 0);
}

#[test]
fn a_poll_set_tells_which_queues_and_counters_have_news() {
    if !inside("a_poll_set_tells_which_queues_and_counters_have_news") {
        return;
    }
    let how = How { counters: Some(sys::FI_WAIT_NONE), ..How::default() };
    let side = Side::open(&Wish::default(), how);
    let own = side.insert(&side.name());
    let mut set = null_mut();
    let mut attr = sys::fi_poll_attr::default();
    assert_eq!(table!(side.domain, ops.poll_open(&mut attr, &mut set)), 0);
    let (queue, counter): (*mut sys::fid, *mut sys::fid) = (side.cq.0.cast(), side.counters[1].0.cast());
    let contexts = [1usize, 2].map(|context| context as *mut c_void);
    // SAFETY: both are open.
    unsafe { [(*queue).context, (*counter).context] = contexts };
    for (fid, answer) in
        [(queue, 0), (counter, 0), (queue, -sys::FI_EBUSY), (side.av.cast(), -sys::FI_EINVAL)]
    {
        assert_eq!(table!(set, ops.poll_add(fid, 0)), answer);
    }
    let news = |count: i32| {
        let mut contexts = [null_mut(); 4];
        let found = table!(set, ops.poll(contexts.as_mut_ptr(), count));
        assert!(found >= 0, "{found}");
        contexts[..found as usize].iter().map(|context| context.addr()).collect::<Vec<_>>()
    };
    assert_eq!(news(4), [0; 0]);
    let mut room = [0; 4];
    side.receive(&mut room, FI_ADDR_UNSPEC, None, 1);
    side.send(own, b"self", None, 2);
    // Nothing but polling lets the endpoint work.
    let begin = std::time::Instant::now();
    while news(0).is_empty() && news(1).is_empty() {
        assert!(begin.elapsed() < common::fabric::BOUND);
    }
    while side.counters[1].read() == (0, 0) {}
    assert_eq!(news(4), [1, 2]);
    assert_eq!(news(4), [1], "the counter has not changed since");
    assert!(side.cq.next().is_ok() && side.cq.next().is_ok());
    assert_eq!(news(4), [0; 0]);
    assert_eq!(table!(set, ops.poll_del(counter, 0)), 0);
    assert_eq!(table!(set, ops.poll_del(counter, 0)), -sys::FI_EINVAL);
    assert_eq!(close(queue), -sys::FI_EBUSY, "the set looks at it");
    assert_eq!(close(set.cast()), 0);
}

#[test]
fn registrations_of_memory_are_events_if_the_domain_is_bound_so() {
    if !inside("registrations_of_memory_are_events_if_the_domain_is_bound_so") {
        return;
    }
    let info = getinfo(&Wish::default()).unwrap_or_else(|error| panic!("{error}"));
    let context = 0x1234 as *mut c_void;
    for flags in [0, sys::FI_REG_MR] {
        let opened = Opened::new(&info);
        let mut eq = null_mut();
        let mut attr = sys::fi_eq_attr { wait_obj: sys::FI_WAIT_NONE, ..sys::fi_eq_attr::default() };
        assert_eq!(table!(opened.fabric, ops.eq_open(&mut attr, &mut eq, null_mut())), 0);
        let domain: *mut sys::fid = opened.domain.cast();
        // SAFETY: both are open.
        let bind = |flags| unsafe { (*(*domain).ops).bind.unwrap()(domain, eq.cast(), flags) };
        assert_eq!(bind(sys::FI_SEND), -(sys::FI_EBADFLAGS as i32));
        assert_eq!(bind(flags), 0);
        assert_eq!(bind(flags), -sys::FI_EINVAL, "it has one");
        assert_eq!(close(eq.cast()), -sys::FI_EBUSY, "it is bound");
        let (mut memory, mut mr, any) = ([0u8; 8], null_mut(), sys::FI_REMOTE_READ);
        // SAFETY: the domain is open, and the memory stays until it is closed.
        let mut register = |key| unsafe {
            let reg = (*(*opened.domain).mr).reg.unwrap();
            reg(domain, memory.as_mut_ptr().cast(), 8, any, 0, key, 0, &mut mr, context)
        };
        assert_eq!(register(5), 0);
        assert_eq!(register(5), -(sys::FI_ENOKEY as i32), "which is no event");
        let (mut number, mut entry) = (0, sys::fi_eq_entry::default());
        let mut read = || {
            let len = size_of::<sys::fi_eq_entry>();
            table!(eq, ops.read(&mut number, (&raw mut entry).cast(), len, 0))
        };
        if flags == sys::FI_REG_MR {
            assert_eq!(read(), size_of::<sys::fi_eq_entry>() as isize);
        }
        assert_eq!(read(), -(sys::FI_EAGAIN as isize));
        if flags == sys::FI_REG_MR {
            assert_eq!((number, entry.fid.addr(), entry.context), (sys::FI_MR_COMPLETE, mr.addr(), context));
        }
        assert_eq!(close(mr.cast()), 0);
        // The domain refers to the queue, which refers to the fabric.
        let Opened { fabric, domain } = opened;
        std::mem::forget(opened);
        assert_eq!([close(domain.cast()), close(eq.cast()), close(fabric.cast())], [0; 3]);
    }
}

#[test]
fn an_event_that_was_only_looked_at_stays() {
    if !inside("an_event_that_was_only_looked_at_stays") {
        return;
    }
    let info = getinfo(&Wish::default()).unwrap_or_else(|error| panic!("{error}"));
    let opened = Opened::new(&info);
    let flags = sys::FI_WRITE;
    let (mut eq, mut attr) = (null_mut(), sys::fi_eq_attr { flags, ..sys::fi_eq_attr::default() });
    assert_eq!(table!(opened.fabric, ops.eq_open(&mut attr, &mut eq, null_mut())), 0);
    for event in [*b"first", *b"other"] {
        assert_eq!(table!(eq, ops.write(77, event.as_ptr().cast(), 5, 0)), 5);
    }
    let read = |flags, room: usize| {
        let (mut number, mut bytes) = (0, [0u8; 5]);
        let len = table!(eq, ops.read(&mut number, bytes.as_mut_ptr().cast(), room, flags));
        (len, number, bytes)
    };
    assert_eq!([sys::FI_PEEK, sys::FI_PEEK, 0].map(|flags| read(flags, 5)), [(5, 77, *b"first"); 3]);
    assert_eq!(read(sys::FI_PEEK, 4).0, -(sys::FI_ETOOSMALL as isize));
    assert_eq!(read(0, 5), (5, 77, *b"other"));
    assert_eq!(read(sys::FI_PEEK, 5).0, -(sys::FI_EAGAIN as isize));
    assert_eq!(close(eq.cast()), 0);
}
