//! The table of a wait set: queues and counters that are slept on together.

use std::ffi::{c_int, c_void};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, Weak};

use crate::abi::{self, Head, Object};
use crate::counter::Counter;
use crate::eq::Events;
use crate::error::{FiError, lock};
use crate::fabric::{Fabric, FabricObject};
use crate::queue::Queue;
use crate::rdm::Attended;
use crate::refused::Refused;
use crate::sys;
use crate::wake::{self, Deadline, Wake};

#[repr(C)]
pub(crate) struct WaitObject {
    _head: Head<sys::fid_wait>,
    pub(crate) set: Arc<WaitSet>,
    wait: sys::fi_wait_obj,
    _fabric: Arc<Fabric>,
}

// SAFETY: `repr(C)`, and it begins with a `fid_wait`, whose class is set by `open`.
unsafe impl Object for WaitObject {
    const CLASS: u32 = sys::FI_CLASS_WAIT;
}

/// What is slept on together. Its members hold it, not the other way round.
#[derive(Debug)]
pub(crate) struct WaitSet {
    wake: Wake,
    members: Mutex<Vec<Member>>,
}

/// An object that was opened with the set.
#[derive(Debug)]
pub(crate) enum Member {
    Queue(Weak<Queue>),
    Counter(Weak<Counter>),
    Events(Weak<Events>),
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

static TABLE: sys::fi_ops_wait = sys::fi_ops_wait { size: size_of::<sys::fi_ops_wait>(), wait: Some(wait) };

impl Member {
    /// Whether the caller may sleep; none of an object that was closed.
    fn try_wait(&self) -> Option<Result<bool, FiError>> {
        match self {
            Member::Queue(queue) => queue.upgrade().map(|queue| queue.try_wait()),
            Member::Counter(counter) => counter.upgrade().map(|counter| counter.try_wait()),
            Member::Events(events) => events.upgrade().map(|events| events.try_wait()),
        }
    }

    /// Its endpoints, if it has any and was not closed.
    fn attend(&self) -> Option<Result<Vec<Attended>, FiError>> {
        match self {
            Member::Queue(queue) => queue.upgrade().map(|queue| queue.endpoints().attend()),
            Member::Counter(counter) => counter.upgrade().map(|counter| counter.endpoints().attend()),
            Member::Events(_) => None,
        }
    }
}

impl WaitSet {
    /// The set that an object is opened with, if its wait object is one.
    ///
    /// # Safety
    /// With FI_WAIT_SET, `set` is null or a wait set of this provider's.
    pub(crate) unsafe fn of(
        object: sys::fi_wait_obj,
        set: *mut sys::fid_wait,
    ) -> Result<Option<Arc<WaitSet>>, FiError> {
        if object != sys::FI_WAIT_SET {
            return Ok(None);
        }
        // SAFETY: as the caller promises.
        let object: &WaitObject = unsafe { abi::object(set)? };
        Ok(Some(object.set.clone()))
    }

    /// Adds an object, whose descriptor is that of `wake`. The system forgets that when the object is closed.
    pub(crate) fn add(&self, member: Member, wake: &Wake) -> Result<(), FiError> {
        self.wake.add(wake.as_fd())?;
        lock(&self.members)?.push(member);
        Ok(())
    }

    /// Prepares for a sleep on the descriptor. Returns whether the caller may sleep: not if a member has something for it.
    ///
    /// # Errors
    /// None has, and an endpoint cannot work.
    pub(crate) fn try_wait(&self) -> Result<bool, FiError> {
        let (mut may_sleep, mut failed) = (true, None);
        // All of them are prepared.
        lock(&self.members)?.retain(|member| match member.try_wait() {
            Some(Ok(may)) => {
                may_sleep &= may;
                true
            }
            Some(Err(error)) => {
                failed = Some(error);
                true
            }
            None => false,
        });
        if may_sleep { failed.map_or(Ok(true), Err) } else { Ok(false) }
    }

