//! The command in real time: over kernel UDP, memif, DPDK's devices and the software testbed.

#[allow(dead_code, reason = "some of it is for the tests of the library")]
#[path = "../../../tests/endpoint/body.rs"]
mod body;
#[path = "../lab/mod.rs"]
mod lab;

mod delays;
mod doctor;
mod endpoint;
mod interrupt;
mod liveness;
mod loopback;
mod perf;
mod soft;
mod testbed;
mod trace;
mod udp;
