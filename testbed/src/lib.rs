//! The fabric around the hosts: topologies, workloads, the trimming switch and the engine that
//! drives switches and endpoints in virtual time.
#![forbid(unsafe_code)]

pub mod link_events;
pub mod sim;
pub mod soft;
pub mod switch;
pub mod topology;
pub mod workload;
