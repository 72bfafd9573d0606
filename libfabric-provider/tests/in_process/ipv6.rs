//! Endpoints at addresses of IPv6.

use crate::common;
use std::ffi::CStr;
use std::net::TcpListener;
use std::ptr::null_mut;

use crate::common::fabric::{How, Side, Wish, getinfo, table};
use crate::common::inside;
use weft_fi::sys;
use weft_fi::sys::FI_ADDR_UNSPEC;

const LEN: usize = 28;
type Name = [u8; LEN];

/// Whether this system has IPv6; else says that the test is skipped, or fails if `CI` is set.
fn is_there() -> bool {
    let there = TcpListener::bind("[::1]:0").is_ok();
    assert!(there || std::env::var_os("CI").is_none(), "IPv6 is missing");
    if !there {
        eprintln!("skipped: this system has no IPv6");
    }
    there
}

/// Endpoints at ::1.
fn wish(caps: u64) -> Wish {
    let change: fn(&mut sys::fi_info) = |hints| hints.addr_format = sys::FI_SOCKADDR_IN6;
    Wish { caps, domain: Some("lo".to_owned()), change, ..Wish::default() }
}

fn name(side: &Side) -> Name {
    let (mut name, mut len) = ([0; LEN], LEN);
    // SAFETY: the endpoint is open, and there are so many bytes.
    let answer =
        unsafe { (*(*side.ep).cm).getname.unwrap()(side.ep.cast(), name.as_mut_ptr().cast(), &mut len) };
    assert_eq!((answer, len), (0, LEN));
    name
}

fn insert(side: &Side, names: &[Name]) -> (i32, Vec<u64>) {
    let mut numbers = vec![99; names.len()];
    let (at, count) = (names.as_ptr().cast(), names.len());
    let done = table!(side.av, ops.insert(at, count, numbers.as_mut_ptr(), 0, null_mut()));
    (done, numbers)
}

#[test]
fn endpoints_of_ipv6_exchange_messages_and_access_memory() {
    if !inside("endpoints_of_ipv6_exchange_messages_and_access_memory") || !is_there() {
        return;
    }
    let info = getinfo(&wish(0)).unwrap();
    let (format, len) = (info.get().addr_format, info.get().src_addrlen);
    assert_eq!((format, len), (sys::FI_SOCKADDR_IN6, LEN));
    let caps = sys::FI_MSG | sys::FI_TAGGED | sys::FI_SOURCE | sys::FI_RMA;
    let open = || Side::open(&wish(caps), How::default());
    let (a, b) = (open(), open());
    let mut v4: Name = [0; LEN];
    v4[..8].copy_from_slice(&[libc::AF_INET as u8, 0, 15, 160, 127, 0, 0, 1]);
    let (done, numbers) = insert(&a, &[name(&a), name(&b), v4]);
    assert_eq!((done, numbers[2]), (2, sys::FI_ADDR_NOTAVAIL), "one of IPv4 is none of this domain's");
    let (to_b, from_a) = (numbers[1], insert(&b, &[name(&a)]).1[0]);
    for (step, len) in [0usize, 1, 5000, 300_000].into_iter().enumerate() {
        let bytes: Vec<u8> = (0..len).map(|n| (n * 7 + n / 256) as u8).collect();
        let (mut room, tag) = (vec![0u8; len], step as u64);
        b.receive(&mut room, FI_ADDR_UNSPEC, Some((tag, 0)), 2);
        a.send(to_b, &bytes, Some(tag), 1);
        // Both work: neither message needs the other one's thread.
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| a.cq.next());
            assert_eq!(b.cq.next().map(|entry| (entry.len, entry.source)), Ok((len, from_a)));
            assert!(sent.join().unwrap().is_ok());
        });
        assert!(room == bytes, "{len} bytes");
    }
    let memory = vec![7u8; 10_000];
    let mut mr = null_mut();
    // SAFETY: the domain is open, and the memory stays until the end.
    let registered = unsafe {
        let reg = (*(*b.domain).mr).reg.unwrap();
        let at = memory.as_ptr().cast();
        reg(b.domain.cast(), at, memory.len(), sys::FI_REMOTE_READ, 0, 5, 0, &mut mr, null_mut())
    };
    assert_eq!(registered, 0);
    let mut room = vec![0u8; memory.len()];
    let (at, len) = (room.as_mut_ptr().cast(), room.len());
    a.post(|| table!(a.ep, rma.read(at, len, null_mut(), to_b, 0, 5, null_mut())));
    while a.cq.read().is_none() {
        assert_eq!(b.cq.read(), None);
        std::thread::yield_now();
    }
    assert!(room == memory);
    assert_eq!(common::fabric::close(mr.cast()), 0);
}

#[test]
fn addresses_of_ipv6_have_a_text_and_are_found_by_name() {
    if !inside("addresses_of_ipv6_have_a_text_and_are_found_by_name") || !is_there() {
        return;
    }
    let side = Side::open(&wish(0), How::default());
    let (own, mut text) = (name(&side), [0; 64]);
    let mut len = text.len();
    let said = table!(side.av, ops.straddr(own.as_ptr().cast(), text.as_mut_ptr(), &mut len));
    // SAFETY: it is the text.
    let said = unsafe { CStr::from_ptr(said) }.to_str().unwrap();
    assert!(said.starts_with("fi_sockaddr_in6://[::1]:"), "{said}");
    let (mut number, mut back, mut len) = (99, [0u8; LEN], LEN);
    let insert = |node: &CStr, number: &mut u64| {
        table!(side.av, ops.insertsvc(node.as_ptr(), c"4000".as_ptr(), number, 0, null_mut()))
    };
    assert_eq!(insert(c"127.0.0.1", &mut number), 0, "one of IPv4");
    assert_eq!(insert(c"::1", &mut number), 1);
    assert_eq!(table!(side.av, ops.lookup(number, back.as_mut_ptr().cast(), &mut len)), 0);
    assert_eq!((len, &back[..4]), (LEN, &[libc::AF_INET6 as u8, 0, 15, 160][..]));
    // A program that is given an address of IPv6 need not name the format.
    let mut info = null_mut();
    // SAFETY: texts, no hints, and a place for the answer.
    let answer = unsafe {
        let hints = sys::fi_dupinfo(std::ptr::null());
        (*(*hints).fabric_attr).prov_name = libc::strdup(c"weft".as_ptr());
        let answer = sys::fi_getinfo(1 << 16 | 17, c"::1".as_ptr(), c"4000".as_ptr(), 0, hints, &mut info);
        sys::fi_freeinfo(hints);
        answer
    };
    assert_eq!(answer, 0);
    // SAFETY: libfabric has returned it.
    let (format, destination) = unsafe { ((*info).addr_format, (*info).dest_addrlen) };
    assert_eq!((format, destination), (sys::FI_SOCKADDR_IN6, LEN));
    // SAFETY: as before.
    unsafe { sys::fi_freeinfo(info) };
    // Addresses of both kinds do not go together.
    let mixed = Wish { change: |hints| hints.addr_format = sys::FI_SOCKADDR_IN6, ..Wish::default() };
    assert_eq!(getinfo(&mixed).err(), Some(sys::FI_ENODATA), "127.0.0.1 is none of IPv6");
}
