//! Endpoints that belong to jobs, by authorisation keys, refuse messages, accesses and datagrams of other jobs.

use std::ptr::{null_mut, without_provenance_mut};

use crate::common::fabric::{Exposed, Failed, How, Side, Wish, getinfo, table};
use crate::common::server::servers;
use crate::common::{inside, inside_with};
use weft_fi::sys::{self, FI_ADDR_UNSPEC};

const KEY: u64 = 9;
/// Bytes of messages that are sent at once.
const SHORT: [usize; 2] = [10, 300_000];

fn set(at: &mut *mut u8, len: &mut usize, key: &[u8]) {
    // SAFETY: the bytes are enough; libfabric frees them with the hints.
    unsafe {
        *at = libc::malloc(key.len()).cast();
        at.copy_from_nonoverlapping(key.as_ptr(), key.len());
    }
    *len = key.len();
}

/// The key of job 7 in the domain's attributes.
fn of_seven(hints: &mut sys::fi_info) {
    // SAFETY: new hints have all their parts.
    let domain = unsafe { &mut *hints.domain_attr };
    set(&mut domain.auth_key, &mut domain.auth_key_size, &[0, 0, 7]);
}

/// The key of job 8, in the endpoint's attributes, which count more.
fn of_eight(hints: &mut sys::fi_info) {
    of_seven(hints);
    // SAFETY: new hints have all their parts.
    let endpoint = unsafe { &mut *hints.ep_attr };
    set(&mut endpoint.auth_key, &mut endpoint.auth_key_size, &[8]);
}

fn open(domain: Option<String>, change: fn(&mut sys::fi_info)) -> Side {
    Side::open(&Wish { domain, change, ..Wish::default() }, How::default())
}

/// Sends `bytes` and reads them from memory. Returns how that ended.
fn exchange(from: &Side, to: &Side, len: usize) -> [Result<(), i32>; 2] {
    let number = from.insert(&to.name());
    to.insert(&from.name());
    let message: Vec<u8> = (0..len).map(|n: usize| (n * 7 + (n >> 8)) as u8).collect();
    let (mut room, mut memory, mut back) = (vec![0u8; len], message.clone(), vec![0u8; len]);
    let exposed = Exposed::new(to, &mut memory, KEY);
    to.receive(&mut room, FI_ADDR_UNSPEC, None, 1);
    from.send(number, &message, None, 2);
    let sent = from.cq.next().map(|_| ()).map_err(|Failed { error, .. }| error);
    match sent {
        Ok(()) => {
            to.cq.next().unwrap();
            assert!(room == message);
        }
        Err(_) => {
            // SAFETY: the endpoint is open.
            let cancelled =
                unsafe { (*(*to.ep).ops).cancel.unwrap()(to.ep.cast(), std::ptr::without_provenance_mut(1)) };
            assert_eq!(cancelled, 0, "the receive has met nothing");
            assert_eq!(to.cq.next().map_err(|failed| failed.error), Err(sys::FI_ECANCELED));
        }
    }
    let at = back.as_mut_ptr().cast();
    from.post(|| table!(from.ep, rma.read(at, len, null_mut(), number, 0, KEY, 3 as *mut _)));
    let read = from.cq.next().map(|_| ()).map_err(|Failed { error, .. }| error);
    assert!(read.is_err() || back == message);
    drop(exposed);
    [sent, read]
}

fn check(at: [Option<String>; 2], lens: &[usize]) {
    let [here, there] = at;
    let seven = || open(there.clone(), of_seven);
    let own = [None, Some(of_seven as fn(&mut sys::fi_info)), Some(of_eight)]
        .map(|job| open(here.clone(), job.unwrap_or(|_| ())));
    let refused = [Err(sys::FI_EACCES); 2];
    for &len in lens {
        let to = seven();
        assert_eq!(exchange(&own[1], &to, len), [Ok(()); 2], "the same job, {len} bytes");
        assert_eq!(exchange(&own[2], &to, len), refused, "another job, {len} bytes");
        assert_eq!(exchange(&own[0], &to, len), refused, "no job, {len} bytes");
        assert_eq!(exchange(&own[1], &to, len), [Ok(()); 2], "the same job again, {len} bytes");
    }
}

#[test]
fn messages_and_accesses_of_other_jobs_are_refused_over_kernel_udp() {
    if inside("messages_and_accesses_of_other_jobs_are_refused_over_kernel_udp") {
        check([None, None], &SHORT);
    }
}

#[test]
fn one_without_a_job_takes_messages_of_any() {
    if !inside("one_without_a_job_takes_messages_of_any") {
        return;
    }
    let (without, seven) = (open(None, |_| ()), open(None, of_seven));
    assert_eq!(exchange(&seven, &without, 10_000), [Ok(()); 2]);
}

