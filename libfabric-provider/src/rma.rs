//! The table of reads of and writes to remote memory. Any thread may make any of these calls at any time.

use std::ffi::c_void;

use crate::abi::{self, AppRoom};
use crate::endpoint::{EndpointObject, one, outgoing, wanted};
use crate::error::FiError;
use crate::info::ACCESS_FLAGS;
use crate::rdm::{Access, Room, Wanted, What};
use crate::sys::{self, fi_addr_t};

pub(crate) static TABLE: sys::fi_ops_rma = sys::fi_ops_rma {
    size: size_of::<sys::fi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    writedata: Some(writedata),
    injectdata: Some(injectdata),
};

/// An access as a call describes it.
struct Call {
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
    /// None if the call has none of its own.
    flags: Option<u64>,
    data: Option<u64>,
    inject: bool,
}

impl Call {
    fn to(peer: fi_addr_t, addr: u64, key: u64, context: *mut c_void) -> Call {
        Call { peer, addr, key, context, flags: None, data: None, inject: false }
    }

    /// # Safety
    /// `msg` is null or a message whose parts are valid.
    unsafe fn of(msg: *const sys::fi_msg_rma, flags: u64) -> Result<(Call, &'static [sys::iovec]), FiError> {
        // SAFETY: as the caller promises.
        let msg = unsafe { msg.as_ref().ok_or(FiError::INVALID)? };
        if msg.rma_iov_count != 1 {
            return Err(FiError::INVALID);
        }
        // SAFETY: as the caller promises.
        let (place, iov) = unsafe {
            (msg.rma_iov.as_ref().ok_or(FiError::INVALID)?, abi::pieces(msg.msg_iov, msg.iov_count)?)
        };
        if abi::total(iov) != Some(place.len) {
            return Err(FiError::INVALID);
        }
        let data = (flags & sys::FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
        Ok((Call { flags: Some(flags), data, ..Call::to(msg.addr, place.addr, place.key, msg.context) }, iov))
    }

    /// # Safety
    /// `ep` is an endpoint of this provider's, and the memory of `iov` is the call's until the access has ended.
    unsafe fn read(self, ep: *mut sys::fid_ep, iov: &[sys::iovec]) -> Result<usize, FiError> {
        if iov.iter().any(|at| at.iov_len > 0 && at.iov_base.is_null()) || abi::total(iov).is_none() {
            return Err(FiError::INVALID);
        }
        // SAFETY: as the caller promises.
        let piece = |at: &sys::iovec| unsafe { AppRoom::new(at.iov_base, at.iov_len) };
        let room = match iov {
            [one] => Room::One(piece(one)),
            several => Room::Several(several.iter().map(piece).collect()),
        };
        // SAFETY: as the caller promises.
        unsafe { self.post(ep, What::Read(room)) }
    }

    /// # Safety
    /// As [`Call::read`].
    unsafe fn write(self, ep: *mut sys::fid_ep, iov: &[sys::iovec]) -> Result<usize, FiError> {
        let inject = self.inject || self.flags.is_some_and(|flags| flags & sys::FI_INJECT != 0);
        // SAFETY: as the caller promises.
        let bytes = unsafe { outgoing(iov, inject)? };
        let data = self.data;
        // SAFETY: as the caller promises.
        unsafe { self.post(ep, What::Write { bytes, data }) }
    }

    /// # Safety
    /// `ep` is an endpoint of this provider's.
    unsafe fn post(self, ep: *mut sys::fid_ep, what: What) -> Result<usize, FiError> {
        // SAFETY: as the caller promises.
        let object: &EndpointObject = unsafe { abi::object(ep)? };
        let flags = self.flags.unwrap_or(object.send_flags);
        if flags & !ACCESS_FLAGS != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        let Call { peer, addr, key, context, inject, .. } = self;
        let wanted = if inject { Wanted::Never } else { wanted(flags) };
        let more = flags & sys::FI_MORE != 0;
        object.rdm.access(Access { peer, addr, key, context: context.addr(), wanted, more, what }).map(|()| 0)
    }
}

extern "C" fn read(
    ep: *mut sys::fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    src_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { Call::to(src_addr, addr, key, context).read(ep, &one(buf, len)) })
}

extern "C" fn readv(
    ep: *mut sys::fid_ep,
    iov: *const sys::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    src_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let call = Call::to(src_addr, addr, key, context);
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { call.read(ep, abi::pieces(iov, count)?) })
}

extern "C" fn readmsg(ep: *mut sys::fid_ep, msg: *const sys::fi_msg_rma, flags: u64) -> isize {
    abi::answer_size(|| {
        // SAFETY: libfabric promises it.
        unsafe {
            let (call, iov) = Call::of(msg, flags)?;
            call.read(ep, iov)
        }
    })
}

extern "C" fn write(
    ep: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { Call::to(dest_addr, addr, key, context).write(ep, &one(buf, len)) })
}

extern "C" fn writev(
    ep: *mut sys::fid_ep,
    iov: *const sys::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let call = Call::to(dest_addr, addr, key, context);
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { call.write(ep, abi::pieces(iov, count)?) })
}

extern "C" fn writemsg(ep: *mut sys::fid_ep, msg: *const sys::fi_msg_rma, flags: u64) -> isize {
    abi::answer_size(|| {
        // SAFETY: libfabric promises it.
        unsafe {
            let (call, iov) = Call::of(msg, flags)?;
            call.write(ep, iov)
        }
    })
}

extern "C" fn inject(
    ep: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    let call = Call { inject: true, ..Call::to(dest_addr, addr, key, std::ptr::null_mut()) };
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { call.write(ep, &one(buf, len)) })
}

extern "C" fn writedata(
    ep: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let call = Call { data: Some(data), ..Call::to(dest_addr, addr, key, context) };
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { call.write(ep, &one(buf, len)) })
}

extern "C" fn injectdata(
    ep: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    let to = Call::to(dest_addr, addr, key, std::ptr::null_mut());
    let call = Call { data: Some(data), inject: true, ..to };
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { call.write(ep, &one(buf, len)) })
}
