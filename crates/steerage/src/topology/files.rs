//! The kernel's files below a root, any of which may be missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::cpu::CpuMask;

/// More than any kernel can be built for: the bound of a list that the kernel itself wrote.
const CPU_IDS_MAX: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Files {
    root: PathBuf,
}

impl Files {
    pub(super) fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// What a file says, without the line's end. Paths go from the root, without the first slash.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(fs::read_to_string(self.root.join(path)).ok()?.trim().to_owned())
    }

    /// The number in it.
    pub(super) fn number<N: FromStr>(&self, path: impl AsRef<Path>) -> Option<N> {
        self.text(path)?.parse().ok()
    }

    /// The list of CPUs in it, if there are any.
    pub(super) fn list(&self, path: impl AsRef<Path>) -> Option<CpuMask> {
        CpuMask::parse_list(&self.text(path)?, CPU_IDS_MAX).ok().filter(|cpus| !cpus.is_empty())
    }

    /// What is in a directory, by the number behind `prefix`.
    pub(super) fn numbered(&self, directory: impl AsRef<Path>, prefix: &str) -> Vec<(u32, PathBuf)> {
        let directory = directory.as_ref();
        let entries = fs::read_dir(self.root.join(directory)).into_iter().flatten().flatten();
        let number = |name: &str| name.strip_prefix(prefix)?.parse().ok();
        let mut numbered: Vec<(u32, PathBuf)> = entries
            .filter_map(|entry| Some((number(entry.file_name().to_str()?)?, directory.join(entry.file_name()))))
            .collect();
        numbered.sort_unstable();
        numbered
    }
}
