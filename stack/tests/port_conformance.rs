//! The conformance suite over the ports that need nothing but memory.

mod port_suite;

use port_suite::{Link, conforms, conforms_across_threads};
use weft_stack::port::faulty::{Faults, FaultyPort};
use weft_stack::port::memory::{MemoryConfig, MemoryPort, pair};
use weft_stack::rng::Rng;

fn memory(mtu: usize, ring: usize) -> Link<MemoryPort, MemoryPort> {
    let (a, b) = pair(&MemoryConfig { mtu, ring, ..MemoryConfig::default() }).unwrap();
    Link { a, b, frames: ring }
}

/// The wrapper without faults is transparent.
fn unfaulty(ring: usize) -> Link<FaultyPort<MemoryPort>, FaultyPort<MemoryPort>> {
    let Link { a, b, frames } = memory(9000, ring);
    let wrap = |port, stream| FaultyPort::new(port, Faults::default(), Rng::new(1, stream)).unwrap();
    Link { a: wrap(a, 0), b: wrap(b, 1), frames }
}

#[test]
fn memory_conforms() {
    conforms(|| memory(9000, 256));
}

#[test]
fn memory_with_an_odd_ring_conforms() {
    conforms(|| memory(1500, 45));
}

#[test]
fn faulty_without_faults_conforms() {
    conforms(|| unfaulty(256));
}

#[test]
fn memory_conforms_across_threads() {
    conforms_across_threads(memory(1500, 64), 200_000);
}

#[test]
fn faulty_conforms_across_threads() {
    conforms_across_threads(unfaulty(64), 50_000);
}
