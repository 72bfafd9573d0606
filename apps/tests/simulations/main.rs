//! The command where it simulates, reads and writes files, and refuses: what its users see.

#[path = "../lab/mod.rs"]
mod lab;

mod command;
mod documents;
mod goal;
mod htsim;
mod htsim_validation;
mod logs;
mod measures;
mod plot;
mod reproduce;
mod samples;
mod sweep;
mod topologies;
mod workloads;
