use super::super::{Collective, Pattern, Program, parse_goal};
use proptest::prelude::*;

pub(super) fn text_of(program: &Program) -> String {
    let mut text = String::new();
    program.write_goal(&mut text).unwrap();
    text
}

/// A statement of a rank, among `ranks` ranks, with a label of its own if it is to have one.
fn operation(ranks: u32) -> impl Strategy<Value = (String, bool)> {
    let place = (0u16..3, 0u16..3);
    let tag = prop_oneof![Just(0u32), 1u32..4, Just(u32::MAX)];
    let or_any = |most: u32| prop_oneof![Just("-1".to_owned()), (0..most).prop_map(|n| n.to_string())];
    let calc = (0u64..5000, 0u16..3).prop_map(|(ns, cpu)| format!("calc {ns} cpu {cpu}"));
    let send = (any::<u32>(), 0..ranks, tag, place.clone()).prop_map(|(bytes, to, tag, (cpu, nic))| {
        format!("send {bytes}b to {to} tag {tag} nic {nic} cpu {cpu}")
    });
    let recv = (any::<u32>(), or_any(ranks), or_any(5), place)
        .prop_map(|(bytes, from, tag, (cpu, _))| format!("recv {bytes}b from {from} cpu {cpu} tag {tag}"));
    (prop_oneof![calc, send, recv], any::<bool>())
}

/// A program text: labels are used before and after their definitions, and wait for operations with smaller numbers.
fn program() -> impl Strategy<Value = String> {
    (1u32..5).prop_flat_map(|ranks| {
        let waits = prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>()),
            0..8,
        );
        let rank = (prop::collection::vec(operation(ranks), 0..12), waits);
        prop::collection::vec(rank, ranks as usize).prop_map(move |all| {
            let mut text = format!("num_ranks {ranks}\n");
            for (number, (operations, waits)) in all.iter().enumerate().rev() {
                text += &format!("rank {number} {{ // its block\n");
                let labelled: Vec<usize> =
                    (0..operations.len()).filter(|index| operations[*index].1).collect();
                for (a, b, finish) in waits.iter().filter(|_| labelled.len() > 1) {
                    let (a, b) = (a.index(labelled.len()), b.index(labelled.len()));
                    if a != b {
                        let word = if *finish { "requires" } else { "irequires" };
                        text += &format!("l{} {word} l{}\n", labelled[a.max(b)], labelled[a.min(b)]);
                    }
                }
                for (index, (statement, _)) in operations.iter().enumerate() {
                    let is_labelled = labelled.contains(&index);
                    let label = if is_labelled { format!("l{index} : ") } else { String::new() };
                    text += &format!("  {label}{statement} /* … */\n");
                }
                text += "}\n";
            }
            text
        })
    })
}

proptest! {
    #[test]
    fn a_program_that_is_written_reads_back_the_same(text in program()) {
        let program = parse_goal("a.goal", &text).unwrap();
        let written = text_of(&program);
        let again = parse_goal("b.goal", &written).unwrap();
        prop_assert_eq!(&again, &program);
        prop_assert_eq!(text_of(&again), written);
    }

    #[test]
    fn any_text_is_read_or_refused_without_a_panic(text in "(num_ranks [0-3]\n)?(rank [0-2] \\{|\\}|[a-c]: |calc [0-9]|send 4b to 1|recv 4b from -1| requires [a-c]|[a-c]|/\\*|\\*/|//|\n| ){0,40}") {
        if let Ok(program) = parse_goal("a.goal", &text) {
            prop_assert_eq!(parse_goal("a.goal", &text_of(&program)), Ok(program));
        }
    }
}

#[test]
fn generated_programs_read_back_the_same() {
    for (_, pattern) in Pattern::ALL {
        let collective = Collective { pattern, ranks: 8, bytes: 1003, iterations: 3, compute: 10 };
        let program = collective.program().unwrap();
        assert_eq!(parse_goal("a.goal", &text_of(&program)), Ok(program));
    }
}
