//! What the doctor says.

use serde::Serialize;
use std::fmt::Write;

/// How things stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// As it should be.
    Ok,
    /// It works, but slower or with less than it could.
    Warn,
    /// Something will not work.
    Bad,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// What was looked at: a name that does not change.
    pub(super) check: &'static str,
    pub(super) state: State,
    /// What was seen.
    pub(super) seen: String,
    /// What to type to mend it, or what to do; none if nothing needs to be mended.
    pub(super) mend: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, seen: impl Into<String>) -> Finding {
        Finding { check, state: State::Ok, seen: seen.into(), mend: None }
    }

    pub(super) fn warn(check: &'static str, seen: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { check, state: State::Warn, seen: seen.into(), mend: Some(mend.into()) }
    }

    pub(super) fn bad(check: &'static str, seen: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { check, state: State::Bad, seen: seen.into(), mend: Some(mend.into()) }
    }
}

/// The findings for people: one a line, and what to type below it.
pub(super) fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let state = match finding.state {
            State::Ok => "ok  ",
            State::Warn => "warn",
            State::Bad => "BAD ",
        };
        let _ = writeln!(text, "{state}  {:<12} {}", finding.check, finding.seen);
        for line in finding.mend.iter().flat_map(|mend| mend.lines()) {
            let _ = writeln!(text, "                   → {line}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_type_stands_below() {
        let findings =
            [Finding::ok("clock", "tsc"), Finding::bad("mtu", "576", "ip link set dev a mtu 9000")];
        let lines = text(&findings);
        assert_eq!(
            lines
                .lines()
                .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect::<Vec<_>>(),
            ["ok clock tsc", "BAD mtu 576", "→ ip link set dev a mtu 9000"]
        );
        assert_eq!(findings.iter().map(|finding| finding.state).max(), Some(State::Bad));
    }
}
