//! Further processes of a test, which say lines and are told some.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::full_name;

/// The variable that makes a test one of its processes, and says its number.
const NUMBER: &str = "WEFT_FI_PROCESS";

/// The number of this process, if it is one that a test has started.
pub(crate) fn number() -> Option<usize> {
    std::env::var(NUMBER).ok().map(|number| number.parse().unwrap())
}

/// A line that this process has been told.
pub(crate) fn told() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Says the name of an endpoint of this process, which [`Process::name`] reads.
pub(crate) fn say_name(name: [u8; 16]) {
    println!("name {}", u128::from_be_bytes(name));
}

/// The name of an endpoint that this process has been told.
pub(crate) fn told_name() -> [u8; 16] {
    told().parse::<u128>().unwrap().to_be_bytes()
}

/// A process that runs a test again.
pub(crate) struct Process {
    pub(crate) child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Runs the test `name` of the caller's file in a process with this number and these variables.
    #[track_caller]
    pub(crate) fn start(name: &str, number: usize, variables: &[(&str, &str)]) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([&full_name(name), "--exact", "--nocapture"]).env(NUMBER, number.to_string());
        command.envs(variables.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Process { child, lines }
    }

    /// What follows `word` in a line that has it.
    pub(crate) fn says(&mut self, word: &str) -> String {
        loop {
            let line = self.lines.next().expect("a process has ended").unwrap();
            if let Some(at) = line.find(word) {
                return line[at + word.len()..].to_owned();
            }
        }
    }

    /// The name of the process's endpoint, when it says it.
    pub(crate) fn name(&mut self) -> [u8; 16] {
        self.says("name ").parse::<u128>().unwrap().to_be_bytes()
    }

    /// Tells the process the name of an endpoint.
    pub(crate) fn tell_name(&mut self, name: [u8; 16]) {
        self.tell(&u128::from_be_bytes(name).to_string());
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }
}
