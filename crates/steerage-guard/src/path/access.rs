//! Who can change a directory.

use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, Stat};

use super::error::Who;
use super::groups::is_private;
use super::{is_trusted, mounts};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Ours,
    /// Other users can add names, but cannot change names of root and of the effective user.
    Sticky(Who),
    /// Other users can change the directory.
    Others(Who),
}

impl Access {
    pub(super) fn of(directory: BorrowedFd<'_>, stat: &Stat) -> Self {
        if !is_trusted(stat.st_uid) {
            return Self::Others(Who::User(stat.st_uid));
        }
        if let Some(who) = mounts::run_by(directory) {
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
}
