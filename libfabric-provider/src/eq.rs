//! The table of an event queue. The provider itself has no events to report, since addresses are inserted at once and
//! endpoints need no connections; applications write events of their own.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex};

use crate::abi::{self, Head, Object};
use crate::error::{FiError, lock};
use crate::fabric::{Fabric, FabricObject};
use crate::refused::Refused;
use crate::sys;
use crate::wake::{self, Deadline, Wake};

/// Events of a queue whose application does not say how many it wants.
const DEFAULT_SIZE: usize = 1024;
/// The most events of a queue, and the longest one, bytes.
const MOST: usize = 1 << 16;

#[repr(C)]
pub(crate) struct EqObject {
    _head: Head<sys::fid_eq>,
    size: usize,
    wait: sys::fi_wait_obj,
    wake: Option<Wake>,
    events: Mutex<VecDeque<Event>>,
    _fabric: Arc<Fabric>,
}

/// An event that an application has written.
#[derive(Clone, Debug)]
struct Event {
    number: u32,
    bytes: Vec<u8>,
}

// SAFETY: `repr(C)`, and it begins with a `fid_eq`, whose class is set by `open`.
unsafe impl Object for EqObject {
    const CLASS: u32 = sys::FI_CLASS_EQ;
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

static TABLE: sys::fi_ops_eq = sys::fi_ops_eq {
    size: size_of::<sys::fi_ops_eq>(),
    read: Some(read),
    readerr: Some(readerr),
    write: Some(write),
    sread: Some(sread),
    strerror: Some(strerror),
};

/// `fi_eq_open`: any thread may call it.
pub(crate) extern "C" fn open(
    fabric: *mut sys::fid_fabric,
    attr: *mut sys::fi_eq_attr,
    eq: *mut *mut sys::fid_eq,
    context: *mut c_void,
) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a fabric of this provider's.
        let fabric: &FabricObject = unsafe { abi::object(fabric)? };
        // SAFETY: libfabric passes attributes and a place for the answer.
        let (attr, place) =
            unsafe { (attr.as_ref().ok_or(FiError::INVALID)?, eq.as_mut().ok_or(FiError::INVALID)?) };
        let wake = if wake::may_wait(attr.wait_obj)? { Some(Wake::new()?) } else { None };
        if attr.flags & !(sys::FI_WRITE | sys::FI_AFFINITY) != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        let size = if attr.size == 0 { DEFAULT_SIZE } else { attr.size };
        if size > MOST {
            return Err(FiError::INVALID);
        }
        let head = sys::fid_eq { fid: abi::fid::<EqObject>(context, &FID), ops: abi::table(&TABLE) };
        let (events, wait) = (Mutex::default(), attr.wait_obj);
        let (_head, _fabric) = (Head::new(head), fabric.fabric.clone());
        *place = EqObject { _head, size, wait, wake, events, _fabric }.give();
        Ok(0)
    })
}

impl EqObject {
    /// Whether the caller may sleep on the descriptor.
    pub(crate) fn try_wait(&self) -> Result<bool, FiError> {
        let wake = self.wake.as_ref().ok_or(FiError::NOT_THERE)?;
        let events = lock(&self.events)?;
        if events.is_empty() {
            wake.rest();
        }
        Ok(events.is_empty())
    }

    /// The first event, which is taken unless `peek`.
    fn next(&self, room: usize, peek: bool) -> Result<Event, FiError> {
        let mut events = lock(&self.events)?;
        let event = events.front().ok_or(FiError::AGAIN)?;
        if event.bytes.len() > room {
            return Err(FiError::TOO_SMALL);
        }
        let event = event.clone();
        if !peek {
            events.pop_front();
        }
        Ok(event)
    }

    fn wait(&self, room: usize, peek: bool, deadline: Deadline) -> Result<Event, FiError> {
        let wake = self.wake.as_ref().ok_or(FiError::NOT_THERE)?;
        loop {
            match self.next(room, peek) {
                Err(FiError::AGAIN) => {}
                done => return done,
            }
            let left = deadline.left()?;
            if self.try_wait()? {
                wake.sleep(left);
            }
        }
    }
}

