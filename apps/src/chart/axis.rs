//! Linear axes: their range, and ticks at round numbers.

/// An axis with its range.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    label: String,
    low: f64,
    high: f64,
    step: f64,
}

/// About as many ticks as an axis gets.
const TICKS: f64 = 6.0;
/// The least high end of an axis, a picosecond in µs, and the greatest. Ticks beyond have no exact steps; values beyond
/// lie at the end.
const ENDS: (f64, f64) = (1e-6, 1e15);
/// Values that differ by less than this part of the axis are equal to it.
const RESOLUTION: f64 = 1e-6;
/// The most decimals of a tick.
const DECIMALS: i32 = 13;

impl Axis {
    /// An axis from 0 to a round number not below the greatest of `values`. `label` names the quantity and its unit.
    pub(crate) fn from_zero(label: &str, values: impl IntoIterator<Item = f64>) -> Axis {
        let most = values.into_iter().filter(|value| value.is_finite()).fold(0.0, f64::max);
        let most = if most > 0.0 { most.clamp(ENDS.0, ENDS.1) } else { 1.0 };
        let step = round_up(most / TICKS);
        Axis { label: label.to_owned(), low: 0.0, high: step * (most / step).ceil(), step }
    }

    /// An axis between the least and the greatest of `values`, or from 0 if that is not far. If all values are equal and a
    /// round number, the axis ends there and begins a step before it.
    pub(crate) fn around(label: &str, values: impl IntoIterator<Item = f64> + Clone) -> Axis {
        let axis = Axis::from_zero(label, values.clone());
        let least = values.into_iter().filter(|value| value.is_finite()).fold(f64::INFINITY, f64::min);
        if !least.is_finite() || least < axis.high / 2.0 {
            return axis;
        }
        if axis.high - least <= axis.high * RESOLUTION {
            return Axis { low: axis.high - axis.step, ..axis };
        }
        let step = round_up(((axis.high - least) / TICKS).max(axis.high * RESOLUTION));
        let low = step * (least / step).floor();
        Axis { low, high: low + step * ((axis.high - low) / step).ceil(), step, ..axis }
    }

    /// An axis from 0 to 1.
    pub(crate) fn share(label: &str) -> Axis {
        Axis { label: label.to_owned(), low: 0.0, high: 1.0, step: 0.2 }
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Where `value` lies between `low`, the place of the axis' low end, and `high`. Values beyond the ends lie there.
    pub(super) fn place(&self, value: f64, low: f64, high: f64) -> f64 {
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        low + (high - low) * share
    }

    /// The ticks with their texts.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let count = ((self.high - self.low) / self.step).round() as usize;
        let mut decimals = 0;
        let is_whole = |number: f64| (number - number.round()).abs() < 1e-9 && number >= 0.5;
        while decimals < DECIMALS && !is_whole(self.step * 10f64.powi(decimals)) {
            decimals += 1;
        }
        let tick = |n: usize| self.low + self.step * n as f64;
        (0..=count).map(|n| (tick(n), format!("{:.*}", decimals.unsigned_abs() as usize, tick(n)))).collect()
    }
}

/// The least of 1, 2 and 5 times a power of ten that is not below `least`.
fn round_up(least: f64) -> f64 {
    let mut power = 1.0;
    while power > least {
        power /= 10.0;
    }
    while power * 10.0 <= least {
        power *= 10.0;
    }
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|n| n * power)
        .find(|step| *step >= least * 0.999_999)
        .unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round_numbers_that_cover_the_values() {
        assert_eq!(texts(&Axis::from_zero("", [3.0, 11.5])), ["0", "2", "4", "6", "8", "10", "12"]);
        assert_eq!(texts(&Axis::from_zero("", [0.031])), ["0.00", "0.01", "0.02", "0.03", "0.04"]);
        assert_eq!(texts(&Axis::from_zero("", [])), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(texts(&Axis::around("", [98.0, 100.0])), ["98.0", "98.5", "99.0", "99.5", "100.0"]);
        assert_eq!(texts(&Axis::share("")).last().unwrap(), "1.0");
        assert_eq!(texts(&Axis::around("", [100.0, 100.0])), ["80", "100"]);
        let axis = Axis::from_zero("", [f64::NAN, 2e9]);
        assert_eq!(axis.place(2e9, 0.0, 100.0), 100.0);
        assert_eq!(axis.place(-1.0, 0.0, 100.0), 0.0);
    }

    #[test]
    fn values_of_any_size_have_an_axis_and_a_place_on_it() {
        for value in [f64::MIN_POSITIVE, 5e-324, 1e-12, 3.0, 1e15, 1.7e308, f64::MAX] {
            for values in [[value, value], [value / 2.0, value], [0.0, value], [value, f64::INFINITY]] {
                for axis in [Axis::from_zero("", values), Axis::around("", values)] {
                    let ticks = axis.ticks();
                    assert!((2..=20).contains(&ticks.len()), "{values:?}: {axis:?}");
                    assert_ne!(ticks[0].1, ticks[1].1, "{values:?}");
                    assert!((0.0..=100.0).contains(&axis.place(value, 0.0, 100.0)), "{values:?}: {axis:?}");
                }
            }
        }
    }
}
