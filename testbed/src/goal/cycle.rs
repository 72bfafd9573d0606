//! Finds cycles among the dependencies of a rank.

use super::RankProgram;

/// A cycle: each operation waits for the next, and the last one for the first. `None` if there is none.
///
/// Whether an operation waits for the start or for the finish of another makes no difference: none of a cycle ever starts.
pub(super) fn find(program: &RankProgram) -> Option<Vec<u32>> {
    let count = program.operations().len();
    let mut waits = vec![0u32; count];
    program.dependencies().iter().for_each(|dependency| waits[dependency.later as usize] += 1);
    let mut ready: Vec<u32> = (0..count as u32).filter(|index| waits[*index as usize] == 0).collect();
    while let Some(index) = ready.pop() {
        for dependency in program.dependents(index as usize) {
            let waits = &mut waits[dependency.later as usize];
            *waits -= 1;
            if *waits == 0 {
                ready.push(dependency.later);
            }
        }
    }
    // Whoever still waits does so for somebody who still waits; that leads around a cycle sooner or later.
    let mut at = waits.iter().position(|waits| *waits > 0)? as u32;
    let mut waits_for = vec![u32::MAX; count];
    for dependency in program.dependencies() {
        let [earlier, later] = [dependency.earlier, dependency.later];
        if waits[earlier as usize] > 0 {
            waits_for[later as usize] = earlier;
        }
    }
    for _ in 0..count {
        at = waits_for[at as usize];
    }
    let mut cycle = vec![at];
    let mut next = waits_for[at as usize];
    while next != at {
        cycle.push(next);
        next = waits_for[next as usize];
    }
    Some(cycle)
}
