//! Matrices that papers describe in words, written for a suite: `matrix = "across:HOSTS,SIZE[,ONE]"`.

use std::fmt::Write;
use weft_stack::rng::Rng;

/// A permutation all of whose flows cross the cores: each host sends to one of the other half of the hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Across {
    hosts: u32,
    size: u64,
    /// The size of the first flow, if it is another.
    one: Option<u64>,
}

impl Across {
    /// Reads `across:HOSTS,SIZE[,ONE]`; `None` if `text` is the name of a file.
    ///
    /// # Errors
    /// Says what is wrong with a description.
    pub(super) fn parse(text: &str) -> Option<Result<Across, String>> {
        let words: Vec<&str> = text.strip_prefix("across:")?.split(',').collect();
        let expected = || format!("matrix = '{text}': expected across:HOSTS,SIZE[,SIZE OF ONE FLOW]");
        let parse = || {
            let (hosts, sizes) = words.split_first()?;
            let hosts: u32 = hosts.parse().ok().filter(|hosts| hosts % 2 == 0 && *hosts > 0)?;
            let sizes: Vec<u64> =
                sizes.iter().map(|size| crate::units::bytes(size).ok()).collect::<Option<_>>()?;
            match sizes[..] {
                [size] => Some(Across { hosts, size, one: None }),
                [size, one] => Some(Across { hosts, size, one: Some(one) }),
                _ => None,
            }
        };
        Some(parse().ok_or_else(expected))
    }

    /// The matrix, drawn with `seed`.
    pub(super) fn matrix(&self, seed: u64) -> String {
        let (hosts, half) = (self.hosts, self.hosts / 2);
        let mut rng = Rng::new(seed, 0);
        let mut text = format!("Nodes {hosts}\nConnections {hosts}\n");
        for side in [0, half] {
            let mut targets: Vec<u32> = (0..half).map(|n| n + half - side).collect();
            // Fisher and Yates.
            for left in (2..=half).rev() {
                targets.swap(rng.below(left) as usize, left as usize - 1);
            }
            for (source, target) in (side..).zip(targets) {
                let size = self.one.filter(|_| source == 0).unwrap_or(self.size);
                let _ = writeln!(text, "{source}->{target} id {} start 0 size {size}", source + 1);
            }
        }
        text
    }
}
