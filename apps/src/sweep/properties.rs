//! The property that any text is a sweep or refused by line.

use super::file::SweepFile;
use super::grid::Grid;

/// Any text is a sweep whose runs have arguments and names, or refused in one line that names a line of the file.
pub fn any_text_is_a_sweep_or_refused_by_line(text: &str) {
    let grid = match SweepFile::parse("s.toml", text).and_then(Grid::new) {
        Ok(grid) => grid,
        Err(refusal) => return check_refusal(text, &refusal.to_string()),
    };
    let last = grid.runs() - 1;
    for index in [0, last / 2, last] {
        assert!(grid.arguments(index).iter().all(|argument| argument.starts_with("--")));
        assert!(grid.label(index).starts_with(&format!("run {} of {}", index + 1, grid.runs())));
        assert_eq!(grid.columns(index).count(), grid.columns(0).count());
        // The values are arbitrary text, so the parser of the options may refuse them.
        if grid.check(index, |_| Ok(())).is_ok() {
            let _ = grid.keys(index);
        }
    }
    assert!(grid.threads() >= 1);
}

fn check_refusal(text: &str, refusal: &str) {
    let line = refusal.strip_prefix("s.toml:").and_then(|rest| rest.split_once(':')?.0.parse().ok());
    let lines = text.lines().count().max(1) + usize::from(text.ends_with('\n'));
    assert!(line.is_some_and(|line: usize| (1..=lines).contains(&line)), "{text:?}: {refusal}");
    assert_eq!(refusal.lines().count(), 1, "{refusal}");
}
