//! The table of atomic operations. Any thread may make any of these calls at any time.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use weft::{Atomic, AtomicOp, AtomicType, Split};

use crate::abi::{self, AppBytes, AppRoom, pieces};
use crate::endpoint::{EndpointObject, context_and_wanted};
use crate::error::FiError;
use crate::info::ACCESS_FLAGS;
use crate::rdm::{Access, AtomicCall, Part, Room, What};
use crate::sys::{self, fi_addr_t, fi_datatype, fi_op};

pub(crate) static TABLE: sys::fi_ops_atomic = sys::fi_ops_atomic {
    size: size_of::<sys::fi_ops_atomic>(),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    readwrite: Some(readwrite),
    readwritev: Some(readwritev),
    readwritemsg: Some(readwritemsg),
    compwrite: Some(compwrite),
    compwritev: Some(compwritev),
    compwritemsg: Some(compwritemsg),
    writevalid: Some(writevalid),
    readwritevalid: Some(readwritevalid),
    compwritevalid: Some(compwritevalid),
};

/// Bytes of operands of one operation, and of the payload of packets that hold them: less than those of every port.
const MOST: usize = 1024;
const ROOM: u32 = 1100;

/// A family of atomic calls, by what the initiator gets back and supplies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Plain,
    Fetch,
    Compare,
}

/// The numbers that UET has for libfabric's.
fn codes(datatype: fi_datatype, op: fi_op) -> Result<(AtomicType, AtomicOp), FiError> {
    let unknown = FiError::NO_OPERATION;
    let datatype = match datatype {
        sys::FI_INT8 => AtomicType::INT8,
        sys::FI_UINT8 => AtomicType::UINT8,
        sys::FI_INT16 => AtomicType::INT16,
        sys::FI_UINT16 => AtomicType::UINT16,
        sys::FI_INT32 => AtomicType::INT32,
        sys::FI_UINT32 => AtomicType::UINT32,
        sys::FI_INT64 => AtomicType::INT64,
        sys::FI_UINT64 => AtomicType::UINT64,
        sys::FI_FLOAT => AtomicType::FLOAT,
        sys::FI_DOUBLE => AtomicType::DOUBLE,
        sys::FI_FLOAT_COMPLEX => AtomicType::FLOAT_COMPLEX,
        sys::FI_DOUBLE_COMPLEX => AtomicType::DOUBLE_COMPLEX,
        _ => return Err(unknown),
    };
    let op = match op {
        sys::FI_MIN => AtomicOp::MIN,
        sys::FI_MAX => AtomicOp::MAX,
        sys::FI_SUM => AtomicOp::SUM,
        sys::FI_PROD => AtomicOp::PROD,
        sys::FI_LOR => AtomicOp::LOR,
        sys::FI_LAND => AtomicOp::LAND,
        sys::FI_BOR => AtomicOp::BOR,
        sys::FI_BAND => AtomicOp::BAND,
        sys::FI_LXOR => AtomicOp::LXOR,
        sys::FI_BXOR => AtomicOp::BXOR,
        sys::FI_ATOMIC_READ => AtomicOp::READ,
        sys::FI_ATOMIC_WRITE => AtomicOp::WRITE,
        sys::FI_CSWAP => AtomicOp::COMPARE_SWAP,
        sys::FI_CSWAP_NE => AtomicOp::COMPARE_SWAP_NE,
        sys::FI_CSWAP_LE => AtomicOp::COMPARE_SWAP_LE,
        sys::FI_CSWAP_LT => AtomicOp::COMPARE_SWAP_LT,
        sys::FI_CSWAP_GE => AtomicOp::COMPARE_SWAP_GE,
        sys::FI_CSWAP_GT => AtomicOp::COMPARE_SWAP_GT,
        sys::FI_MSWAP => AtomicOp::MASKED_SWAP,
        _ => return Err(unknown),
    };
    Ok((datatype, op))
}

/// The size of a value, and how many values one operation has at most.
///
/// # Errors
/// -FI_EOPNOTSUPP: there is no such operation.
pub(crate) fn limits(datatype: fi_datatype, op: fi_op, family: Family) -> Result<(usize, usize), FiError> {
    let (datatype, op) = codes(datatype, op)?;
    let suits = match family {
        Family::Plain => !op.has_operands() && op != AtomicOp::READ,
        Family::Fetch => !op.has_operands(),
        Family::Compare => op.has_operands(),
    };
    match datatype.size() {
        Some(size) if suits && Atomic::most_values(op, datatype, ROOM) > 0 => {
            Ok((size, if family == Family::Compare { 1 } else { MOST / size }))
        }
        _ => Err(FiError::NO_OPERATION),
    }
}

