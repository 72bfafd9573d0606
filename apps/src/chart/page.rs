//! A page of HTML with figures and tables in it.

use super::escape;
use std::fmt::Write;

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}\
h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2em}figure{margin:1em 0}\
svg{max-width:100%;height:auto;background:#fff}table{border-collapse:collapse;margin:1em 0;font-size:14px}\
td,th{border-bottom:1px solid #ddd;padding:.25em .7em;text-align:left;vertical-align:top}\
.number{text-align:right!important;font-variant-numeric:tabular-nums}td.good{color:#006b3c}td.bad{color:#b00020;font-weight:bold}";

/// A table of texts. Columns of numbers are set flush right; the words `holds` and `FAILS` are coloured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    /// The table as text in aligned columns, each line indented by two blanks.
    pub(crate) fn text(&self) -> String {
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let width = |column: usize| lines().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let line = |cells: &Vec<String>| {
            let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("  {cell:<width$}"));
            cells.collect::<String>().trim_end().to_owned() + "\n"
        };
        if self.rows.is_empty() { String::new() } else { lines().map(line).collect() }
    }
}

/// A page that is being written.
#[derive(Debug)]
pub(crate) struct Page(String);

impl Page {
    pub(crate) fn new(title: &str) -> Page {
        let title = escape(title);
        Page(format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\n<style>{STYLE}</style></head>\n\
             <body><h1>{title}</h1>\n"
        ))
    }

    pub(crate) fn heading(&mut self, text: &str) {
        let _ = writeln!(self.0, "<h2>{}</h2>", escape(text));
    }

    pub(crate) fn paragraph(&mut self, text: &str) {
        let _ = writeln!(self.0, "<p>{}</p>", escape(text));
    }

    /// Adds an SVG document.
    pub(crate) fn figure(&mut self, svg: &str) {
        let _ = writeln!(self.0, "<figure>{svg}</figure>");
    }

    pub(crate) fn table(&mut self, table: &Table) {
        let right: Vec<bool> = (0..table.head.len()).map(|column| is_of_numbers(table, column)).collect();
        let line = |tag: &str, cells: &[String]| {
            let cells = cells.iter().zip(&right).map(|(text, right)| cell(tag, text, *right));
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        let rows: String = table.rows.iter().map(|row| line("td", row)).collect();
        let _ = writeln!(self.0, "<table>{}{rows}</table>", line("th", &table.head));
    }

    pub(crate) fn end(mut self) -> String {
        self.0 += "</body></html>\n";
        self.0
    }
}

/// Whether each cell of a column begins with a number, or has a dash in its place.
fn is_of_numbers(table: &Table, column: usize) -> bool {
    let mut cells = table.rows.iter().map(|row| row[column].trim_start_matches(['-', '−']));
    cells.all(|text| text == "–" || text.starts_with(|c: char| c.is_ascii_digit()))
}

fn cell(tag: &str, text: &str, right: bool) -> String {
    let class = match text {
        "holds" => " class=\"good\"",
        "FAILS" => " class=\"bad\"",
        _ if right => " class=\"number\"",
        _ => "",
    };
    format!("<{tag}{class}>{}</{tag}>", escape(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_numbers_are_flush_right_and_texts_that_begin_with_a_number_are_not() {
        let mut page = Page::new("A page");
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let rows = vec![row(["128 hosts", "–"]), row(["One host", "-1.5"])];
        page.table(&Table { head: row(["fabric", "µs"]), rows });
        let html = page.end();
        assert!(html.contains("<th>fabric</th><th class=\"number\">µs</th>"), "{html}");
        assert!(html.contains("<td>128 hosts</td><td class=\"number\">–</td>"), "{html}");
    }

    #[test]
    fn a_page_refers_to_nothing_outside_of_it() {
        let mut page = Page::new("A <page>");
        page.heading("Figures");
        page.paragraph("x < y");
        let rows = vec![vec!["12 µs".to_owned(), "FAILS".to_owned()]];
        page.table(&Table { head: vec!["a".to_owned(), "b".to_owned()], rows });
        let html = page.end();
        assert!(html.contains("<title>A &lt;page&gt;</title>") && html.contains("x &lt; y"), "{html}");
        assert!(html.contains("<td class=\"number\">12 µs</td><td class=\"bad\">FAILS</td>"), "{html}");
        for outside in ["http:", "https:", "src=", "@import", "<script"] {
            assert!(!html.contains(outside), "{outside}: {html}");
        }
    }
}
