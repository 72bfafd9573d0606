//! Figures and pages: SVG and HTML without scripts, fonts or anything else from elsewhere. The same data give the same
//! bytes.

mod axis;
mod bars;
mod lines;
mod page;

pub(crate) use axis::Axis;
pub(crate) use bars::{Bar, BarChart};
pub(crate) use lines::{Curve, LineChart, cumulative};
pub(crate) use page::{Page, Table};

use std::fmt::Write;

/// Width of a figure, in the units of its `viewBox`.
const WIDTH: f64 = 640.0;
/// Height without the legend.
const HEIGHT: f64 = 360.0;
/// The area of the data: left, top, right, bottom.
const LEFT: f64 = 76.0;
const TOP: f64 = 40.0;
const RIGHT: f64 = WIDTH - 26.0;
const BOTTOM: f64 = HEIGHT - 54.0;
/// Colours that people with any colour vision can tell apart (M. Okabe, K. Ito, 2008), without the yellow.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];
/// Dashes of lines once the colours have been used up.
const DASHES: [&str; 3] = ["", "7 3", "2 3"];
/// Height of a row of the legend, and the width of a letter in it, about.
const ROW: f64 = 18.0;
const LETTER: f64 = 6.6;
/// Width of a letter of the title, about. Longer titles are written smaller.
const TITLE_LETTER: f64 = 8.4;

/// The colour and the dashes of series `index`.
fn style(index: usize) -> (&'static str, &'static str) {
    (COLOURS[index % COLOURS.len()], DASHES[index / COLOURS.len() % DASHES.len()])
}

/// `text` with the characters replaced that have a meaning in XML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A coordinate: a tenth of a unit is finer than a screen shows.
fn at(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

/// An SVG document that is being drawn.
struct Canvas(String);

impl Canvas {
    /// A frame with a title, both axes, and a legend of `names` below them.
    fn new(title: &str, x_label: &str, y: &Axis, names: &[String], swatches: bool) -> Canvas {
        let rows = legend_rows(names);
        let height = HEIGHT + ROW * rows.last().map_or(0.0, |(_, row)| *row as f64 + 1.0);
        let mut canvas = Canvas(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" width=\"{WIDTH}\" role=\"img\" \
             font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\"><title>{}</title>\n",
            at(height),
            escape(title)
        ));
        let size =
            at((14.0 * (RIGHT - LEFT) / (TITLE_LETTER * title.chars().count() as f64)).clamp(6.0, 14.0));
        canvas.text((LEFT, 22.0), "start", title, &format!(" font-size=\"{size}\" font-weight=\"bold\""));
        canvas.text(((LEFT + RIGHT) / 2.0, BOTTOM + 38.0), "middle", x_label, "");
        let middle = (TOP + BOTTOM) / 2.0;
        canvas.text(
            (16.0, middle),
            "middle",
            y.label(),
            &format!(" transform=\"rotate(-90 16 {})\"", at(middle)),
        );
        for (tick, text) in y.ticks() {
            let height = y.place(tick, BOTTOM, TOP);
            canvas.line((LEFT, height), (RIGHT, height), "#ddd", "");
            canvas.text((LEFT - 7.0, height + 4.0), "end", &text, "");
        }
        for (index, ((left, row), name)) in rows.iter().zip(names).enumerate() {
            let (colour, dash) = style(index);
            let top = HEIGHT + ROW * *row as f64;
            if swatches {
                canvas.rect((*left, top - 9.0), (14.0, 10.0), colour);
            } else {
                canvas.path(&format!("M{} {}h20", at(*left), at(top - 4.0)), colour, dash);
            }
            canvas.text((left + 26.0, top), "start", name, "");
        }
        canvas
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: &str, text: &str, more: &str) {
        let text = escape(text);
        let _ = writeln!(
            self.0,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\"{more}>{text}</text>",
            at(x),
            at(y)
        );
    }

    fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str, dash: &str) {
        let dash = if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
        let [x1, y1, x2, y2] = [x1, y1, x2, y2].map(at);
        let _ =
            writeln!(self.0, "<path d=\"M{x1} {y1}L{x2} {y2}\" stroke=\"{colour}\"{dash} fill=\"none\"/>");
    }

    fn path(&mut self, d: &str, colour: &str, dash: &str) {
        let dash = if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
        let _ = writeln!(
            self.0,
            "<path d=\"{d}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-linejoin=\"round\"{dash}/>"
        );
    }

    fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), colour: &str) {
        let [x, y, width, height] = [x, y, width, height].map(at);
        let _ = writeln!(
            self.0,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{colour}\"/>"
        );
    }

    fn end(mut self) -> String {
        self.0 += "</svg>\n";
        self.0
    }
}

/// Left edge and row of each entry of the legend.
fn legend_rows(names: &[String]) -> Vec<(f64, usize)> {
    let (mut left, mut row) = (LEFT, 0);
    let mut places = Vec::new();
    for name in names {
        let width = 42.0 + LETTER * name.chars().count() as f64;
        if left > LEFT && left + width > WIDTH {
            (left, row) = (LEFT, row + 1);
        }
        places.push((left, row));
        left += width;
    }
    places
}
