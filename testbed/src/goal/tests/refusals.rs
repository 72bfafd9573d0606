use super::super::{Action, parse_goal};

/// The refusal of a file of two ranks whose rank 0 has these statements, from line 3 on.
fn refusal(statements: &str) -> String {
    file_refusal(&format!("num_ranks 2\nrank 0 {{\n{statements}\n}}\nrank 1 {{\n}}\n"))
}

fn file_refusal(text: &str) -> String {
    parse_goal("a.goal", text).expect_err(text).to_string()
}

#[test]
fn a_refused_statement_is_named_with_its_line_and_word() {
    for (statements, expected) in [
        ("calc", "3: `end of line`: expected whole nanoseconds, at most 53 days"),
        ("calc -1", "3: `-1`: expected whole nanoseconds, at most 53 days"),
        ("calc 1.5", "3: `1.5`: expected whole nanoseconds, at most 53 days"),
        ("calc 9999999999999999", "3: `9999999999999999`: expected whole nanoseconds, at most 53 days"),
        ("calc 5 tag 1", "3: `tag`: expected `cpu`, once, or the end of the line"),
        ("calc 5 cpu 1 cpu 2", "3: `cpu`: expected `cpu`, once, or the end of the line"),
        ("calc 5 cpu 65536", "3: `65536`: expected a number, 0 to 65535"),
        ("calc 5 calc 6", "3: `calc`: expected `cpu`, once, or the end of the line"),
        ("\nsend 8 to 1", "4: `8`: expected a number of bytes from 0b to 4294967295b, with its b"),
        (
            "send 4294967296b to 1",
            "3: `4294967296b`: expected a number of bytes from 0b to 4294967295b, with its b",
        ),
        ("send 8b from 1", "3: `from`: expected `to`"),
        ("send 8b to 2", "3: `2`: expected a rank, 0 to 1"),
        ("send 8b to -1", "3: `-1`: expected a rank, 0 to 1"),
        ("send 8b to 1 tag -1", "3: `-1`: expected a tag, 0 to 4294967295"),
        (
            "send 8b to 1 tag 1 tag 1",
            "3: `tag`: expected `tag`, `cpu` or `nic`, each once, or the end of the line",
        ),
        ("recv 8b from 2", "3: `2`: expected a rank, 0 to 1, or -1 for any"),
        ("recv 8b from -2", "3: `-2`: expected a rank, 0 to 1, or -1 for any"),
        ("recv 8b from 1 tag 4294967296", "3: `4294967296`: expected a tag, 0 to 4294967295, or -1 for any"),
        ("a: calc 1\na: calc 2", "4: `a`: expected a label that is not defined yet"),
        ("a: calc 1\na requires b", "4: `b`: expected a label that rank 0 defines"),
        ("a requires b\nb: calc 1", "3: `a`: expected a label that rank 0 defines"),
        ("a: calc 1\na needs a", "4: `needs`: expected `:`, `requires` or `irequires` after a label"),
        ("a: calc 1\na requires", "4: `end of line`: expected a label"),
        ("a: calc 1\na requires a a", "4: `a`: expected the end of the line"),
        ("a: compute 1", "3: `compute`: expected calc, send or recv"),
        ("num_ranks 2", "3: `2`: expected `:`, `requires` or `irequires` after a label"),
        (
            "{",
            "3: `{`: expected a statement: calc, send, recv, or a label (a letter, then letters, digits and _)",
        ),
        (
            "1a: calc 1",
            "3: `1a`: expected a statement: calc, send, recv, or a label (a letter, then letters, digits and _)",
        ),
        (
            "calc: calc 1",
            "3: `calc`: expected a statement: calc, send, recv, or a label (a letter, then letters, digits and _)",
        ),
    ] {
        assert_eq!(refusal(statements), format!("a.goal:{expected}"), "{statements}");
    }
}

