//! `weft doctor`: finds what keeps this machine or a path from being fast, and says what to type.
//!
//! Without options it examines the machine by reading /proc and /sys. With `--port` it opens the port and reports its
//! capabilities. With `--path` it exchanges probes with another doctor (`--answer`) over any kind of port; decision
//! 0038 says why these are not packets of the protocol.

mod answer;
mod burst;
mod cores;
mod devices;
mod finding;
mod interfaces;
mod memory;
mod path;
mod probe;
mod root;
mod wire;

use crate::Failure;
use crate::output::OutputFile;
use crate::port_spec::{AnyPort, OpenPort, PeerSpec, PortOptions, PortSpec};
use crate::units;
use burst::{Burst, Visibility};
use clap::Args;
use finding::{Finding, State};
use root::Root;
use std::io::Write;
use std::path::{Path, PathBuf};
use weft_cc::{Rate, Span};
use weft_stack::port::{Port, Timestamps};
use wire::Wire;

/// `weft doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Examine the path to this host, where `weft doctor --answer` runs.
    #[arg(long, value_name = "IP[/MAC]", requires = "spec")]
    path: Option<PeerSpec>,
    /// Answer hosts that examine the path to this one.
    #[arg(long, requires = "spec", conflicts_with = "path")]
    answer: bool,
    /// End after this time without requests [default: never].
    #[arg(long, value_name = "TIME", value_parser = units::span, requires = "answer")]
    wait: Option<Span>,
    /// Rate of this host's link, at which bursts are sent [default: the rate of the interface if known, else as fast as
    /// the port accepts packets].
    #[arg(long, value_name = "RATE", value_parser = units::rate, requires = "path")]
    link: Option<Rate>,
    /// Open this port: udp:ADDRESS, memif:SOCKET,role=server|client or dpdk:DEVICE[,ARGUMENTS].
    #[arg(long = "port", value_name = "PORT", id = "spec")]
    port: Option<PortSpec>,
    #[command(flatten)]
    options: PortOptions,
    /// Write the findings as JSON; with - to standard output, which then carries nothing else.
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
    /// The directory that holds /proc and /sys.
    #[arg(long, value_name = "DIRECTORY", default_value = "/", hide = true)]
    root: PathBuf,
}

/// Runs `weft doctor`. Bad findings are a failure.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<(), Failure> {
    let findings = match &args.port {
        None => machine(&Root::at(&args.root)),
        Some(spec) => {
            let open = args.options.open(spec).map_err(Failure::Run)?;
            if args.answer {
                let said = format!("answering at {} ({spec})\n", open.info.host.ip);
                crate::print(said.as_bytes()).map_err(|e| Failure::Run(format!("standard output: {e}")))?;
                return answer::answer(Wire::new(open), args.wait);
            }
            with_port(open, args.path.as_ref(), args.link)?
        }
    };
    print(&findings, args.json.as_deref())?;
    let bad = findings.iter().filter(|finding| finding.state == State::Bad).count();
    if bad > 0 { Err(Failure::Run(format!("{bad} of {} findings are bad", findings.len()))) } else { Ok(()) }
}

/// Findings about the machine, made without opening a port.
fn machine(root: &Root) -> Vec<Finding> {
    let has_nics = !devices::nics(root).is_empty();
    let mut findings = cores::check(root);
    findings.extend(memory::check(root, has_nics));
    findings.extend(devices::check(root));
    findings.extend(interfaces::check(root));
    if root.is_real() {
        findings.push(dpdk());
    }
    findings
}

/// Findings about a port, and about the path to `peer` if given.
fn with_port(
    mut open: OpenPort,
    peer: Option<&PeerSpec>,
    link: Option<Rate>,
) -> Result<Vec<Finding>, Failure> {
    let mut findings = vec![capabilities(&open)];
    findings.extend(notices(&open.port));
    if let Some(peer) = peer {
        let host = wire::addresses_of(&mut open, peer)?;
        let burst = Burst::new(visibility(&open.port), link.or(open.info.link));
        findings.extend(path::PathCheck::new(Wire::new(open), host, burst).examine()?);
    }
    Ok(findings)
}

