//! Games: the seeds that two players play, over a relay or at servers.

use std::time::Instant;

use super::super::PAYLOAD;
use super::super::fabric::{BOUND, close};
use super::super::lossy::{Faults, Relay};
use super::super::server::Server;
use super::*;

/// The seeds to play: those that the variable WEFT_FI_SEEDS names, such as `5..100`, without the last, or as many as are usual.
pub(crate) fn seeds(usual: u64) -> std::ops::Range<u64> {
    let Some(text) = std::env::var_os("WEFT_FI_SEEDS") else { return 1..usual + 1 };
    let ends = text.to_str().and_then(|text| text.split_once(".."));
    let range = ends.and_then(|(begin, end)| Some(begin.parse().ok()?..end.parse().ok()?));
    range.unwrap_or_else(|| panic!("expected seeds such as 5..100, not {text:?}"))
}

/// Entries of the queues of a seed: in every fourth one so few that calls are refused.
fn queue(seed: u64) -> usize {
    if seed.is_multiple_of(4) { 64 } else { 8_192 }
}

/// Whether operations of a seed have entries only if their calls say so.
fn is_selective(seed: u64) -> bool {
    seed.is_multiple_of(3)
}

/// Works until `done`.
fn until(players: &mut [Player; 2], what: &str, mut done: impl FnMut(&mut [Player; 2]) -> bool) {
    let begin = Instant::now();
    loop {
        let [a, b] = players;
        a.drain(b);
        b.drain(a);
        if done(players) {
            return;
        }
        assert!(begin.elapsed() < BOUND, "{what} takes too long");
        std::thread::yield_now();
    }
}

/// Random calls between two endpoints whose datagrams meet faults. In every fourth seed both sides have sent, before, as much as a target
/// keeps that nobody receives: something stands for each later message with a tag that is longer than a short one, until the
/// receiver has read it.
pub(crate) fn play_over_relay(seed: u64, faults: Faults) {
    let mut players = [(); 2].map(|()| Player::open(None, queue(seed), is_selective(seed)));
    let (relay, others) = Relay::between(players.each_ref().map(|player| &player.side), faults, seed);
    for (player, other) in players.iter_mut().zip(others) {
        player.other = other;
    }
    let filling = (seed % 4 == 2).then(|| content(seed, FILLING));
    if let Some(message) = &filling {
        players
            .iter()
            .for_each(|player| player.side.send(player.other, message, Some(FILLING_TAG), FILLING_CONTEXT));
        players.iter_mut().for_each(|player| player.posted += 1);
        // The targets keep them.
        players.iter().for_each(|player| assert_eq!(player.side.cq.next().unwrap().context, FILLING_CONTEXT));
    }
    assert!(play(seed, &mut players, filling.is_some()) > 0);
    if let Some(message) = &filling {
        let mut room = vec![0; FILLING];
        for player in &players {
            player.side.receive(&mut room, player.other, Some((FILLING_TAG, 0)), FILLING_CONTEXT);
            assert_eq!(player.side.cq.next().unwrap().context, FILLING_CONTEXT);
            assert!(room == *message);
            room.fill(0);
        }
    }
    close_all(players);
    let counts = relay.stop();
    println!("seed {seed}: {counts:?}");
    faults.check(counts);
}

/// Random calls between an endpoint of each server.
pub(crate) fn play_at_servers(seed: u64, servers: &[Server; 2]) -> usize {
    let mut players =
        servers.each_ref().map(|server| Player::open(Some(server.name()), queue(seed), is_selective(seed)));
    let names = players.each_ref().map(|player| player.side.name());
    players[0].other = players[0].side.insert(&names[1]);
    players[1].other = players[1].side.insert(&names[0]);
    let gathered = play(seed, &mut players, false);
    close_all(players);
    gathered
}

fn close_all(players: [Player; 2]) {
    for player in &players {
        assert_eq!(close(player.mr.cast()), 0);
    }
}

/// Whether messages for which something stands are complete only when they were received: nobody receives any just now.
fn check_stand_ins(players: &mut [Player; 2]) {
    let is_long = |message: &&Message| message.tag.is_some() && message.len > SHORT;
    // Those that were sent at once would be complete after this.
    let mut turns = 0;
    until(players, "receiving what is complete", |players| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        turns += 1;
        let early = |message: &Message| message.delivered && message.taken.is_none();
        let is_early = |player: &Player| player.sent.values().filter(is_long).any(early);
        turns > 100 && !players.iter().any(is_early)
    });
    let (mut all, mut waiting) = (0, 0);
    for message in players.iter().flat_map(|player| player.sent.values()).filter(is_long) {
        all += 1;
        waiting += usize::from(message.taken.is_none());
    }
    println!("{waiting} of {all} messages wait for their receives");
    assert!(all > 0);
}

