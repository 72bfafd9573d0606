//! Endpoints whose addresses are texts (FI_ADDR_STR).

use std::ffi::{CStr, CString, c_char};
use std::ptr::null_mut;

use crate::common::fabric::{How, Side, Wish, getinfo, table};
use crate::common::inside;
use crate::common::server::{address, server};
use weft_fi::sys::{self, FI_ADDR_UNSPEC};

fn wish(domain: Option<String>) -> Wish {
    let caps = sys::FI_MSG | sys::FI_TAGGED | sys::FI_SOURCE;
    Wish { caps, domain, change: |hints| hints.addr_format = sys::FI_ADDR_STR, ..Wish::default() }
}

/// The name of an endpoint, and what `fi_getname` says where there is no room for it.
fn name(side: &Side) -> CString {
    let (mut room, mut len) = ([0u8; 64], 64);
    // SAFETY: the endpoint is open, and there are so many bytes.
    let getname = |at: *mut u8, len: &mut usize| unsafe {
        (*(*side.ep).cm).getname.unwrap()(side.ep.cast(), at.cast(), len)
    };
    assert_eq!(getname(room.as_mut_ptr(), &mut len), 0);
    let name = CStr::from_bytes_with_nul(&room[..len]).expect("a text").to_owned();
    let mut short = 4;
    let answer = getname(room.as_mut_ptr(), &mut short);
    assert_eq!((answer, short, &room[..4]), (-(sys::FI_ETOOSMALL as i32), len, &b"fi_\0"[..]));
    name
}

fn insert(side: &Side, names: &[&CStr]) -> (i32, Vec<u64>) {
    let names: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let mut numbers = vec![99; names.len()];
    let (at, count) = (names.as_ptr().cast(), names.len());
    let done = table!(side.av, ops.insert(at, count, numbers.as_mut_ptr(), 0, null_mut()));
    (done, numbers)
}

fn exchange(a: &Side, b: &Side, scheme: &str) {
    let (name_of_a, name_of_b) = (name(a), name(b));
    assert!(name_of_a.to_str().unwrap().starts_with(scheme), "{name_of_a:?}");
    let wrong = [c"127.0.0.1:5", c"fi_sockaddr_in6://[::1]:5", c"fi_sockaddr_in://127.0.0.1"];
    let (done, numbers) = insert(a, &[wrong[0], &name_of_b, wrong[1], wrong[2]]);
    let none = sys::FI_ADDR_NOTAVAIL;
    assert_eq!((done, numbers[0], numbers[2], numbers[3]), (1, none, none, none));
    let to_b = numbers[1];
    let (done, of_a) = insert(b, &[&name_of_a]);
    assert_eq!(done, 1);
    let (mut back, mut len) = ([0u8; 64], 64);
    assert_eq!(table!(a.av, ops.lookup(to_b, back.as_mut_ptr().cast(), &mut len)), 0);
    assert_eq!(CStr::from_bytes_with_nul(&back[..len]), Ok(&*name_of_b));
    let (mut text, mut len) = ([0; 64], 64);
    let said = table!(a.av, ops.straddr(name_of_b.as_ptr().cast(), text.as_mut_ptr(), &mut len));
    // SAFETY: it is the text.
    assert_eq!(unsafe { CStr::from_ptr(said) }, &*name_of_b);
    let mut number = 99;
    let inserted =
        table!(a.av, ops.insertsvc(name_of_b.as_ptr(), std::ptr::null(), &mut number, 0, null_mut()));
    assert_eq!(inserted, 1);
    for (n, to) in [to_b, number].into_iter().enumerate() {
        let message: Vec<u8> = (0..20_000).map(|at: usize| (at * 3 + n) as u8).collect();
        let mut room = vec![0u8; message.len()];
        b.receive(&mut room, FI_ADDR_UNSPEC, None, 1);
        a.send(to, &message, None, 2);
        assert_eq!(b.cq.next().map(|entry| (entry.len, entry.source)), Ok((message.len(), of_a[0])));
        assert_eq!(a.cq.next().map(|entry| entry.context), Ok(2));
        assert!(room == message);
    }
}

#[test]
fn endpoints_whose_addresses_are_texts_exchange_messages() {
    if !inside("endpoints_whose_addresses_are_texts_exchange_messages") {
        return;
    }
    let info = getinfo(&wish(None)).unwrap();
    // SAFETY: an info's address is a text in this format.
    let source = unsafe { CStr::from_ptr(info.get().src_addr.cast()) };
    assert_eq!((info.get().addr_format, source), (sys::FI_ADDR_STR, c"fi_sockaddr_in://127.0.0.1:0"));
    assert_eq!(info.get().src_addrlen, source.count_bytes() + 1);
    let open = || Side::open(&wish(None), How::default());
    exchange(&open(), &open(), "fi_sockaddr_in://127.0.0.1:");
}

#[test]
fn endpoints_of_a_server_may_have_addresses_that_are_texts() {
    if !inside("endpoints_of_a_server_may_have_addresses_that_are_texts") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 75, |builder| builder);
    let open = || Side::open(&wish(Some(server.name())), How::default());
    exchange(&open(), &open(), &format!("fi_sockaddr_in://{}:", address(75)));
}

#[test]
fn destinations_in_hints_may_be_texts() {
    if !inside("destinations_in_hints_may_be_texts") {
        return;
    }
    let ask = |change: fn(&mut sys::fi_info)| {
        let info = getinfo(&Wish { change, ..Wish::default() })?;
        let at = info.get().dest_addr;
        // SAFETY: an info's address is a text in this format.
        let dest = (!at.is_null()).then(|| unsafe { CStr::from_ptr(at.cast()) }.to_owned());
        Ok(dest)
    };
    let dest = ask(|hints| {
        hints.addr_format = sys::FI_ADDR_STR;
        // SAFETY: libfabric frees the copy.
        hints.dest_addr = unsafe { libc::strdup(c"fi_sockaddr_in://127.0.0.1:4000".as_ptr()).cast() };
        hints.dest_addrlen = 32;
    });
    assert_eq!(dest, Ok(Some(c"fi_sockaddr_in://127.0.0.1:4000".to_owned())));
    let refused = ask(|hints| {
        hints.addr_format = sys::FI_ADDR_STR;
        // SAFETY: libfabric frees the copy.
        hints.dest_addr = unsafe { libc::strdup(c"somewhere".as_ptr()).cast() };
        hints.dest_addrlen = 10;
    });
    assert_eq!(refused, Err(sys::FI_ENODATA));
}
