//! `weft testbed`: a leaf-spine fabric of software switches in a process of its own. Hosts attach to it through kernel
//! UDP, memif, or veth interfaces in network namespaces; see docs/testbed.md.

mod attach;
mod control;
mod exec;
mod file;
mod ip;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod properties;
mod rundir;
mod servers;
mod status;
mod switch;

use crate::Failure;
use crate::choices::HostsBy;
use crate::units::ValueError;
pub(crate) use attach::{AttachedFabric, HostFacts};
pub(crate) use rundir::Owned;
pub(crate) use switch::Switches;

use clap::{Args, Subcommand};
use control::{Control, Reply, Request, ask};
use exec::ExecArgs;
use rundir::{Claim, RunDir};
use rustix::process::{Pid, Signal, kill_process};
use servers::Servers;
use signal_hook::consts::{SIGINT, SIGTERM};
use status::Status;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a testbed may take to come up in the background.
const UP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a testbed may take to go down.
const DOWN_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the kernel may take to end a process that was killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// How often such a state is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Turns of the switches between two polls of the control socket and of signals.
const TURNS_PER_POLL: u32 = 64;

/// `weft testbed`.
#[derive(Debug, Args)]
pub(crate) struct TestbedArgs {
    #[command(subcommand)]
    command: TestbedCommand,
}

