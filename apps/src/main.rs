//! The binary of the `weft` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// With huge pages where the system has them on request: `.cargo/config.toml` says so to its build.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    weft_apps::main()
}
