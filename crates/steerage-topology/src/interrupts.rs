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
use std::path::PathBuf;

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
    below(&Files::below("/"), interface)
}

fn below(files: &Files, interface: &str) -> BTreeMap<u32, CpuMask> {
    let cpus = |irq| files.list(format!("proc/irq/{irq}/effective_affinity_list"));
    interrupts(files, interface).into_iter().filter_map(|(queue, irq)| Some((queue, cpus(irq)?))).collect()
}

/// Returns, for each receive queue of an interface, the number of the queue's interrupt, from /sys
/// and /proc below `root`. The map is empty if the kernel does not report the interrupts.
pub fn queue_interrupts(root: impl Into<PathBuf>, interface: &str) -> BTreeMap<u32, u32> {
    interrupts(&Files::below(root), interface)
}

fn interrupts(files: &Files, interface: &str) -> BTreeMap<u32, u32> {
    let device = PathBuf::from(format!("sys/class/net/{interface}/device"));
    // The interrupts of a virtio card belong to the virtio device's parent, a PCI device.
    let own = files.numbered(device.join("msi_irqs"), "");
    let irqs = if own.is_empty() { files.numbered(device.join("../msi_irqs"), "") } else { own };
    let mut found = BTreeMap::new();
    for (irq, _) in irqs {
        let names = files.directories(format!("proc/irq/{irq}"));
        if let Some(queue) = names.iter().find_map(|name| queue_of(name)) {
            found.entry(queue).or_insert(irq);
        }
    }
    found
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
    use std::fs;

    use super::*;

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
        let root = std::env::temp_dir().join(format!("steerage-interrupts-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (irq, name, cpus) in [(40, "eth1-TxRx-0", "2"), (41, "eth1-TxRx-1", "3,7"), (42, "eth1", "0")] {
            write(&format!("sys/class/net/eth1/device/msi_irqs/{irq}"), "msix");
            fs::create_dir_all(root.join(format!("proc/irq/{irq}/{name}"))).unwrap();
            write(&format!("proc/irq/{irq}/effective_affinity_list"), cpus);
        }
        write("sys/devices/pci0/msi_irqs/50", "msix");
        fs::create_dir_all(root.join("sys/devices/pci0/virtio2")).unwrap();
        fs::create_dir_all(root.join("sys/class/net/eth0")).unwrap();
        std::os::unix::fs::symlink("../../../devices/pci0/virtio2", root.join("sys/class/net/eth0/device")).unwrap();
        fs::create_dir_all(root.join("proc/irq/50/virtio2-input.0")).unwrap();
        write("proc/irq/50/effective_affinity_list", "1\n");
        let files = Files::below(&root);
        let of = |interface| below(&files, interface).into_iter().map(|(queue, cpus)| (queue, cpus.to_list()));
        assert_eq!(of("eth1").collect::<Vec<_>>(), [(0, "2".to_owned()), (1, "3,7".to_owned())]);
        assert_eq!(of("eth0").collect::<Vec<_>>(), [(0, "1".to_owned())]);
        assert_eq!(of("eth9").count(), 0);
        assert_eq!(queue_interrupts(&root, "eth1"), [(0, 40), (1, 41)].into());
        fs::remove_dir_all(root).unwrap();
    }
}
