//! Figures that sum up a run.

use serde::Serialize;
use weft_cc::Span;

/// Least, mean, median, 99th percentile and greatest of a set of times, in microseconds, or of numbers. All are
/// none for an empty set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) min: Option<f64>,
    pub(crate) mean: Option<f64>,
    pub(crate) p50: Option<f64>,
    pub(crate) p99: Option<f64>,
    pub(crate) max: Option<f64>,
}

impl Summary {
    /// Sums up `times`. Percentiles are nearest-rank: always one of the times, never between two.
    pub(crate) fn of(mut times: Vec<Span>) -> Summary {
        times.sort_unstable();
        let Some(last) = times.last() else { return Summary::default() };
        let total: u128 = times.iter().map(|t| u128::from(t.as_ps())).sum();
        let rank = |percent: usize| times[(times.len() * percent).div_ceil(100).max(1) - 1].as_us_f64();
        Summary {
            min: Some(times[0].as_us_f64()),
            mean: Some(total as f64 / times.len() as f64 / 1e6),
            p50: Some(rank(50)),
            p99: Some(rank(99)),
            max: Some(last.as_us_f64()),
        }
    }
}

impl Summary {
    /// Sums up `numbers`, which are in no unit, in the same way.
    pub(crate) fn of_numbers(mut numbers: Vec<f64>) -> Summary {
        numbers.sort_unstable_by(f64::total_cmp);
        let Some(last) = numbers.last() else { return Summary::default() };
        let rank = |percent: usize| numbers[(numbers.len() * percent).div_ceil(100).max(1) - 1];
        Summary {
            min: Some(numbers[0]),
            mean: Some(numbers.iter().sum::<f64>() / numbers.len() as f64),
            p50: Some(rank(50)),
            p99: Some(rank(99)),
            max: Some(*last),
        }
    }
}

/// Jain's index of fairness: 1 when all shares are equal, 1/n when one of n takes everything. None
/// without any share above zero. (R. Jain, D. Chiu, W. Hawe, DEC-TR-301, 1984.)
pub(crate) fn jain(shares: &[f64]) -> Option<f64> {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|x| x * x).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// Two-sided 95 % quantiles of Student's t distribution for 1 to 30 degrees of freedom.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// The mean of `values`, and half of the 95 % confidence interval around it (Student's t), which takes two values at
/// least. None without values.
pub(crate) fn confidence(values: &[f64]) -> Option<(f64, Option<f64>)> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let freedom = values.len().checked_sub(1)?;
    let Some(index) = freedom.checked_sub(1) else { return Some((mean, None)) };
    let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / freedom as f64;
    let t = T.get(index).copied().unwrap_or(1.96 + 2.4 / freedom as f64);
    Some((mean, Some(t * (variance / count).sqrt())))
}

/// `bytes` in `time` as 10⁹ bits per second; none in no time.
pub(crate) fn gbps(bytes: u64, time: Span) -> Option<f64> {
    (time > Span::ZERO).then(|| bytes as f64 * 8.0 / time.as_secs_f64() / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(times: &[u64]) -> Summary {
        Summary::of(times.iter().map(|n| Span::from_us(*n)).collect())
    }

    #[test]
    fn intervals_are_those_of_students_t() {
        assert_eq!(confidence(&[]), None);
        assert_eq!(confidence(&[7.0]), Some((7.0, None)));
        // Variance 2.5, so that the standard error of five is the root of a half.
        let (mean, half) = confidence(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!(mean == 3.0 && (half.unwrap() - 2.776 * 0.5f64.sqrt()).abs() < 1e-12);
        let many: Vec<f64> = (0..100).map(|n| f64::from(n % 2)).collect();
        let half = confidence(&many).unwrap().1.unwrap();
        assert!((half - 1.984 * (0.252_525_f64 / 100.0).sqrt()).abs() < 1e-4, "{half}");
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        let hundred: Vec<u64> = (1..=100).rev().collect();
        let s = us(&hundred);
        assert_eq!((s.min, s.p50, s.p99, s.max), (Some(1.0), Some(50.0), Some(99.0), Some(100.0)));
        assert_eq!(s.mean, Some(50.5));
        let s = us(&[30, 10, 20]);
        assert_eq!((s.p50, s.p99), (Some(20.0), Some(30.0)));
        assert_eq!(
            us(&[7]),
            Summary { min: Some(7.0), mean: Some(7.0), p50: Some(7.0), p99: Some(7.0), max: Some(7.0) }
        );
        assert_eq!(us(&[]), Summary::default());
        let numbers: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(Summary::of_numbers(numbers), us(&hundred));
        assert_eq!(Summary::of_numbers(Vec::new()), Summary::default());
    }

    #[test]
    fn the_mean_does_not_overflow() {
        let s = Summary::of(vec![Span::MAX; 4]);
        assert_eq!(s.mean, s.max);
    }

    #[test]
    fn jain_runs_from_one_nth_to_one() {
        assert_eq!(jain(&[3.0, 3.0, 3.0]), Some(1.0));
        assert_eq!(jain(&[0.0, 0.0, 0.0, 5.0]), Some(0.25));
        assert_eq!(jain(&[1.0, 3.0]), Some(0.8));
        assert_eq!((jain(&[]), jain(&[0.0])), (None, None));
    }

    #[test]
    fn rates() {
        assert_eq!(gbps(12_500, Span::from_us(1)), Some(100.0));
        assert_eq!(gbps(1, Span::ZERO), None);
    }
}
