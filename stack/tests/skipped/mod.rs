//! How a test says that what it needs is not to be had here. Tests of all crates use this one.

use std::io::Write;

/// What such a line begins with; `scripts/test.sh` looks for it.
const MARK: &str = "skipped: ";

/// Says why the calling test does not take place. Where everything is to be tested, which `CI` says, that is a failure.
pub(crate) fn skipped(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "not to be skipped here: {why}");
    let thread = std::thread::current();
    say(&format!("{MARK}{}: {}", thread.name().unwrap_or("a test"), why.trim_end().replace('\n', "; ")));
}

/// Says again what tests have skipped in a process whose output is `text`.
#[allow(dead_code, reason = "most tests start no others")]
pub(crate) fn skipped_inside(text: &str) {
    text.lines().filter(|line| line.starts_with(MARK)).for_each(say);
}

/// To standard error itself: of what macros print there, the test harness shows nothing unless the test fails.
fn say(line: &str) {
    // Nobody may be listening, and the test is none the worse for that.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
