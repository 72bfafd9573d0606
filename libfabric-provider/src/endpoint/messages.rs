//! The tables of messages with and without tags.
//!
//! Any thread may make any of these calls at any time.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use weft::{Found, MAX_MESSAGE, Matching};

use super::EndpointObject;
use crate::abi::{self, AppBytes, AppRoom};
use crate::error::FiError;
use crate::kind::Kind;
use crate::rdm::{INJECT_SIZE, Incoming, Outgoing, OutgoingBytes, Peek, Room, Wanted, Which};
use crate::sys::{self, fi_addr_t};

pub(super) static MESSAGES: sys::fi_ops_msg = sys::fi_ops_msg {
    size: size_of::<sys::fi_ops_msg>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
};

pub(super) static TAGGED: sys::fi_ops_tagged = sys::fi_ops_tagged {
    size: size_of::<sys::fi_ops_tagged>(),
    recv: Some(trecv),
    recvv: Some(trecvv),
    recvmsg: Some(trecvmsg),
    send: Some(tsend),
    sendv: Some(tsendv),
    sendmsg: Some(tsendmsg),
    inject: Some(tinject),
    senddata: Some(tsenddata),
    injectdata: Some(tinjectdata),
};

/// A message as a call describes it.
struct Message {
    to: fi_addr_t,
    tag: Option<u64>,
    data: Option<u64>,
    context: *mut c_void,
    /// None if the call has none of its own.
    flags: Option<u64>,
    /// Whether the call is one for injection: it copies the message, which has no entry when it was sent.
    inject: bool,
}

impl Message {
    /// A message without a tag of a call that has neither data nor flags.
    fn to(to: fi_addr_t, context: *mut c_void) -> Message {
        Message { to, tag: None, data: None, context, flags: None, inject: false }
    }

    /// The same with a tag.
    fn tagged(to: fi_addr_t, tag: u64, context: *mut c_void) -> Message {
        Message { tag: Some(tag), ..Message::to(to, context) }
    }

    /// A message without a tag of a call for injection, which has no context of its own.
    fn injected(to: fi_addr_t) -> Message {
        Message { inject: true, ..Message::to(to, null_mut()) }
    }

    /// The same of a call with flags, which say whether its data counts.
    fn with_flags(self, flags: u64, data: u64) -> Message {
        let data = (flags & sys::FI_REMOTE_CQ_DATA != 0).then_some(data);
        Message { data, flags: Some(flags), ..self }
    }

    /// # Safety
    /// `ep` is an endpoint of this provider's, and the bytes of `iov` are as [`AppBytes::new`] demands.
    unsafe fn send(self, ep: *mut sys::fid_ep, iov: &[sys::iovec]) -> Result<usize, FiError> {
        // SAFETY: as the caller promises.
        let object: &EndpointObject = unsafe { abi::object(ep)? };
        let flags = self.flags.unwrap_or_else(|| object.send_flags());
        if flags & !(object.kind.send_flags() | sys::FI_REMOTE_CQ_DATA | sys::FI_MORE) != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        // FI_INJECT may be a default of the endpoint. It only has the bytes copied: the other flags say whether the message has an entry. A
        // message of fi_inject has none.
        let is_injected = self.inject || flags & sys::FI_INJECT != 0;
        // SAFETY: as the caller promises.
        let bytes = unsafe { outgoing(iov, is_injected)? };
        let Message { to, tag, data, context, inject, .. } = self;
        let more = flags & sys::FI_MORE != 0;
        // SAFETY: as the caller promises.
        let (context, wanted) = unsafe { context_and_wanted(ep, context, inject, flags) };
        object.rdm.send(Outgoing { bytes, to, tag, data, context, wanted, more }).map(|()| 0)
    }
}

/// The context of an operation, and whether it has an entry. One that a call for injection begins has neither. If it fails, its
/// entry has the endpoint's context.
///
/// # Safety
/// `ep` is open.
pub(crate) unsafe fn context_and_wanted(
    ep: *const sys::fid_ep,
    context: *mut c_void,
    inject: bool,
    flags: u64,
) -> (usize, Wanted) {
    if inject {
        // SAFETY: as the caller promises.
        return (unsafe { abi::context(ep.cast()) }, Wanted::Never);
    }
    (context.addr(), wanted(flags))
}

fn wanted(flags: u64) -> Wanted {
    if flags & sys::FI_COMPLETION != 0 { Wanted::Always } else { Wanted::AsBound }
}

/// The bytes of a message.
///
/// # Safety
/// As [`AppBytes::new`] demands of each piece.
pub(crate) unsafe fn outgoing(iov: &[sys::iovec], inject: bool) -> Result<OutgoingBytes, FiError> {
    // SAFETY: as the caller promises.
    let piece = |at: &sys::iovec| unsafe { AppBytes::new(at.iov_base, at.iov_len) };
    if iov.iter().any(|at| at.iov_len > 0 && at.iov_base.is_null()) {
        return Err(FiError::INVALID);
    }
    let len = abi::total(iov).ok_or(FiError::TOO_LONG)?;
    if inject && len > INJECT_SIZE {
        return Err(FiError::TOO_LONG);
    }
    Ok(match iov {
        [one] if inject => OutgoingBytes::Injected(piece(one)),
        [one] => OutgoingBytes::Lent(piece(one)),
        several => OutgoingBytes::Gathered(several.iter().map(piece).collect()),
    })
}

