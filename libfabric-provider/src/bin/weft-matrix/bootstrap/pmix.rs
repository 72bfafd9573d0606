//! PMIx, by which Open MPI's mpirun and `srun --mpi=pmix` start jobs. Its library is loaded when it is needed, so that the
//! program runs without it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::mpsc;
use std::thread;

use super::{Launcher, Meeting, PATIENCE, meet_by_word};
use crate::Failure;

/// The library's names; Debian has it in a directory of its own as well.
const LIBRARIES: [&CStr; 2] = [c"libpmix.so.2", c"libpmix.so"];
/// The key of rank 0's word.
const KEY: &CStr = c"weft-matrix";
const JOB_SIZE: &CStr = c"pmix.job.size";
/// PMIX_RANK_WILDCARD: the job as a whole.
const ALL: u32 = u32::MAX - 1;
const PMIX_GLOBAL: u8 = 3;
const PMIX_STRING: u16 = 3;
const PMIX_UINT32: u16 = 14;

/// `pmix_proc_t` of the standard's version 3 and later.
#[repr(C)]
#[derive(Clone, Copy)]
struct Proc {
    job: [c_char; 256],
    rank: u32,
}

/// `pmix_value_t`: its type, and a union of which only the members that are used here are named.
#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

#[repr(C)]
union Data {
    text: *const c_char,
    number: u32,
    /// The union is larger than what is used of it.
    room: [u64; 4],
}

type Init = unsafe extern "C" fn(*mut Proc, *const c_void, usize) -> c_int;
type Finalize = unsafe extern "C" fn(*const c_void, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Proc, usize, *const c_void, usize) -> c_int;
type Get = unsafe extern "C" fn(*const Proc, *const c_char, *const c_void, usize, *mut *mut Value) -> c_int;

/// The functions of the library.
#[derive(Clone, Copy)]
struct Library {
    init: Init,
    finalize: Finalize,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
}

impl Library {
    fn load() -> Result<Library, Failure> {
        // SAFETY: the name ends with a zero; what the library does when it is loaded is its own affair.
        let open = |name: &CStr| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        let Some(handle) = LIBRARIES.into_iter().map(open).find(|handle| !handle.is_null()) else {
            return Err(Failure::Run(
                "a PMIx launcher has started this process, but libpmix.so.2 cannot be loaded: install libpmix2".to_owned(),
            ));
        };
        let symbol = |name: &CStr| {
            // SAFETY: the library is never unloaded.
            let at = unsafe { libc::dlsym(handle, name.as_ptr()) };
            let missing = || Failure::Run(format!("libpmix has no {}", name.to_string_lossy()));
            if at.is_null() { Err(missing()) } else { Ok(at) }
        };
        // SAFETY: these are the types of these functions in the PMIx standard.
        unsafe {
            use std::mem::transmute;
            Ok(Library {
                init: transmute::<*mut c_void, Init>(symbol(c"PMIx_Init")?),
                finalize: transmute::<*mut c_void, Finalize>(symbol(c"PMIx_Finalize")?),
                put: transmute::<*mut c_void, Put>(symbol(c"PMIx_Put")?),
                commit: transmute::<*mut c_void, Commit>(symbol(c"PMIx_Commit")?),
                fence: transmute::<*mut c_void, Fence>(symbol(c"PMIx_Fence")?),
                get: transmute::<*mut c_void, Get>(symbol(c"PMIx_Get")?),
            })
        }
    }
}

pub(crate) struct Pmix {
    functions: Library,
    own: Proc,
    size: u32,
}

