//! Endpoints at a memif port of their own, which sends messages from where the application has them.

use std::cell::Cell;
use std::ffi::CString;
use std::net::Ipv4Addr;
use std::ptr::NonNull;

use crate::common::fabric::{How, Side, Wish, getinfo, getinfo_of};
use crate::common::server::{address, server};
use crate::common::{inside, inside_with};
use weft_fi::sys::{self, FI_ADDR_UNSPEC};

/// Messages of no packet payload, of less and more than is worth a reference, of one packet, of some and of many.
const SIZES: [usize; 8] = [0, 1, 1_023, 1_024, 8_000, 9_000, 100_000, 3_000_000];

/// Pages of a message, which are given back to the system when this is dropped.
struct Pages {
    base: NonNull<u8>,
    len: usize,
}

impl Pages {
    fn filled(len: usize, byte: impl Fn(usize) -> u8) -> Pages {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new pages, of which there is one at least.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len.max(1), protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let base: NonNull<u8> = NonNull::new(base.cast()).unwrap();
        // SAFETY: so many bytes are there, and nobody else has them.
        let bytes = unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), len) };
        bytes.iter_mut().enumerate().for_each(|(at, place)| *place = byte(at));
        Pages { base, len }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes are there, and nobody changes them.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: they were mapped, and the message has ended.
        let unmapped = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len.max(1)) };
        assert_eq!(unmapped, 0);
    }
}

fn open(role: &str, host: u8) -> Side {
    // Rings of four frames, so that packets wait.
    let port = format!("memif:@weft-ports-{},role={role},rsize=2,ip=10.0.0.{host}", std::process::id());
    Side::open(&Wish { domain: Some(port), ..Wish::default() }, How::default())
}

/// Nobody else is at these ports, and FI_LOCAL_COMM is offered.
#[test]
fn an_endpoint_at_a_port_that_it_has_for_itself_reaches_itself() {
    if !inside("an_endpoint_at_a_port_that_it_has_for_itself_reaches_itself") {
        return;
    }
    let memif = format!("memif:@weft-alone-{},role=server,ip=10.0.0.1", std::process::id());
    for port in [memif, "udp:127.41.8.1".to_owned()] {
        for kind in [sys::FI_EP_RDM, sys::FI_EP_DGRAM] {
            let wish = Wish { domain: Some(port.clone()), kind, ..Wish::default() };
            assert_ne!(getinfo(&wish).unwrap().get().caps & sys::FI_LOCAL_COMM, 0);
            let side = Side::open(&wish, How::default());
            let own = side.insert(&side.name());
            let mut room = [0; 3];
            side.receive(&mut room, FI_ADDR_UNSPEC, None, 1);
            side.send(own, b"own", None, 2);
            let mut ended = [(); 2].map(|()| side.cq.next().unwrap().context);
            ended.sort_unstable();
            assert_eq!((ended, &room), ([1, 2], b"own"), "{port}");
        }
    }
}

/// A message's memory is gone as soon as its entry is read; whoever read it later would be killed.
#[test]
fn messages_are_sent_from_memory_that_vanishes_when_they_have_ended() {
    if !inside("messages_are_sent_from_memory_that_vanishes_when_they_have_ended") {
        return;
    }
    let sides = [open("server", 1), open("client", 2)];
    let to = [sides[0].insert(&sides[1].name()), sides[1].insert(&sides[0].name())];
    for (round, size) in SIZES.into_iter().cycle().take(4 * SIZES.len()).enumerate() {
        let byte = |end: usize| move |at: usize| (at * 13 + (at >> 8) * 5 + end * 101 + round) as u8;
        let mut pages = [0, 1].map(|end| Some(Pages::filled(size, byte(end))));
        let mut rooms = [0, 1].map(|_| vec![0; size + 1]);
        for (end, side) in sides.iter().enumerate() {
            side.receive(&mut rooms[end], sys::FI_ADDR_UNSPEC, None, 10 + end);
            side.send(to[end], pages[end].as_ref().unwrap().bytes(), None, end);
        }
        let mut left = 4;
        while left > 0 {
            for (end, side) in sides.iter().enumerate() {
                let Some(entry) = side.cq.read() else { continue };
                let entry = entry.unwrap();
                left -= 1;
                if entry.context == end {
                    pages[end] = None;
                } else {
                    assert_eq!((entry.context, entry.len), (10 + end, size));
                    let expected = (0..size).map(byte(1 - end));
                    assert!(rooms[end][..size].iter().copied().eq(expected), "{size} bytes to {end}");
                }
            }
        }
    }
}

/// The most endpoints of a domain at this place, and the answer to hints with one more.
fn endpoints(domain: Option<String>) -> (usize, Result<(), i32>) {
    let wish = Wish { domain, ..Wish::default() };
    let info = getinfo(&wish).unwrap_or_else(|error| panic!("{error}"));
    // SAFETY: an info has all its parts.
    let domain = unsafe { &*info.get().domain_attr };
    assert_eq!((domain.tx_ctx_cnt, domain.rx_ctx_cnt), (domain.ep_cnt, domain.ep_cnt));
    MOST.set(domain.ep_cnt);
    // SAFETY: new hints have all their parts.
    let more: fn(&mut sys::fi_info) = |hints| unsafe { (*hints.domain_attr).ep_cnt = MOST.get() + 1 };
    (domain.ep_cnt, getinfo(&Wish { change: more, ..wish }).map(drop))
}