/// Flags of receives that have to do with messages that wait: at most two of them.
const CHOICE: u64 = sys::FI_PEEK | sys::FI_CLAIM | sys::FI_DISCARD;
const PEEK_AND_CLAIM: u64 = sys::FI_PEEK | sys::FI_CLAIM;
const PEEK_AND_DISCARD: u64 = sys::FI_PEEK | sys::FI_DISCARD;
const CLAIM_AND_DISCARD: u64 = sys::FI_CLAIM | sys::FI_DISCARD;

/// A receive as a call describes it.
struct Receive {
    from: fi_addr_t,
    matching: Matching,
    context: *mut c_void,
    /// None if the call has none of its own.
    flags: Option<u64>,
}

impl Receive {
    /// A receive for messages without a tag.
    fn untagged(from: fi_addr_t, context: *mut c_void) -> Receive {
        Receive { from, matching: Matching::Untagged, context, flags: None }
    }

    /// A receive for messages whose tag is `tag`, leaving aside the bits of `ignore`.
    fn tagged(from: fi_addr_t, tag: u64, ignore: u64, context: *mut c_void) -> Receive {
        Receive { from, matching: Matching::Tagged { tag, ignore }, context, flags: None }
    }

    /// # Safety
    /// `ep` is an endpoint of this provider's, and the memory of `iov` is as [`AppRoom::new`] demands.
    unsafe fn post(self, ep: *mut sys::fid_ep, iov: &[sys::iovec]) -> Result<usize, FiError> {
        // SAFETY: as the caller promises.
        let object: &EndpointObject = unsafe { abi::object(ep)? };
        // A default of receives for many messages is one of those without tags.
        let default = match self.matching {
            Matching::Untagged => object.receive_flags.load(Ordering::Relaxed),
            Matching::Tagged { .. } => object.receive_flags.load(Ordering::Relaxed) & !sys::FI_MULTI_RECV,
        };
        let flags = self.flags.unwrap_or(default);
        let choice = if object.kind == Kind::Rdm { CHOICE } else { 0 };
        if flags & !(object.kind.receive_flags() | choice | sys::FI_MORE) != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        let (from, matching, context, wanted) =
            (self.from, self.matching, self.context.addr(), wanted(flags));
        let peek = |found| object.rdm.peek(Peek { from, matching, found, context, wanted });
        let which = match flags & (CHOICE | sys::FI_MULTI_RECV) {
            0 => Which::First,
            sys::FI_MULTI_RECV if matching == Matching::Untagged && iov.len() == 1 => Which::Many,
            sys::FI_CLAIM => Which::Claimed,
            sys::FI_PEEK => return peek(Found::Stays).map(|()| 0),
            PEEK_AND_CLAIM => return peek(Found::IsClaimed).map(|()| 0),
            PEEK_AND_DISCARD => return peek(Found::IsDiscarded).map(|()| 0),
            CLAIM_AND_DISCARD => return object.rdm.discard(matching, context, wanted).map(|()| 0),
            _ => return Err(FiError::BAD_FLAGS),
        };
        // No memory is as long as half of all addresses.
        let is_memory = |at: &sys::iovec| {
            at.iov_len <= isize::MAX as usize && (at.iov_len == 0 || !at.iov_base.is_null())
        };
        if !iov.iter().all(is_memory) {
            return Err(FiError::INVALID);
        }
        // No message needs more room.
        let mut left = MAX_MESSAGE as usize;
        let mut piece = |at: &sys::iovec| {
            let len = at.iov_len.min(left);
            left -= len;
            // SAFETY: as the caller promises.
            unsafe { AppRoom::new(at.iov_base, len) }
        };
        let room = match iov {
            [one] => Room::One(piece(one)),
            several => Room::Several(several.iter().map(&mut piece).collect()),
        };
        object.rdm.receive(Incoming { room, from, matching, context, wanted, which }).map(|()| 0)
    }
}

pub(crate) fn one(buf: *const c_void, len: usize) -> [sys::iovec; 1] {
    [sys::iovec { iov_base: buf.cast_mut(), iov_len: len }]
}

extern "C" fn send(
    ep: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    dest_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { Message::to(dest_addr, context).send(ep, &one(buf, len)) })
}

extern "C" fn sendv(
    ep: *mut sys::fid_ep,
    iov: *const sys::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    dest_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { Message::to(dest_addr, context).send(ep, abi::pieces(iov, count)?) })
}

