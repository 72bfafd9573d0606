//! The findings of the doctor.

use serde::Serialize;
use std::fmt::Write;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// Nothing is wrong.
    Ok,
    /// It works, but is slower or can do less than it could.
    Warn,
    /// Something will not work.
    Bad,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// The stable name of the check.
    pub(super) check: &'static str,
    pub(super) state: State,
    /// The observation that the check made.
    pub(super) seen: String,
    /// The command or step that resolves the finding; `None` if the user needs to do nothing.
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

/// The findings as text: one per line, with what to type on the next line.
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
    fn each_finding_is_followed_by_the_command_to_type() {
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
