//! Findings about the kernel, and about the permissions of this process.

use rustix::io::Errno;
use steerage::{
    limits::{BACKLOG_DEFAULT, KEPT_DEFAULT, LPC_MEMORY_PART, MEMORY_MAX_DEFAULT, PAGE_BYTES_MIN, POLL_BUDGET},
    memory::{LOT_SLOTS, LpcMemory, Needs, QueueNeeds},
};
use steerage_guard::sandbox::InForce;
use steerage_text::{counted, size};
use steerage_tune::Root;

use crate::Finding;
use crate::probe::{Capability, Probes};

const PROGRAM: &str = "\"$(command -v steerage)\"";

/// 16 MiB hold 8,192 frames of 2 KiB for an AF_XDP socket.
const LOCKED_BYTES_MIN: u64 = 16 << 20;

pub(crate) fn kernel(root: &Root) -> String {
    root.read("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "unknown".to_owned())
}

/// Returns all findings except those about CPUs and interfaces. `cpus` is the number of CPUs that a
/// run of steerage uses by default.
pub(crate) fn findings(root: &Root, probes: &Probes, cpus: usize) -> Vec<Finding> {
    vec![
        Finding::info("kernel", format!("Linux {}", kernel(root))),
        capabilities(&probes.capabilities),
        af_packet(probes),
        af_xdp(probes),
        filters(probes),
        fuse(root, probes),
        huge_pages(root),
        locked_memory(probes),
        packet_memory(cpus),
        page_cache(probes.memory),
        hashes(probes),
    ]
}

fn capabilities(all: &[Capability]) -> Finding {
    let (held, absent): (Vec<_>, Vec<_>) = all.iter().partition(|capability| capability.held);
    let names = |list: &[&Capability]| list.iter().map(|one| one.name).collect::<Vec<_>>().join(", ");
    let what_for = |one: &&Capability| format!("{} ({})", one.name, one.what_for);
    match (held.as_slice(), absent.as_slice()) {
        (held, []) => Finding::ok("capabilities", names(held)),
        (held, absent) => {
            let absent = absent.iter().map(what_for).collect::<Vec<_>>().join(", ");
            let held = if held.is_empty() { String::new() } else { format!("{}; ", names(held)) };
            // If capabilities for receiving or sending are missing, another finding reports the
            // missing capabilities.
            Finding::info("capabilities", format!("{held}without {absent}"))
        }
    }
}

pub(crate) fn sandbox(in_force: Option<InForce>) -> Finding {
    const ABOUT: &str = "sandbox";
    match in_force {
        None => Finding::info(ABOUT, "not entered (--no-sandbox)"),
        Some(in_force) if in_force.seccomp() && in_force.landlock() == "full" => {
            Finding::ok(ABOUT, format!("each command has {in_force}"))
        }
        Some(in_force) => Finding::missing(
            ABOUT,
            format!("each command has {in_force}"),
            "use Linux 6.12 or newer with CONFIG_SECCOMP_FILTER and CONFIG_SECURITY_LANDLOCK, and landlock in lsm=; \
             in a container, its engine must allow them",
        ),
    }
}

fn af_packet(probes: &Probes) -> Finding {
    match probes.af_packet {
        Ok(()) => Finding::ok("AF_PACKET", "interfaces can be listened to"),
        Err(Errno::PERM | Errno::ACCESS) => Finding::missing(
            "AF_PACKET",
            "no interface can be listened to without CAP_NET_RAW",
            format!("run steerage with sudo, or once: sudo setcap cap_net_raw+ep {PROGRAM}"),
        ),
        Err(Errno::AFNOSUPPORT) => {
            Finding::missing("AF_PACKET", "the kernel has none (CONFIG_PACKET)", "sudo modprobe af_packet")
        }
        Err(error) => {
            Finding::missing("AF_PACKET", format!("no socket ({error})"), "let the sandbox allow AF_PACKET sockets")
        }
    }
}

fn af_xdp(probes: &Probes) -> Finding {
    let may_attach = ["CAP_NET_ADMIN", "CAP_BPF", "CAP_PERFMON"].iter().all(|name| probes.holds(name));
    match probes.af_xdp {
        Ok(()) if may_attach => Finding::ok("AF_XDP", "sockets can be made, and XDP programs attached"),
        Ok(()) | Err(Errno::PERM | Errno::ACCESS) => Finding::missing(
            "AF_XDP",
            "it takes CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON",
            format!(
                "run steerage with sudo, or once: sudo setcap cap_net_raw,cap_net_admin,cap_bpf,cap_perfmon+ep {PROGRAM}"
            ),
        ),
        Err(Errno::AFNOSUPPORT) => {
            Finding::missing("AF_XDP", "the kernel has none", "use a kernel with CONFIG_XDP_SOCKETS=y, or AF_PACKET")
        }
        Err(error) => {
            Finding::missing("AF_XDP", format!("no socket ({error})"), "let the sandbox allow AF_XDP sockets")
        }
    }
}

fn filters(probes: &Probes) -> Finding {
    match &probes.tcpdump {
        Some(path) => Finding::ok("filters", format!("compiled by {}", path.display())),
        None => Finding::missing(
            "filters",
            "there is no tcpdump to compile them",
            "sudo apt-get install tcpdump, or give -f the numbers of tcpdump -ddd",
        ),
    }
}

fn fuse(root: &Root, probes: &Probes) -> Finding {
    match probes.fuse {
        Ok(()) if probes.fusermount.is_none() => {
            Finding::missing("FUSE", "there is no fusermount3 to mount the control tree", "sudo apt-get install fuse3")
        }
        Ok(()) => Finding::ok("FUSE", "/dev/fuse can be opened, and there is fusermount3"),
        Err(Errno::NOENT) if root.read("/proc/filesystems").is_ok_and(|text| text.contains("fuse")) => {
            Finding::missing("FUSE", "there is no /dev/fuse", "give the container the device: --device /dev/fuse")
        }
        Err(Errno::NOENT) => Finding::missing("FUSE", "there is no /dev/fuse", "sudo modprobe fuse"),
        Err(error) => {
            Finding::missing("FUSE", format!("/dev/fuse cannot be opened ({error})"), "run steerage with sudo")
        }
    }
}

fn huge_pages(root: &Root) -> Finding {
    const RESERVED: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
    const RESERVE: &str = "sudo sysctl vm.nr_hugepages=64";
    let free: u64 = root.number(&format!("{RESERVED}/free_hugepages")).unwrap_or(0);
    let reserved: u64 = root.number(&format!("{RESERVED}/nr_hugepages")).unwrap_or(0);
    // In this file, brackets mark the current setting.
    let transparent = root.read("/sys/kernel/mm/transparent_hugepage/enabled");
    let transparent = transparent.is_ok_and(|text| text.contains("[always]") || text.contains("[madvise]"));
    match (free, transparent) {
        (1.., _) => Finding::ok("huge pages", format!("{free} of {reserved} reserved ones of 2 MiB are free")),
        (_, true) => Finding::ok("huge pages", "transparent ones; none reserved are free")
            .or(format!("for certain ones {RESERVE}")),
        (_, false) => Finding::missing(
            "huge pages",
            "none reserved are free, and transparent ones are off",
            format!("{RESERVE}, or echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"),
        ),
    }
}

fn locked_memory(probes: &Probes) -> Finding {
    match probes.memlock {
        _ if probes.holds("CAP_IPC_LOCK") => Finding::ok("locked memory", "any amount, by CAP_IPC_LOCK"),
        None => Finding::ok("locked memory", "any amount"),
        Some(bytes) if bytes >= LOCKED_BYTES_MIN => Finding::ok("locked memory", format!("up to {} MiB", bytes >> 20)),
        Some(bytes) => Finding::missing(
            "locked memory",
            format!("up to {} KiB, too little for AF_XDP", bytes >> 10),
            "ulimit -l unlimited, or LimitMEMLOCK=infinity in the service",
        ),
    }
}

/// Returns the maximum memory of a run with the default CPUs and settings, for frames of the usual
/// length.
fn packet_memory(cpus: usize) -> Finding {
    const ABOUT: &str = "packet memory";
    let cpus = cpus.max(1);
    let live = QueueNeeds { segments: 1, lends: false, waits: false, caches: true, fixed: 3 * POLL_BUDGET };
    let cap = MEMORY_MAX_DEFAULT as u64;
    let with_queues = |queues: usize| {
        let needs = Needs {
            cpus,
            queues: vec![live; queues],
            backlog: BACKLOG_DEFAULT,
            lot_slots: LOT_SLOTS,
            kept_max: KEPT_DEFAULT,
            cache_pages: LpcMemory::default_pages(queues, queues.div_ceil(cpus), PAGE_BYTES_MIN, cap),
            page_bytes: PAGE_BYTES_MIN,
            slot_bytes: 16,
            other_pages: 2 * POLL_BUDGET * cpus,
            other_bytes: 0,
        };
        needs.fit_caches(cap).within(cap, BACKLOG_DEFAULT)
    };
    let shown = |queues: usize| {
        let budget = with_queues(queues);
        let share =
            if budget.backlog < BACKLOG_DEFAULT { format!(" ({} packets)", budget.backlog) } else { String::new() };
        format!("{} with {}{share}", size(budget.bytes), counted(queues as u64, "queue"))
    };
    let several: Vec<String> = [1, 16, 64].map(shown).into();
    let found = format!(
        "for {BACKLOG_DEFAULT} packets waiting for each of {}: {}",
        counted(cpus as u64, "CPU"),
        several.join(", ")
    );
    Finding::info(ABOUT, found).or(format!("of {} at most: --memory, --backlog", size(cap)))
}

/// Returns the maximum memory in the local page caches (the queues' own free pages) of a run, for
/// frames of the usual length.
fn page_cache(memory: Option<u64>) -> Finding {
    const ABOUT: &str = "page cache";
    let memory = memory.unwrap_or(u64::MAX).min(MEMORY_MAX_DEFAULT as u64);
    let mib = |pages: usize| (pages * PAGE_BYTES_MIN) as f64 / f64::from(1 << 20);
    let each = LpcMemory::default_pages(1, 1, PAGE_BYTES_MIN, memory);
    if each == 0 {
        let share = memory as f64 / LPC_MEMORY_PART as f64 / f64::from(1 << 10);
        return Finding::info(
            ABOUT,
            format!("off, since a poll's pages would be more than {share:.0} KiB, 1/{LPC_MEMORY_PART} of the memory"),
        )
        .or("to switch it on --lpc-pages 64");
    }
    let found = format!("{:.1} MiB for the queues of each CPU ({each} pages of {PAGE_BYTES_MIN} bytes)", mib(each));
    let other = format!("other sizes with --lpc-pages, {:.1} MiB a queue for 1024", mib(1024));
    Finding::info(ABOUT, found).or(other)
}

fn hashes(probes: &Probes) -> Finding {
    match (probes.aes, probes.gfni) {
        (true, true) => Finding::ok("flow hash", "by AES; toeplitz by GFNI"),
        (true, false) => Finding::ok("flow hash", "by AES; toeplitz by table"),
        (false, _) => Finding::missing(
            "flow hash",
            "this CPU has no AES instructions, so SipHash is used",
            "of a virtual machine, let it have the host's CPU (-cpu host)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use steerage_fixtures::scratch::Scratch;

    use super::*;
    use crate::State;
    use crate::probe::fake::probes;

    fn lacks(root: &Root, probes: &Probes) -> Vec<(&'static str, String)> {
        let findings = findings(root, probes, 2);
        assert!(findings.iter().all(|one| one.state != State::Missing || one.fix.is_some()));
        findings.into_iter().filter(|one| one.state == State::Missing).map(|one| (one.about, one.found)).collect()
    }

    #[test]
    fn a_machine_with_everything_lacks_nothing() {
        let fake = Scratch::with_files(&[
            ("proc/sys/kernel/osrelease", "6.18.0"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "64"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "60"),
        ]);
        let root = Root::below(&*fake);
        assert_eq!(lacks(&root, &probes()), []);
        let all = findings(&root, &probes(), 2);
        assert!(all.iter().any(|one| one.found == "60 of 64 reserved ones of 2 MiB are free"));
        assert!(all.iter().any(|one| one.found == "Linux 6.18.0"));
    }

    #[test]
    fn a_machine_with_nothing_says_what_is_missing() {
        let fake = Scratch::with_files(&[("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]")]);
        let root = Root::below(&*fake);
        let mut nothing = Probes {
            af_packet: Err(Errno::PERM),
            af_xdp: Err(Errno::AFNOSUPPORT),
            fuse: Err(Errno::NOENT),
            memlock: Some(64 << 10),
            tcpdump: None,
            aes: false,
            gfni: false,
            ..probes()
        };
        nothing.capabilities.iter_mut().for_each(|capability| capability.held = false);
        let about: Vec<&str> = lacks(&root, &nothing).iter().map(|(about, _)| *about).collect();
        assert_eq!(about, ["AF_PACKET", "AF_XDP", "filters", "FUSE", "huge pages", "locked memory", "flow hash"]);
        let capabilities = &findings(&root, &nothing, 2)[1].found;
        assert!(
            capabilities.starts_with("without CAP_NET_RAW (listening to interfaces), CAP_NET_ADMIN"),
            "{capabilities}"
        );
    }

    #[test]
    fn a_large_machine_has_smaller_shares_and_a_finding_says_so() {
        let small = packet_memory(2).found;
        assert!(small.starts_with("for 1000 packets waiting for each of 2 CPUs: ") && !small.contains('('), "{small}");
        let large = packet_memory(128).found;
        assert!(
            large.contains("each of 128 CPUs") && large.contains("with 16 queues,") && !large.contains('('),
            "{large}"
        );
        let largest = packet_memory(1024).found;
        assert!(largest.contains("each of 1,024 CPUs") && largest.contains("with 16 queues (1"), "{largest}");
        assert!(packet_memory(0).found.contains("each of 1 CPU:"));
    }

    #[test]
    fn the_size_of_caches_is_reported() {
        let large = page_cache(Some(64 << 30));
        assert_eq!(
            (large.found.as_str(), large.fix.as_deref()),
            (
                "4.1 MiB for the queues of each CPU (2048 pages of 2112 bytes)",
                Some("other sizes with --lpc-pages, 2.1 MiB a queue for 1024")
            )
        );
        assert_eq!(page_cache(None), large, "a kernel that does not say");
        let small = page_cache(Some(16 << 20));
        assert!(small.found.contains("(960 pages"), "{}", small.found);
        let none = page_cache(Some(1 << 20));
        assert!(none.found.starts_with("off, since a poll's pages would be more than 128 KiB"), "{}", none.found);
    }

    #[test]
    fn one_capability_is_enough_to_listen() {
        let fake = Scratch::with_files(&[("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")]);
        let root = Root::below(&*fake);
        let mut probes = Probes { memlock: Some(8 << 20), ..probes() };
        probes.capabilities.iter_mut().for_each(|capability| capability.held = capability.name == "CAP_NET_RAW");
        let about: Vec<&str> = lacks(&root, &probes).iter().map(|(about, _)| *about).collect();
        assert_eq!(about, ["AF_XDP", "locked memory"]);
        assert_eq!(
            findings(&root, &probes, 2)[1].found,
            "CAP_NET_RAW; without CAP_NET_ADMIN (attaching XDP programs), CAP_BPF (loading XDP programs), CAP_PERFMON \
             (loading XDP programs that find headers behind others), CAP_SYS_NICE (priorities \
             and NUMA placement), CAP_IPC_LOCK (locking memory beyond the limit)"
        );
    }
}
