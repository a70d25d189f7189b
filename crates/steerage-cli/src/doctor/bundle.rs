//! The bundle: the facts that a maintainer needs to understand a report from a machine without
//! access to it. It has no packets, no flows and no addresses. It is one indented JSON object, so
//! that the sender can read it first.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};
use steerage_guard::file::{self, Opened, Readers};

use super::host::Host;
use super::redact::redact;
use super::{Diagnosis, runs};
use crate::error::Error;
use crate::stdout;

/// The most bytes of one file. The flags of a CPU are 2 KiB, and the interrupts of a large machine 100 KiB.
const TEXT_MAX: usize = 256 << 10;

/// Lines of /proc/meminfo.
const MEMORY: [&str; 7] =
    ["MemTotal", "MemAvailable", "AnonHugePages", "HugePages_Total", "HugePages_Free", "Hugepagesize", "Mlocked"];

/// Lines of /proc/cpuinfo that say which CPU it is, on x86-64 and on Arm.
const CPU: [&str; 10] = [
    "vendor_id",
    "model name",
    "cpu family",
    "model",
    "stepping",
    "microcode",
    "flags",
    "Features",
    "CPU implementer",
    "CPU part",
];

/// Settings that change where packets are handled, below /proc/sys.
const SETTINGS: [&str; 14] = [
    "kernel/numa_balancing",
    "kernel/sched_rt_runtime_us",
    "kernel/unprivileged_bpf_disabled",
    "net/core/bpf_jit_enable",
    "net/core/busy_poll",
    "net/core/dev_weight",
    "net/core/gro_normal_batch",
    "net/core/netdev_budget",
    "net/core/netdev_budget_usecs",
    "net/core/netdev_max_backlog",
    "net/core/rmem_max",
    "net/core/rps_sock_flow_entries",
    "vm/max_map_count",
    "vm/nr_hugepages",
];

/// Parameters of the kernel's command line about CPUs and memory. The others may name machines and disks.
const PARAMETERS: [&str; 16] = [
    "default_hugepagesz",
    "hugepages",
    "hugepagesz",
    "idle",
    "intel_idle.max_cstate",
    "intel_iommu",
    "iommu",
    "irqaffinity",
    "isolcpus",
    "lsm",
    "mitigations",
    "nohz_full",
    "processor.max_cstate",
    "rcu_nocbs",
    "threadirqs",
    "transparent_hugepage",
];

/// Further files, with their keys in the bundle.
const FILES: [(&str, &str); 8] = [
    ("machine", "sys/class/dmi/id/sys_vendor"),
    ("product", "sys/class/dmi/id/product_name"),
    ("clock", "sys/devices/system/clocksource/clocksource0/current_clocksource"),
    ("frequency_governor", "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    ("security_modules", "sys/kernel/security/lsm"),
    ("transparent_huge_pages", "sys/kernel/mm/transparent_hugepage/enabled"),
    ("load", "proc/loadavg"),
    ("softnet_stat", "proc/net/softnet_stat"),
];

/// The facts about the machine and its runs.
#[derive(Debug)]
pub(super) struct Bundle {
    file: File,
    facts: Value,
    host_name: Option<String>,
}

impl Bundle {
    /// Collects the facts, and opens the file. Call this before the sandbox is entered.
    pub(super) fn collect(path: &Path, host: &Host, interface: Option<&str>) -> Result<Self, Error> {
        let facts = json!({
            "build": build(),
            "host": facts(host),
            "interface": interface.map(|name| interface_facts(host, name)),
            "runs": runs::all(),
        });
        let file = match file::open(path, Readers::Group) {
            Ok(Opened::File(file) | Opened::Special(file)) => file,
            Err(error) => return Err(Error::Bundle { path: path.to_owned(), error }),
        };
        Ok(Self { file, facts, host_name: host.text("proc/sys/kernel/hostname") })
    }

    /// Writes the bundle, with the results of doctor.
    pub(super) fn write(self, path: &Path, diagnosis: &Diagnosis) -> Result<(), Error> {
        let failed = |error| Error::Bundle { path: path.to_owned(), error };
        let doctor = serde_json::to_value(diagnosis).map_err(|error| failed(io::Error::other(error)))?;
        let value = json!({"schema": 1, "type": "bundle", "doctor": doctor, "facts": self.facts});
        let text = serde_json::to_string_pretty(&redact(value, self.host_name.as_deref()));
        let text = text.map_err(|error| failed(io::Error::other(error)))? + "\n";
        let mut file = self.file;
        file.write_all(text.as_bytes()).map_err(failed)?;
        let told = format!("wrote {}: {} bytes of JSON, to be read before it is sent\n", path.display(), text.len());
        stdout::print(crate::terminal::printable_lines(&told).as_bytes())
    }
}

fn build() -> Value {
    let libc = if cfg!(target_env = "musl") { "musl" } else { "glibc" };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "architecture": std::env::consts::ARCH,
        "libc": libc,
        "static": cfg!(target_feature = "crt-static"),
        "debug_assertions": cfg!(debug_assertions),
    })
}

