//! Logs, for who sets `RUST_LOG`: devices, links, sessions, limits and refusals, as lines on standard error. Without
//! that variable there are none.

use crate::Failure;
use std::env;
use std::io;
use tracing_subscriber::EnvFilter;

/// The variable that selects what is logged, such as `info` or `weft_stack::worker=debug`.
const VARIABLE: &str = "RUST_LOG";

/// Begins to log what `RUST_LOG` selects.
///
/// # Errors
/// Its value is no filter.
pub(crate) fn begin() -> Result<(), Failure> {
    let Some(filter) = env::var_os(VARIABLE) else { return Ok(()) };
    let filter = filter.to_string_lossy();
    let filter = EnvFilter::try_new(&*filter).map_err(|error| {
        let expected = "expected a level such as info, or a list such as weft_stack::port=debug,warn";
        Failure::Usage(format!("{VARIABLE}: {error} in {filter:?}; {expected}"))
    })?;
    tracing_subscriber::fmt()
        .compact()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        .init();
    Ok(())
}
