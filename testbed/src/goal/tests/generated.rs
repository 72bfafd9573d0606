use super::super::{Action, Collective, CollectiveError, Pattern, Program};

fn program(pattern: Pattern, ranks: u32, bytes: u32) -> Program {
    Collective { pattern, ranks, bytes, iterations: 1, compute: 0 }.program().unwrap()
}

/// Bytes that each rank sends.
fn sent(program: &Program) -> Vec<u64> {
    let bytes = |action: &Action| if let Action::Send { bytes, .. } = action { u64::from(*bytes) } else { 0 };
    program.ranks().iter().map(|rank| rank.operations().iter().map(|o| bytes(&o.action)).sum()).collect()
}

/// Asserts that each pair of ranks has as many receives as sends, with the same lengths in the same order.
fn is_balanced(program: &Program) {
    let n = program.ranks().len() as u32;
    for a in 0..n {
        for b in 0..n {
            let lengths = |rank: u32, of: &dyn Fn(&Action) -> Option<u32>| -> Vec<u32> {
                program.ranks()[rank as usize].operations().iter().filter_map(|o| of(&o.action)).collect()
            };
            let sent = lengths(a, &|action| match action {
                Action::Send { bytes, to, .. } if *to == b => Some(*bytes),
                _ => None,
            });
            let taken = lengths(b, &|action| match action {
                Action::Recv { bytes, from, .. } if *from == Some(a) => Some(*bytes),
                _ => None,
            });
            assert_eq!(sent, taken, "rank {a} to rank {b}");
        }
    }
}

#[test]
fn collectives_send_what_their_closed_forms_say() {
    for n in [2, 3, 7, 8, 64] {
        let ring = program(Pattern::Ring, n, 1000);
        is_balanced(&ring);
        assert_eq!(
            sent(&ring).iter().sum::<u64>(),
            2 * u64::from(n - 1) * 1000,
            "each chunk goes around twice"
        );
        let tree = program(Pattern::Tree, n, 1000);
        is_balanced(&tree);
        assert_eq!(sent(&tree).iter().sum::<u64>(), 2 * u64::from(n - 1) * 1000, "an edge each way");
        let all = program(Pattern::AllToAll, n, 1000);
        is_balanced(&all);
        assert!(sent(&all).iter().all(|bytes| *bytes == u64::from(n - 1) * 1000));
        if n.is_power_of_two() {
            let doubling = program(Pattern::RecursiveDoubling, n, 1000);
            is_balanced(&doubling);
            assert!(sent(&doubling).iter().all(|bytes| *bytes == u64::from(n.ilog2()) * 1000));
        }
    }
}

#[test]
fn programs_that_make_no_sense_are_refused() {
    let good = Collective { pattern: Pattern::Ring, ranks: 6, bytes: 1, iterations: 1, compute: 0 };
    for (bad, error) in [
        (Collective { ranks: 1, ..good }, CollectiveError::Ranks(1)),
        (Collective { ranks: u32::MAX, ..good }, CollectiveError::Ranks(u32::MAX)),
        (Collective { iterations: 0, ..good }, CollectiveError::NoIterations),
        (Collective { pattern: Pattern::RecursiveDoubling, ..good }, CollectiveError::NoPowerOfTwo(6)),
        (Collective { compute: u64::MAX, ..good }, CollectiveError::Compute(u64::MAX)),
        (Collective { ranks: 1 << 20, ..good }, CollectiveError::TooLarge),
        (Collective { iterations: u32::MAX, ..good }, CollectiveError::TooLarge),
    ] {
        assert_eq!(bad.program(), Err(error));
    }
}