#[derive(Debug, Subcommand)]
enum TestbedCommand {
    /// Start the switches, and attach hosts; ends on SIGINT, SIGTERM or `weft testbed down`.
    ///
    /// The remains of an earlier testbed of the same name that was killed are removed first.
    Up(UpArgs),
    /// Print what the switches have done, and the options for endpoints at the hosts.
    Status {
        #[command(flatten)]
        name: NameArgs,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Change the fabric while the switches run.
    Set {
        #[command(flatten)]
        name: NameArgs,
        #[command(subcommand)]
        what: SetCommand,
    },
    /// Run a program at a host, such as a rank of an MPI job, whose libfabric endpoints join the host's server.
    Exec(ExecArgs),
    /// End the switches, or remove the remains of a testbed that was killed.
    Down(NameArgs),
}

#[derive(Debug, Subcommand)]
enum SetCommand {
    /// Change a link: tier=T switch=S link=L or host=N, perhaps dir=up or dir=down, then down, up, rate=RATE, delay=TIME,
    /// drop=P, corrupt=P or another change of docs/link-events.md, with probabilities P from 0 to 1.
    Link {
        /// The link and the change.
        #[arg(required = true, value_name = "WORD")]
        words: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct UpArgs {
    /// A .topo file, or TOML with options of `weft run` that describe a fabric: topology, link, slow, mtu, queue,
    /// ecn, phantom, priorities, routing, trim, degrade, link-events, link-event, seed [default: 16 hosts on 4 leaves and 4 spines].
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// How hosts are attached.
    #[arg(long, value_name = "udp|memif|veth", default_value = "udp")]
    hosts: HostsBy,
    /// Run a `weft serve` at each host, for programs of `weft testbed exec`.
    #[arg(long)]
    serve: bool,
    #[command(flatten)]
    name: NameArgs,
    /// Return as soon as hosts can attach, and leave the switches running.
    #[arg(long)]
    detach: bool,
}

#[derive(Clone, Debug, Args)]
struct NameArgs {
    /// The testbed's name: up to 8 lower-case letters and digits.
    // Global, because `set` has subcommands: the option may come before or after them.
    #[arg(long, value_name = "NAME", default_value = "weft", value_parser = name, global = true)]
    name: String,
}

/// Checks the name of a testbed: names of interfaces, which contain it, have at most 15 characters.
fn name(text: &str) -> Result<String, ValueError> {
    let plain = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    match text.len() {
        1..=8 if plain => Ok(text.to_owned()),
        _ => Err(ValueError::expected("up to 8 lower-case letters and digits")),
    }
}

/// Runs `weft testbed`.
pub(crate) fn testbed(args: &TestbedArgs) -> Result<(), Failure> {
    match &args.command {
        TestbedCommand::Up(args) if args.detach => up_detached(args),
        TestbedCommand::Up(args) => up(args),
        TestbedCommand::Status { name, json } => print_status(&name.name, *json),
        TestbedCommand::Set { name, what: SetCommand::Link { words } } => {
            set_link(&name.name, words.join(" "))
        }
        TestbedCommand::Exec(args) => exec::exec(args),
        TestbedCommand::Down(name) => down(&name.name),
    }
}

/// Runs the switches until a signal or a request ends them.
fn up(args: &UpArgs) -> Result<(), Failure> {
    let plan = file::plan(args.file.as_deref(), args.hosts)?;
    let name = &args.name.name;
    let owned = claim(name)?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, ended.clone())
            .map_err(|error| Failure::Run(format!("signals: {error}")))?;
    }
    let run = |owned: &Owned| {
        let hosts: Vec<u32> = (0..plan.config.topology.hosts()).collect();
        let bed = args.hosts.attach(&plan.config, &plan.faults, &hosts, owned, name)?;
        let mut switches = Switches::new(bed, &plan.config);
        let mut servers = None;
        if args.serve {
            let started = Servers::start(&mut switches.hosts, &status::end_options(&plan), owned)?;
            servers.insert(started).wait(|| switches.turn())?;
        }
        let path = owned.dir.control();
        let mut control = Control::listen(&path).map_err(|error| Failure::at(&path, &error))?;
        let status = |switches: &Switches| Status::of(switches, &plan, name, args.hosts);
        say(&status(&switches).text());
        while !ended.load(Ordering::Relaxed) {
            (0..TURNS_PER_POLL).for_each(|_| switches.turn());
            if let Some(ended) = servers.as_mut().and_then(Servers::ended) {
                return Err(ended);
            }
            if let Some(request) = control.poll() {
                control.answer(&attend(&mut switches, &request, status));
                if request == Request::Down {
                    return Ok(());
                }
            }
        }
        Ok(())
    };
    let outcome = run(&owned);
    outcome.and(owned.remove())
}

/// Does what `request` asks for.
fn attend(switches: &mut Switches, request: &Request, status: impl Fn(&Switches) -> Status) -> Reply {
    match request {
        Request::Status => Reply::Status(Box::new(status(switches))),
        Request::SetLink(words) => switches.set_link(words).map_or_else(Reply::Refused, |()| Reply::Done),
        Request::Down => Reply::Done,
    }
}

/// Claims the name `name` for this process, and removes the remains of an earlier testbed of that name.
fn claim(name: &str) -> Result<Owned, Failure> {
    let dir = RunDir::of(name)?;
    let begin = Instant::now();
    loop {
        match dir.claim()? {
            Claim::Ours(owned) => {
                if owned.clean()? {
                    eprintln!("weft: testbed: removed what was left of a testbed {name} that was killed");
                }
                return Ok(owned);
            }
            // A testbed that was just killed holds its lock until the kernel has ended the process, and one that is
            // coming up does not answer yet.
            Claim::Theirs(_) if begin.elapsed() < KILL_TIMEOUT && !answers(&dir) => {
                thread::sleep(POLL_INTERVAL)
            }
            // Read again, because it may have written its process number only now.
            Claim::Theirs(_) => return Err(is_up_already(name, dir.state().map(|state| state.pid))),
        }
    }
}

fn is_up_already(name: &str, pid: Option<u32>) -> Failure {
    let process = pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
    Failure::Run(format!(
        "testbed: {name} is up already{process}; expected another --name, or weft testbed down{} first",
        option(name)
    ))
}

fn answers(dir: &RunDir) -> bool {
    !matches!(ask(&dir.control(), &Request::Status), Ok(None))
}

/// A directory for one `weft run`, and the name for its interfaces. Removes the remains of runs that were killed.
///
/// # Errors
/// The directory cannot be created, or remains cannot be removed.
pub(crate) fn directory_of_run() -> Result<(Owned, String), Failure> {
    RunDir::clean_runs()?;
    let name = format!("{}{}", rundir::RUN_PREFIX, std::process::id());
    match RunDir::of(&name)?.claim()? {
        Claim::Ours(owned) => Ok((owned, name)),
        Claim::Theirs(_) => {
            Err(Failure::Run(format!("{} is another process's", RunDir::of(&name)?.path().display())))
        }
    }
}

/// The option that names the testbed; empty for the default name.
fn option(name: &str) -> String {
    if name == "weft" { String::new() } else { format!(" --name {name}") }
}

/// Starts the switches in the background, and waits until they answer.
fn up_detached(args: &UpArgs) -> Result<(), Failure> {
    let name = &args.name.name;
    let dir = RunDir::of(name)?;
    // Errors in the file are reported here rather than in the log.
    drop(file::plan(args.file.as_deref(), args.hosts)?);
    drop(claim(name)?);
    let (mut child, mut log) = spawn(args, &dir)?;
    let begin = Instant::now();
    while begin.elapsed() < UP_TIMEOUT {
        let answer = ask(&dir.control(), &Request::Status);
        if let Ok(Some(Reply::Status(status))) = &answer
            && status.pid() == child.id()
        {
            say(&status.text());
            return Ok(());
        }
        if let Ok(Some(status)) = child.try_wait() {
            // Another testbed of this name came up first; the log says the same.
            if let Ok(Some(Reply::Status(other))) = answer {
                return Err(is_up_already(name, Some(other.pid())));
            }
            // It has removed the log with its directory, but the open file can still be read.
            let mut said = String::new();
            let _ = log.rewind().and_then(|()| log.read_to_string(&mut said));
            let last = said.lines().last().map(|line| line.trim_start_matches("weft: ").to_owned());
            return Err(Failure::Run(last.unwrap_or_else(|| format!("testbed: it ended with {status}"))));
        }
        thread::sleep(POLL_INTERVAL);
    }
    // Otherwise it might still come up unnoticed.
    let _ = child.kill();
    Err(Failure::Run(format!(
        "testbed: it did not come up within {} s; see {}",
        UP_TIMEOUT.as_secs(),
        dir.log().display()
    )))
}

/// Starts this program again, in a process group of its own. Its standard error goes to the returned log file.
fn spawn(args: &UpArgs, dir: &RunDir) -> Result<(Child, File), Failure> {
    let failed = |error| Failure::at(&dir.log(), &error);
    // Another testbed of this name that comes up at the same time may write to the same file.
    let log = File::options().create(true).read(true).append(true).open(dir.log());
    let log = log.map_err(failed)?;
    log.set_len(0).map_err(failed)?;
    let stderr = log.try_clone().map_err(failed)?;
    let mut command = std::process::Command::new("/proc/self/exe");
    command.args(["testbed", "up", "--name", &args.name.name, "--hosts", args.hosts.word()]);
    command.args(args.serve.then_some("--serve")).args(args.file.as_deref().map(Path::as_os_str));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).process_group(0);
    let child = command.spawn().map_err(|error| Failure::Run(format!("testbed: no process: {error}")))?;
    Ok((child, log))
}

