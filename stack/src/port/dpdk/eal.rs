//! The environment abstraction layer (EAL): DPDK's own runtime, started once in a process.

use std::ffi::{CStr, CString, c_char, c_int};
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

use weft_dpdk_sys as sys;

use super::DpdkError;

/// Options for starting DPDK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EalOptions {
    /// Limit on the memory of DPDK, MiB. Without huge pages it is reserved as address space at once, and takes
    /// physical memory only as it is used. `None` leaves the limit to DPDK: 64 MiB without huge pages; with them, as
    /// much as pools ask for.
    pub memory_mib: Option<u32>,
    /// Whether to use huge pages. Network cards need them; virtual devices do not.
    pub huge_pages: bool,
    /// Whether to look for PCI devices.
    pub pci: bool,
    /// The PCI addresses to use; empty means all cards that are bound to a user-space driver.
    pub allow: Vec<String>,
    /// The CPUs that the calling thread may run on, in the kernel's list format (`0-3,8`). DPDK pins the thread that
    /// starts it to these. `None` keeps the thread's present CPUs.
    pub cpus: Option<String>,
    /// How much DPDK prints on standard error.
    pub log_level: LogLevel,
    /// Further arguments, as DPDK documents them for its command line.
    pub extra: Vec<String>,
}

impl Default for EalOptions {
    /// For virtual devices: no huge pages, no PCI, no privileges. 256 MiB are enough for 25,000 buffers for frames of
    /// 9 KiB.
    fn default() -> EalOptions {
        EalOptions {
            memory_mib: Some(256),
            huge_pages: false,
            pci: false,
            allow: Vec::new(),
            cpus: None,
            log_level: LogLevel::Error,
            extra: Vec::new(),
        }
    }
}

impl EalOptions {
    /// For network cards: huge pages, and the cards at these PCI addresses (all cards if the list is empty).
    pub fn nic(allow: Vec<String>) -> EalOptions {
        EalOptions { memory_mib: None, huge_pages: true, pci: true, allow, ..EalOptions::default() }
    }

    fn arguments(&self) -> Result<Vec<CString>, DpdkError> {
        let mut list: Vec<String> = vec!["weft".into(), "--no-telemetry".into()];
        if self.huge_pages {
            // No files that a crash would leave behind, and no clash with other DPDK programs.
            list.push("--in-memory".into());
        } else {
            // DPDK 22.11 refuses --in-memory together with --no-huge. Without huge pages there are
            // no physical addresses either.
            list.extend(["--no-huge", "--no-shconf", "--iova-mode=va"].map(String::from));
        }
        if !self.pci {
            list.push("--no-pci".into());
        }
        for device in &self.allow {
            list.extend(["-a".into(), device.clone()]);
        }
        if let Some(mib) = self.memory_mib {
            list.extend(["-m".into(), mib.to_string()]);
        }
        list.push(format!("--log-level={}", self.log_level.number()));
        // One lcore, over a set of CPUs: by default DPDK takes every CPU and starts a thread on each.
        let cpus = self.cpus.clone().or_else(allowed_cpus).unwrap_or_else(|| "0".into());
        list.push(format!("--lcores=0@({cpus})"));
        list.extend(self.extra.iter().cloned());
        list.into_iter().map(|text| CString::new(text).map_err(|_| DpdkError::NulByte)).collect()
    }
}

/// How much DPDK logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Errors.
    Error,
    /// Warnings as well.
    Warning,
    /// Also the devices that DPDK finds and the choices that it makes.
    Info,
    /// Debug messages as well.
    Debug,
}

impl LogLevel {
    fn number(self) -> u32 {
        match self {
            LogLevel::Error => 4,
            LogLevel::Warning => 5,
            LogLevel::Info => 7,
            LogLevel::Debug => 8,
        }
    }
}

/// The CPUs that this thread may run on.
fn allowed_cpus() -> Option<String> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(line.trim().to_owned())
}

/// Proof that DPDK runs in this process. It runs until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Eal(());

/// The options that DPDK was started with, once it has started.
static STARTED: Mutex<Option<EalOptions>> = Mutex::new(None);

