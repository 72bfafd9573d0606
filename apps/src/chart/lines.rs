//! Charts of curves: distributions, and values over time.

use super::{Axis, BOTTOM, Canvas, LEFT, RIGHT, TOP, at, style};
use std::fmt::Write;

/// The most points that are drawn of a curve. There are fewer pixels.
const MAX_POINTS: usize = 1200;

/// A curve and its name in the legend.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    pub(crate) name: String,
    /// In rising order of x. A point that is not finite interrupts the curve.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A chart of curves.
#[derive(Clone, Debug)]
pub(crate) struct LineChart {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) curves: Vec<Curve>,
    /// Whether the value of a point lasts until the next one.
    pub(crate) steps: bool,
    /// Vertical lines: their place and name.
    pub(crate) marks: Vec<(f64, String)>,
}

/// The cumulative distribution of `values`, as steps.
pub(crate) fn cumulative(values: &mut [f64]) -> Vec<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let start = values.first().map(|first| (*first, 0.0));
    start.into_iter().chain(values.iter().zip(1..).map(|(value, n)| (*value, f64::from(n) / count))).collect()
}

impl LineChart {
    /// The chart as an SVG document.
    pub(crate) fn svg(&self) -> String {
        let names: Vec<String> = self.curves.iter().map(|curve| curve.name.clone()).collect();
        let mut canvas = Canvas::new(&self.title, self.x.label(), &self.y, &names, false);
        for (tick, text) in self.x.ticks() {
            let place = self.x.place(tick, LEFT, RIGHT);
            canvas.line((place, BOTTOM), (place, BOTTOM + 4.0), "#888", "");
            canvas.text((place, BOTTOM + 18.0), "middle", &text, "");
        }
        for (value, name) in &self.marks {
            let place = self.x.place(*value, LEFT, RIGHT);
            canvas.line((place, TOP), (place, BOTTOM), "#777", "4 4");
            // Beside the line, on the side with more room.
            let (place, anchor) =
                if place > (LEFT + RIGHT) / 2.0 { (place - 4.0, "end") } else { (place + 4.0, "start") };
            canvas.text((place, TOP - 4.0), anchor, name, " font-size=\"11\"");
        }
        for (index, curve) in self.curves.iter().enumerate() {
            let (colour, dash) = style(index);
            canvas.path(&self.trace(&thin(&curve.points)), colour, dash);
        }
        canvas.line((LEFT, BOTTOM), (RIGHT, BOTTOM), "#888", "");
        canvas.end()
    }

    fn trace(&self, points: &[(f64, f64)]) -> String {
        let (mut path, mut pen_down) = (String::new(), false);
        for (x, y) in points {
            if !(x.is_finite() && y.is_finite()) {
                pen_down = false;
                continue;
            }
            let (x, y) = (at(self.x.place(*x, LEFT, RIGHT)), at(self.y.place(*y, BOTTOM, TOP)));
            let _ = match (pen_down, self.steps) {
                (false, _) => write!(path, "M{x} {y}"),
                (true, true) => write!(path, "H{x}V{y}"),
                (true, false) => write!(path, "L{x} {y}"),
            };
            pen_down = true;
        }
        path
    }
}

/// `points`, or of each run of points that share a pixel the least and the greatest.
fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= MAX_POINTS {
        return points.to_vec();
    }
    let chunk = points.len().div_ceil(MAX_POINTS / 2);
    let mut kept = Vec::new();
    for run in points.chunks(chunk) {
        let by_y = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let (Some(low), Some(high)) = (run.iter().min_by(by_y), run.iter().max_by(by_y)) else { continue };
        kept.extend(if low.0 <= high.0 { [*low, *high] } else { [*high, *low] });
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_rises_from_nothing_to_all() {
        let mut values = [3.0, 1.0, 2.0, 2.0];
        assert_eq!(cumulative(&mut values), [(1.0, 0.0), (1.0, 0.25), (2.0, 0.5), (2.0, 0.75), (3.0, 1.0)]);
        assert_eq!(cumulative(&mut []), []);
    }

    #[test]
    fn long_curves_keep_their_extremes() {
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|n| (f64::from(n), 1.0)).collect();
        points[77_777].1 = 9.0;
        points[33_333].1 = -9.0;
        let kept = thin(&points);
        assert!(kept.len() <= MAX_POINTS);
        assert!(kept.contains(&(77_777.0, 9.0)) && kept.contains(&(33_333.0, -9.0)));
        assert!(kept.is_sorted_by_key(|(x, _)| *x as u64));
    }

    #[test]
    fn a_chart_has_its_labels_and_escapes_them() {
        let curve = Curve { name: "a<b".to_owned(), points: vec![(0.0, 1.0), (f64::NAN, 0.0), (4.0, 2.0)] };
        let chart = LineChart {
            title: "T & t".to_owned(),
            x: Axis::from_zero("time, µs", [4.0]),
            y: Axis::from_zero("queue, kB", [2.0]),
            curves: vec![curve],
            steps: false,
            marks: vec![(2.0, "bound".to_owned())],
        };
        let svg = chart.svg();
        for text in ["T &amp; t", "a&lt;b", ">time, µs<", ">queue, kB<", ">bound<"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        let path = svg.lines().find(|line| line.contains("stroke-linejoin") && line.contains('M')).unwrap();
        assert_eq!(path.matches('M').count(), 1, "the legend: {path}");
        assert!(svg.lines().any(|line| line.matches(['M']).count() == 2), "the curve is interrupted: {svg}");
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
    }
}
