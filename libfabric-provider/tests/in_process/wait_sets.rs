//! Queues and counters that are slept on together.

use crate::common;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

use crate::common::fabric::{How, Side, Wish, close, descriptor, table};
use crate::common::inside;
use crate::common::server::server;
use weft_fi::sys;

/// Milliseconds of the longest wait.
const LONG: i32 = 60_000;

fn open(side: &Side, wait_obj: sys::fi_wait_obj) -> Result<*mut sys::fid_wait, i32> {
    let (mut set, mut attr) = (null_mut(), sys::fi_wait_attr { wait_obj, flags: 0 });
    let answer = table!(side.fabric, ops.wait_open(&mut attr, &mut set));
    if answer == 0 { Ok(set) } else { Err(-answer) }
}

/// An endpoint whose entries go to a queue of the set, and what it counts as received to a counter of it.
struct Member {
    ep: *mut sys::fid_ep,
    av: *mut sys::fid_av,
    cq: *mut sys::fid_cq,
    cntr: *mut sys::fid_cntr,
}

impl Member {
    fn open(side: &Side, wish: &Wish, wait_set: *mut sys::fid_wait) -> Member {
        let info = common::fabric::getinfo(wish).unwrap();
        let (mut ep, mut av, mut cq, mut cntr) = (null_mut(), null_mut(), null_mut(), null_mut());
        let (wait_obj, format) = (sys::FI_WAIT_SET, sys::FI_CQ_FORMAT_TAGGED);
        let mut attr = sys::fi_cq_attr { wait_obj, wait_set, format, ..sys::fi_cq_attr::default() };
        assert_eq!(table!(side.domain, ops.cq_open(&mut attr, &mut cq, null_mut())), 0);
        let mut attr = sys::fi_cntr_attr { wait_obj, wait_set, ..sys::fi_cntr_attr::default() };
        assert_eq!(table!(side.domain, ops.cntr_open(&mut attr, &mut cntr, null_mut())), 0);
        assert_eq!(table!(side.domain, ops.av_open(&mut sys::fi_av_attr::default(), &mut av, null_mut())), 0);
        assert_eq!(table!(side.domain, ops.endpoint(info.0, &mut ep, null_mut())), 0);
        // SAFETY: the endpoint and what is bound are open.
        unsafe {
            let ops = &*(*ep).fid.ops;
            assert_eq!(ops.bind.unwrap()(ep.cast(), av.cast(), 0), 0);
            assert_eq!(ops.bind.unwrap()(ep.cast(), cq.cast(), sys::FI_SEND | sys::FI_RECV), 0);
            assert_eq!(ops.bind.unwrap()(ep.cast(), cntr.cast(), sys::FI_RECV), 0);
            assert_eq!(ops.control.unwrap()(ep.cast(), sys::FI_ENABLE as i32, null_mut()), 0);
        }
        Member { ep, av, cq, cntr }
    }

    fn name(&self) -> [u8; 16] {
        let (mut name, mut len) = ([0u8; 16], 16);
        // SAFETY: the endpoint is open, and there are so many bytes.
        let answer =
            unsafe { (*(*self.ep).cm).getname.unwrap()(self.ep.cast(), name.as_mut_ptr().cast(), &mut len) };
        assert_eq!(answer, 0);
        name
    }

    /// Takes an entry, if there is one.
    fn take(&self) -> bool {
        let mut entry = sys::fi_cq_tagged_entry::default();
        table!(self.cq, ops.read((&raw mut entry).cast(), 1)) == 1
    }

    fn close(self) {
        for fid in [self.ep.cast(), self.av.cast(), self.cq.cast(), self.cntr.cast()] {
            assert_eq!(close(fid), 0);
        }
    }
}

