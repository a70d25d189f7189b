use std::fs;
use std::path::{Path, PathBuf};

/// Returns the bytes of memory that this process may use: the machine's memory, or less if a cgroup
/// limits this process. `None` if the kernel does not report the size.
///
/// ```
/// use steerage_topology::usable_memory;
///
/// match usable_memory() {
///     Some(bytes) => println!("{} MiB", bytes >> 20),
///     None => println!("as much as the machine has"),
/// }
/// ```
pub fn usable_memory() -> Option<u64> {
    memory_below(Path::new("/"))
}

fn memory_below(root: &Path) -> Option<u64> {
    let text = |path: PathBuf| fs::read_to_string(path).ok();
    let total = text(root.join("proc/meminfo")).and_then(|info| {
        let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    // Version 2 of cgroups: `0::/a/b`. The memory limits of the parent cgroups apply too.
    let own = text(root.join("proc/self/cgroup"))
        .and_then(|cgroups| cgroups.lines().find_map(|line| line.strip_prefix("0::/").map(PathBuf::from)));
    let allowed = own.iter().flat_map(|own| own.ancestors()).filter_map(|cgroup| {
        text(root.join("sys/fs/cgroup").join(cgroup).join("memory.max"))?.trim().parse::<u64>().ok()
    });
    allowed.chain(total).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_bounds_the_machine_s_memory() {
        let root = std::env::temp_dir().join(format!("steerage-memory-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(memory_below(&root), None);
        write("proc/meminfo", "MemTotal:        1000 kB\nMemFree:          10 kB\n");
        assert_eq!(memory_below(&root), Some(1_024_000));
        write("proc/self/cgroup", "0::/a/b\n");
        write("sys/fs/cgroup/a/b/memory.max", "max\n");
        assert_eq!(memory_below(&root), Some(1_024_000));
        write("sys/fs/cgroup/a/memory.max", "4096\n");
        assert_eq!(memory_below(&root), Some(4096));
        write("sys/fs/cgroup/memory.max", "2048\n");
        assert_eq!(memory_below(&root), Some(2048));
        fs::remove_dir_all(&root).unwrap();
    }
}
