use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::cpu::CpuMask;

pub(crate) const CPUS: &str = "sys/devices/system/cpu";
pub(crate) const NODES: &str = "sys/devices/system/node";

/// The exclusive upper limit of CPU numbers. No Linux kernel can be built for more CPUs.
const CPU_IDS_MAX: usize = 1 << 16;

#[derive(Debug)]
pub(crate) struct Files {
    root: PathBuf,
}

impl Files {
    pub(crate) fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub(crate) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(fs::read_to_string(self.root.join(path)).ok()?.trim().to_owned())
    }

    pub(crate) fn number<N: FromStr>(&self, path: impl AsRef<Path>) -> Option<N> {
        self.text(path)?.parse().ok()
    }

    pub(crate) fn list(&self, path: impl AsRef<Path>) -> Option<CpuMask> {
        CpuMask::parse_list(&self.text(path)?, CPU_IDS_MAX).ok().filter(|cpus| !cpus.is_empty())
    }

    pub(crate) fn directories(&self, directory: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(directory)).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        directories.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    pub(crate) fn numbered(&self, directory: impl AsRef<Path>, prefix: &str) -> Vec<(u32, PathBuf)> {
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

pub(crate) fn online_of(files: &Files) -> Option<CpuMask> {
    files.list(format!("{CPUS}/online"))
}
