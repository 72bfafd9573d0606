//! Matrices that papers describe in words, written for a suite: `matrix = "across:…"` or `"elephants:…"`.

use std::fmt::Write;
use weft_cc::{Rate, Span};
use weft_stack::rng::Rng;

/// A permutation of the hosts, which the seed draws.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// All flows cross the cores: each host sends to one of the other half of the hosts.
    Across {
        hosts: u32,
        size: u64,
        /// The size of the first flow, if it is another.
        one: Option<u64>,
    },
    /// Each host sends to another, some of them at a constant rate over one path.
    Elephants { hosts: u32, size: u64, elephants: u32, rate: Rate, bytes: u64 },
}

impl Pattern {
    /// Reads a description; `None` if `text` is the name of a file.
    ///
    /// # Errors
    /// Says what is wrong with a description.
    pub(super) fn parse(text: &str) -> Option<Result<Pattern, String>> {
        let (kind, values) = text.split_once(':')?;
        let words: Vec<&str> = values.split(',').collect();
        let (pattern, form) = match kind {
            "across" => (Pattern::across(&words), "across:HOSTS,SIZE[,SIZE OF ONE FLOW]"),
            "elephants" => (Pattern::elephants(&words), "elephants:HOSTS,SIZE,ELEPHANTS,RATE,TIME"),
            _ => return None,
        };
        Some(pattern.ok_or_else(|| format!("matrix = '{text}': expected {form}")))
    }

    fn across(words: &[&str]) -> Option<Pattern> {
        let (hosts, sizes) = words.split_first()?;
        let hosts: u32 = hosts.parse().ok().filter(|hosts| hosts % 2 == 0 && *hosts > 0)?;
        let sizes: Vec<u64> =
            sizes.iter().map(|size| crate::units::bytes(size).ok()).collect::<Option<_>>()?;
        match sizes[..] {
            [size] => Some(Pattern::Across { hosts, size, one: None }),
            [size, one] => Some(Pattern::Across { hosts, size, one: Some(one) }),
            _ => None,
        }
    }

    fn elephants(words: &[&str]) -> Option<Pattern> {
        let &[hosts, size, elephants, rate, time] = words else { return None };
        let hosts: u32 = hosts.parse().ok().filter(|hosts| *hosts > 1)?;
        let elephants: u32 = elephants.parse().ok().filter(|elephants| *elephants <= hosts)?;
        let rate: Rate = crate::units::rate(rate).ok()?;
        let time: Span = crate::units::span(time).ok()?;
        let (size, bytes) = (crate::units::bytes(size).ok()?, rate.bytes_in(time));
        (bytes > 0).then_some(Pattern::Elephants { hosts, size, elephants, rate, bytes })
    }

    /// The matrix, drawn with `seed`.
    pub(super) fn matrix(&self, seed: u64) -> String {
        let mut rng = Rng::new(seed, 0);
        match *self {
            Pattern::Across { hosts, size, one } => {
                let half = hosts / 2;
                let mut text = format!("Nodes {hosts}\nConnections {hosts}\n");
                for side in [0, half] {
                    let mut targets: Vec<u32> = (0..half).map(|n| n + half - side).collect();
                    shuffle(&mut targets, &mut rng);
                    for (source, target) in (side..).zip(targets) {
                        let size = one.filter(|_| source == 0).unwrap_or(size);
                        let _ = writeln!(text, "{source}->{target} id {} start 0 size {size}", source + 1);
                    }
                }
                text
            }
            Pattern::Elephants { hosts, size, elephants, rate, bytes } => {
                let mut targets: Vec<u32> = (0..hosts).collect();
                // Until no host sends to itself: three times, on average.
                while targets.iter().zip(0..).any(|(target, source)| *target == source) {
                    shuffle(&mut targets, &mut rng);
                }
                let mut order: Vec<u32> = (0..hosts).collect();
                shuffle(&mut order, &mut rng);
                let mut text = format!("Nodes {hosts}\nConnections {hosts}\n");
                for (source, target) in (0..).zip(targets) {
                    let _ = match order[..elephants as usize].contains(&source) {
                        true => {
                            let rate = rate.as_bps();
                            let name = source + 1;
                            writeln!(text, "{source}->{target} id {name} start 0 size {bytes} rate {rate}")
                        }
                        false => writeln!(text, "{source}->{target} id {} start 0 size {size}", source + 1),
                    };
                }
                text
            }
        }
    }
}

/// Puts `values` in a random order, after Fisher and Yates.
fn shuffle(values: &mut [u32], rng: &mut Rng) {
    for left in (2..=values.len()).rev() {
        values.swap(rng.below(left as u32) as usize, left - 1);
    }
}
