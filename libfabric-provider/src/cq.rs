//! The table of a completion queue.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use crate::abi::{self, Head, Object};
use crate::domain::{Domain, DomainObject};
use crate::error::FiError;
use crate::queue::{Entry, Queue};
use crate::refused::Refused;
use crate::sys::{self, fi_addr_t};
use crate::wait::{Member, WaitSet};
use crate::wake::{self, Deadline};

/// Entries of a queue whose application does not say how many it wants.
const DEFAULT_SIZE: usize = 4096;
/// The most entries of a queue.
const MOST: usize = 1 << 20;
/// The first version of libfabric's interface whose error entries say how long their data is.
pub(crate) const ERR_DATA_SIZE_SINCE: u32 = 1 << 16 | 5;

#[repr(C)]
pub(crate) struct CqObject {
    _head: Head<sys::fid_cq>,
    pub(crate) queue: Arc<Queue>,
    format: Format,
    wait: sys::fi_wait_obj,
    domain: Arc<Domain>,
    _set: Option<Arc<WaitSet>>,
}

// SAFETY: `repr(C)`, and it begins with a `fid_cq`, whose class is set by `open`.
unsafe impl Object for CqObject {
    const CLASS: u32 = sys::FI_CLASS_CQ;
}

/// The form of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Context,
    Message,
    Data,
    Tagged,
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

static TABLE: sys::fi_ops_cq = sys::fi_ops_cq {
    size: size_of::<sys::fi_ops_cq>(),
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror: Some(strerror),
};

/// `fi_cq_open`: any thread may call it.
pub(crate) extern "C" fn open(
    domain: *mut sys::fid_domain,
    attr: *mut sys::fi_cq_attr,
    cq: *mut *mut sys::fid_cq,
    context: *mut c_void,
) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a domain of this provider's.
        let domain: &DomainObject = unsafe { abi::object(domain)? };
        // SAFETY: libfabric passes attributes and a place for the answer.
        let (attr, place) =
            unsafe { (attr.as_ref().ok_or(FiError::INVALID)?, cq.as_mut().ok_or(FiError::INVALID)?) };
        let format = match attr.format {
            sys::FI_CQ_FORMAT_UNSPEC | sys::FI_CQ_FORMAT_CONTEXT => Format::Context,
            sys::FI_CQ_FORMAT_MSG => Format::Message,
            sys::FI_CQ_FORMAT_DATA => Format::Data,
            sys::FI_CQ_FORMAT_TAGGED => Format::Tagged,
            _ => return Err(FiError::INVALID),
        };
        let waits = wake::may_wait(attr.wait_obj)?;
        // FI_AFFINITY and a condition of waits are hints that nothing depends on but the number of wake-ups.
        if attr.flags & !sys::FI_AFFINITY != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        let size = if attr.size == 0 { DEFAULT_SIZE } else { attr.size };
        if size > MOST {
            return Err(FiError::INVALID);
        }
        // SAFETY: libfabric passes one that is open.
        let set = unsafe { WaitSet::of(attr.wait_obj, attr.wait_set)? };
        let queue = Arc::new(Queue::new(size, waits)?);
        if let Some(set) = &set {
            set.add(Member::Queue(Arc::downgrade(&queue)), queue.endpoints().wake()?)?;
        }
        let head = sys::fid_cq { fid: abi::fid::<CqObject>(context, &FID), ops: abi::table(&TABLE) };
        let (wait, domain) = (attr.wait_obj, domain.domain.clone());
        *place = CqObject { _head: Head::new(head), queue, format, wait, domain, _set: set }.give();
        Ok(0)
    })
}

/// `fi_close`: no other call uses the queue meanwhile.
extern "C" fn close(fid: *mut sys::fid) -> c_int {
    // SAFETY: nobody uses it any more, unless it is held.
    unsafe { abi::close_unless_held(fid, |object: &CqObject| &object.queue) }
}

/// `fi_control`: any thread may call it.
extern "C" fn control(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a completion queue of this provider's.
        let object: &CqObject = unsafe { abi::object(fid)? };
        // SAFETY: libfabric passes what belongs to the command.
        unsafe { abi::get_wait(command, object.wait, object.queue.endpoints().wake(), arg) }
    })
}

impl Format {
    /// Writes an entry at place `n` of an application's array.
    ///
    /// # Safety
    /// There is room for more than `n` entries of this form at `buf`.
    unsafe fn write(self, entry: &Entry, buf: *mut c_void, n: usize) {
        let context = entry.context as *mut c_void;
        let &Entry { flags, len, data, tag, .. } = entry;
        let place = entry.buf as *mut c_void;
        // SAFETY: as the caller promises. Applications may give any address.
        unsafe {
            match self {
                Format::Context => {
                    let entry = sys::fi_cq_entry { op_context: context };
                    buf.cast::<sys::fi_cq_entry>().add(n).write_unaligned(entry);
                }
                Format::Message => {
                    let entry = sys::fi_cq_msg_entry { op_context: context, flags, len };
                    buf.cast::<sys::fi_cq_msg_entry>().add(n).write_unaligned(entry);
                }
                Format::Data => {
                    let entry = sys::fi_cq_data_entry { op_context: context, flags, len, buf: place, data };
                    buf.cast::<sys::fi_cq_data_entry>().add(n).write_unaligned(entry);
                }
                Format::Tagged => {
                    let entry =
                        sys::fi_cq_tagged_entry { op_context: context, flags, len, buf: place, data, tag };
                    buf.cast::<sys::fi_cq_tagged_entry>().add(n).write_unaligned(entry);
                }
            }
        }
    }
}

