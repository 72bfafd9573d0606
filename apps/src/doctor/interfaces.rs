//! Checks of the kernel's network interfaces, which kernel UDP and af_packet use.

use super::finding::Finding;
use super::root::Root;
use std::process::Command;
use weft_stack::wire::MAX_HEADERS;

const NET: &str = "sys/class/net";
/// Bytes of an IP packet with the longest headers of a data packet and a payload of 4 KiB.
const FULL_PACKET: u32 = 40 + 8 + MAX_HEADERS as u32 + 4096;
/// The receive buffer that a UDP port requests, bytes.
const SOCKET_BUFFER: u64 = 4 << 20;

pub(super) fn check(root: &Root) -> Vec<Finding> {
    let names = root.names(NET);
    let mut findings: Vec<Finding> =
        names.iter().filter(|name| is_up(root, name)).flat_map(|name| interface(root, name)).collect();
    if findings.is_empty() {
        findings.push(Finding::bad("interface", "no interface is up", "sudo ip link set dev NAME up"));
    }
    findings.extend(socket_buffers(root));
    findings
}

fn is_up(root: &Root, name: &str) -> bool {
    let state = root.text(&format!("{NET}/{name}/operstate"));
    // The state of the loopback interface is always "unknown".
    matches!(state.as_deref(), Some("up" | "unknown")) || name == "lo"
}

fn interface(root: &Root, name: &str) -> Vec<Finding> {
    let mut findings = vec![mtu(root, name), link(root, name)];
    if root.is_real() && name != "lo" {
        findings.push(offloads(name));
    }
    findings
}

fn mtu(root: &Root, name: &str) -> Finding {
    match root.value::<u32>(&format!("{NET}/{name}/mtu")) {
        Some(mtu) if mtu >= FULL_PACKET => Finding::ok("mtu", format!("{name}: {mtu}")),
        Some(mtu) => Finding::warn(
            "mtu",
            format!("{name}: {mtu}: packets with a payload of 4 KiB need {FULL_PACKET}; --payload is less"),
            format!("sudo ip link set dev {name} mtu 9000    (and on the switches, and at the other end)"),
        ),
        None => Finding::warn("mtu", format!("{name}: unknown"), format!("ip link show dev {name}")),
    }
}

fn link(root: &Root, name: &str) -> Finding {
    let speed = root.value::<i64>(&format!("{NET}/{name}/speed")).filter(|mbps| *mbps > 0);
    let queues = root.names(&format!("{NET}/{name}/queues"));
    let count = |prefix: &str| queues.iter().filter(|queue| queue.starts_with(prefix)).count();
    let driver = root.link(&format!("{NET}/{name}/device/driver"));
    let seen = format!(
        "{name}: {}, driver {}, {} receive and {} transmit queues",
        speed.map_or_else(|| "rate unknown".to_owned(), |mbps| format!("{mbps} Mbit/s")),
        driver.as_deref().unwrap_or("none"),
        count("rx-"),
        count("tx-"),
    );
    match root.text(&format!("{NET}/{name}/duplex")).as_deref() {
        Some("half") => {
            Finding::bad("link", format!("{seen}, half duplex"), format!("sudo ethtool -s {name} autoneg on"))
        }
        _ => Finding::ok("link", seen),
    }
}

/// Checks the offloads of an interface that make kernel UDP faster.
fn offloads(name: &str) -> Finding {
    match Command::new("ethtool").args(["-k", name]).output() {
        Ok(output) if output.status.success() => {
            judge_offloads(name, &String::from_utf8_lossy(&output.stdout))
        }
        Ok(_) => Finding::ok("offloads", format!("{name}: its driver does not tell")),
        Err(_) => Finding::warn(
            "offloads",
            format!("{name}: not known, there is no ethtool"),
            "sudo apt install ethtool",
        ),
    }
}

fn judge_offloads(name: &str, features: &str) -> Finding {
    let wanted =
        ["rx-checksumming", "tx-checksumming", "generic-segmentation-offload", "generic-receive-offload"];
    let state = |feature: &str| {
        let line = features.lines().find_map(|line| line.trim().strip_prefix(feature)?.strip_prefix(':'))?;
        Some(line.trim())
    };
    let off = wanted.iter().filter(|feature| state(feature).is_some_and(|state| state.starts_with("off")));
    let (fixed, can): (Vec<&&str>, Vec<&&str>) =
        off.partition(|feature| state(feature).is_some_and(|state| state.contains("[fixed]")));
    let hardware = state("tx-udp-segmentation").is_some_and(|state| state.starts_with("on"));
    let cuts = if hardware { ", the card cuts UDP datagrams" } else { "" };
    if can.is_empty() {
        let missing =
            if fixed.is_empty() { String::new() } else { format!(" but {fixed:?}, which the card cannot") };
        return Finding::ok("offloads", format!("{name}: on{missing}{cuts}"));
    }
    let options: Vec<&str> = can
        .iter()
        .map(|feature| match **feature {
            "rx-checksumming" => "rx on",
            "tx-checksumming" => "tx on",
            "generic-segmentation-offload" => "gso on",
            _ => "gro on",
        })
        .collect();
    Finding::warn(
        "offloads",
        format!("{name}: off: {can:?}: the processor does it"),
        format!("sudo ethtool -K {name} {}", options.join(" ")),
    )
}

fn socket_buffers(root: &Root) -> Option<Finding> {
    let limit: u64 = root.value("proc/sys/net/core/rmem_max")?;
    Some(if limit >= SOCKET_BUFFER {
        Finding::ok("sockets", format!("receive buffers may have {limit} bytes"))
    } else {
        Finding::warn(
            "sockets",
            format!(
                "receive buffers may have {limit} bytes, and UDP ports ask for {SOCKET_BUFFER}: expect losses, unless root runs them"
            ),
            format!("sudo sysctl -w net.core.rmem_max={SOCKET_BUFFER}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn missing_offloads_are_named_unless_they_are_fixed() {
        let good = "Features for eth0:\nrx-checksumming: on\ntx-checksumming: on\n\ttx-udp-segmentation: on\n\
                    generic-segmentation-offload: on\ngeneric-receive-offload: on\n";
        let finding = judge_offloads("eth0", good);
        assert_eq!((finding.state, finding.mend), (State::Ok, None));
        assert!(finding.seen.contains("cuts UDP"));
        let fixed = good.replace("rx-checksumming: on", "rx-checksumming: off [fixed]");
        let finding = judge_offloads("eth0", &fixed);
        assert_eq!(finding.state, State::Ok);
        assert!(finding.seen.contains("rx-checksumming"));
        let off = good.replace("generic-receive-offload: on", "generic-receive-offload: off");
        let finding = judge_offloads("eth0", &off.replace("tx-checksumming: on", "tx-checksumming: off"));
        assert_eq!(finding.state, State::Warn);
        assert_eq!(finding.mend.as_deref(), Some("sudo ethtool -K eth0 tx on gro on"));
    }
}
