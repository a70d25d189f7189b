use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, Stat, fstatfs};

use super::error::Who;
use super::groups::is_private;
use super::is_trusted;
use crate::mounts;

/// `FUSE_SUPER_MAGIC` of linux/magic.h.
const FUSE: u64 = 0x6573_5546;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Ours,
    /// Other users can add entries to the directory, but cannot rename or remove entries of root
    /// and the effective user.
    Sticky(Who),
    /// Other users can change the entries of the directory.
    Others(Who),
}

impl Access {
    pub(super) fn of(directory: BorrowedFd<'_>, stat: &Stat) -> Self {
        if !is_trusted(stat.st_uid) {
            return Self::Others(Who::User(stat.st_uid));
        }
        if let Some(who) = run_by(directory) {
            return Self::Others(who);
        }
        let mode = Mode::from_raw_mode(stat.st_mode);
        let who = if mode.contains(Mode::WOTH) {
            Who::Everybody
        } else if mode.contains(Mode::WGRP) && !is_private(stat.st_gid, directory) {
            Who::Group(stat.st_gid)
        } else {
            return Self::Ours;
        };
        if mode.contains(Mode::SVTX) { Self::Sticky(who) } else { Self::Others(who) }
    }

    /// Another user owns the directory, or runs its FUSE file system.
    pub(super) fn is_of_user(self) -> bool {
        matches!(self, Self::Others(Who::User(_)))
    }
}

/// Returns the user who mounted the FUSE file system of this directory, unless root or the
/// effective user did. With FUSE, any user can mount a file system that reports any owner and mode
/// of a file, and any target of a link. If `/etc/fuse.conf` contains `user_allow_other`, the file
/// system can be visible to all users.
pub(super) fn run_by(directory: BorrowedFd<'_>) -> Option<Who> {
    let Ok(system) = fstatfs(directory) else { return Some(Who::Everybody) };
    // The type of `f_type` depends on the CPU architecture.
    #[allow(clippy::unnecessary_cast)]
    if system.f_type as u64 & u64::from(u32::MAX) != FUSE {
        return None;
    }
    match mounts::mount_of(directory) {
        Ok(mount) => mount.user().filter(|uid| !is_trusted(*uid)).map(Who::User),
        Err(_) => Some(Who::Everybody),
    }
}
