//! Fake machines for tests: files like those in /sys and /proc.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cpu::CpuMask;
use crate::files::{CPUS, NODES};
use crate::machine::Topology;

#[derive(Debug)]
pub(crate) struct Made(PathBuf);

impl Made {
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("steerage-topology-{}-{number}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let made = Self(root);
        files.iter().for_each(|(path, text)| made.write(path, text));
        made
    }

    pub(crate) fn of(cpus: u16, says: impl Fn(u16) -> Says) -> Self {
        let made = Self::new(&[(&format!("{CPUS}/online"), &format!("0-{}", cpus - 1))]);
        made.write(&format!("{CPUS}/possible"), &format!("0-{}", cpus - 1));
        let mut nodes = std::collections::BTreeMap::<u32, Vec<String>>::new();
        for cpu in 0..cpus {
            let Says { node, package, siblings, cache, capacity } = says(cpu);
            let at = format!("{CPUS}/cpu{cpu}");
            made.write(&format!("{at}/topology/physical_package_id"), &package.to_string());
            made.write(&format!("{at}/topology/thread_siblings_list"), &siblings);
            for (index, level, shared) in [(0, 1, &siblings), (3, 3, &cache)] {
                made.write(&format!("{at}/cache/index{index}/level"), &level.to_string());
                made.write(&format!("{at}/cache/index{index}/shared_cpu_list"), shared);
            }
            if let Some(capacity) = capacity {
                made.write(&format!("{at}/cpu_capacity"), &capacity.to_string());
            }
            nodes.entry(node).or_default().push(cpu.to_string());
        }
        for (node, cpus) in nodes {
            made.write(&format!("{NODES}/node{node}/cpulist"), &cpus.join(","));
        }
        made
    }

    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        fs::remove_file(self.0.join(path)).unwrap();
    }

    pub(crate) fn topology(&self, allowed: Option<&str>) -> Topology {
        Topology::below(&self.0, allowed.map(list))
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) struct Says {
    pub(crate) node: u32,
    pub(crate) package: u32,
    pub(crate) siblings: String,
    pub(crate) cache: String,
    pub(crate) capacity: Option<u32>,
}

pub(crate) fn list(text: &str) -> CpuMask {
    CpuMask::parse_list(text, 1 << 16).unwrap()
}

/// Makes a machine with two sockets of eight cores with two threads each. The CPU numbers alternate
/// between the sockets, and second threads have higher numbers than first threads, as with some
/// vendors.
pub(crate) fn two_sockets() -> Made {
    Made::of(32, |cpu| Says {
        node: u32::from(cpu % 2),
        package: u32::from(cpu % 2),
        siblings: format!("{},{}", cpu % 16, cpu % 16 + 16),
        cache: format!("{}-31:1/2", cpu % 2),
        capacity: None,
    })
}

/// Makes a machine with one socket, one NUMA node, and four last-level caches, each of four cores
/// with two threads.
pub(crate) fn four_caches() -> Made {
    Made::of(32, |cpu| {
        let first = cpu % 16 / 4 * 4;
        Says {
            node: 0,
            package: 0,
            siblings: format!("{},{}", cpu % 16, cpu % 16 + 16),
            cache: format!("{first}-{},{}-{}", first + 3, first + 16, first + 19),
            capacity: None,
        }
    })
}

/// Makes a machine with four cores with two consecutive threads each, and four small cores with one
/// thread each.
pub(crate) fn hybrid(capacity: impl Fn(u16) -> Option<u32>) -> Made {
    Made::of(12, |cpu| Says {
        node: 0,
        package: 0,
        siblings: if cpu < 8 { format!("{}-{}", cpu / 2 * 2, cpu / 2 * 2 + 1) } else { cpu.to_string() },
        cache: "0-11".to_owned(),
        capacity: capacity(cpu),
    })
}
