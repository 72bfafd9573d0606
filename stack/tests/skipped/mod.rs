//! How a test reports that it is skipped because this machine lacks something. Tests of all crates use this module.

use std::io::Write;

/// The beginning of such a report, for which `scripts/test.sh` looks.
const MARK: &str = "skipped: ";

/// Reports why the calling test is skipped. With the variable `CI`, where every test has to run, it panics instead.
pub(crate) fn skipped(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "not to be skipped here: {why}");
    let thread = std::thread::current();
    say(&format!("{MARK}{}: {}", thread.name().unwrap_or("a test"), why.trim_end().replace('\n', "; ")));
}

/// Repeats the reports of a process whose output is `text`.
#[allow(dead_code, reason = "most tests start no others")]
pub(crate) fn skipped_inside(text: &str) {
    text.lines().filter(|line| line.starts_with(MARK)).for_each(say);
}

/// Writes to standard error directly, since the test harness captures the output of macros.
fn say(line: &str) {
    // The test does not depend on whether anybody reads this.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
