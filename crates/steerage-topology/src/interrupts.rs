//! Finds the CPUs that handle the interrupts of a network card's receive queues.
//!
//! The kernel lists a PCI device's interrupts in `msi_irqs`
//! (Documentation/ABI/testing/sysfs-bus-pci). The names of interrupt N are subdirectories of
//! `/proc/irq/N`, and its CPUs are in the file `effective_affinity_list`
//! (Documentation/core-api/irq/irq-affinity.rst). Only an interrupt's name shows to which receive
//! queue it belongs, and each driver forms names differently: `eth0-TxRx-3`, `eth0-rx-3`,
//! `mlx5_comp3@pci:0000:00:05.0`, `virtio2-input.3`. The number at the end of the name, or before
//! an `@`, is the receive queue.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::cpu::CpuMask;
use crate::files::Files;

/// An interrupt whose name contains one of these words serves no receive queue.
const NOT_RECEIVING: [&str; 8] = ["output", "config", "async", "mgmnt", "mgmt", "misc", "ctrl", "event"];

/// Returns, for each receive queue of an interface, the CPUs that handle the queue's interrupt. The
/// map is empty if the kernel does not report the interrupts. Virtual interfaces have no
/// interrupts.
///
/// ```
/// for (queue, cpus) in steerage_topology::interrupt_cpus("eth0") {
///     println!("rx-{queue} interrupts CPU {cpus}");
/// }
/// assert!(steerage_topology::interrupt_cpus("lo").is_empty());
/// ```
pub fn interrupt_cpus(interface: &str) -> BTreeMap<u32, CpuMask> {
    cpus_below(Path::new("/"), interface)
}

fn cpus_below(root: &Path, interface: &str) -> BTreeMap<u32, CpuMask> {
    let files = Files::below(root);
    let cpus = |irq| files.list(format!("proc/irq/{irq}/effective_affinity_list"));
    queue_interrupts(root, interface).into_iter().filter_map(|(queue, irq)| Some((queue, cpus(irq)?))).collect()
}

/// Returns, for each receive queue of an interface, the number of the queue's interrupt, from /sys
/// and /proc below `root`. The map is empty if the kernel does not report the interrupts.
pub fn queue_interrupts(root: impl Into<PathBuf>, interface: &str) -> BTreeMap<u32, u32> {
    let root = root.into();
    let files = Files::below(root.as_path());
    let mut found = BTreeMap::new();
    for irq in card_interrupts(root, interface) {
        let names = files.directories(format!("proc/irq/{irq}"));
        if let Some(queue) = names.iter().find_map(|name| queue_of(name)) {
            found.entry(queue).or_insert(irq);
        }
    }
    found
}

/// Returns the numbers of all interrupts of an interface's card, from /sys below `root`.
pub fn card_interrupts(root: impl Into<PathBuf>, interface: &str) -> Vec<u32> {
    let files = Files::below(root);
    let of = |device: &str| files.numbered(format!("sys/class/net/{interface}/{device}/msi_irqs"), "");
    // The interrupts belong to the PCI device, which is the parent of a virtio device.
    let own = of("device");
    let irqs = if own.is_empty() { of("device/..") } else { own };
    irqs.into_iter().map(|(irq, _)| irq).collect()
}

fn queue_of(name: &str) -> Option<u32> {
    let name = name.split('@').next()?.to_ascii_lowercase();
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (rest, number) = name.split_at(name.len() - digits);
    let sends_only = rest.contains("tx") && !rest.contains("rx");
    if sends_only || NOT_RECEIVING.iter().any(|part| rest.contains(part)) {
        return None;
    }
    // An interrupt that has the same name as the interface (`eth0`, `enp0s3`) serves all queues.
    let has_queue =
        rest.ends_with(['-', '.', ':']) || rest.contains("rx") || rest.contains("comp") || rest.contains("input");
    number.parse().ok().filter(|_| has_queue)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_machines::Made;

    #[test]
    fn names_of_drivers() {
        for (name, queue) in [
            ("virtio2-input.0", Some(0)),
            ("virtio2-output.0", None),
            ("virtio2-config", None),
            ("eth0-TxRx-3", Some(3)),        // ixgbe, igb, ice
            ("i40e-eth0-TxRx-12", Some(12)), // i40e
            ("eth0-Tx-Rx-7", Some(7)),       // ena
            ("ena-mgmnt@pci:0000:00:05.0", None),
            ("mlx5_comp31@pci:0000:81:00.0", Some(31)),
            ("mlx5_async0@pci:0000:81:00.0", None),
            ("eth0-rx-0", Some(0)),
            ("eth0-tx-0", None),
            ("bnxt_en-eth0-TxRx-5", Some(5)), // bnxt
            ("eth0-fp-2", Some(2)),           // bnx2x
            ("enp0s3", None),
            ("ttyS0", None),
        ] {
            assert_eq!(queue_of(name), queue, "{name}");
        }
    }

    #[test]
    fn a_card_and_a_virtio_device() {
        let made = Made::new(&[]);
        for (irq, name, cpus) in [(40, "eth1-TxRx-0", "2"), (41, "eth1-TxRx-1", "3,7"), (42, "eth1", "0")] {
            made.write(&format!("sys/class/net/eth1/device/msi_irqs/{irq}"), "msix");
            made.write(&format!("proc/irq/{irq}/{name}/none"), "");
            made.write(&format!("proc/irq/{irq}/effective_affinity_list"), cpus);
        }
        made.write("sys/devices/pci0/msi_irqs/50", "msix");
        made.write("sys/devices/pci0/virtio2/none", "");
        made.write("sys/class/net/eth0/mtu", "1500");
        let device = made.root().join("sys/class/net/eth0/device");
        std::os::unix::fs::symlink("../../../devices/pci0/virtio2", device).unwrap();
        made.write("proc/irq/50/virtio2-input.0/none", "");
        made.write("proc/irq/50/effective_affinity_list", "1");
        let of =
            |interface| cpus_below(made.root(), interface).into_iter().map(|(queue, cpus)| (queue, cpus.to_list()));
        assert_eq!(of("eth1").collect::<Vec<_>>(), [(0, "2".to_owned()), (1, "3,7".to_owned())]);
        assert_eq!(of("eth0").collect::<Vec<_>>(), [(0, "1".to_owned())]);
        assert_eq!(of("eth9").count(), 0);
        assert_eq!(queue_interrupts(made.root(), "eth1"), [(0, 40), (1, 41)].into());
        assert_eq!(card_interrupts(made.root(), "eth1"), [40, 41, 42]);
    }
}
