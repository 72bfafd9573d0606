//! Where triggers are: at a rank, if only that rank activates them and starts their flows, so that nothing need travel; else
//! at rank 0.

use std::collections::BTreeSet;

use weft_testbed::workload::{Start, TriggerIdx, Workload};

/// The rank of each trigger; none of those that ranks share.
pub(crate) struct Owners(Vec<Option<u32>>);

impl Owners {
    pub(crate) fn of(workload: &Workload) -> Owners {
        let triggers = workload.triggers();
        let mut chain: Vec<usize> = (0..triggers.len()).collect();
        // Triggers that activate each other are at the same place. Each has one that it activates at most, so a few rounds
        // give all of a chain the same, least, number.
        loop {
            let mut changed = false;
            for (i, trigger) in triggers.iter().enumerate() {
                let Some(then) = trigger.then.map(TriggerIdx::index) else { continue };
                let least = chain[i].min(chain[then]);
                changed |= chain[i] != least || chain[then] != least;
                (chain[i], chain[then]) = (least, least);
            }
            if !changed {
                break;
            }
        }
        let mut ranks: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); triggers.len()];
        let mut note = |trigger: Option<TriggerIdx>, rank: u32| {
            if let Some(trigger) = trigger {
                ranks[chain[trigger.index()]].insert(rank);
            }
        };
        for flow in workload.flows() {
            note(flow.on_sent, flow.src.0);
            note(flow.on_received, flow.dst.0);
            if let Start::Trigger(trigger) = flow.start {
                note(Some(trigger), flow.src.0);
            }
        }
        let owner = |chain: usize| ranks[chain].first().copied().filter(|_| ranks[chain].len() == 1);
        Owners(chain.iter().map(|chain| owner(*chain)).collect())
    }

    pub(crate) fn is_shared(&self, trigger: TriggerIdx) -> bool {
        self.0[trigger.index()].is_none()
    }

    pub(crate) fn is_at(&self, trigger: TriggerIdx, rank: u32) -> bool {
        self.0[trigger.index()] == Some(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_testbed::workload::{CmOptions, parse_cm};

    #[test]
    fn triggers_of_one_rank_are_there_and_others_are_shared() {
        let matrix = "Nodes 3\nConnections 6\nTriggers 5\n\
            0->1 id 1 start 0 size 1 send_done_trigger 1\n\
            0->2 id 2 trigger 1 size 1 recv_done_trigger 2\n\
            2->1 id 3 trigger 2 size 1 recv_done_trigger 3\n\
            0->1 id 4 trigger 3 size 1 send_done_trigger 4\n\
            0->1 id 5 trigger 5 size 1\n\
            0->1 id 6 start 0 size 1\n\
            trigger id 1 oneshot\n\
            trigger id 2 oneshot\n\
            trigger id 3 oneshot\n\
            trigger id 4 oneshot then 5\n\
            trigger id 5 oneshot\n";
        let workload = parse_cm("test", matrix, CmOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        let owners = Owners::of(&workload);
        assert_eq!(owners.0, [Some(0), Some(2), None, Some(0), Some(0)]);
        let first = TriggerIdx::new(0).unwrap();
        assert!(owners.is_at(first, 0) && !owners.is_at(first, 1) && !owners.is_shared(first));
    }
}