fn facts(host: &Host) -> Value {
    let text = |path: &str| host.text(path).map(|text| cut(&text));
    let named: BTreeMap<&str, Option<String>> = FILES.iter().map(|(name, path)| (*name, text(path))).collect();
    let release = text("etc/os-release").unwrap_or_default();
    let distribution = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let settings: BTreeMap<&str, Option<String>> =
        SETTINGS.iter().map(|path| (*path, text(&format!("proc/sys/{path}")))).collect();
    let command_line = text("proc/cmdline").unwrap_or_default();
    let is_told = |word: &&str| PARAMETERS.contains(&word.split('=').next().unwrap_or_default());
    let limits = text("proc/self/limits").unwrap_or_default();
    let limits: Vec<&str> = limits.lines().filter(|line| line.starts_with("Max locked memory")).collect();
    json!({
        "distribution": distribution.map(|name| name.trim_matches('"')),
        "kernel_build": text("proc/sys/kernel/version"),
        "files": named,
        "cpu": lines(&text("proc/cpuinfo").unwrap_or_default(), &CPU),
        "memory": lines(&text("proc/meminfo").unwrap_or_default(), &MEMORY),
        "settings": settings,
        "kernel_parameters": command_line.split_whitespace().filter(is_told).collect::<Vec<_>>(),
        "limits": limits,
    })
}

/// For each of these names, the first line of the form `name : value`.
fn lines<'a>(text: &'a str, names: &[&'a str]) -> BTreeMap<&'a str, &'a str> {
    let value = |name: &&'a str| {
        let of_name = |line: &'a str| line.split_once(':').filter(|(key, _)| key.trim() == *name);
        text.lines().find_map(of_name).map(|(_, value)| (*name, value.trim()))
    };
    names.iter().filter_map(value).collect()
}

/// The interrupts, counts and queues of an interface.
fn interface_facts(host: &Host, name: &str) -> Value {
    let at = format!("sys/class/net/{name}");
    let counts = host.entries(format!("{at}/statistics")).into_iter();
    let counts: BTreeMap<String, Option<String>> =
        counts.map(|count| (count.clone(), host.text(format!("{at}/statistics/{count}")))).collect();
    // The interrupts of a virtio card belong to its parent device.
    let numbers = ["device/msi_irqs", "device/../msi_irqs"].map(|path| host.entries(format!("{at}/{path}"))).concat();
    let all = host.text("proc/interrupts").unwrap_or_default();
    // Drivers name an interrupt after the interface, as in `eth1-TxRx-0`. `eth10` is another interface.
    let is_named = |word: &str| word.strip_prefix(name).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric));
    let is_ours = |line: &&str| {
        let number = line.trim_start().split(':').next().unwrap_or_default();
        numbers.iter().any(|ours| ours == number) || line.split_whitespace().any(is_named)
    };
    let interrupts: Vec<&str> = all.lines().take(1).chain(all.lines().skip(1).filter(is_ours)).collect();
    let on = |number: &String| (number.clone(), host.text(format!("proc/irq/{number}/smp_affinity_list")));
    let affinity: BTreeMap<String, Option<String>> = numbers.iter().map(on).collect();
    json!({"counts": counts, "interrupts": interrupts, "interrupt_cpus": affinity, "queues": host.entries(format!("{at}/queues"))})
}

fn cut(text: &str) -> String {
    let end = (0..=TEXT_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::host::fake::FakeHost;
    use super::*;

    #[test]
    fn facts_are_of_named_lines_and_parameters_alone() {
        let fake = FakeHost::new(
            "bundle",
            &[
                ("proc/cpuinfo", "processor : 0\nmodel name\t: EPYC\nflags\t\t: aes\n\nmodel name\t: other"),
                ("proc/meminfo", "MemTotal:  100 kB\nSecretLine: 1"),
                ("proc/cmdline", "root=UUID=1-2 ip=192.0.2.1 isolcpus=2-3 quiet"),
                ("etc/os-release", "ID=x\nPRETTY_NAME=\"Debian 12\""),
                ("sys/class/net/eth0/statistics/rx_packets", "7"),
                ("sys/class/net/eth0/address", "52:54:00:12:34:56"),
                ("sys/class/net/eth0/device/msi_irqs/31", "msix"),
                ("sys/class/net/eth0/queues/rx-0/rps_cpus", "0"),
                ("proc/irq/31/smp_affinity_list", "1"),
                ("proc/interrupts", "  CPU0\n 30: 5 other\n 31: 6 virtio0-input.0\n 32: 7 eth0-TxRx-1"),
            ],
        );
        let host = facts(&fake.host());
        assert_eq!(host["cpu"], json!({"model name": "EPYC", "flags": "aes"}));
        assert_eq!(host["memory"], json!({"MemTotal": "100 kB"}));
        assert_eq!(host["kernel_parameters"], json!(["isolcpus=2-3"]));
        assert_eq!(host["distribution"], "Debian 12");
        let interface = interface_facts(&fake.host(), "eth0");
        assert_eq!(interface["counts"], json!({"rx_packets": "7"}));
        assert_eq!(interface["interrupts"], json!(["CPU0", " 31: 6 virtio0-input.0", " 32: 7 eth0-TxRx-1"]));
        assert_eq!(interface["interrupt_cpus"], json!({"31": "1"}));
        assert!(!interface.to_string().contains("52:54"), "{interface}");
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"ä".repeat(TEXT_MAX)).len(), TEXT_MAX);
        assert_eq!(cut(&("a".to_owned() + &"ä".repeat(TEXT_MAX))).len(), TEXT_MAX - 1);
    }
}
