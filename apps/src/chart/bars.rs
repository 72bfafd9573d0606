//! Charts of bars, with intervals.

use super::{Axis, BOTTOM, Canvas, LEFT, RIGHT, TOP, style};

/// A bar: its height, and half of the confidence interval around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bar {
    pub(crate) value: f64,
    pub(crate) half_interval: Option<f64>,
}

/// A chart of groups of bars.
#[derive(Clone, Debug)]
pub(crate) struct BarChart {
    pub(crate) title: String,
    pub(crate) x_label: String,
    /// Quantity and unit of the bars.
    pub(crate) y_label: String,
    pub(crate) groups: Vec<String>,
    /// The name of each series, and its bar in each group.
    pub(crate) series: Vec<(String, Vec<Option<Bar>>)>,
    /// A horizontal line: its height and name.
    pub(crate) mark: Option<(f64, String)>,
}

/// Longer names of groups are written over two lines.
const NAME: usize = 14;

impl BarChart {
    /// The chart as an SVG document.
    pub(crate) fn svg(&self) -> String {
        let bars = || self.series.iter().flat_map(|(_, bars)| bars.iter().flatten());
        let tops = bars().map(|bar| bar.value + bar.half_interval.unwrap_or(0.0));
        let y = Axis::from_zero(&self.y_label, tops.chain(self.mark.as_ref().map(|(height, _)| *height)));
        let names: Vec<String> = self.series.iter().map(|(name, _)| name.clone()).collect();
        let mut canvas = Canvas::new(&self.title, &self.x_label, &y, &names, true);
        let step = (RIGHT - LEFT) / self.groups.len().max(1) as f64;
        let width = (step * 0.8 / self.series.len().max(1) as f64).min(60.0);
        for (group, name) in self.groups.iter().enumerate() {
            let middle = LEFT + step * (group as f64 + 0.5);
            let (first, second) = halves(name, (step / 7.0) as usize);
            canvas.text((middle, BOTTOM + 15.0), "middle", first, " font-size=\"11\"");
            canvas.text((middle, BOTTOM + 27.0), "middle", second, " font-size=\"11\"");
            let left = middle - width * self.series.len() as f64 / 2.0;
            for (index, (_, bars)) in self.series.iter().enumerate() {
                if let Some(bar) = bars[group] {
                    draw(&mut canvas, &y, bar, left + width * index as f64, width, style(index).0);
                }
            }
        }
        if let Some((height, name)) = &self.mark {
            let place = y.place(*height, BOTTOM, TOP);
            canvas.line((LEFT, place), (RIGHT, place), "#555", "4 4");
            // Above the bars, which would hide it beside the line.
            canvas.text((RIGHT, TOP - 4.0), "end", &format!("dashed: {name}"), " font-size=\"11\"");
        }
        canvas.line((LEFT, BOTTOM), (RIGHT, BOTTOM), "#888", "");
        canvas.end()
    }
}

/// `name` in two lines, the first as long as a line may be with whole words.
fn halves(name: &str, most: usize) -> (&str, &str) {
    let most = most.max(NAME);
    if name.chars().count() <= most {
        return (name, "");
    }
    let blanks = name.match_indices(' ').map(|(at, _)| at);
    let at = blanks.take_while(|at| name[..*at].chars().count() <= most).last().unwrap_or(name.len());
    (&name[..at], name[at..].trim_start())
}

fn draw(canvas: &mut Canvas, y: &Axis, bar: Bar, left: f64, width: f64, colour: &str) {
    let top = y.place(bar.value, BOTTOM, TOP);
    canvas.rect((left + 1.0, top), ((width - 2.0).max(1.0), BOTTOM - top), colour);
    let middle = left + width / 2.0;
    if let Some(half) = bar.half_interval {
        let [low, high] = [bar.value - half, bar.value + half].map(|value| y.place(value, BOTTOM, TOP));
        canvas.line((middle, low), (middle, high), "#111", "");
        for end in [low, high] {
            canvas.line((middle - 4.0, end), (middle + 4.0, end), "#111", "");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_intervals_and_absent_bars_leave_room() {
        let bar = |value, half_interval| Some(Bar { value, half_interval });
        let chart = BarChart {
            title: "FCT".to_owned(),
            x_label: "load".to_owned(),
            y_label: "p99, µs".to_owned(),
            groups: vec!["40 %".to_owned(), "a name that is rather long".to_owned()],
            series: vec![
                ("nscc".to_owned(), vec![bar(10.0, Some(2.0)), bar(20.0, None)]),
                ("dctcp".to_owned(), vec![None, bar(30.0, None)]),
            ],
            mark: Some((25.0, "ideal".to_owned())),
        };
        let svg = chart.svg();
        // Three bars and two swatches.
        assert_eq!(svg.matches("<rect").count(), 5, "{svg}");
        assert!(
            svg.contains(">dashed: ideal<") && svg.contains(">dctcp<") && svg.contains(">40 %<"),
            "{svg}"
        );
        assert_eq!(halves("a name that is rather long", 3), ("a name that is", "rather long"));
    }
}
