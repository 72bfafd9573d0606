//! Tests of distributions of flow sizes.

use proptest::prelude::*;
use weft_stack::rng::Rng;

use crate::workload::{BUILT_IN_SIZES, SizeDistribution, Sizes};

/// The largest distance between the share of `draws` up to a size and the distribution's (Kolmogorov–Smirnov), where
/// sizes are rounded to whole bytes.
fn distance(sizes: &SizeDistribution, draws: &mut [u64]) -> f64 {
    draws.sort_unstable();
    let total = draws.len() as f64;
    let mut worst: f64 = 0.0;
    for size in draws.chunk_by(|a, b| a == b).map(|same| same[0]) {
        let seen = draws.partition_point(|other| *other <= size) as f64 / total;
        let below = draws.partition_point(|other| *other < size) as f64 / total;
        // A drawn size has at least one byte.
        let low = if size == 1 { 0.0 } else { sizes.share_up_to(size as f64 - 0.5) };
        let high = sizes.share_up_to(size as f64 + 0.5);
        worst = worst.max(seen - high).max(low - below);
    }
    worst
}

/// With 200,000 draws, a distance above 1.95 / √n has a probability of 0.001 if the draws follow the distribution.
#[test]
fn drawn_sizes_follow_their_distribution() {
    const DRAWS: usize = 200_000;
    for known in BUILT_IN_SIZES {
        let sizes = SizeDistribution::built_in(known.name).unwrap();
        let mut rng = Rng::new(11, 0);
        let mut draws: Vec<u64> = (0..DRAWS).map(|_| sizes.draw(&mut rng)).collect();
        let mean = draws.iter().map(|size| *size as f64).sum::<f64>() / DRAWS as f64;
        assert!((mean / sizes.mean() - 1.0).abs() < 0.03, "{}: {mean}, not {}", known.name, sizes.mean());
        let distance = distance(&sizes, &mut draws);
        assert!(distance < 1.95 / (DRAWS as f64).sqrt(), "{}: {distance}", known.name);
    }
}

#[test]
fn the_built_in_distributions_have_their_published_means() {
    let mean = |name| SizeDistribution::built_in(name).unwrap().mean();
    assert_eq!(mean("WebSearch"), 1_711_250.0);
    assert_eq!(mean("websearch"), mean("WebSearch"));
    assert!((120_000.0..140_000.0).contains(&mean("FbHdp")), "{}", mean("FbHdp"));
    assert!(SizeDistribution::built_in("WebSurf").is_none());
}

#[test]
fn steps_and_single_sizes_are_possible() {
    let mut rng = Rng::new(3, 0);
    let mut share_of = |text: &str, size: u64| {
        let sizes = SizeDistribution::parse("x", text).unwrap();
        (0..10_000).filter(|_| sizes.draw(&mut rng) == size).count()
    };
    assert_eq!(share_of("500 100", 500), 10_000);
    let half = share_of("# a step\n10 50 # half of them\n\n10000 50\n10000 100\n", 10);
    assert!((4_800..5_200).contains(&half), "{half}");
    let half = share_of("1 0\n2 0\n2 50\n9 50\n9 100", 9);
    assert!((4_800..5_200).contains(&half), "{half}");
    let fixed = SizeDistribution::fixed(0);
    assert_eq!((fixed.draw(&mut rng), fixed.mean()), (0, 0.0));
}

#[test]
fn bad_lines_are_refused_with_what_was_expected() {
    for (text, message) in [
        ("", "f:1: the file has no sizes; expected lines with a size and a percentage"),
        ("0 0\n5x 9", "f:2: `5x` is not a size; expected a number of bytes from 0 to 2^53, such as 10000"),
        ("-1 0", "f:1: `-1` is not a size; expected a number of bytes from 0 to 2^53, such as 10000"),
        ("1 0\n2 101", "f:2: `101` is not a percentage; expected a number from 0 to 100, such as 97.5"),
        ("1 NaN", "f:1: `NaN` is not a percentage; expected a number from 0 to 100, such as 97.5"),
        ("1", "f:1: `1` stands alone; expected a size and a percentage"),
        ("1 0 0\n2 100", "f:1: `0` follows the percentage; expected the end of the line"),
        ("9 0\n\n8 100", "f:3: the size 8 is below that of the line before; expected sizes that do not fall"),
        (
            "1 50\n2 40",
            "f:2: 40 % is below the percentage of the line before; expected percentages that do not fall",
        ),
        ("1 0\n2 99.5\n# end\n", "f:2: the last percentage is 99.5; expected 100"),
    ] {
        assert_eq!(SizeDistribution::parse("f", text).unwrap_err().to_string(), message);
    }
}

#[test]
fn sizes_are_named_by_bytes_distributions_and_files() {
    assert_eq!(Sizes::parse("64KiB"), Ok(Sizes::Fixed(65_536)));
    assert_eq!(Sizes::parse("fbhdp"), Ok(Sizes::BuiltIn("FbHdp")));
    assert_eq!(Sizes::parse("my/sizes"), Ok(Sizes::File("my/sizes".to_owned())));
    let refusal = Sizes::parse("WebSerch").unwrap_err();
    assert!(refusal.contains("`WebSerch` is no size") && refusal.contains("GoogleRPC2008"), "{refusal}");
}

proptest! {
    #[test]
    fn a_written_distribution_reads_as_the_same(steps in prop::collection::vec((0u32..1000, 0u32..1000), 1..20)) {
        let total: u32 = steps.iter().map(|(_, share)| share).sum::<u32>().max(1);
        let (mut size, mut share) = (0u64, 0u32);
        let mut text = String::new();
        for (more, part) in &steps {
            size += u64::from(*more);
            share += part;
            text += &format!("{size} {}\n", f64::from(share) / f64::from(total) * 100.0);
        }
        text += &format!("{size} 100\n");
        let sizes = SizeDistribution::parse("x", &text).unwrap();
        prop_assert_eq!(SizeDistribution::parse("x", &sizes.write()).unwrap(), sizes);
    }
}
