//! The table of a fabric: it opens domains and event queues.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::{self, Head, Object};
use crate::cntr::CntrObject;
use crate::cq::CqObject;
use crate::eq::EqObject;
use crate::error::FiError;
use crate::refused::Refused;
use crate::wait::{self, WaitObject};
use crate::{domain, eq, opened, sys};

/// What the objects of a fabric have in common.
#[derive(Debug)]
pub(crate) struct Fabric {
    /// The version of libfabric's interface that the application was written for.
    pub(crate) api_version: u32,
}

#[repr(C)]
pub(crate) struct FabricObject {
    _head: Head<sys::fid_fabric>,
    pub(crate) fabric: Arc<Fabric>,
}

// SAFETY: `repr(C)`, and it begins with a `fid_fabric`, whose class is set by `open`.
unsafe impl Object for FabricObject {
    const CLASS: u32 = sys::FI_CLASS_FABRIC;
}

static FID: sys::fi_ops = sys::fi_ops {
    size: size_of::<sys::fi_ops>(),
    close: Some(close),
    bind: Refused::NO,
    control: Refused::NO,
    ops_open: Refused::NO,
    tostr: None,
    ops_set: None,
};

static TABLE: sys::fi_ops_fabric = sys::fi_ops_fabric {
    size: size_of::<sys::fi_ops_fabric>(),
    domain: Some(domain::open),
    passive_ep: Refused::NO,
    eq_open: Some(eq::open),
    wait_open: Some(wait::open),
    trywait: Some(trywait),
    domain2: Some(domain::open2),
};

/// `fi_fabric`: any thread may call it.
pub(crate) extern "C" fn open(
    attr: *mut sys::fi_fabric_attr,
    fabric: *mut *mut sys::fid_fabric,
    context: *mut c_void,
) -> c_int {
    abi::answer(|| {
        // SAFETY: libfabric passes valid pointers.
        let (attr, place) =
            unsafe { (attr.as_ref().ok_or(FiError::INVALID)?, fabric.as_mut().ok_or(FiError::INVALID)?) };
        // SAFETY: the name is null or a text.
        let name = unsafe { abi::text(attr.name)? };
        if name.is_some_and(|name| name.as_bytes() != crate::NAME.to_bytes()) {
            return Err(FiError::NO_DATA);
        }
        let api_version = attr.api_version;
        let head = sys::fid_fabric {
            fid: abi::fid::<FabricObject>(context, &FID),
            ops: abi::table(&TABLE),
            api_version,
        };
        *place = FabricObject { _head: Head::new(head), fabric: Arc::new(Fabric { api_version }) }.give();
        opened::add_fabric((*place).expose_provenance()).map(|()| 0)
    })
}

/// `fi_close`: no other call uses the fabric meanwhile.
extern "C" fn close(fid: *mut sys::fid) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a fabric of this provider's.
        let object: &FabricObject = unsafe { abi::object(fid)? };
        if Arc::strong_count(&object.fabric) > 1 {
            return Err(FiError::BUSY);
        }
        opened::remove(fid.addr())?;
        // SAFETY: nobody uses it any more.
        drop(unsafe { abi::take::<FabricObject, _>(fid) });
        Ok(0)
    })
}

/// `fi_trywait`: any thread may call it. That an endpoint cannot work is an error when no object has something for the caller.
extern "C" fn trywait(_fabric: *mut sys::fid_fabric, fids: *mut *mut sys::fid, count: c_int) -> c_int {
    abi::answer(|| {
        let count = usize::try_from(count).map_err(|_| FiError::INVALID)?;
        if count > 0 && fids.is_null() {
            return Err(FiError::INVALID);
        }
        let mut failed = None;
        for n in 0..count {
            // SAFETY: there are `count` descriptors, of any class.
            let fid = unsafe { *fids.add(n) };
            // SAFETY: as before; the classes are checked.
            let (cq, cntr, eq, set) = unsafe {
                (
                    abi::object::<CqObject, _>(fid),
                    abi::object::<CntrObject, _>(fid),
                    abi::object::<EqObject, _>(fid),
                    abi::object::<WaitObject, _>(fid),
                )
            };
            let may_sleep = match (cq, cntr, eq, set) {
                (Ok(cq), ..) => cq.queue.try_wait(),
                (_, Ok(cntr), ..) => cntr.counter.try_wait(),
                (_, _, Ok(eq), _) => eq.queue.try_wait(),
                (.., Ok(set)) => set.set.try_wait(),
                _ => return Err(FiError::INVALID),
            };
            match may_sleep {
                Ok(true) => {}
                Ok(false) => return Err(FiError::AGAIN),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(0), Err)
    })
}
