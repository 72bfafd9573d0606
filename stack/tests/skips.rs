//! A test that cannot take place says so to whoever runs the tests, and fails where all are to take place.

mod skipped;

use std::process::{Command, Output};

#[test]
#[ignore = "the other tests run it"]
fn one_that_is_skipped() {
    println!("the harness keeps this to itself");
    skipped::skipped("there is\nno reason");
}

/// What running it comes to, with or without `CI`.
fn outcome(ci: bool) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "one_that_is_skipped", "--ignored", "--test-threads", "2"]).env_remove("CI");
    if ci {
        command.env("CI", "1");
    }
    command.output().unwrap()
}

#[test]
fn it_is_heard_though_the_harness_captures_what_tests_print() {
    let output = outcome(false);
    let (text, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    assert!(!text.contains("to itself"), "it captures: {text}");
    assert_eq!(said, "skipped: one_that_is_skipped: there is; no reason\n");
}

#[test]
fn it_is_a_failure_where_all_are_to_take_place() {
    let output = outcome(true);
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("not to be skipped here: there is"), "{text}");
}