extern "C" fn sendmsg(ep: *mut sys::fid_ep, msg: *const sys::fi_msg, flags: u64) -> isize {
    abi::answer_size(|| {
        // SAFETY: libfabric passes a message.
        let msg = unsafe { msg.as_ref().ok_or(FiError::INVALID)? };
        let message = Message::to(msg.addr, msg.context).with_flags(flags, msg.data);
        // SAFETY: libfabric promises it.
        unsafe { message.send(ep, abi::pieces(msg.msg_iov, msg.iov_count)?) }
    })
}

extern "C" fn inject(ep: *mut sys::fid_ep, buf: *const c_void, len: usize, dest_addr: fi_addr_t) -> isize {
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { Message::injected(dest_addr).send(ep, &one(buf, len)) })
}

extern "C" fn senddata(
    ep: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    dest_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let message = Message { data: Some(data), ..Message::to(dest_addr, context) };
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { message.send(ep, &one(buf, len)) })
}

extern "C" fn injectdata(
    ep: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest_addr: fi_addr_t,
) -> isize {
    let message = Message { data: Some(data), ..Message::injected(dest_addr) };
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { message.send(ep, &one(buf, len)) })
}

extern "C" fn tsend(
    ep: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    dest_addr: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let message = Message::tagged(dest_addr, tag, context);
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { message.send(ep, &one(buf, len)) })
}

extern "C" fn tsendv(
    ep: *mut sys::fid_ep,
    iov: *const sys::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    dest_addr: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let message = Message::tagged(dest_addr, tag, context);
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { message.send(ep, abi::pieces(iov, count)?) })
}

extern "C" fn tsendmsg(ep: *mut sys::fid_ep, msg: *const sys::fi_msg_tagged, flags: u64) -> isize {
    abi::answer_size(|| {
        // SAFETY: libfabric passes a message.
        let msg = unsafe { msg.as_ref().ok_or(FiError::INVALID)? };
        let message = Message::tagged(msg.addr, msg.tag, msg.context).with_flags(flags, msg.data);
        // SAFETY: libfabric promises it.
        unsafe { message.send(ep, abi::pieces(msg.msg_iov, msg.iov_count)?) }
    })
}

extern "C" fn tinject(
    ep: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    dest_addr: fi_addr_t,
    tag: u64,
) -> isize {
    let message = Message { tag: Some(tag), ..Message::injected(dest_addr) };
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { message.send(ep, &one(buf, len)) })
}

extern "C" fn tsenddata(
    ep: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    dest_addr: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let message = Message { data: Some(data), ..Message::tagged(dest_addr, tag, context) };
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { message.send(ep, &one(buf, len)) })
}

extern "C" fn tinjectdata(
    ep: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest_addr: fi_addr_t,
    tag: u64,
) -> isize {
    let message = Message { tag: Some(tag), data: Some(data), ..Message::injected(dest_addr) };
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { message.send(ep, &one(buf, len)) })
}

extern "C" fn recv(
    ep: *mut sys::fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    src_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let receive = Receive::untagged(src_addr, context);
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { receive.post(ep, &one(buf, len)) })
}

extern "C" fn recvv(
    ep: *mut sys::fid_ep,
    iov: *const sys::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    src_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    let receive = Receive::untagged(src_addr, context);
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { receive.post(ep, abi::pieces(iov, count)?) })
}

extern "C" fn recvmsg(ep: *mut sys::fid_ep, msg: *const sys::fi_msg, flags: u64) -> isize {
    abi::answer_size(|| {
        // SAFETY: libfabric passes a message.
        let msg = unsafe { msg.as_ref().ok_or(FiError::INVALID)? };
        let receive = Receive { flags: Some(flags), ..Receive::untagged(msg.addr, msg.context) };
        // SAFETY: libfabric promises it.
        unsafe { receive.post(ep, abi::pieces(msg.msg_iov, msg.iov_count)?) }
    })
}

extern "C" fn trecv(
    ep: *mut sys::fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    src_addr: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let receive = Receive::tagged(src_addr, tag, ignore, context);
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { receive.post(ep, &one(buf, len)) })
}

extern "C" fn trecvv(
    ep: *mut sys::fid_ep,
    iov: *const sys::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    src_addr: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let receive = Receive::tagged(src_addr, tag, ignore, context);
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { receive.post(ep, abi::pieces(iov, count)?) })
}

extern "C" fn trecvmsg(ep: *mut sys::fid_ep, msg: *const sys::fi_msg_tagged, flags: u64) -> isize {
    abi::answer_size(|| {
        // SAFETY: libfabric passes a message.
        let msg = unsafe { msg.as_ref().ok_or(FiError::INVALID)? };
        let tagged = Receive::tagged(msg.addr, msg.tag, msg.ignore, msg.context);
        let receive = Receive { flags: Some(flags), ..tagged };
        // SAFETY: libfabric promises it.
        unsafe { receive.post(ep, abi::pieces(msg.msg_iov, msg.iov_count)?) }
    })
}
