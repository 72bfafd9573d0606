//! Programs that use libfabric, as they are installed or built, over the provider.

#[path = "../common/mod.rs"]
mod common;

mod matrix;
mod mpi_served;
mod mpi_testbed;
mod programs;
