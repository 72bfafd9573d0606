//! `libweft-fi.so`: weft as a provider of libfabric, so that programs written for libfabric, such as MPI libraries, run
//! over weft unchanged. `docs/libfabric.md` says what works.
//!
//! libfabric loads the library, calls [`fi_prov_ini`] and from then on the functions of the tables that it is given. Each
//! endpoint of libfabric is a [`weft::Endpoint`]. Outside of `rdm` the provider translates calls. `rdm` also has what libfabric
//! promises and that one does not: remote memory through servers, long messages that their receivers fetch, budgets of senders,
//! and operations that wait for a server ([decision 0137](../../docs/decisions/0137-the-libfabric-provider-is-not-thin.md)).
//!
//! | module | has |
//! |---|---|
//! | [`sys`] | libfabric's types, generated |
//! | `abi` | the boundary: catching panics, objects behind descriptors, memory of applications |
//! | `info`, `params`, `log` | discovery, `FI_WEFT_…` variables, messages by libfabric's logger |
//! | `fabric`, `domain`, `av`, `cq`, `cntr`, `eq`, `poll`, `wait`, `endpoint` | libfabric's tables, one kind of descriptor each |
//! | `mr`, `rma`, `atomic` | the tables of registered memory and of remote memory |
//! | `rdm` | an endpoint: operations, completions, peers |
//! | `place` | where endpoints are, and how their names look |
//! | `memory` | the registered memory of a domain |
//! | `keeper` | the thread that does the work of an endpoint whose application is busy |
//!
//! Unsafe code is in `abi` and in the modules of tables only.

mod abi;
mod addresses;
mod atomic;
mod av;
mod cntr;
mod counter;
mod cq;
mod dgram;
mod domain;
mod endpoint;
mod endpoints;
mod eq;
mod error;
mod fabric;
mod info;
mod job;
mod keeper;
mod kind;
mod log;
mod memory;
mod mr;
mod opened;
mod params;
mod place;
mod poll;
mod queue;
mod random;
mod rdm;
mod refused;
mod rma;
mod slab;
mod sockaddr;
mod symmetric;
pub mod sys;
mod wait;
mod wake;

use std::cell::UnsafeCell;
use std::ffi::CStr;

/// The provider's name.
const NAME: &CStr = c"weft";
/// The provider's version, in libfabric's form: the major one in the upper 16 bits.
const VERSION: u32 = 1;

/// The provider as libfabric knows it.
struct Provider(UnsafeCell<sys::fi_provider>);

// SAFETY: `fi_prov_ini` writes to it once, before anybody else knows it; afterwards libfabric alone writes to `context`.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(UnsafeCell::new(sys::fi_provider {
    version: VERSION,
    fi_version: 0,
    context: sys::fi_context { internal: [std::ptr::null_mut(); 4] },
    name: NAME.as_ptr(),
    getinfo: Some(info::getinfo),
    fabric: Some(fabric::open),
    cleanup: Some(cleanup),
}));

/// The provider, for calls of libfabric that ask for it.
fn provider() -> *mut sys::fi_provider {
    PROVIDER.0.get()
}

/// libfabric's entry: it is called once, by one thread, after the library was loaded.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut sys::fi_provider {
    let begun = abi::answer(|| {
        // SAFETY: libfabric calls this once, and has no other way to the provider before it returns. Its version is that
        // of the library that runs: an older one refuses providers of newer versions, a newer one skips providers of older
        // versions.
        unsafe { (*provider()).fi_version = sys::fi_version() };
        params::define();
        log::forward();
        Ok(0)
    });
    if begun == 0 { provider() } else { std::ptr::null_mut() }
}

/// libfabric calls it once, at the end of the process. Endpoints that are open then end with the process.
extern "C" fn cleanup() {}