/// Calls for injection have no contexts of their own.
#[test]
fn what_was_injected_and_is_refused_has_the_context_of_its_endpoint() {
    const NAME: &str = "what_was_injected_and_is_refused_has_the_context_of_its_endpoint";
    if !inside(NAME) {
        return;
    }
    let (from, to) = (open(None, of_eight), open(None, of_seven));
    let number = from.insert(&to.name());
    to.insert(&from.name());
    let bytes = 5u64.to_ne_bytes();
    let (ep, at, len) = (from.ep, bytes.as_ptr().cast(), bytes.len());
    // SAFETY: the endpoint is open.
    let context = unsafe { &raw mut (*ep).fid.context };
    let injects: [(&str, &dyn Fn() -> isize); 7] = [
        ("fi_inject", &|| table!(ep, msg.inject(at, len, number))),
        ("fi_injectdata", &|| table!(ep, msg.injectdata(at, len, 1, number))),
        ("fi_tinject", &|| table!(ep, tagged.inject(at, len, number, 2))),
        ("fi_tinjectdata", &|| table!(ep, tagged.injectdata(at, len, 1, number, 2))),
        ("fi_inject_write", &|| table!(ep, rma.inject(at, len, number, 0, KEY))),
        ("fi_inject_writedata", &|| table!(ep, rma.injectdata(at, len, 1, number, 0, KEY))),
        ("fi_inject_atomic", &|| {
            table!(ep, atomic.inject(at, 1, number, 0, KEY, sys::FI_UINT64, sys::FI_SUM))
        }),
    ];
    for (n, (name, inject)) in injects.into_iter().enumerate() {
        // SAFETY: the endpoint is open, and no call is under way. Applications may write to its context.
        unsafe { context.write(without_provenance_mut(n + 3)) };
        from.post(inject);
        let failed = Failed { context: n + 3, error: sys::FI_EACCES, beyond: 0 };
        assert_eq!(from.cq.next().unwrap_err(), failed, "{name}");
    }
}

#[test]
fn messages_of_other_jobs_are_refused_between_servers_and_in_one() {
    if !inside("messages_of_other_jobs_are_refused_between_servers_and_in_one") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 81);
    let [here, there] = servers.each_ref().map(|server| Some(server.name()));
    check([here.clone(), there], &SHORT);
    check([here.clone(), here], &SHORT);
}

/// A message that receivers would fetch, as it is longer than a part of the memory, has to be refused as well.
#[test]
fn messages_longer_than_the_memory_are_refused_in_other_jobs() {
    if !inside_with("messages_longer_than_the_memory_are_refused_in_other_jobs", &[("FI_WEFT_MEMORY", "16")])
    {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 83);
    let [here, there] = servers.each_ref().map(|server| Some(server.name()));
    check([here.clone(), there.clone()], &[5_000_003]);
    check([there, here], &[5_000_003]);
}

#[test]
fn datagrams_of_other_jobs_are_dropped() {
    if !inside("datagrams_of_other_jobs_are_dropped") {
        return;
    }
    drop_datagrams([None, None]);
    let directory = tempfile::tempdir().unwrap();
    let servers = servers(&directory, 85);
    drop_datagrams(servers.each_ref().map(|server| Some(server.name())));
}

fn drop_datagrams([here, there]: [Option<String>; 2]) {
    let open = |domain: &Option<String>, change| {
        let (caps, kind, domain) = (sys::FI_MSG, sys::FI_EP_DGRAM, domain.clone());
        Side::open(&Wish { caps, kind, change, domain, ..Wish::default() }, How::default())
    };
    let seven = open(&there, of_seven as fn(&mut sys::fi_info));
    let (same, other): (Side, Side) = (open(&here, of_seven), open(&here, of_eight));
    let mut room = [0u8; 8];
    seven.receive(&mut room, FI_ADDR_UNSPEC, None, 1);
    // Servers let packets of hosts in that somebody has named.
    seven.insert(&same.name());
    let (to, from_same) = (other.insert(&seven.name()), same.insert(&seven.name()));
    for n in 0..20 {
        other.send(to, b"eight", None, n);
        other.cq.next().unwrap();
        assert_eq!(seven.cq.read(), None);
    }
    same.send(from_same, b"seven", None, 2);
    assert_eq!(seven.cq.next().map(|entry| entry.len), Ok(5));
    assert_eq!(&room[..5], b"seven");
}

#[test]
fn an_info_has_the_keys_of_its_hints() {
    if !inside("an_info_has_the_keys_of_its_hints") {
        return;
    }
    let info = getinfo(&Wish { change: of_eight, ..Wish::default() }).unwrap();
    // SAFETY: an info has all its parts, and says how long its keys are.
    unsafe {
        let (domain, endpoint) = (&*info.get().domain_attr, &*info.get().ep_attr);
        let bytes = |at: *mut u8, len| std::slice::from_raw_parts(at, len);
        assert_eq!(bytes(domain.auth_key, domain.auth_key_size), [0, 0, 7]);
        assert_eq!(bytes(endpoint.auth_key, endpoint.auth_key_size), [8]);
    }
    let info = getinfo(&Wish::default()).unwrap();
    // SAFETY: as before.
    assert_eq!(unsafe { (*info.get().domain_attr).auth_key_size }, 0);
}