/// `fi_close`: no other call uses the queue meanwhile.
extern "C" fn close(fid: *mut sys::fid) -> c_int {
    abi::answer(|| {
        // SAFETY: it is an event queue of this provider's, and nobody uses it any more.
        drop(unsafe { abi::take::<EqObject, _>(fid) });
        Ok(0)
    })
}

/// `fi_control`: any thread may call it.
extern "C" fn control(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    abi::answer(|| {
        // SAFETY: it is an event queue of this provider's.
        let object: &EqObject = unsafe { abi::object(fid)? };
        let wake = object.wake.as_ref().ok_or(FiError::NOT_THERE)?;
        // SAFETY: libfabric passes what belongs to the command.
        unsafe { abi::get_wait(command, object.wait, wake, arg) }
    })
}

/// Writes an event to where the application wants it.
///
/// # Safety
/// There is room for its bytes at `buf`, and `number` is a place for a number or null.
unsafe fn deliver(event: &Event, number: *mut u32, buf: *mut c_void) -> usize {
    // SAFETY: as the caller promises.
    unsafe {
        if let Some(number) = number.as_mut() {
            *number = event.number;
        }
        if !event.bytes.is_empty() {
            buf.cast::<u8>().copy_from_nonoverlapping(event.bytes.as_ptr(), event.bytes.len());
        }
    }
    event.bytes.len()
}

/// The room that an application has.
fn room(buf: *mut c_void, len: usize) -> usize {
    if buf.is_null() { 0 } else { len }
}

/// `fi_eq_read`: any thread may call it.
extern "C" fn read(eq: *mut sys::fid_eq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize {
    abi::answer_size(|| {
        // SAFETY: it is an event queue of this provider's.
        let object: &EqObject = unsafe { abi::object(eq)? };
        let next = object.next(room(buf, len), flags & sys::FI_PEEK != 0)?;
        // SAFETY: the event fits.
        Ok(unsafe { deliver(&next, event, buf) })
    })
}

/// `fi_eq_sread`: any thread may call it, and sleep in it as long as it asked to. A negative timeout is for ever.
extern "C" fn sread(
    eq: *mut sys::fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    abi::answer_size(|| {
        // SAFETY: it is an event queue of this provider's.
        let object: &EqObject = unsafe { abi::object(eq)? };
        let next = object.wait(room(buf, len), flags & sys::FI_PEEK != 0, Deadline::after(timeout))?;
        // SAFETY: the event fits.
        Ok(unsafe { deliver(&next, event, buf) })
    })
}

/// `fi_eq_readerr`: there are no errors to read.
extern "C" fn readerr(_: *mut sys::fid_eq, _: *mut sys::fi_eq_err_entry, _: u64) -> isize {
    -(sys::FI_EAGAIN as isize)
}

/// `fi_eq_write`: any thread may call it.
extern "C" fn write(eq: *mut sys::fid_eq, event: u32, buf: *const c_void, len: usize, _flags: u64) -> isize {
    abi::answer_size(|| {
        // SAFETY: it is an event queue of this provider's.
        let object: &EqObject = unsafe { abi::object(eq)? };
        if len > MOST || (len > 0 && buf.is_null()) {
            return Err(FiError::INVALID);
        }
        let bytes = match len {
            0 => Vec::new(),
            // SAFETY: libfabric promises `len` bytes at `buf`.
            len => unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) }.to_vec(),
        };
        let mut events = lock(&object.events)?;
        if events.len() >= object.size {
            return Err(FiError::AGAIN);
        }
        events.push_back(Event { number: event, bytes });
        if let Some(wake) = &object.wake {
            wake.wake();
        }
        Ok(len)
    })
}

extern "C" fn strerror(
    _eq: *mut sys::fid_eq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    crate::cq::strerror(std::ptr::null_mut(), prov_errno, err_data, buf, len)
}
