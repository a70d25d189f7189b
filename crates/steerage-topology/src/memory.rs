use crate::cgroup;
use crate::files::Files;

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
    of(&Files::below("/"))
}

fn of(files: &Files) -> Option<u64> {
    let total = files.text("proc/meminfo").and_then(|info| {
        let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    cgroup::memory(files).into_iter().chain(total).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_machines::Made;

    #[test]
    fn a_cgroup_bounds_the_machine_s_memory() {
        let made = Made::new(&[]);
        let memory = || of(&Files::below(made.root()));
        assert_eq!(memory(), None);
        made.write("proc/meminfo", "MemTotal:        1000 kB\nMemFree:          10 kB");
        assert_eq!(memory(), Some(1_024_000));
        made.write("proc/self/cgroup", "5:memory:/x\n0::/a/b");
        made.write("sys/fs/cgroup/a/b/memory.max", "max");
        made.write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712");
        assert_eq!(memory(), Some(1_024_000));
        made.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "8192");
        assert_eq!(memory(), Some(8192));
        made.write("sys/fs/cgroup/a/memory.max", "4096");
        assert_eq!(memory(), Some(4096));
        made.write("sys/fs/cgroup/memory.max", "2048");
        assert_eq!(memory(), Some(2048));
    }
}