thread_local! {
    static MOST: Cell<usize> = const { Cell::new(0) };
}

#[test]
fn a_domain_has_as_many_endpoints_as_its_place_has_room_for() {
    if !inside("a_domain_has_as_many_endpoints_as_its_place_has_room_for") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 71, |builder| builder);
    let no = Err(sys::FI_ENODATA);
    assert_eq!(endpoints(None), (4096, no));
    assert_eq!(endpoints(Some(server.name())), (64, no));
    assert_eq!(endpoints(Some("udp:127.0.0.1".to_owned())), (1, no));
}

#[test]
fn endpoints_at_named_places_are_offered_at_the_address_that_they_have_there() {
    if !inside("endpoints_at_named_places_are_offered_at_the_address_that_they_have_there") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 72, |builder| builder);
    let memif = format!("memif:@weft-named-{},role=server,ip=10.0.0.1", std::process::id());
    let places = [
        (server.name(), address(72)),
        (memif, Ipv4Addr::new(10, 0, 0, 1)),
        ("udp:127.41.8.2".to_owned(), Ipv4Addr::new(127, 41, 8, 2)),
    ];
    for (domain, own) in places {
        for kind in [sys::FI_EP_RDM, sys::FI_EP_DGRAM] {
            let wish = Wish { domain: Some(domain.clone()), kind, ..Wish::default() };
            let ask = |ip: Ipv4Addr| {
                let node = CString::new(ip.to_string()).unwrap();
                getinfo_of(&wish, 1 << 16 | 17, Some(&node), sys::FI_SOURCE).map(drop)
            };
            let asked = [own, Ipv4Addr::UNSPECIFIED, Ipv4Addr::new(203, 0, 113, 7)].map(ask);
            assert_eq!(asked, [Ok(()), Ok(()), Err(sys::FI_ENODATA)], "{domain}");
            // SAFETY: libfabric frees the copy.
            let change: fn(&mut sys::fi_info) = |hints| unsafe {
                let ip = libc::in_addr { s_addr: u32::from_ne_bytes([203, 0, 113, 7]) };
                let family = libc::AF_INET as libc::sa_family_t;
                let addr =
                    libc::sockaddr_in { sin_family: family, sin_port: 0, sin_addr: ip, sin_zero: [0; 8] };
                hints.src_addrlen = size_of_val(&addr);
                hints.src_addr = libc::malloc(hints.src_addrlen);
                hints.src_addr.cast::<libc::sockaddr_in>().write(addr);
            };
            let hinted = getinfo_of(&Wish { change, ..wish.clone() }, 1 << 16 | 17, None, 0).map(drop);
            assert_eq!(hinted, Err(sys::FI_ENODATA), "{domain}");
        }
    }
}

/// `scripts/setup.sh` builds a provider without DPDK.
#[test]
fn ports_of_dpdk_are_offered_by_a_provider_that_was_built_with_it_only() {
    if !inside("ports_of_dpdk_are_offered_by_a_provider_that_was_built_with_it_only") {
        return;
    }
    let expected = if weft::version().dpdk.is_some() { Ok(()) } else { Err(sys::FI_ENODATA) };
    let domain = |name: &str| Wish { domain: Some(name.to_owned()), ..Wish::default() };
    assert_eq!(getinfo(&domain("dpdk:net_null0,ip=10.0.0.1")).map(drop), expected);
    // It is none of an interface's.
    let wish = Wish { kind: sys::FI_EP_RDM, ..domain("dpdk:net_null0,ip=10.0.0.1") };
    assert_eq!(getinfo_of(&wish, 1 << 16 | 17, Some(c"127.0.0.1"), 0).map(drop), expected);
}

#[test]
fn a_port_of_dpdk_that_a_variable_names_is_offered_by_such_a_provider_only() {
    let port = [("FI_WEFT_PORT", "dpdk:net_null0,ip=10.0.0.1")];
    if inside_with("a_port_of_dpdk_that_a_variable_names_is_offered_by_such_a_provider_only", &port) {
        let expected = if weft::version().dpdk.is_some() { Ok(()) } else { Err(sys::FI_ENODATA) };
        let wish = Wish { kind: sys::FI_EP_RDM, ..Wish::default() };
        assert_eq!(getinfo_of(&wish, 1 << 16 | 17, None, 0).map(drop), expected);
    }
}

#[test]
fn a_port_of_a_kind_that_there_is_not_is_not_offered() {
    let port = [("FI_WEFT_PORT", "nonsense:somewhere")];
    if inside_with("a_port_of_a_kind_that_there_is_not_is_not_offered", &port) {
        assert_eq!(getinfo(&Wish::default()).map(drop), Err(sys::FI_ENODATA));
    }
}
