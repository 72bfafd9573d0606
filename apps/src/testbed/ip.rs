//! The command `ip` of iproute2, which creates and removes interfaces and namespaces.

use crate::Failure;
#[cfg(feature = "dpdk")]
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Runs `ip` with these arguments.
///
/// # Errors
/// It is not installed, or it fails: the error has its message.
pub(crate) fn run(args: &[&str]) -> Result<(), Failure> {
    let output = Command::new("ip").args(args).stdin(Stdio::null()).output();
    judge(&args.join(" "), output)
}

/// Runs `ip` commands, one per line, in `namespace` or in the namespace of this process. Stops at the first that fails.
///
/// # Errors
/// As [`run`].
#[cfg(feature = "dpdk")]
pub(crate) fn batch(namespace: Option<&str>, lines: &str) -> Result<(), Failure> {
    let mut command = Command::new("ip");
    if let Some(namespace) = namespace {
        command.args(["-netns", namespace]);
    }
    command.args(["-batch", "-"]);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let output = child.and_then(|mut child| {
        // `ip` reads while it works and writes nothing unless a command fails, so neither side blocks.
        let written = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(lines.as_bytes()));
        let output = child.wait_with_output()?;
        written.map(|()| output)
    });
    judge(lines.lines().next().unwrap_or_default(), output)
}

fn judge(what: &str, output: std::io::Result<Output>) -> Result<(), Failure> {
    let output = output
        .map_err(|error| Failure::Run(format!("ip: {error}; expected iproute2: apt-get install iproute2")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or_default();
    Err(Failure::Run(format!("ip {what}: {said}")))
}