impl Pmix {
    /// The job that a PMIx launcher has started this process in, if one has.
    pub(crate) fn from_environment() -> Result<Option<Pmix>, Failure> {
        if std::env::var_os("PMIX_RANK").is_none() {
            return Ok(None);
        }
        let library = Library::load()?;
        let own = within_patience("PMIx_Init", move || {
            let mut own = Proc { job: [0; 256], rank: 0 };
            // SAFETY: it is a place for a process.
            checked("PMIx_Init", unsafe { (library.init)(&mut own, null(), 0) }).map(|()| own)
        })?;
        let job = Proc { rank: ALL, ..own };
        let value = get(library, job, JOB_SIZE)?;
        // SAFETY: the library has allocated it; the member is the one that the type says.
        let (kind, size) = unsafe { ((*value.0).kind, (*value.0).data.number) };
        if kind != PMIX_UINT32 || size == 0 {
            return Err(Failure::Run(format!(
                "PMIx: the job's size has type {kind}; expected {PMIX_UINT32}"
            )));
        }
        Ok(Some(Pmix { functions: library, own, size }))
    }

    fn broadcast(&mut self, word: Option<&str>) -> Result<String, Failure> {
        let library = self.functions;
        if let Some(word) = word {
            let text = CString::new(word).map_err(|_| Failure::Run("an address with a zero".to_owned()))?;
            let mut value = Value { kind: PMIX_STRING, data: Data { room: [0; 4] } };
            value.data.text = text.as_ptr();
            // SAFETY: key and value are whole, and the library copies them.
            checked("PMIx_Put", unsafe { (library.put)(PMIX_GLOBAL, KEY.as_ptr(), &mut value) })?;
        }
        // SAFETY: it has no arguments.
        checked("PMIx_Commit", unsafe { (library.commit)() })?;
        let job = Proc { rank: ALL, ..self.own };
        within_patience("PMIx_Fence", move || {
            // SAFETY: there is one process at `job`, and no attribute.
            checked("PMIx_Fence", unsafe { (library.fence)(&job, 1, null(), 0) })
        })?;
        let value = get(library, Proc { rank: 0, ..self.own }, KEY)?;
        // SAFETY: the library has allocated it; the member is the one that the type says.
        unsafe {
            if (*value.0).kind != PMIX_STRING || (*value.0).data.text.is_null() {
                return Err(Failure::Run("PMIx: rank 0's addresses are no text".to_owned()));
            }
            Ok(CStr::from_ptr((*value.0).data.text).to_string_lossy().into_owned())
        }
    }
}

impl Launcher for Pmix {
    fn rank(&self) -> u32 {
        self.own.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn meet(&mut self) -> Result<(Meeting, u64), Failure> {
        meet_by_word(self.own.rank, |word| self.broadcast(word))
    }
}

impl Drop for Pmix {
    fn drop(&mut self) {
        let library = self.functions;
        let finalize = move || {
            // SAFETY: there is no attribute.
            checked("PMIx_Finalize", unsafe { (library.finalize)(null(), 0) })
        };
        // A job whose launcher does not answer any more is over anyway.
        let _ = within_patience("PMIx_Finalize", finalize);
    }
}

/// A value that the library has allocated. It stays: there are two in a run.
struct Got(*const Value);

// SAFETY: it is memory of the process, and nobody changes it.
unsafe impl Send for Got {}

fn get(library: Library, of: Proc, key: &'static CStr) -> Result<Got, Failure> {
    within_patience("PMIx_Get", move || {
        let mut value = null_mut();
        // SAFETY: process and key are whole, there is no attribute, and there is a place for the value.
        checked("PMIx_Get", unsafe { (library.get)(&of, key.as_ptr(), null(), 0, &mut value) })?;
        if value.is_null() { Err(Failure::Run("PMIx_Get: no value".to_owned())) } else { Ok(Got(value)) }
    })
}

fn checked(function: &str, status: c_int) -> Result<(), Failure> {
    if status == 0 { Ok(()) } else { Err(Failure::Run(format!("{function}: status {status}"))) }
}

/// Runs a call that has no bound of its own in a thread, which is left alone when the time is up.
fn within_patience<T: Send + 'static>(
    function: &str,
    call: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let (done, result) = mpsc::channel();
    thread::spawn(move || drop(done.send(call())));
    let late = |_| Failure::Run(format!("{function}: no answer within {} s", PATIENCE.as_secs()));
    result.recv_timeout(PATIENCE).map_err(late)?
}