/// An operation as a call describes it.
struct Call {
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
    /// None if the call has none of its own.
    flags: Option<u64>,
    inject: bool,
    /// Places that follow the first one, which has `first` values, if there are several.
    further: &'static [sys::fi_rma_ioc],
    first: usize,
}

fn one(addr: *const c_void, count: usize) -> [sys::fi_ioc; 1] {
    [sys::fi_ioc { addr: addr.cast_mut(), count }]
}

/// Bytes of values of this size at all places together.
fn total(iov: &[sys::fi_ioc], size: usize) -> Result<usize, FiError> {
    let sum = iov.iter().try_fold(0usize, |sum, at| sum.checked_add(at.count));
    sum.and_then(|count| count.checked_mul(size)).filter(|bytes| *bytes <= MOST).ok_or(FiError::TOO_LONG)
}

/// The values at all places, one after the other.
///
/// # Safety
/// They are there.
unsafe fn values(iov: &[sys::fi_ioc], size: usize) -> Result<Vec<u8>, FiError> {
    let mut bytes = Vec::with_capacity(total(iov, size)?);
    for at in iov {
        if at.addr.is_null() && at.count > 0 {
            return Err(FiError::INVALID);
        }
        // SAFETY: as the caller promises.
        bytes.extend_from_slice(unsafe { AppBytes::new(at.addr, at.count * size) }.as_ref());
    }
    Ok(bytes)
}

/// The places of an operation's operands. fi_atomic(3): a read has none, whatever the call says.
///
/// # Safety
/// As [`pieces`], but for a read.
unsafe fn operands<'a>(
    op: fi_op,
    iov: *const sys::fi_ioc,
    count: usize,
) -> Result<&'a [sys::fi_ioc], FiError> {
    if op == sys::FI_ATOMIC_READ {
        return Ok(&[]);
    }
    // SAFETY: as the caller promises.
    unsafe { pieces(iov, count) }
}

impl Call {
    /// An operation at one place, of a call without flags.
    fn to(
        peer: fi_addr_t,
        addr: u64,
        key: u64,
        (datatype, op): (fi_datatype, fi_op),
        context: *mut c_void,
    ) -> Call {
        Call { peer, addr, key, datatype, op, context, flags: None, inject: false, further: &[], first: 0 }
    }

    /// # Safety
    /// `msg` is null or a message whose parts are valid.
    unsafe fn of(
        msg: *const sys::fi_msg_atomic,
        flags: u64,
    ) -> Result<(Call, &'static [sys::fi_ioc]), FiError> {
        // SAFETY: as the caller promises.
        let msg = unsafe { msg.as_ref().ok_or(FiError::INVALID)? };
        // SAFETY: as the caller promises.
        let (places, iov): (&'static [sys::fi_rma_ioc], _) = unsafe {
            (pieces(msg.rma_iov, msg.rma_iov_count)?, operands(msg.op, msg.msg_iov, msg.iov_count)?)
        };
        let (place, further) = places.split_first().ok_or(FiError::INVALID)?;
        let to = Call::to(msg.addr, place.addr, place.key, (msg.datatype, msg.op), msg.context);
        Ok((Call { flags: Some(flags), further, first: place.count, ..to }, iov))
    }

