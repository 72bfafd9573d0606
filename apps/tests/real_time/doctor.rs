//! Tests of the command `weft doctor`: on directories that imitate /proc and /sys, and on real paths.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

fn doctor(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weft"));
    command.arg("doctor").args(args).env("RUST_BACKTRACE", "0");
    command
}

fn run(args: &[&str]) -> Output {
    doctor(args).output().expect("weft starts")
}

/// The findings, and whether the command succeeded.
fn findings(args: &[&str]) -> (Vec<Value>, bool) {
    let output = run(&[args, &["--json", "-"]].concat());
    let json = serde_json::from_slice(&output.stdout);
    let list = json.unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
    (list, output.status.success())
}

fn state<'a>(list: &'a [Value], check: &str) -> (&'a str, &'a str, &'a str) {
    let found = list.iter().find(|finding| finding["check"] == check);
    let finding = found.unwrap_or_else(|| panic!("no {check} in {list:?}"));
    let text = |key: &str| finding[key].as_str().unwrap_or_default();
    (text("state"), text("seen"), text("mend"))
}

/// A directory that imitates the /proc and /sys of a machine.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str) -> Machine {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).expect("the scratch directory is writable");
        Machine(root)
    }

    fn with(self, path: &str, text: &str) -> Machine {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a file has a directory")).expect("writable");
        fs::write(path, text).expect("writable");
        self
    }

    fn with_driver(self, device: &str, driver: &str) -> Machine {
        let directory = self.0.join(device);
        fs::create_dir_all(&directory).expect("writable");
        symlink(format!("/sys/bus/pci/drivers/{driver}"), directory.join("driver")).expect("writable");
        self
    }

    fn examine(&self) -> (Vec<Value>, bool) {
        findings(&["--root", self.0.to_str().expect("UTF-8")])
    }
}

const NIC: &str = "sys/bus/pci/devices/0000:3b:00.0";

