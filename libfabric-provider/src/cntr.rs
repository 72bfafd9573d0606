//! The table of a counter.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::{self, Head, Object};
use crate::counter::{Counter, Counts};
use crate::domain::{Domain, DomainObject};
use crate::error::FiError;
use crate::refused::Refused;
use crate::sys;
use crate::wait::{Member, WaitSet};
use crate::wake::{self, Deadline};

#[repr(C)]
pub(crate) struct CntrObject {
    _head: Head<sys::fid_cntr>,
    pub(crate) counter: Arc<Counter>,
    wait: sys::fi_wait_obj,
    _domain: Arc<Domain>,
    _set: Option<Arc<WaitSet>>,
}

// SAFETY: `repr(C)`, and it begins with a `fid_cntr`, whose class is set by `open`.
unsafe impl Object for CntrObject {
    const CLASS: u32 = sys::FI_CLASS_CNTR;
}

static FID: sys::fi_ops = sys::fi_ops {
    size: size_of::<sys::fi_ops>(),
    close: Some(close),
    bind: Refused::NO,
    control: Some(control),
    ops_open: Refused::NO,
    tostr: None,
    ops_set: None,
};

static TABLE: sys::fi_ops_cntr = sys::fi_ops_cntr {
    size: size_of::<sys::fi_ops_cntr>(),
    read: Some(read),
    readerr: Some(readerr),
    add: Some(add),
    set: Some(set),
    wait: Some(wait),
    adderr: Some(adderr),
    seterr: Some(seterr),
};

/// `fi_cntr_open`: any thread may call it.
pub(crate) extern "C" fn open(
    domain: *mut sys::fid_domain,
    attr: *mut sys::fi_cntr_attr,
    cntr: *mut *mut sys::fid_cntr,
    context: *mut c_void,
) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a domain of this provider's.
        let domain: &DomainObject = unsafe { abi::object(domain)? };
        // SAFETY: libfabric passes attributes and a place for the answer.
        let (attr, place) =
            unsafe { (attr.as_ref().ok_or(FiError::INVALID)?, cntr.as_mut().ok_or(FiError::INVALID)?) };
        if attr.events != sys::FI_CNTR_EVENTS_COMP {
            return Err(FiError::NOT_THERE);
        }
        if attr.flags != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        let counter = Arc::new(Counter::new(wake::may_wait(attr.wait_obj)?)?);
        // SAFETY: libfabric passes one that is open.
        let set = unsafe { WaitSet::of(attr.wait_obj, attr.wait_set)? };
        if let Some(set) = &set {
            set.add(Member::Counter(Arc::downgrade(&counter)), counter.endpoints().wake()?)?;
        }
        let head = sys::fid_cntr { fid: abi::fid::<CntrObject>(context, &FID), ops: abi::table(&TABLE) };
        let (_head, wait, _domain) = (Head::new(head), attr.wait_obj, domain.domain.clone());
        *place = CntrObject { _head, counter, wait, _domain, _set: set }.give();
        Ok(0)
    })
}

/// `fi_close`: no other call uses the counter meanwhile.
extern "C" fn close(fid: *mut sys::fid) -> c_int {
    // SAFETY: nobody uses it any more, unless it is held.
    unsafe { abi::close_unless_held(fid, |object: &CntrObject| &object.counter) }
}

/// `fi_control`: any thread may call it.
extern "C" fn control(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a counter of this provider's.
        let object: &CntrObject = unsafe { abi::object(fid)? };
        // SAFETY: libfabric passes what belongs to the command.
        unsafe { abi::get_wait(command, object.wait, object.counter.endpoints().wake(), arg) }
    })
}

/// `fi_cntr_read`: any thread may call it. It does the work of the endpoints that are bound to the counter.
extern "C" fn read(cntr: *mut sys::fid_cntr) -> u64 {
    // SAFETY: it is a counter of this provider's.
    abi::answer_value(|| unsafe { abi::object::<CntrObject, _>(cntr)? }.counter.succeeded())
}

/// `fi_cntr_readerr`, as `fi_cntr_read`.
extern "C" fn readerr(cntr: *mut sys::fid_cntr) -> u64 {
    // SAFETY: it is a counter of this provider's.
    abi::answer_value(|| unsafe { abi::object::<CntrObject, _>(cntr)? }.counter.failed())
}

/// The function behind all changes by an application.
fn change(cntr: *mut sys::fid_cntr, change: impl FnOnce(&mut Counts)) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a counter of this provider's.
        unsafe { abi::object::<CntrObject, _>(cntr)? }.counter.change(change).map(|()| 0)
    })
}

/// `fi_cntr_add`: any thread may call it.
extern "C" fn add(cntr: *mut sys::fid_cntr, value: u64) -> c_int {
    change(cntr, |counts| counts.succeeded = counts.succeeded.wrapping_add(value))
}

/// `fi_cntr_adderr`: any thread may call it.
extern "C" fn adderr(cntr: *mut sys::fid_cntr, value: u64) -> c_int {
    change(cntr, |counts| counts.failed = counts.failed.wrapping_add(value))
}

/// `fi_cntr_set`: any thread may call it.
extern "C" fn set(cntr: *mut sys::fid_cntr, value: u64) -> c_int {
    change(cntr, |counts| counts.succeeded = value)
}

/// `fi_cntr_seterr`: any thread may call it.
extern "C" fn seterr(cntr: *mut sys::fid_cntr, value: u64) -> c_int {
    change(cntr, |counts| counts.failed = value)
}

/// `fi_cntr_wait`: any thread may call it, and sleep in it as long as it asked to. A negative timeout is for ever.
extern "C" fn wait(cntr: *mut sys::fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a counter of this provider's.
        let object: &CntrObject = unsafe { abi::object(cntr)? };
        object.counter.wait(threshold, Deadline::after(timeout)).map(|()| 0)
    })
}
