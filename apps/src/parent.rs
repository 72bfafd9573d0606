//! Processes that must not outlive the one that has started them.

use crate::Failure;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// Arranges that this process gets `signal` when `parent`, which has started it, ends.
///
/// # Errors
/// It has ended already, or the system refuses.
pub(crate) fn end_with(parent: u32, signal: Signal) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(signal)).map_err(|error| Failure::Run(format!("prctl: {error}")))?;
    // The parent may have ended before the call above.
    match getppid() {
        Some(pid) if pid.as_raw_nonzero().get() as u32 == parent => Ok(()),
        _ => Err(Failure::Run(format!("process {parent}, which has started this one, has ended"))),
    }
}