/// How much the port shows of packets that are dropped or trimmed.
fn visibility(port: &AnyPort) -> Visibility {
    match port {
        AnyPort::Udp(_) => Visibility::KernelUdp,
        #[cfg(feature = "dpdk")]
        AnyPort::Dpdk(port) if port.facts().driver == "net_af_packet" => Visibility::PacketSocket,
        _ => Visibility::Full,
    }
}

/// Findings from the notices of the port itself.
fn notices(port: &AnyPort) -> Vec<Finding> {
    let finding = |notice| match port {
        AnyPort::Udp(_) => Finding::warn("port", notice, "see docs/doctor.md"),
        // Work that a DPDK device leaves to weft costs time, but the user cannot change that.
        _ => Finding::ok("port", notice),
    };
    let mut findings: Vec<Finding> = port.notices().into_iter().map(finding).collect();
    findings.extend(device(port));
    findings
}

#[cfg(feature = "dpdk")]
fn device(port: &AnyPort) -> Option<Finding> {
    let AnyPort::Dpdk(port) = port else { return None };
    let facts = port.facts();
    let hash = if facts.hashes_addresses { "by addresses" } else { "not by addresses" };
    let (driver, max_mtu, queues) = (&facts.driver, facts.max_mtu, facts.queues);
    let seen = format!("{driver}: MTU up to {max_mtu}, {queues} queues, spread {hash}");
    Some(if port.link_is_up() {
        Finding::ok("device", format!("{seen}, link up"))
    } else {
        Finding::warn("device", format!("{seen}, link down"), "start the other end, or look at the cable")
    })
}

#[cfg(not(feature = "dpdk"))]
fn device(_port: &AnyPort) -> Option<Finding> {
    None
}

fn capabilities(open: &OpenPort) -> Finding {
    let caps = open.port.capabilities();
    let can = [
        (caps.tx_ipv4_checksum, "IPv4 checksums"),
        (caps.tx_udp_checksum, "UDP checksums"),
        (caps.rx_checksum, "checking of checksums"),
        (caps.multi_segment, "several buffers a frame"),
        (caps.timestamps != Timestamps::Burst, "times of arrival"),
    ];
    let list = |wanted| {
        let names: Vec<&str> = can.iter().filter(|(can, _)| *can == wanted).map(|(_, name)| *name).collect();
        if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
    };
    let rate = open.info.link.map_or_else(|| "unknown".to_owned(), |rate| rate.to_string());
    let seen = format!(
        "MTU {}, {} entropies, rate {rate}; does {}; leaves to weft {}",
        open.mtu(),
        open.info.paths,
        list(true),
        list(false)
    );
    Finding::ok("port", seen)
}

#[cfg(feature = "dpdk")]
fn dpdk() -> Finding {
    Finding::ok("dpdk", format!("built in: {}", weft_stack::port::dpdk::BUILD_VERSION))
}

#[cfg(not(feature = "dpdk"))]
fn dpdk() -> Finding {
    Finding::warn(
        "dpdk",
        "this weft was built without it: only udp works",
        "scripts/setup.sh && cargo build --release -p weft-apps",
    )
}

fn print(findings: &[Finding], json: Option<&Path>) -> Result<(), Failure> {
    let stdout = |error| Failure::Run(format!("standard output: {error}"));
    if json != Some(Path::new("-")) {
        crate::print(finding::text(findings).as_bytes()).map_err(stdout)?;
    }
    let Some(path) = json else { return Ok(()) };
    let mut bytes = serde_json::to_vec_pretty(findings).unwrap_or_default();
    bytes.push(b'\n');
    if path == Path::new("-") {
        return crate::print(&bytes).map_err(stdout);
    }
    let written = OutputFile::create(path).and_then(|mut file| {
        file.write_all(&bytes)?;
        file.commit()
    });
    written.map_err(|error| Failure::at(path, &error))
}
