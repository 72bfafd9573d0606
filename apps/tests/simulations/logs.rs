//! `RUST_LOG` as users see it.

use std::process::{Command, Output};

/// A short run over kernel UDP, with `filter` in `RUST_LOG` if there is one.
fn run(filter: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.args(["run", "--on", "udp", "--workload", "incast:1", "--size", "10KB", "--json", "-"]);
    match filter {
        Some(filter) => command.env("RUST_LOG", filter),
        None => command.env_remove("RUST_LOG"),
    };
    command.output().expect("weft starts")
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

#[test]
fn ports_are_logged_with_their_limits_if_rust_log_asks_for_it() {
    let output = run(Some("info"));
    assert!(output.status.success(), "{}", stderr(&output));
    let opened: Vec<&str> = stderr(&output).lines().filter(|line| line.contains("UDP port opened")).collect();
    assert_eq!(opened.len(), 2, "one for each host: {}", stderr(&output));
    for field in ["INFO", "weft_stack::port::udp", "local=127.0.0.1:", "mtu=", "receive_buffer="] {
        assert!(opened[0].contains(field), "{field}: {}", opened[0]);
    }
    assert!(!output.stdout.is_empty(), "the report is on standard output as always");
}

#[test]
fn nothing_is_logged_unless_rust_log_asks_for_it() {
    for filter in [None, Some("off"), Some("weft_stack::worker=debug")] {
        let output = run(filter);
        assert!(
            output.status.success() && !stderr(&output).contains("UDP port opened"),
            "{}",
            stderr(&output)
        );
    }
}

#[test]
fn a_filter_that_makes_no_sense_is_refused() {
    let output = run(Some("weft_stack=loud"));
    assert_eq!(output.status.code(), Some(2));
    let error = stderr(&output);
    assert!(
        error.starts_with("weft: RUST_LOG: ") && error.contains("expected a level such as info"),
        "{error}"
    );
}
