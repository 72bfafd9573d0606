mod collectives;
mod generators;
mod matrices;
mod open_loop;
mod round_trip;
mod sizes;
mod triggers;

use weft_stack::rng::Rng;

use super::{Start, TriggerBank, TriggerIdx, Workload};

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
    let mut activated: Vec<TriggerIdx> = (0..workload.triggers().len() as u32)
        .filter(|i| workload.triggers()[*i as usize].at.is_some())
        .filter_map(TriggerIdx::new)
        .collect();
    while !running.is_empty() || !activated.is_empty() {
        // Either an activated trigger reacts, whose delay may be of any length, or a flow ends.
        let next = rng.below((running.len() + activated.len()) as u32) as usize;
        if next < activated.len() {
            let fired = bank.activate(workload, activated.swap_remove(next));
            for fired in fired.iter() {
                fired.flows.iter().for_each(|next| start(*next, &mut running));
                activated.extend(fired.then);
            }
        } else {
            let done = running.swap_remove(next - activated.len());
            let flow = &workload.flows()[done as usize];
            activated.extend([flow.on_received, flow.on_sent].into_iter().flatten());
        }
    }
    assert_eq!(started.iter().position(|s| !s), None, "one flow never starts");
}