#[test]
fn a_refused_file_is_named_with_its_line_and_word() {
    for (text, expected) in [
        ("", "1: `end of file`: expected `num_ranks`"),
        ("ranks 2", "1: `ranks`: expected `num_ranks`"),
        ("num_ranks 0", "1: `0`: expected the number of ranks, 1 to 1048576"),
        ("num_ranks 1048577", "1: `1048577`: expected the number of ranks, 1 to 1048576"),
        ("num_ranks\n", "1: `end of file`: expected the number of ranks, 1 to 1048576"),
        ("num_ranks 1\n", "1: `end of file`: expected a block of rank 0"),
        ("num_ranks 1\nrank 1 {", "2: `1`: expected the number of a rank, 0 to 0"),
        ("num_ranks 1\nrank 0 {}\nrank 0 {}", "3: `0`: expected a rank that has no block yet"),
        ("num_ranks 2\nrank 1 {}", "2: `end of file`: expected a block of rank 0"),
        ("num_ranks 1\nrank 0 [", "2: `[`: expected `{`"),
        (
            "num_ranks 1\nrank 0 {\ncalc 1\n",
            "3: `end of file`: expected `}` at the end of rank 0, which begins in line 2",
        ),
        ("num_ranks 1\nrank 0 {}\n}", "3: `}`: expected `rank`"),
        ("num_ranks 1\nrank 0 {}\n/* no end", "3: `end of file`: expected `*/`, which ends a comment"),
    ] {
        assert_eq!(file_refusal(text), format!("a.goal:{expected}"), "{text}");
    }
}

#[test]
fn a_cycle_is_refused_at_the_statement_that_closes_it() {
    let three =
        "x: calc 1\na: calc 1\nb: calc 1\nc: calc 1\nx requires a\nc requires b\nb irequires a\na requires c";
    let text = refusal(three);
    assert!(text.starts_with("a.goal:10: `a`: expected no cycle: "), "{text}");
    assert!(["a, c, b ", "c, b, a ", "b, a, c "].iter().any(|cycle| text.contains(cycle)), "{text}");
    assert!(
        refusal("a: calc 1\na requires a").starts_with("a.goal:4: `a`: expected no cycle: each of a waits")
    );
    // A long cycle is found and named in time proportional to the program.
    let many: u32 = 20_000;
    let mut long: String = (0..many).map(|i| format!("l{i}: calc 1\n")).collect();
    long.extend((0..many).map(|i| format!("l{i} requires l{}\n", (i + 1) % many)));
    assert!(refusal(&long).contains(" … waits for the next"));
}

#[test]
fn a_long_word_is_repeated_only_in_part() {
    let text = refusal(&format!("{}é calc 1", "x".repeat(1000)));
    assert!(text.len() < 250 && text.contains("xx…`"), "{text}");
    let label = "x".repeat(255);
    assert!(parse_goal("a", &format!("num_ranks 1 rank 0 {{ {label}: calc 1 }}")).is_ok());
    assert!(parse_goal("a", &format!("num_ranks 1 rank 0 {{ {label}x: calc 1 }}")).is_err());
}

#[test]
fn blocks_may_come_in_any_order_and_labels_before_their_definition() {
    let text = "/* two\n ranks */ num_ranks 2 // of them\nrank\n1\n{\nb requires a\nb: recv 9b from -1 tag -1 nic 3\n\
        a: calc 7 cpu 2 }\nrank 0 { send 4b to 1 }";
    let program = parse_goal("a.goal", text).unwrap();
    let [zero, one] = program.ranks() else { panic!("two ranks") };
    assert_eq!(zero.operations()[0].action, Action::Send { bytes: 4, to: 1, tag: 0 });
    assert_eq!(one.operations()[0].action, Action::Recv { bytes: 9, from: None, tag: None });
    assert_eq!((one.operations()[0].nic, one.operations()[1].cpu), (3, 2));
    assert_eq!((one.label(0), one.label(1), zero.label(0)), (Some("b"), Some("a"), None));
    assert_eq!((one.line(0), one.line(1), zero.line(0)), (Some(7), Some(8), Some(9)));
    assert_eq!((one.dependents(1).len(), one.dependents(0).len(), one.dependencies()[0].later), (1, 0, 0));
}
