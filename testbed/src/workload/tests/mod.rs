mod generators;
mod matrices;
mod round_trip;
mod triggers;

use weft_stack::rng::Rng;

use super::{Start, TriggerBank, Workload};

/// Lets the flows of a workload end in random order. Calls `on_start` for each flow that starts, with the
/// flows that are running then. Panics if a flow starts twice or never.
fn play(workload: &Workload, seed: u64, mut on_start: impl FnMut(u32, &[u32])) {
    let mut rng = Rng::new(seed, 0);
    let mut bank = TriggerBank::new(workload);
    let mut started = vec![false; workload.flows().len()];
    let mut running: Vec<u32> = Vec::new();
    let mut start = |flow: u32, running: &mut Vec<u32>| {
        assert!(!std::mem::replace(&mut started[flow as usize], true), "flow {flow} starts twice");
        running.push(flow);
        on_start(flow, running);
    };
    for (i, flow) in (0..).zip(workload.flows()) {
        if matches!(flow.start, Start::At(_)) {
            start(i, &mut running);
        }
    }
    while !running.is_empty() {
        let done = running.swap_remove(rng.below(running.len() as u32) as usize);
        let flow = &workload.flows()[done as usize];
        for trigger in [flow.on_received, flow.on_sent].into_iter().flatten() {
            for &next in bank.activate(workload, trigger) {
                start(next, &mut running);
            }
        }
    }
    assert_eq!(started.iter().position(|s| !s), None, "one flow never starts");
}