fn good() -> Machine {
    Machine::new("good")
        .with("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "1024\n")
        .with("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "1000\n")
        .with("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
        .with("sys/devices/system/cpu/online", "0-7\n")
        .with("sys/devices/system/cpu/isolated", "2-7\n")
        .with("sys/devices/system/cpu/nohz_full", "2-7\n")
        .with("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n")
        .with("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n")
        .with("sys/devices/system/node/node0/cpulist", "0-3\n")
        .with("sys/devices/system/node/node1/cpulist", "4-7\n")
        .with("proc/sys/kernel/perf_event_paranoid", "1\n")
        .with("sys/bus/event_source/devices/cpu/type", "4\n")
        .with(
            "proc/self/limits",
            "Max locked memory         unlimited            unlimited            bytes\n",
        )
        .with("proc/sys/net/core/rmem_max", "16777216\n")
        .with(&format!("{NIC}/class"), "0x020000\n")
        .with(&format!("{NIC}/numa_node"), "1\n")
        .with(&format!("{NIC}/vendor"), "0x8086\n")
        .with(&format!("{NIC}/device"), "0x1592\n")
        .with_driver(NIC, "vfio-pci")
        .with("sys/class/iommu/dmar0/name", "\n")
        .with("sys/module/vfio_pci/refcnt", "1\n")
        .with("sys/class/net/eth0/operstate", "up\n")
        .with("sys/class/net/eth0/mtu", "9000\n")
        .with("sys/class/net/eth0/speed", "100000\n")
        .with("sys/class/net/eth0/duplex", "full\n")
        .with("sys/class/net/eth0/queues/rx-0/rps_cpus", "0\n")
}

#[test]
fn a_well_configured_machine_has_only_ok_findings() {
    let (list, success) = good().examine();
    assert!(success && list.iter().all(|finding| finding["state"] == "ok"), "{list:?}");
    assert!(list.iter().all(|finding| finding["mend"].is_null()), "nothing needs to be typed: {list:?}");
    let seen = |check| state(&list, check).1;
    assert_eq!(seen("hugepages"), "1000 of 1024 pages of 2 MiB free");
    assert_eq!(seen("cores"), "6 of 8 cores isolated (2-7), without ticks: 2-7");
    assert_eq!(seen("pci"), "0000:3b:00.0 (8086:1592) is DPDK's (vfio-pci): --port dpdk:0000:3b:00.0");
    assert!(seen("link").contains("100000 Mbit/s") && seen("link").contains("1 receive"), "{list:?}");
    let near = list.iter().any(|f| f["seen"] == "0000:3b:00.0 is at node1: pin its workers to cores 4-7");
    assert!(near, "{list:?}");
}

#[test]
fn every_fault_comes_with_a_command_that_repairs_it() {
    let machine = Machine::new("poor")
        .with("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n")
        .with("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
        .with("sys/devices/system/cpu/online", "0-3\n")
        .with("sys/devices/system/cpu/isolated", "\n")
        .with("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
        .with("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n")
        .with("sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet acpi_pm\n")
        .with("proc/sys/kernel/perf_event_paranoid", "4\n")
        .with("sys/bus/event_source/devices/cpu/type", "4\n")
        .with(
            "proc/self/limits",
            "Max locked memory         65536                65536                bytes\n",
        )
        .with("proc/sys/net/core/rmem_max", "212992\n")
        .with(&format!("{NIC}/class"), "0x020000\n")
        .with_driver(NIC, "ice")
        .with("sys/class/net/eth0/operstate", "up\n")
        .with("sys/class/net/eth0/mtu", "1500\n")
        .with("sys/class/net/eth0/duplex", "half\n");
    let (list, success) = machine.examine();
    assert!(!success, "half duplex is bad");
    for (check, wanted, mend) in [
        ("hugepages", "warn", "tee /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"),
        ("thp", "warn", "echo madvise"),
        ("cores", "warn", "isolcpus=managed_irq,domain,1-3"),
        ("frequency", "warn", "cpupower frequency-set -g performance"),
        (
            "clock",
            "warn",
            "echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
        ("counters", "warn", "kernel.perf_event_paranoid=2"),
        ("memlock", "warn", "ulimit -l unlimited"),
        ("sockets", "warn", "net.core.rmem_max=4194304"),
        ("iommu", "warn", "intel_iommu=on"),
        ("vfio", "warn", "modprobe vfio-pci"),
        ("mtu", "warn", "ip link set dev eth0 mtu 9000"),
        ("link", "bad", "ethtool -s eth0"),
    ] {
        let (state, seen, typed) = state(&list, check);
        assert_eq!(state, wanted, "{check}: {seen}");
        assert!(typed.contains(mend), "{check}: {typed}");
    }
    assert!(state(&list, "pci").1.contains("dpdk-devbind.py -b vfio-pci 0000:3b:00.0"));
}

#[test]
fn an_empty_directory_gives_findings_and_no_panic() {
    let (list, success) = Machine::new("empty").examine();
    assert!(!success && state(&list, "interface").0 == "bad", "{list:?}");
}

#[test]
fn this_machine_is_examined() {
    let output = run(&[]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for check in ["cores", "clock", "hugepages", "numa", "pci", "mtu", "link"] {
        let line = |line: &str| line.split_whitespace().nth(1) == Some(check);
        assert!(text.lines().any(line), "no {check} in\n{text}");
    }
}

/// An answering doctor, which does not outlive the test.
struct Answering(Child);

impl Answering {
    fn at(port: &str) -> Answering {
        let mut command = doctor(&["--answer", "--wait", "60000ms", "--port", port]);
        Answering(command.stdout(Stdio::null()).spawn().expect("weft starts"))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_path_over_the_loopback_interface_has_no_faults() {
    let _other = Answering::at("udp:127.92.1.1");
    let args = ["--path", "127.92.1.1", "--port", "udp:127.92.1.2"];
    // The answering doctor may take a while to start.
    let examined = (0..20).map(|_| findings(&args).0).find(|list| state(list, "path").0 == "ok");
    let list = examined.expect("the other end answers");
    for check in ["path-mtu", "path-dscp", "path-ecn"] {
        assert_eq!(state(&list, check).0, "ok", "{list:?}");
    }
    assert!(state(&list, "path-mtu").1.contains("9000"));
    let (trimming, seen, _) = state(&list, "trimming");
    assert_eq!(trimming, "warn", "kernel UDP cannot tell: {seen}");
    assert!(state(&list, "port").1.contains("8 entropies"));
}

#[test]
fn a_path_without_a_response_is_bad() {
    let (list, success) = findings(&["--path", "127.92.2.1", "--port", "udp:127.92.2.2"]);
    assert!(!success);
    let (path, seen, mend) = state(&list, "path");
    assert_eq!((path, seen), ("bad", "no answer from 127.92.2.1"));
    assert!(mend.contains("weft doctor --answer"));
}

#[test]
fn invalid_options_are_refused() {
    for args in [&["--path", "127.0.0.1"][..], &["--answer"], &["--port", "udp:nowhere"]] {
        assert_eq!(run(args).status.code(), Some(2), "{args:?}");
    }
}
