//! How large the local page caches are, and how much memory they may keep to themselves.

use std::fs;
use std::path::{Path, PathBuf};

use crate::limits::{LPC_MEMORY_PART, LPC_SIZE_DEFAULT, LPC_UNIT_PAGES};

/// What local page caches keep to themselves at most: queues x pages x page size. Known before anything runs.
///
/// ```
/// use steerage::{LPC_SIZE_DEFAULT, LpcMemory, PAGE_BYTES_MIN};
///
/// let caches = LpcMemory { queues: 4, lpc_size: LPC_SIZE_DEFAULT, page_bytes: PAGE_BYTES_MIN };
/// assert_eq!((caches.pages(), caches.bytes()), (8192, 17_301_504));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LpcMemory {
    /// Receive queues that have one.
    pub queues: usize,
    /// The size of each, in units of [`LPC_UNIT_PAGES`] pages.
    pub lpc_size: usize,
    /// A page's size, in bytes.
    pub page_bytes: usize,
}

impl LpcMemory {
    /// In pages, of all queues together.
    pub fn pages(&self) -> u64 {
        self.queues as u64 * (self.lpc_size * LPC_UNIT_PAGES) as u64
    }

    /// In bytes.
    pub fn bytes(&self) -> u64 {
        self.pages().saturating_mul(self.page_bytes as u64)
    }

    /// The size of each where nobody says: [`LPC_SIZE_DEFAULT`], and 0 where memory is small. That is where the caches of all
    /// queues together would be more than the [`LPC_MEMORY_PART`]th part of `memory_bytes`.
    pub fn default_size(queues: usize, page_bytes: usize, memory_bytes: u64) -> usize {
        let caches = Self { queues, lpc_size: LPC_SIZE_DEFAULT, page_bytes };
        if caches.bytes() > memory_bytes / LPC_MEMORY_PART { 0 } else { LPC_SIZE_DEFAULT }
    }
}

/// The memory that this process may use: the machine's, and no more than its cgroup or one above it allows. `None` if the
/// kernel tells neither.
pub fn usable_memory() -> Option<u64> {
    memory_below(Path::new("/"))
}

fn memory_below(root: &Path) -> Option<u64> {
    let text = |path: PathBuf| fs::read_to_string(path).ok();
    let total = text(root.join("proc/meminfo")).and_then(|info| {
        let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    // cgroup version 2: `0::/a/b`. What is above bounds it as well.
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
    use crate::limits::{MEMORY_MAX_DEFAULT, PAGE_BYTES_MIN};

    #[test]
    fn caches_are_off_where_memory_is_small() {
        let size = |queues, memory| LpcMemory::default_size(queues, PAGE_BYTES_MIN, memory);
        let of_one = LpcMemory { queues: 1, lpc_size: LPC_SIZE_DEFAULT, page_bytes: PAGE_BYTES_MIN }.bytes();
        assert_eq!(size(1, of_one * LPC_MEMORY_PART), LPC_SIZE_DEFAULT);
        assert_eq!(size(1, of_one * LPC_MEMORY_PART - 1), 0);
        assert_eq!(size(2, of_one * LPC_MEMORY_PART), 0);
        assert_eq!(size(31, MEMORY_MAX_DEFAULT as u64), LPC_SIZE_DEFAULT);
        assert_eq!(size(32, MEMORY_MAX_DEFAULT as u64), 0);
    }

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
