//! Checks of network cards on the PCI bus: their drivers, and whether user space can drive them.

use super::finding::Finding;
use super::root::Root;

const PCI: &str = "sys/bus/pci/devices";

/// A network card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Nic {
    pub(super) address: String,
    pub(super) driver: Option<String>,
    /// Its NUMA node, if the system names one.
    pub(super) node: Option<u32>,
    ids: String,
}

/// The network cards of the machine.
pub(super) fn nics(root: &Root) -> Vec<Nic> {
    let read = |address: String| {
        let fact = |name: &str| root.text(&format!("{PCI}/{address}/{name}"));
        // PCI base class 2 is that of network controllers.
        fact("class")?.strip_prefix("0x02")?;
        let id = |name| fact(name).map_or_else(String::new, |id| id.trim_start_matches("0x").to_owned());
        Some(Nic {
            driver: root.link(&format!("{PCI}/{address}/driver")),
            node: fact("numa_node").and_then(|node| node.parse().ok()),
            ids: format!("{}:{}", id("vendor"), id("device")),
            address,
        })
    };
    root.names(PCI).into_iter().filter_map(read).collect()
}

pub(super) fn check(root: &Root) -> Vec<Finding> {
    let nics = nics(root);
    if nics.is_empty() {
        return vec![Finding::ok("pci", "no network card on the PCI bus: use ring, memif, af_packet or udp")];
    }
    let mut findings: Vec<Finding> = nics.iter().map(nic).collect();
    findings.push(iommu(root));
    findings.push(vfio(root));
    findings
}

fn nic(nic: &Nic) -> Finding {
    let Nic { address, ids, .. } = nic;
    match nic.driver.as_deref() {
        Some(driver @ ("vfio-pci" | "uio_pci_generic" | "igb_uio")) => {
            Finding::ok("pci", format!("{address} ({ids}) is DPDK's ({driver}): --port dpdk:{address}"))
        }
        // DPDK uses these cards through their kernel drivers.
        Some(driver @ ("mlx5_core" | "mlx4_core" | "mana")) => {
            Finding::ok("pci", format!("{address} ({ids}) works with DPDK beside its driver {driver}"))
        }
        Some(driver) => Finding::ok(
            "pci",
            format!(
                "{address} ({ids}) is the kernel's ({driver}); to give it to DPDK: sudo dpdk-devbind.py -b vfio-pci {address}"
            ),
        ),
        None => Finding::warn(
            "pci",
            format!("{address} ({ids}) has no driver"),
            format!("sudo dpdk-devbind.py -b vfio-pci {address}"),
        ),
    }
}

fn iommu(root: &Root) -> Finding {
    let units = root.names("sys/class/iommu");
    if !units.is_empty() {
        return Finding::ok("iommu", format!("on: {}", units.join(", ")));
    }
    let vendor = root.text("proc/cpuinfo").unwrap_or_default();
    let option = if vendor.contains("AuthenticAMD") { "iommu=pt" } else { "intel_iommu=on iommu=pt" };
    Finding::warn(
        "iommu",
        "off: a card in user space can then write anywhere in memory",
        format!(
            "on the kernel's command line: {option}; without an IOMMU, as in most virtual machines:\n\
             echo 1 | sudo tee /sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
        ),
    )
}

fn vfio(root: &Root) -> Finding {
    if root.exists("sys/module/vfio_pci") {
        Finding::ok("vfio", "the module vfio-pci is loaded")
    } else {
        Finding::warn("vfio", "the module vfio-pci is not loaded", "sudo modprobe vfio-pci")
    }
}