    /// # Safety
    /// `ep` is an endpoint of this provider's, and all memory is the call's: that of `results` until the operation has ended.
    unsafe fn post(
        self,
        ep: *mut sys::fid_ep,
        iov: &[sys::fi_ioc],
        compare: Option<&[sys::fi_ioc]>,
        results: Option<&[sys::fi_ioc]>,
    ) -> Result<usize, FiError> {
        // SAFETY: as the caller promises.
        let object: &EndpointObject = unsafe { abi::object(ep)? };
        let flags = self.flags.unwrap_or_else(|| object.send_flags());
        if flags & !(ACCESS_FLAGS & !sys::FI_REMOTE_CQ_DATA) != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        let family = match (compare, results) {
            (Some(_), _) => Family::Compare,
            (None, Some(_)) => Family::Fetch,
            (None, None) => Family::Plain,
        };
        let (size, most) = limits(self.datatype, self.op, family)?;
        let (datatype, op) = codes(self.datatype, self.op)?;
        let fetched = results.map(|results| total(results, size)).transpose()?;
        let operands = match fetched {
            // It has no operands, and where they would be there may be nothing.
            Some(bytes) if op == AtomicOp::READ => vec![0; bytes],
            // SAFETY: as the caller promises.
            _ => unsafe { values(iov, size)? },
        };
        if operands.len() > most * size {
            return Err(FiError::TOO_LONG);
        }
        if operands.is_empty() || fetched.is_some_and(|len| len != operands.len()) {
            return Err(FiError::INVALID);
        }
        let compare = match compare {
            Some(compare) => {
                // SAFETY: as the caller promises.
                let bytes = unsafe { values(compare, size)? };
                let mut padded = [0; 16];
                padded
                    .get_mut(..bytes.len())
                    .filter(|_| bytes.len() == size)
                    .ok_or(FiError::INVALID)?
                    .copy_from_slice(&bytes);
                Some(u128::from_le_bytes(padded))
            }
            None => None,
        };
        let room = match results {
            Some(results) if results.iter().any(|at| at.addr.is_null() && at.count > 0) => {
                return Err(FiError::INVALID);
            }
            // SAFETY: as the caller promises.
            Some(results) => Some(Room::Several(
                results.iter().map(|at| unsafe { AppRoom::new(at.addr, at.count * size) }).collect(),
            )),
            None => None,
        };
        let Call { peer, addr, key, context, inject, first, further: places, .. } = self;
        let mut whole = AtomicCall { op, datatype, operands, compare, room };
        let mut further = Vec::new();
        if !places.is_empty() {
            let counts = std::iter::once(first).chain(places.iter().map(|place| place.count));
            let parts = whole.cut(counts, size)?;
            let mut parts = parts.into_iter();
            whole = parts.next().ok_or(FiError::INVALID)?;
            let part = |(place, call): (&sys::fi_rma_ioc, AtomicCall)| Part {
                addr: place.addr,
                key: place.key,
                what: What::Atomic(call),
            };
            further = places.iter().zip(parts).map(part).collect();
        }
        let what = What::Atomic(whole);
        let more = flags & sys::FI_MORE != 0;
        // SAFETY: as the caller promises.
        let (context, wanted) = unsafe { context_and_wanted(ep, context, inject, flags) };
        object.rdm.access(Access { peer, addr, key, context, wanted, more, what, further }).map(|()| 0)
    }
}

impl AtomicCall {
    /// The same in parts of so many values.
    ///
    /// # Errors
    /// A part has none, or all together have other than all values.
    fn cut(self, counts: impl Iterator<Item = usize>, size: usize) -> Result<Vec<AtomicCall>, FiError> {
        let AtomicCall { op, datatype, mut operands, compare, room } = self;
        let mut rooms: Option<Vec<AppRoom>> = room.map(|room| match room {
            Room::One(room) => vec![room],
            Room::Several(rooms) => rooms,
        });
        let part = |count: usize| {
            let len = count.checked_mul(size).filter(|len| (1..=operands.len()).contains(len));
            let len = len.ok_or(FiError::INVALID)?;
            let rest = operands.split_off(len);
            let operands = std::mem::replace(&mut operands, rest);
            let room = rooms.as_mut().map(|rooms| Room::Several(cut_rooms(rooms, len)));
            Ok(AtomicCall { op, datatype, operands, compare, room })
        };
        let parts = counts.map(part).collect::<Result<Vec<AtomicCall>, FiError>>()?;
        if operands.is_empty() { Ok(parts) } else { Err(FiError::INVALID) }
    }
}

/// Takes the first `len` bytes from `rooms`.
fn cut_rooms(rooms: &mut Vec<AppRoom>, len: usize) -> Vec<AppRoom> {
    let (mut left, mut taken) = (len, Vec::new());
    while let (Some(first), true) = (rooms.first_mut(), left > 0) {
        let room = first.split_to(left);
        left -= room.as_ref().len();
        taken.push(room);
        if first.as_ref().is_empty() {
            rooms.remove(0);
        }
    }
    taken
}

extern "C" fn write(
    ep: *mut sys::fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let call = Call::to(peer, addr, key, (datatype, op), context);
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { call.post(ep, &one(buf, count), None, None) })
}

extern "C" fn writev(
    ep: *mut sys::fid_ep,
    iov: *const sys::fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let call = Call::to(peer, addr, key, (datatype, op), context);
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { call.post(ep, pieces(iov, count)?, None, None) })
}