fn print_status(name: &str, json: bool) -> Result<(), Failure> {
    let status = match ask(&RunDir::of(name)?.control(), &Request::Status)? {
        Some(Reply::Status(status)) => status,
        Some(_) => return Err(Failure::Run("testbed: the switches answered something else".to_owned())),
        None => return Err(not_up(name)?),
    };
    if json {
        let mut text = serde_json::to_string(&status).unwrap_or_default();
        text.push('\n');
        say(&text);
    } else {
        say(&status.text());
    }
    Ok(())
}

/// The error about a testbed that does not answer.
fn not_up(name: &str) -> Result<Failure, Failure> {
    let state = RunDir::of(name)?.state();
    let text = match state {
        Some(state) => format!(
            "testbed: {name} was killed (process {}); expected weft testbed up{o}, or down{o} to remove what is left",
            state.pid,
            o = option(name)
        ),
        None => format!("testbed: {name} is not up; expected weft testbed up{} first", option(name)),
    };
    Ok(Failure::Run(text))
}

fn set_link(name: &str, words: String) -> Result<(), Failure> {
    match ask(&RunDir::of(name)?.control(), &Request::SetLink(words))? {
        Some(_) => Ok(()),
        None => Err(not_up(name)?),
    }
}

/// Ends a testbed in whatever state it is, and waits until it is gone.
fn down(name: &str) -> Result<(), Failure> {
    let dir = RunDir::of(name)?;
    let asked = ask(&dir.control(), &Request::Down).is_ok_and(|reply| reply.is_some());
    let begin = Instant::now();
    let mut killed = asked;
    loop {
        match dir.claim()? {
            Claim::Ours(owned) => {
                let left = owned.clean()?;
                owned.remove()?;
                say(match (asked, left) {
                    (true, _) => "down\n",
                    (false, true) => "removed what was left\n",
                    (false, false) => "was not up\n",
                });
                return Ok(());
            }
            // It runs but does not listen: it is coming up or going down.
            Claim::Theirs(Some(pid)) if !killed => {
                killed = true;
                if let Some(pid) = Pid::from_raw(pid as i32) {
                    // The process may have ended by now.
                    let _ = kill_process(pid, Signal::TERM);
                }
            }
            Claim::Theirs(pid) if begin.elapsed() > DOWN_TIMEOUT => {
                let process = pid.map(|pid| format!("; expected kill -9 {pid}, then the same again"));
                return Err(Failure::Run(format!(
                    "testbed: {name} does not end{}",
                    process.unwrap_or_default()
                )));
            }
            Claim::Theirs(_) => {}
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Writes to standard output. A reader that has gone is no reason to end the switches.
fn say(text: &str) {
    let _ = crate::print(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_do_not_fit_into_names_of_interfaces_are_refused() {
        assert_eq!(name("bed12"), Ok("bed12".to_owned()));
        for wrong in ["", "Bed", "a-b", "a/b", "ninechars", "../x"] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }
}
