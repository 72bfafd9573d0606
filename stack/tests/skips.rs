//! A test that is skipped reports it on standard error, and fails in CI, where every test has to run.

mod skipped;

use std::process::{Command, Output};

#[test]
#[ignore = "the other tests run it"]
fn a_test_that_is_skipped() {
    println!("the harness keeps this to itself");
    skipped::skipped("there is\nno reason");
}

/// The output of the skipped test, with or without the variable `CI`.
fn outcome(ci: bool) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_test_that_is_skipped", "--ignored", "--test-threads", "2"]).env_remove("CI");
    if ci {
        command.env("CI", "1");
    }
    command.output().unwrap()
}

#[test]
fn a_skipped_test_is_reported_although_output_is_captured() {
    let output = outcome(false);
    let (text, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    assert!(!text.contains("to itself"), "the harness captures output: {text}");
    assert_eq!(said, "skipped: a_test_that_is_skipped: there is; no reason\n");
}

#[test]
fn skipping_a_test_is_a_failure_in_ci() {
    let output = outcome(true);
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("not to be skipped here: there is"), "{text}");
}