extern "C" fn writemsg(ep: *mut sys::fid_ep, msg: *const sys::fi_msg_atomic, flags: u64) -> isize {
    abi::answer_size(|| {
        // SAFETY: libfabric promises it.
        unsafe {
            let (call, iov) = Call::of(msg, flags)?;
            call.post(ep, iov, None, None)
        }
    })
}

extern "C" fn inject(
    ep: *mut sys::fid_ep,
    buf: *const c_void,
    count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
) -> isize {
    let call = Call { inject: true, ..Call::to(peer, addr, key, (datatype, op), null_mut()) };
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { call.post(ep, &one(buf, count), None, None) })
}

extern "C" fn readwrite(
    ep: *mut sys::fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let call = Call::to(peer, addr, key, (datatype, op), context);
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe { call.post(ep, &one(buf, count), None, Some(&one(result, count))) })
}

extern "C" fn readwritev(
    ep: *mut sys::fid_ep,
    iov: *const sys::fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    resultv: *mut sys::fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let call = Call::to(peer, addr, key, (datatype, op), context);
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe {
        call.post(ep, operands(op, iov, count)?, None, Some(pieces(resultv, result_count)?))
    })
}

extern "C" fn readwritemsg(
    ep: *mut sys::fid_ep,
    msg: *const sys::fi_msg_atomic,
    resultv: *mut sys::fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    abi::answer_size(|| {
        // SAFETY: libfabric promises it.
        unsafe {
            let (call, iov) = Call::of(msg, flags)?;
            call.post(ep, iov, None, Some(pieces(resultv, result_count)?))
        }
    })
}

extern "C" fn compwrite(
    ep: *mut sys::fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let call = Call::to(peer, addr, key, (datatype, op), context);
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe {
        call.post(ep, &one(buf, count), Some(&one(compare, count)), Some(&one(result, count)))
    })
}

extern "C" fn compwritev(
    ep: *mut sys::fid_ep,
    iov: *const sys::fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    comparev: *const sys::fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut sys::fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    let call = Call::to(peer, addr, key, (datatype, op), context);
    // SAFETY: libfabric promises it.
    abi::answer_size(|| unsafe {
        let compare = pieces(comparev, compare_count)?;
        call.post(ep, pieces(iov, count)?, Some(compare), Some(pieces(resultv, result_count)?))
    })
}

extern "C" fn compwritemsg(
    ep: *mut sys::fid_ep,
    msg: *const sys::fi_msg_atomic,
    comparev: *const sys::fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut sys::fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    abi::answer_size(|| {
        // SAFETY: libfabric promises it.
        unsafe {
            let (call, iov) = Call::of(msg, flags)?;
            let compare = pieces(comparev, compare_count)?;
            call.post(ep, iov, Some(compare), Some(pieces(resultv, result_count)?))
        }
    })
}

fn valid(datatype: fi_datatype, op: fi_op, count: *mut usize, family: Family) -> c_int {
    abi::answer(|| {
        let (_, most) = limits(datatype, op, family)?;
        // SAFETY: libfabric passes a place for the count.
        *unsafe { count.as_mut().ok_or(FiError::INVALID)? } = most;
        Ok(0)
    })
}

extern "C" fn writevalid(_: *mut sys::fid_ep, datatype: fi_datatype, op: fi_op, count: *mut usize) -> c_int {
    valid(datatype, op, count, Family::Plain)
}

extern "C" fn readwritevalid(
    _: *mut sys::fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    valid(datatype, op, count, Family::Fetch)
}

extern "C" fn compwritevalid(
    _: *mut sys::fid_ep,
    datatype: fi_datatype,
    op: fi_op,
    count: *mut usize,
) -> c_int {
    valid(datatype, op, count, Family::Compare)
}

/// `fi_query_atomic`.
pub(crate) extern "C" fn query(
    _: *mut sys::fid_domain,
    datatype: fi_datatype,
    op: fi_op,
    attr: *mut sys::fi_atomic_attr,
    flags: u64,
) -> c_int {
    abi::answer(|| {
        let family = match flags {
            0 => Family::Plain,
            sys::FI_FETCH_ATOMIC => Family::Fetch,
            sys::FI_COMPARE_ATOMIC => Family::Compare,
            _ => return Err(FiError::NO_OPERATION),
        };
        let (size, count) = limits(datatype, op, family)?;
        // SAFETY: libfabric passes a place for the answer.
        *unsafe { attr.as_mut().ok_or(FiError::INVALID)? } = sys::fi_atomic_attr { count, size };
        Ok(0)
    })
}
