//! The limits in `docs/limits.md` are those of the code.

use super::carried::{self, HELD_BYTES, HELD_OWN, Shape};
use super::pending::{ACCESSES, TO_ALL, TO_ONE};
use super::{DEPTH, RECEIVES, backlog, budgets, grants, notes, readings, stand_in};
use crate::place::limits_without_a_server;

const DOCS: &str = include_str!("../../../docs/limits.md");
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The text of a section, without its heading.
fn section(heading: &str) -> &'static str {
    let (_, rest) = DOCS.split_once(&format!("\n## {heading}\n")).expect("docs/limits.md has the section");
    rest.split("\n## ").next().expect("the first part")
}

/// The numbers in a text that are written in digits, in its order, those of bytes in bytes. Links have none.
fn figures(text: &str) -> Vec<u64> {
    let without_links = text.replace("](", " ( ");
    let words: Vec<&str> = without_links.split_whitespace().filter(|word| !word.contains(".md")).collect();
    let number = |word: &str| {
        let word = word.trim_matches(|c: char| !c.is_ascii_digit());
        word.replace(',', "").parse::<u64>().ok()
    };
    let unit = |word: Option<&&str>| match word
        .map(|word| word.trim_end_matches(|c: char| !c.is_ascii_alphabetic()))
    {
        Some("KiB") => KIB,
        Some("MiB") => MIB,
        Some("GiB") => MIB << 10,
        _ => 1,
    };
    (0..words.len()).filter_map(|at| Some(number(words[at])? * unit(words.get(at + 1)))).collect()
}

#[test]
fn figures_are_read_with_their_units() {
    assert_eq!(
        figures("1,024 of 16 MiB, or 2 GiB: (8). [Decision 7](decisions/0097-a.md) (`x = y`)"),
        [1024, 16 * MIB, 2048 * MIB, 8, 7]
    );
}

#[test]
fn the_table_of_endpoints_at_servers_has_the_limits_of_the_code() {
    let of = |numbers: &[usize]| numbers.iter().map(|n| *n as u64).collect::<Vec<_>>();
    let expected = [
        ("registered regions", vec![]),
        (
            "accesses that are under way",
            of(&[ACCESSES.to_all, ACCESSES.all_sure / ACCESSES.sure, ACCESSES.to_one, DEPTH]),
        ),
        ("receives of messages", of(&[RECEIVES, RECEIVES])),
        (
            "receives that the server has, and memory for them",
            of(&[backlog::AT_THE_SERVER, backlog::FOR_MANY]),
        ),
        ("messages that wait, are sent, or are to be fetched", of(&[TO_ALL, TO_ONE])),
        ("messages that the server has, and memory for them", of(&[DEPTH])),
        (
            "messages with tags that are sent at once and that their receiver has not taken",
            vec![
                budgets::FIRST,
                budgets::ALL,
                budgets::UNTAKEN,
                budgets::LEAST,
                backlog::PATIENCE.as_millis() as u64,
                // The number of the decision.
                120,
            ],
        ),
        ("senders whose messages are counted", of(&[budgets::SENDERS])),
        ("senders that are told when there is room", of(&[budgets::ASKERS, budgets::ASKERS_OF_ONE])),
        (
            "memory for pieces of accesses, and of messages, that are asked for",
            of(&[Shape::of(1 << 30).count, carried::WINDOW]),
        ),
        ("pieces that are asked for, with or without memory", of(&[carried::WINDOW])),
        ("requests of others that have arrived", of(&[2 * Shape::of(1 << 30).count])),
        ("requests of others that wait", of(&[HELD_BYTES, HELD_OWN, carried::WINDOW, HELD_BYTES])),
        ("questions of others that wait for an answer", of(&[stand_in::UNANSWERED, 1])),
        ("notices to senders of messages that are under way", of(&[TO_ONE])),
        ("notices to senders of messages that wait", of(&[TO_ONE])),
        ("answers that are under way", of(&[2 * Shape::of(1 << 30).count])),
        ("data beside writes that nobody has read", vec![]),
        ("entries of receives for many messages that nobody has read", vec![]),
    ];
    let rows: Vec<&str> = section("Endpoints of libfabric at servers")
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert_eq!(rows.len(), expected.len());
    for (row, (resource, limits)) in rows.into_iter().zip(expected) {
        let (name, rest) = row.trim_start_matches("| ").split_once(" |").expect("a row has cells");
        assert_eq!(name, resource);
        assert_eq!(figures(rest), limits, "{name}");
    }
}

#[test]
fn the_table_of_pieces_is_that_of_the_memory() {
    let mut rows = 0;
    for row in section("Endpoints of libfabric at servers").lines() {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [memory, pieces, len] = cells[..] else { continue };
        let (memory, pieces) = (figures(memory), figures(pieces));
        let [len, less @ ..] = &figures(len)[..] else { continue };
        let ends = [memory.first(), memory.last()].into_iter().flatten();
        for (mib, count) in ends.zip([pieces.first(), pieces.last()].into_iter().flatten()) {
            let shape = Shape::of((*mib as usize) << 20);
            assert_eq!(
                (shape.count as u64, u64::from(shape.piece)),
                (*count, len - less.iter().sum::<u64>()),
                "{row}"
            );
            rows += 1;
        }
    }
    assert_eq!(rows, 10, "two ends of each row");
}

#[test]
fn the_prose_about_the_providers_endpoints_without_a_server_has_the_limits_of_the_code() {
    let text = section("Endpoints without a server");
    let (_, text) =
        text.split_once("Endpoints of the libfabric provider without a server").expect("their limits");
    let text = text.split("\n\n").next().expect("the first paragraph");
    let limits = limits_without_a_server();
    let seconds = 2 * grants::RESERVED;
    let first = [
        limits.receive_kinds as u64,
        limits.unexpected_messages as u64 / limits.processes as u64,
        limits.unexpected_bytes / limits.processes as u64,
        limits.unexpected_messages_per_peer.into(),
        limits.unexpected_bytes_per_peer,
        grants::ALL,
        seconds,
    ];
    let counts = [
        stand_in::UNANSWERED,
        notes::NOTICES,
        notes::TO_ALL,
        notes::AGAIN,
        notes::ALL_AGAIN,
        notes::ALL_SURE,
        stand_in::HEARD_NOTES,
        readings::WINDOW,
        readings::PIECE as usize,
    ];
    let expected: Vec<u64> = first.into_iter().chain(counts.map(|count| count as u64)).collect();
    assert_eq!(figures(text), expected);
}
