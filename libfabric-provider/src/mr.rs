//! The tables of registered memory.
//!
//! Any thread may make any of these calls at any time. libfabric promises that registered memory stays where it is until it is
//! closed.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use weft::Rights;
use weft::core::region::Region;

use crate::abi::{self, Head, Object};
use crate::cntr::CntrObject;
use crate::domain::{Domain, DomainObject};
use crate::error::FiError;
use crate::memory::{Memories, Registration};
use crate::refused::Refused;
use crate::sys;

/// The first version of libfabric's interface whose applications may give a key with memory (FI_VERSION(1, 5)): fi_mr(3).
const AUTH_KEYS_SINCE: u32 = 1 << 16 | 5;

#[repr(C)]
struct MrObject {
    _head: Head<sys::fid_mr>,
    key: u64,
    /// By which number peers name its first byte.
    base: u64,
    domain: Arc<Domain>,
}

// SAFETY: `repr(C)`, and it begins with a `fid_mr`, whose class is set by `register`.
unsafe impl Object for MrObject {
    const CLASS: u32 = sys::FI_CLASS_MR;
}

static FID: sys::fi_ops = sys::fi_ops {
    size: size_of::<sys::fi_ops>(),
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ops_open: Refused::NO,
    tostr: None,
    ops_set: None,
};

pub(crate) static TABLE: sys::fi_ops_mr = sys::fi_ops_mr {
    size: size_of::<sys::fi_ops_mr>(),
    reg: Some(reg),
    regv: Some(regv),
    regattr: Some(regattr),
};

/// What is to be registered.
struct Wanted {
    piece: sys::iovec,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    context: *mut c_void,
}

/// # Safety
/// `fid` is a domain of this provider's, there is a place for the answer at `mr`, and the memory stays there until it is closed.
unsafe fn register(fid: *mut sys::fid, wanted: &Wanted, mr: *mut *mut sys::fid_mr) -> Result<c_int, FiError> {
    // SAFETY: as the caller promises.
    let (object, place) =
        unsafe { (abi::object::<DomainObject, _>(fid)?, mr.as_mut().ok_or(FiError::INVALID)?) };
    // Any memory may get a counter.
    if wanted.flags & !sys::FI_RMA_EVENT != 0 {
        return Err(FiError::BAD_FLAGS);
    }
    // fi_mr(3): it is reserved.
    if wanted.offset != 0 {
        return Err(FiError::INVALID);
    }
    let sys::iovec { iov_base, iov_len } = wanted.piece;
    let bytes = match NonNull::new(iov_base.cast::<u8>()) {
        _ if iov_len == 0 => None,
        _ if iov_len > u32::MAX as usize => {
            crate::log::warn(&format!(
                "a piece of registered memory has at most {} bytes, not {iov_len}: register several",
                u32::MAX
            ));
            return Err(FiError::TOO_LONG);
        }
        None => return Err(FiError::INVALID),
        Some(base) => {
            let len = iov_len as u32;
            // SAFETY: as the caller promises: the memory is there until `close`, which withdraws it first. The application may
            // use it meanwhile, as it may any memory that others write to.
            let region = unsafe { Region::foreign(base, iov_len, Box::new(())) };
            let region = region.map_err(|_| FiError::INVALID)?;
            Some(region.slice(0, len).map_err(|_| FiError::INVALID)?)
        }
    };
    let modes = object.domain.modes;
    let key = if modes.own_keys { Memories::draw_key() } else { wanted.requested_key };
    if object.domain.place.reserves(key) {
        return Err(FiError::NO_KEY);
    }
    let base = if modes.virtual_addresses { iov_base.addr() as u64 } else { 0 };
    let has = |bit| wanted.access & bit != 0;
    let write = has(sys::FI_REMOTE_WRITE);
    let rights = Rights { read: has(sys::FI_REMOTE_READ), write, atomic: write };
    let events = object.domain.events_of_registrations()?;
    object.domain.memories.register(&Registration { key, bytes, base, rights })?;
    let fid = abi::fid::<MrObject>(wanted.context, &FID);
    let head = sys::fid_mr { fid, mem_desc: std::ptr::null_mut(), key };
    *place = MrObject { _head: Head::new(head), key, base, domain: object.domain.clone() }.give();
    // The application has the descriptor before it can read the event.
    if let Some(events) = events {
        events.push_registered((*place).addr(), wanted.context.addr())?;
    }
    Ok(0)
}

extern "C" fn reg(
    fid: *mut sys::fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut sys::fid_mr,
    context: *mut c_void,
) -> c_int {
    let piece = sys::iovec { iov_base: buf.cast_mut(), iov_len: len };
    // SAFETY: libfabric promises it.
    abi::answer(|| unsafe {
        register(fid, &Wanted { piece, access, offset, requested_key, flags, context }, mr)
    })
}

/// The only piece of memory to register.
///
/// # Safety
/// There are `count` pieces at `iov`.
unsafe fn only(iov: *const sys::iovec, count: usize) -> Result<sys::iovec, FiError> {
    // SAFETY: as the caller promises.
    match unsafe { abi::pieces(iov, count)? } {
        [one] => Ok(sys::iovec { iov_base: one.iov_base, iov_len: one.iov_len }),
        _ => Err(FiError::INVALID),
    }
}

