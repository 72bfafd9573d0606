//! The fabric around the hosts: topologies, workloads, the trimming switch, the engine that drives switches
//! and endpoints in virtual time, and the software fabric that forwards real frames.
#![forbid(unsafe_code)]

pub mod goal;
pub mod link_events;
pub mod sim;
pub mod soft;
pub mod switch;
pub mod topology;
pub mod workload;