impl Eal {
    /// Starts DPDK. If it runs already with the same options, returns that instance; with other options, an error.
    ///
    /// The calling thread becomes DPDK's main lcore: it uses the per-lcore caches of buffer pools.
    /// Other threads should call [`Eal::register_thread`].
    pub fn init(options: &EalOptions) -> Result<Eal, DpdkError> {
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        match &*started {
            Some(running) if running == options => return Ok(Eal(())),
            Some(_) => return Err(DpdkError::AlreadyStarted),
            None => {}
        }
        let arguments = options.arguments()?;
        let mut argv: Vec<*mut c_char> = arguments.into_iter().map(CString::into_raw).collect();
        let argc = argv.len() as c_int;
        argv.push(std::ptr::null_mut());
        // DPDK keeps pointers into its arguments, so these are leaked: once in a process.
        let argv = argv.leak();
        // SAFETY: argv is an array of argc C strings and a null pointer, never freed. The lock is
        // held, so no other thread of this program is in rte_eal_init.
        let result = unsafe { sys::rte_eal_init(argc, argv.as_mut_ptr()) };
        if result < 0 {
            return Err(DpdkError::start(options.huge_pages));
        }
        *started = Some(options.clone());
        Ok(Eal(()))
    }

    /// DPDK, if it runs in this process.
    pub fn get() -> Option<Eal> {
        STARTED.lock().unwrap_or_else(PoisonError::into_inner).is_some().then_some(Eal(()))
    }

    /// The version of the library that runs, as in `DPDK 22.11.11`.
    pub fn version(self) -> &'static str {
        // SAFETY: returns a C string that is never freed.
        let version = unsafe { CStr::from_ptr(sys::rte_version()) };
        version.to_str().unwrap_or("DPDK")
    }

    /// Makes the calling thread an lcore until the guard is dropped, so that it allocates and frees buffers through a
    /// cache of its own instead of the pool's shared ring. Each worker thread calls this once. On a thread that is an
    /// lcore already, the guard does nothing.
    pub fn register_thread(self) -> Result<LcoreGuard, DpdkError> {
        // SAFETY: only reads a variable of the thread.
        if unsafe { sys::weft_rte_lcore_id() } != sys::WEFT_LCORE_ID_ANY {
            return Ok(LcoreGuard { registered: false, thread: PhantomData });
        }
        // SAFETY: DPDK runs, and the thread is not registered.
        if unsafe { sys::rte_thread_register() } < 0 {
            return Err(DpdkError::from_errno("rte_thread_register"));
        }
        Ok(LcoreGuard { registered: true, thread: PhantomData })
    }
}

/// Keeps a thread registered as an lcore. See [`Eal::register_thread`].
#[derive(Debug)]
#[must_use = "the thread stops being an lcore when this is dropped"]
pub struct LcoreGuard {
    registered: bool,
    /// Not [`Send`]: it stands for a state of its own thread.
    thread: PhantomData<*const ()>,
}

impl Drop for LcoreGuard {
    fn drop(&mut self) {
        if self.registered {
            // SAFETY: this thread was registered by `register_thread`; the guard cannot leave it.
            unsafe { sys::rte_thread_unregister() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(options: &EalOptions) -> Vec<String> {
        options.arguments().unwrap().into_iter().map(|a| a.into_string().unwrap()).collect()
    }

    #[test]
    fn defaults_need_no_privileges() {
        let list = text(&EalOptions::default());
        for needed in ["--no-huge", "--no-pci", "--no-shconf", "--no-telemetry"] {
            assert!(list.iter().any(|argument| argument == needed), "{needed} is missing in {list:?}");
        }
        assert!(!list.iter().any(|argument| argument == "--in-memory"), "clashes with --no-huge");
    }

    #[test]
    fn network_cards_get_huge_pages() {
        let list = text(&EalOptions::nic(vec!["0000:3b:00.0".into()]));
        assert!(!list.iter().any(|argument| argument == "--no-huge" || argument == "--no-pci"));
        let place = list.iter().position(|argument| argument == "-a").unwrap();
        assert_eq!(list[place + 1], "0000:3b:00.0");
    }

    #[test]
    fn arguments_with_nul_bytes_are_refused() {
        let options = EalOptions { extra: vec!["a\0b".into()], ..EalOptions::default() };
        assert_eq!(options.arguments(), Err(DpdkError::NulByte));
    }
}