    /// Sleeps until a member has something.
    ///
    /// # Errors
    /// [`FiError::TIMED_OUT`] at the deadline.
    fn wait(&self, deadline: Deadline) -> Result<(), FiError> {
        loop {
            let attended = self.attend()?;
            if !self.try_wait()? {
                return Ok(());
            }
            let left = deadline.left().map_err(|_| FiError::TIMED_OUT)?;
            self.wake.sleep(left);
            drop(attended);
        }
    }

    /// As [`Endpoints::attend`](crate::endpoints::Endpoints::attend), of all members.
    fn attend(&self) -> Result<Vec<Vec<Attended>>, FiError> {
        lock(&self.members)?.iter().filter_map(Member::attend).collect()
    }
}

/// `fi_wait_open`: any thread may call it.
pub(crate) extern "C" fn open(
    fabric: *mut sys::fid_fabric,
    attr: *mut sys::fi_wait_attr,
    waitset: *mut *mut sys::fid_wait,
) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a fabric of this provider's; libfabric passes attributes and a place for the answer.
        let (fabric, attr, place) = unsafe {
            (
                abi::object::<FabricObject, _>(fabric)?,
                attr.as_ref().ok_or(FiError::INVALID)?,
                waitset.as_mut().ok_or(FiError::INVALID)?,
            )
        };
        if attr.flags != 0 {
            return Err(FiError::BAD_FLAGS);
        }
        if attr.wait_obj == sys::FI_WAIT_SET || !wake::may_wait(attr.wait_obj)? {
            return Err(FiError::INVALID);
        }
        let fid = abi::fid::<WaitObject>(std::ptr::null_mut(), &FID);
        let head = Head::new(sys::fid_wait { fid, ops: abi::table(&TABLE) });
        let set = Arc::new(WaitSet { wake: Wake::new()?, members: Mutex::default() });
        *place = WaitObject { _head: head, set, wait: attr.wait_obj, _fabric: fabric.fabric.clone() }.give();
        Ok(0)
    })
}

/// `fi_close`: no other call uses the set meanwhile. A set of which an object is open cannot be closed.
extern "C" fn close(fid: *mut sys::fid) -> c_int {
    // SAFETY: nobody uses it any more, unless it is held.
    unsafe { abi::close_unless_held(fid, |object: &WaitObject| &object.set) }
}

/// `fi_control`: any thread may call it.
extern "C" fn control(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a wait set of this provider's.
        let object: &WaitObject = unsafe { abi::object(fid)? };
        // SAFETY: libfabric passes what belongs to the command.
        unsafe { abi::get_wait(command, object.wait, Ok(&object.set.wake), arg) }
    })
}

/// `fi_wait`: any thread may call it. It does the work of the endpoints that are bound to the members.
extern "C" fn wait(waitset: *mut sys::fid_wait, timeout: c_int) -> c_int {
    abi::answer(|| {
        // SAFETY: it is a wait set of this provider's.
        let object: &WaitObject = unsafe { abi::object(waitset)? };
        object.set.wait(Deadline::after(timeout)).map(|()| 0)
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::rdm::Rdm;

    /// So that calls of other threads leave its endpoints armed.
    #[test]
    fn a_thread_that_sleeps_in_a_set_attends_to_the_endpoints_of_its_members() {
        let (queue, endpoint) = (Arc::new(Queue::new(4, true).unwrap()), Rdm::closed());
        queue.endpoints().attach(&endpoint).unwrap();
        let set = WaitSet { wake: Wake::new().unwrap(), members: Mutex::default() };
        set.add(Member::Queue(Arc::downgrade(&queue)), queue.endpoints().wake().unwrap()).unwrap();
        let (begin, mut is_attended) = (Instant::now(), false);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| set.wait(Deadline::after(-1)));
            while !is_attended && begin.elapsed() < Duration::from_secs(60) {
                is_attended = endpoint.attention().1;
                std::thread::yield_now();
            }
            queue.signal().unwrap();
            assert_eq!(sleeper.join().unwrap(), Ok(()));
        });
        assert!(is_attended && !endpoint.attention().1);
    }
}
