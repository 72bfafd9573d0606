//! The table of reads of and writes to remote memory. Any thread may make any of these calls at any time.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::abi::{self, AppRoom};
use crate::endpoint::{EndpointObject, context_and_wanted, one, outgoing};
use crate::error::FiError;
use crate::info::ACCESS_FLAGS;
use crate::rdm::{Access, INJECT_SIZE, OutgoingBytes, Part, Room, What};
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
    /// Places that follow the first one, whose length is `first`, if there are several.
    further: &'static [sys::fi_rma_iov],
    first: usize,
}

impl Call {
    fn to(peer: fi_addr_t, addr: u64, key: u64, context: *mut c_void) -> Call {
        Call { peer, addr, key, context, flags: None, data: None, inject: false, further: &[], first: 0 }
    }

    /// # Safety
    /// `msg` is null or a message whose parts are valid.
    unsafe fn of(msg: *const sys::fi_msg_rma, flags: u64) -> Result<(Call, &'static [sys::iovec]), FiError> {
        // SAFETY: as the caller promises.
        let msg = unsafe { msg.as_ref().ok_or(FiError::INVALID)? };
        // SAFETY: as the caller promises.
        let (places, iov): (&'static [sys::fi_rma_iov], _) = unsafe {
            (abi::pieces(msg.rma_iov, msg.rma_iov_count)?, abi::pieces(msg.msg_iov, msg.iov_count)?)
        };
        let (place, further) = places.split_first().ok_or(FiError::INVALID)?;
        let len = places.iter().try_fold(0usize, |sum, place| sum.checked_add(place.len));
        if Some(abi::total(iov).ok_or(FiError::TOO_LONG)?) != len {
            return Err(FiError::INVALID);
        }
        let data = (flags & sys::FI_REMOTE_CQ_DATA != 0).then_some(msg.data);
        let to = Call::to(msg.addr, place.addr, place.key, msg.context);
        Ok((Call { flags: Some(flags), data, further, first: place.len, ..to }, iov))
    }

    /// # Safety
    /// `ep` is an endpoint of this provider's, and the memory of `iov` is the call's until the access has ended.
    unsafe fn read(self, ep: *mut sys::fid_ep, iov: &[sys::iovec]) -> Result<usize, FiError> {
        if iov.iter().any(|at| at.iov_len > 0 && at.iov_base.is_null()) {
            return Err(FiError::INVALID);
        }
        abi::total(iov).ok_or(FiError::TOO_LONG)?;
        // SAFETY: as the caller promises.
        unsafe { self.post(ep, iov, |iov, _, _| Ok(What::Read(room(iov)))) }
    }

    /// # Safety
    /// As [`Call::read`].
    unsafe fn write(self, ep: *mut sys::fid_ep, iov: &[sys::iovec]) -> Result<usize, FiError> {
        let (data, several) = (self.data, !self.further.is_empty());
        let whole = abi::total(iov);
        let write = |iov: &[sys::iovec], last: bool, inject: bool| {
            // All pieces together are no longer, whatever one of them has.
            if inject && whole.is_none_or(|len| len > INJECT_SIZE) {
                return Err(FiError::TOO_LONG);
            }
            // SAFETY: as the caller promises.
            let mut bytes = unsafe { outgoing(iov, inject)? };
            if several && inject {
                bytes = OutgoingBytes::Copied(bytes.into_bytes()?);
            }
            Ok(What::Write { bytes, data: data.filter(|_| last) })
        };
        // SAFETY: as the caller promises.
        unsafe { self.post(ep, iov, write) }
    }

    /// Posts the access. `what` makes its part for these pieces of local memory, from whether it is the last one and whether its
    /// bytes are copied at the call.
    ///
    /// # Safety
    /// `ep` is an endpoint of this provider's.
    unsafe fn post(
        self,
        ep: *mut sys::fid_ep,
        iov: &[sys::iovec],
        what: impl Fn(&[sys::iovec], bool, bool) -> Result<What, FiError>,
    ) -> Result<usize, FiError> {
        // SAFETY: as the caller promises.
        let object: &EndpointObject = unsafe { abi::object(ep)? };
        let flags = self.flags.unwrap_or_else(|| object.send_flags());
        if flags & !ACCESS_FLAGS != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        let Call { peer, addr, key, context, first, further: places, .. } = self;
        // The flag may be the endpoint's. It leaves the entry to the other flags, and a call for injection has none.
        let is_injected = self.inject || flags & sys::FI_INJECT != 0;
        let what = |iov: &[sys::iovec], last| what(iov, last, is_injected);
        let (what, further) = match places {
            [] => (what(iov, true)?, Vec::new()),
            [.., last] => {
                let lens = std::iter::once(first).chain(places.iter().map(|place| place.len));
                let mut cut = Cut { iov, begin: 0 };
                let mut pieces = lens.map(|len| cut.take(len));
                let head = what(&pieces.next().unwrap_or_default(), false)?;
                let part = |(place, iov): (&sys::fi_rma_iov, Vec<sys::iovec>)| {
                    let what = what(&iov, std::ptr::eq(place, last))?;
                    Ok(Part { addr: place.addr, key: place.key, what })
                };
                (head, places.iter().zip(pieces).map(part).collect::<Result<Vec<Part>, FiError>>()?)
            }
        };
        let more = flags & sys::FI_MORE != 0;
        // SAFETY: as the caller promises.
        let (context, wanted) = unsafe { context_and_wanted(ep, context, self.inject, flags) };
        object.rdm.access(Access { peer, addr, key, context, wanted, more, what, further }).map(|()| 0)
    }
}

/// Pieces of local memory that are cut where the places of remote memory end.
struct Cut<'a> {
    iov: &'a [sys::iovec],
    /// Where what is left of the first one begins.
    begin: usize,
}

impl Cut<'_> {
    /// The pieces of the next `len` bytes.
    fn take(&mut self, len: usize) -> Vec<sys::iovec> {
        let (mut left, mut taken) = (len, Vec::new());
        while let (Some((first, rest)), true) = (self.iov.split_first(), left > 0) {
            let now = left.min(first.iov_len - self.begin);
            let iov_base = first.iov_base.cast::<u8>().wrapping_add(self.begin).cast();
            taken.push(sys::iovec { iov_base, iov_len: now });
            (left, self.begin) = (left - now, self.begin + now);
            if self.begin == first.iov_len {
                (self.iov, self.begin) = (rest, 0);
            }
        }
        taken
    }
}

/// The memory of a read.
///
/// # Safety
/// It is the read's until that has ended.
unsafe fn room(iov: &[sys::iovec]) -> Room {
    // SAFETY: as the caller promises.
    let piece = |at: &sys::iovec| unsafe { AppRoom::new(at.iov_base, at.iov_len) };
    match iov {
        [one] => Room::One(piece(one)),
        several => Room::Several(several.iter().map(piece).collect()),
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
    let call = Call { inject: true, ..Call::to(dest_addr, addr, key, null_mut()) };
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
    let call = Call { data: Some(data), inject: true, ..Call::to(dest_addr, addr, key, null_mut()) };
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { call.write(ep, &one(buf, len)) })
}
