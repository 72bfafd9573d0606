//! What attacks by peers and applications cost the others at a server: the program of `scripts/bench-attacks.sh`.
//!
//! An endpoint serves applications, one of which, alice, exchanges messages with a peer. Beside them an attack goes on. Only
//! what the server does takes time, so that one thread plays all the others. Everything is measured without the attack, beside
//! honest senders that it is compared with, and with it in turn, because on a shared machine the same takes longer in one second
//! than in the next.
//!
//! `attacks NAME…` prints a line for each attack, with tabs between its words: the name, and of all that is measured
//! (`honest.rs`) the value without the attack and with it, `-` if alice did not get it, `*` if it is not measured; and such a line
//! for the honest senders that it was measured in turn with. `attacks list` prints the names, what an attack is compared with (a row
//! of honest senders, `-` for what is without it, `=` for such a row), and what it does.

#[path = "../../tests/attached/mod.rs"]
mod attached;
#[path = "../../tests/held/mod.rs"]
mod held;

mod cases;
mod honest;
mod interface;
mod joiner;
mod net;
mod queue;
mod strangers;

use std::time::Duration;

use weft_stack::fep::Limits;

use cases::{CASES, Case};
use honest::{ALL, GoOn, What, in_parts};
use net::Net;
use strangers::Crowd;

/// Parts in which everything is measured at all of the servers in turn.
const PARTS: usize = 8;

/// Results in the order of [`ALL`].
type Results = Vec<Option<f64>>;

/// The load on the measured server besides alice and her peer.
#[derive(Clone, Copy)]
enum Side {
    Nothing,
    With(&'static Case),
}

impl Side {
    fn prepare(self, limits: fn(&mut Limits)) -> Net {
        let mut net = Net::new(limits);
        if let Side::With(case) = self {
            (case.begin)(&mut net);
        }
        net.longest = Duration::ZERO;
        net
    }

    fn go_on(self) -> GoOn {
        match self {
            Side::Nothing => |_| {},
            Side::With(case) => case.go_on,
        }
    }

    fn ends(self) -> bool {
        matches!(self, Side::With(case) if case.ends)
    }
}

/// Measures the service that alice gets: first without an attack, then beside honest senders if the attack is compared with some, and
/// last beside the attack. (Memory is counted from the moment at which a server was prepared, so that only the count of the last server
/// leaves out the preparation of others.)
fn measure(case: &'static Case) -> Vec<Results> {
    let honest = CASES.iter().find(|other| case.beside.word() == other.name);
    let sides = [Some(Side::Nothing), honest.map(Side::With), Some(Side::With(case))];
    let prepared = |side: Side| (side, side.prepare(case.limits));
    let mut servers: Vec<(Side, Net)> = sides.into_iter().flatten().map(prepared).collect();
    let mut results = vec![Vec::new(); servers.len()];
    // An attack that comes to an end lasts for one part only.
    let parts = if case.ends { 1 } else { PARTS };
    for what in ALL {
        let measured = in_parts(&mut servers, parts, |(side, net)| what.measure(net, side.go_on(), PARTS));
        for (results, result) in results.iter_mut().zip(measured) {
            results.push(result);
        }
        // The longest turn is one of those of the measurement before it.
        for (side, net) in &mut servers {
            if side.ends() && !matches!(what, What::RoundTrip) {
                *net = side.prepare(case.limits);
            }
        }
    }
    results
}

/// The rows of `strangers.rs`.
const STRANGERS: [(&str, &[Crowd], &str, &str); 2] = [
    (
        "strangers",
        &[Crowd::Nobody, Crowd::Known, Crowd::Strangers],
        KNOWN,
        "6,000 hosts send a packet each, and then 100,000 a second, to one that learns its peers",
    ),
    (KNOWN, &[Crowd::Nobody, Crowd::Known], "=", "no attack: a client sends it a message every 10 µs"),
];
const KNOWN: &str = "packets-of-a-client";

/// The rows of `queue.rs`.
const QUEUES: [(&str, &[queue::Crowd], &str, &str); 3] = [
    (
        "queued-joins",
        &[queue::Crowd::Nobody, queue::Crowd::Computes, queue::Crowd::Asks],
        COMPUTES,
        "a process asks to join over and over, and fills the system's queue",
    ),
    (
        "queued-sockets",
        &[queue::Crowd::Nobody, queue::Crowd::Computes, queue::Crowd::IsSilent],
        COMPUTES,
        "the same, and it says nothing",
    ),
    (
        COMPUTES,
        &[queue::Crowd::Nobody, queue::Crowd::Computes],
        "=",
        "no attack: a process that has nothing to do with the server computes",
    ),
];
const COMPUTES: &str = "busy-process";

/// Prints a line with what is without it and with it for each of what alice gets.
fn print(name: &str, without: &Results, with: &Results) {
    let word = |value: &Option<f64>| match value {
        Some(value) if value.is_nan() => "*".to_owned(),
        Some(value) => format!("{value:.6}"),
        None => "-".to_owned(),
    };
    let words: Vec<String> = without.iter().zip(with).flat_map(|(a, b)| [word(a), word(b)]).collect();
    println!("{name}\t{}", words.join("\t"));
}

/// The same for an attack, and for the honest senders that it is compared with.
fn print_all(name: &str, beside: &str, results: &[Results]) {
    let [without, honest @ .., attacked] = results else { return };
    print(name, without, attacked);
    for honest in honest {
        print(beside, without, honest);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if let [queue::CROWD, path, what] = arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        return queue::crowd(path.as_ref(), what);
    }
    if arguments.first().is_some_and(|first| first == "list") {
        for Case { name, beside, what, .. } in &CASES {
            println!("{name}\t{}\t{what}", beside.word());
        }
        for (name, _, beside, what) in STRANGERS {
            println!("{name}\t{beside}\t{what}");
        }
        for (name, _, beside, what) in QUEUES {
            println!("{name}\t{beside}\t{what}");
        }
        return;
    }
    for case in CASES.iter().filter(|case| arguments.iter().any(|name| name == case.name)) {
        print_all(case.name, case.beside.word(), &measure(case));
    }
    for (name, crowds, beside, _) in STRANGERS {
        if arguments.iter().any(|argument| argument == name) {
            print_all(name, beside, &strangers::measure(crowds));
        }
    }
    for (name, crowds, beside, _) in QUEUES {
        if arguments.iter().any(|argument| argument == name) {
            print_all(name, beside, &queue::measure(crowds));
        }
    }
}