/// The one function behind all reads: with a deadline it sleeps.
fn read_entries(
    cq: *mut sys::fid_cq,
    buf: *mut c_void,
    count: usize,
    src_addr: *mut fi_addr_t,
    deadline: Option<Deadline>,
) -> isize {
    abi::answer_size(|| {
        // SAFETY: it is a completion queue of this provider's.
        let object: &CqObject = unsafe { abi::object(cq)? };
        let write = |n: usize, entry: &Entry| {
            // SAFETY: libfabric promises room for `count` entries, and so many numbers if there is an array for them.
            unsafe {
                object.format.write(entry, buf, n);
                if !src_addr.is_null() {
                    src_addr.add(n).write(entry.source);
                }
            }
        };
        if count > 0 && buf.is_null() {
            return Err(FiError::INVALID);
        }
        match deadline {
            None => object.queue.read(count, write),
            Some(deadline) => object.queue.read_within(deadline, count, write),
        }
    })
}

/// `fi_cq_read`: any thread may call it. It does the work of the endpoints that are bound to the queue.
extern "C" fn read(cq: *mut sys::fid_cq, buf: *mut c_void, count: usize) -> isize {
    read_entries(cq, buf, count, std::ptr::null_mut(), None)
}

/// `fi_cq_readfrom`, as `fi_cq_read`.
extern "C" fn readfrom(
    cq: *mut sys::fid_cq,
    buf: *mut c_void,
    count: usize,
    src_addr: *mut fi_addr_t,
) -> isize {
    read_entries(cq, buf, count, src_addr, None)
}

/// `fi_cq_sread`: any thread may call it, and sleep in it as long as it asked to. A negative timeout is for ever.
extern "C" fn sread(
    cq: *mut sys::fid_cq,
    buf: *mut c_void,
    count: usize,
    _cond: *const c_void,
    timeout: c_int,
) -> isize {
    read_entries(cq, buf, count, std::ptr::null_mut(), Some(Deadline::after(timeout)))
}

/// `fi_cq_sreadfrom`, as `fi_cq_sread`.
extern "C" fn sreadfrom(
    cq: *mut sys::fid_cq,
    buf: *mut c_void,
    count: usize,
    src_addr: *mut fi_addr_t,
    _cond: *const c_void,
    timeout: c_int,
) -> isize {
    read_entries(cq, buf, count, src_addr, Some(Deadline::after(timeout)))
}

/// `fi_cq_readerr`: any thread may call it.
extern "C" fn readerr(cq: *mut sys::fid_cq, buf: *mut sys::fi_cq_err_entry, _flags: u64) -> isize {
    abi::answer_size(|| {
        // SAFETY: it is a completion queue of this provider's.
        let object: &CqObject = unsafe { abi::object(cq)? };
        if buf.is_null() {
            return Err(FiError::INVALID);
        }
        let (entry, problem) = object.queue.read_problem()?.ok_or(FiError::AGAIN)?;
        let error = problem.error.number();
        let version = object.domain.fabric.api_version;
        // Room of the caller's for data about the error stays the caller's: there is no such data.
        // SAFETY: libfabric promises an entry of the application's version, which from this one on has both fields.
        let err_data = unsafe {
            if version >= ERR_DATA_SIZE_SINCE && (&raw const (*buf).err_data_size).read_unaligned() > 0 {
                (&raw const (*buf).err_data).read_unaligned()
            } else {
                std::ptr::null_mut()
            }
        };
        let full = sys::fi_cq_err_entry {
            op_context: entry.context as *mut c_void,
            flags: entry.flags,
            len: entry.len,
            buf: entry.buf as *mut c_void,
            data: entry.data,
            tag: entry.tag,
            olen: problem.beyond,
            err: error,
            prov_errno: error,
            err_data,
            err_data_size: 0,
        };
        let len = if version < ERR_DATA_SIZE_SINCE {
            std::mem::offset_of!(sys::fi_cq_err_entry, err_data_size)
        } else {
            size_of::<sys::fi_cq_err_entry>()
        };
        // SAFETY: libfabric promises room for an entry of the application's version.
        unsafe { buf.cast::<u8>().copy_from_nonoverlapping((&raw const full).cast(), len) };
        Ok(1)
    })
}

/// `fi_cq_signal`: any thread may call it.
extern "C" fn signal(cq: *mut sys::fid_cq) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a completion queue of this provider's.
        let object: &CqObject = unsafe { abi::object(cq)? };
        object.queue.wake_all().map(|()| 0)
    })
}

/// `fi_cq_strerror`: any thread may call it. The provider's error numbers are libfabric's.
pub(crate) extern "C" fn strerror(
    _cq: *mut sys::fid_cq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: it takes any number, and returns a text that lives for ever.
    let text = unsafe { sys::fi_strerror(prov_errno) };
    abi::answer(|| {
        // SAFETY: as before; libfabric promises `len` bytes at `buf`, or null.
        unsafe { abi::write_text(abi::text(text)?.unwrap_or_default(), buf, len) };
        Ok(0)
    });
    text
}