/// Returns how many messages receives for many have got.
fn play(seed: u64, players: &mut [Player; 2], is_filled: bool) -> usize {
    let mut random = Random::new(seed);
    for id in 1..=CALLS as u64 {
        let [a, b] = &mut *players;
        let (own, other) = if random.below(2) == 0 { (a, b) } else { (b, a) };
        own.play(other, &mut random, id);
        if random.below(3) == 0 {
            // Looks take nothing from others, and what they do not find tells much.
            let pattern = pattern(&mut random);
            own.look(other, pattern, sys::FI_PEEK);
        }
        if random.below(3) == 0 {
            own.drain(other);
            other.drain(own);
        }
        if random.below(40) == 0 {
            // Some calls meet peers that have answered, others do not.
            std::thread::sleep(std::time::Duration::from_millis(random.below(10)));
        }
    }
    until(players, "what is under way", |players| {
        for player in &mut *players {
            while !player.claims.is_empty() {
                player.settle(0, false);
            }
        }
        players.iter().all(|player| !player.is_busy())
    });
    // Chance may have left a kind out, or the endpoints have refused all calls of it.
    let mut id = CALLS as u64;
    until(players, "an access of each kind", |players| {
        let [a, b] = players;
        let is_missing = a.kinds.iter().zip(b.kinds).any(|(of_a, of_b)| of_a + of_b == 0);
        if is_missing && !a.is_busy() {
            id += 1;
            a.access(&mut random, id, LONGEST);
        }
        !is_missing && !a.is_busy()
    });
    if is_filled {
        check_stand_ins(players);
    }
    // Whatever is left meets a receive now. Those that wait for other messages stay.
    until(players, "receiving the rest", |players| {
        let [a, b] = players;
        a.receive_rest(b);
        b.receive_rest(a);
        let is_taken = |message: &Message| message.taken.is_some();
        [a, b].iter().all(|player| {
            !player.sends() && player.sent.values().chain(player.to_itself.values()).all(is_taken)
        })
    });
    let [a, b] = &*players;
    a.check_order(b);
    b.check_order(a);
    let misses = a.check_misses(b) + b.check_misses(a);
    let (mut cancelled, mut fetched) = (0, 0);
    for (own, other) in [(a, b), (b, a)] {
        for counter in 0..COUNTERS {
            let value = number_at(&other.memory, counter_at(counter));
            assert_eq!(value, own.counted[counter], "counter {counter}");
            let mut seen = own.fetched[counter].clone();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), own.fetched[counter].len(), "no two saw the same");
            assert!(seen.last().is_none_or(|last| *last < value));
            fetched += seen.len();
        }
        for (number, slot) in own.slots.iter().enumerate() {
            assert!(is_there(&other.memory, number, slot.written), "slot {number}: {slot:?}");
        }
        for (number, (value, _)) in own.words.iter().enumerate() {
            assert_eq!(number_at(&other.memory, word_at(number)), *value, "word {number}");
        }
        let sorted = |list: &[u64]| {
            let mut list = list.to_vec();
            list.sort_unstable();
            list
        };
        assert_eq!(sorted(&other.announced), sorted(&own.announcing));
        let counted = [4, 5].map(|number| other.side.counters[number].read());
        assert_eq!(counted, own.accesses.map(|count| (count, 0)), "what peers do is counted once");
        cancelled += own.cancelled;
    }
    // The rest of the receives is cancelled, and each of them says so.
    for player in &mut *players {
        let contexts: Vec<usize> = player.operations.keys().copied().collect();
        contexts.into_iter().for_each(|context| cancel(&player.side, context as *mut c_void));
    }
    until(players, "cancelling", |players| players.iter().all(|player| player.operations.is_empty()));
    // Counters count messages without entries, too.
    until(players, "counting", |players| {
        players.iter().all(|player| {
            let Player { posted, unsent, .. } = player;
            player.side.counters[0].read() == (posted - unsent, *unsent)
        })
    });
    let quiet: usize = players.iter().map(|player| player.quiet.len()).sum();
    assert_eq!(quiet > 0, is_selective(seed));
    let [a, b] = &*players;
    let gathered = a.gathered + b.gathered;
    let messages = players.iter().flat_map(|player| player.sent.values().chain(player.to_itself.values()));
    println!("{PAYLOAD}{} bytes", messages.map(|message| message.len as u64).sum::<u64>());
    println!(
        "seed {seed}: {cancelled} cancelled, {fetched} fetched, {gathered} one of many, {misses} messages went to others than \
         looks"
    );
    assert!(fetched > 0 && cancelled > 0);
    for (number, kind) in KINDS.iter().enumerate() {
        let count = a.kinds[number] + b.kinds[number];
        println!("seed {seed}: {count} {kind}");
        assert!(count > 0);
    }
    gathered
}