extern "C" fn regv(
    fid: *mut sys::fid,
    iov: *const sys::iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut sys::fid_mr,
    context: *mut c_void,
) -> c_int {
    abi::answer(|| {
        // SAFETY: libfabric promises it.
        unsafe {
            let piece = only(iov, count)?;
            register(fid, &Wanted { piece, access, offset, requested_key, flags, context }, mr)
        }
    })
}

extern "C" fn regattr(
    fid: *mut sys::fid,
    attr: *const sys::fi_mr_attr,
    flags: u64,
    mr: *mut *mut sys::fid_mr,
) -> c_int {
    abi::answer(|| {
        // SAFETY: libfabric promises it.
        unsafe {
            let attr = attr.as_ref().ok_or(FiError::INVALID)?;
            let object: &DomainObject = abi::object(fid)?;
            let has_key = object.domain.fabric.api_version >= AUTH_KEYS_SINCE && attr.auth_key_size != 0;
            // fi_mr(3): the kind of memory is ignored without FI_HMEM, which nobody has here.
            if has_key {
                return Err(FiError::NOT_THERE);
            }
            let piece = only(attr.mr_iov, attr.iov_count)?;
            let (access, offset, requested_key, context) =
                (attr.access, attr.offset, attr.requested_key, attr.context);
            register(fid, &Wanted { piece, access, offset, requested_key, flags, context }, mr)
        }
    })
}

/// `fi_close`: peers have no access when it returns.
extern "C" fn close(fid: *mut sys::fid) -> c_int {
    abi::answer(|| {
        // SAFETY: it is registered memory of this provider's, and nobody uses it any more.
        let object = unsafe { abi::take::<MrObject, _>(fid) };
        object.domain.memories.withdraw(object.key).map(|()| 0)
    })
}

/// `fi_mr_bind`: a counter counts what peers write to the memory, and their atomic operations on it, through endpoints that were
/// opened with FI_RMA_EVENT.
extern "C" fn bind(fid: *mut sys::fid, other: *mut sys::fid, flags: u64) -> c_int {
    abi::answer(|| {
        // SAFETY: it is registered memory of this provider's; the class of what is bound is checked.
        let (object, cntr) =
            unsafe { (abi::object::<MrObject, _>(fid)?, abi::object::<CntrObject, _>(other)) };
        let cntr: &CntrObject = cntr.map_err(|_| FiError::NOT_THERE)?;
        if flags != sys::FI_REMOTE_WRITE {
            return Err(FiError::BAD_FLAGS);
        }
        object.domain.memories.bind(object.key, &cntr.counter).map(|()| 0)
    })
}

/// `fi_mr_enable`, as memory is always enabled, and `fi_mr_raw_attr`.
extern "C" fn control(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    abi::answer(|| {
        // SAFETY: it is registered memory of this provider's.
        let object: &MrObject = unsafe { abi::object(fid)? };
        match command as u32 {
            sys::FI_ENABLE => Ok(0),
            // SAFETY: libfabric passes its attributes with this command.
            sys::FI_GET_RAW_MR => unsafe { raw_attributes(object, arg.cast()) }.map(|()| 0),
            _ => Err(FiError::NOT_THERE),
        }
    })
}

/// Writes the base and the key of memory. The raw key is the bytes of the key.
///
/// # Safety
/// `attr` is null, or its pointers are places for a base, a length and as many bytes, or null.
unsafe fn raw_attributes(object: &MrObject, attr: *mut sys::fi_mr_raw_attr) -> Result<(), FiError> {
    // SAFETY: as the caller promises.
    let (attr, len) = unsafe {
        let attr = attr.as_ref().ok_or(FiError::INVALID)?;
        (attr, attr.key_size.as_mut().ok_or(FiError::INVALID)?)
    };
    if attr.flags != 0 {
        return Err(FiError::BAD_FLAGS);
    }
    let key = object.key.to_ne_bytes();
    let room = std::mem::replace(len, key.len());
    if room < key.len() {
        return Err(FiError::TOO_SMALL);
    }
    if attr.raw_key.is_null() {
        return Err(FiError::INVALID);
    }
    // SAFETY: as the caller promises; applications may give any address for the base.
    unsafe {
        attr.raw_key.copy_from_nonoverlapping(key.as_ptr(), key.len());
        if !attr.base_addr.is_null() {
            attr.base_addr.write_unaligned(object.base);
        }
    }
    Ok(())
}

/// `fi_mr_map_raw` and `fi_mr_unmap_key`, of a domain: a raw key of a peer is the bytes of its key, and nothing is kept of it.
pub(crate) extern "C" fn control_domain(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a domain of this provider's.
        let _: &DomainObject = unsafe { abi::object(fid)? };
        match command as u32 {
            // SAFETY: libfabric passes a raw key with this command.
            sys::FI_MAP_RAW_MR => unsafe {
                let map = arg.cast::<sys::fi_mr_map_raw>().as_ref().ok_or(FiError::INVALID)?;
                let key = map.key.as_mut().ok_or(FiError::INVALID)?;
                if map.flags != 0 {
                    return Err(FiError::BAD_FLAGS);
                }
                if map.raw_key.is_null() || map.key_size != size_of::<u64>() {
                    return Err(FiError::INVALID);
                }
                *key = u64::from_ne_bytes(map.raw_key.cast::<[u8; 8]>().read());
                Ok(0)
            },
            sys::FI_UNMAP_KEY => Ok(0),
            _ => Err(FiError::NOT_THERE),
        }
    })
}
