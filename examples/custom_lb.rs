//! A load balancer of one's own, plugged in without a fork and compared with ECMP: it stays on a path until that marks or
//! loses a packet, then moves on to the next one.
use std::error::Error;
use weft::core::Rng;
use weft::core::spray::{Entropy, LbChoice, PathContext, PathFeedback, PathSelector};
use weft::{Span, Time};
use weft_testbed::sim::{self, RunConfig};
use weft_testbed::{topology::TopologySpec, workload::WorkloadSpec};

/// The path that is in use, and how many there are.
struct Sticky {
    path: u16,
    paths: u16,
}

impl PathSelector for Sticky {
    fn next(&mut self, _: &PathContext) -> Entropy {
        Entropy(self.path)
    }
    fn feedback(&mut self, _: Time, entropy: Entropy, feedback: PathFeedback) {
        // Packets that left earlier say nothing about the path of today.
        if entropy == Entropy(self.path) && feedback != PathFeedback::Good {
            self.path = (self.path + 1) % self.paths;
        }
    }
}

pub(crate) fn sticky() -> LbChoice {
    LbChoice::custom("sticky", |on| Box::new(Sticky { path: 0, paths: on.paths }))
}

/// How long a permutation of sixteen hosts takes, each of which sends 4 MB to another one.
pub(crate) fn permutation(lb: LbChoice) -> Result<Span, Box<dyn Error>> {
    let workload = "permutation".parse::<WorkloadSpec>()?.build(Some(16), 4_000_000, &mut Rng::new(1, 0))?;
    let topology = "leaf-spine:hosts=16,leaves=4,spines=4".parse::<TopologySpec>()?.build()?;
    let config = RunConfig { lb, ..RunConfig::new(topology, workload) };
    let flows = sim::run(&config, &mut |_| ())?.flows;
    let ends = flows.iter().map(|flow| flow.end.ok_or("a flow has not ended"));
    let last = ends.collect::<Result<Vec<_>, _>>()?.into_iter().reduce(Time::latest);
    Ok(last.ok_or("no flows")?.since(Time::ZERO))
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    println!("sticky {}", permutation(sticky())?);
    println!("ecmp   {}", permutation(LbChoice::parse("ecmp")?)?);
    Ok(())
}