#[test]
fn a_wait_ends_when_a_member_has_something() {
    if !inside("a_wait_ends_when_a_member_has_something") {
        return;
    }
    let sender = Side::open(&Wish::default(), How::default());
    assert_eq!(open(&sender, sys::FI_WAIT_NONE).unwrap_err(), sys::FI_EINVAL);
    assert_eq!(open(&sender, sys::FI_WAIT_SET).unwrap_err(), sys::FI_EINVAL);
    let set = open(&sender, sys::FI_WAIT_FD).unwrap();
    let [first, second] = [(); 2].map(|()| Member::open(&sender, &Wish::default(), set));
    let mut nothing = sys::fi_cq_attr { wait_obj: sys::FI_WAIT_SET, ..sys::fi_cq_attr::default() };
    let refused = table!(sender.domain, ops.cq_open(&mut nothing, &mut null_mut(), null_mut()));
    assert_eq!(refused, -sys::FI_EINVAL, "a set is missing");
    assert_eq!(table!(set, ops.wait(1)), -sys::FI_ETIMEDOUT);
    assert_eq!(close(set.cast()), -sys::FI_EBUSY, "its members are open");
    for member in [&first, &second] {
        let mut room = [0u8; 8];
        let (at, any) = (room.as_mut_ptr().cast(), sys::FI_ADDR_UNSPEC);
        assert_eq!(table!(member.ep, msg.recv(at, 8, null_mut(), any, null_mut())), 0);
        assert!(sender.try_wait_for(set.cast()), "nothing has arrived");
        let to = sender.insert(&member.name());
        sender.send(to, b"message", None, 1);
        // The endpoint does its work in the wait, so that its sender is not heard before.
        while !member.take() {
            assert_eq!(table!(set, ops.wait(LONG)), 0);
        }
        assert_eq!(table!(member.cntr, ops.read()), 1);
        assert_eq!(&room[..7], b"message");
        assert!(sender.cq.next().is_ok());
    }
    // The descriptor is readable when a message has come.
    let mut room = [0u8; 8];
    let (at, any) = (room.as_mut_ptr().cast(), sys::FI_ADDR_UNSPEC);
    assert_eq!(table!(first.ep, msg.recv(at, 8, null_mut(), any, null_mut())), 0);
    let to = sender.insert(&first.name());
    sender.send(to, b"another", None, 1);
    while !first.take() {
        if sender.try_wait_for(set.cast()) {
            // SAFETY: it is open as long as the set.
            let fd = unsafe { BorrowedFd::borrow_raw(descriptor(set.cast())) };
            let mut waits = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
            let bound = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut waits, Some(&bound)), Ok(1));
        }
    }
    assert!(sender.cq.next().is_ok());
    first.close();
    assert_eq!(table!(set, ops.wait(1)), -sys::FI_ETIMEDOUT, "one that is closed is forgotten");
    second.close();
    assert_eq!(close(set.cast()), 0);
}

#[test]
fn a_wait_tells_of_entries_before_it_fails_for_an_endpoint_whose_server_is_gone() {
    if !inside("a_wait_tells_of_entries_before_it_fails_for_an_endpoint_whose_server_is_gone") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = server(&directory, 13, |builder| builder);
    let wish = Wish { domain: Some(server.name()), ..Wish::default() };
    let side = Side::open(&wish, How::default());
    let set = open(&side, sys::FI_WAIT_FD).unwrap();
    let member = Member::open(&side, &wish, set);
    let mut room = [0u8; 8];
    let (at, any) = (room.as_mut_ptr().cast(), sys::FI_ADDR_UNSPEC);
    assert_eq!(table!(member.ep, msg.recv(at, 8, null_mut(), any, null_mut())), 0);
    drop(server);
    for _ in 0..3 {
        assert_eq!(table!(set, ops.wait(LONG)), 0, "the receive has failed");
    }
    let mut failed = sys::fi_cq_err_entry::default();
    assert_eq!(table!(member.cq, ops.readerr(&mut failed, 0)), 1);
    assert_eq!(failed.err, sys::FI_ESHUTDOWN);
    assert_eq!(table!(member.cntr, ops.readerr()), 1);
    assert_eq!(table!(set, ops.wait(LONG)), -sys::FI_ESHUTDOWN);
    member.close();
    assert_eq!(close(set.cast()), 0);
}
