//! Finds out which user runs a file system.
//!
//! A user can mount a file system of its own (FUSE), and can make it visible for all users if
//! `/etc/fuse.conf` allows this. Such a file system reports any owners and modes, and any links.

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::fstatfs;

use super::error::Who;
use super::is_trusted;

/// The type of FUSE file systems: `FUSE_SUPER_MAGIC` of linux/magic.h.
const FUSE: u64 = 0x6573_5546;

/// The user, other than root and the effective user, who runs the file system of this directory.
pub(super) fn run_by(directory: BorrowedFd<'_>) -> Option<Who> {
    let Ok(system) = fstatfs(directory) else { return Some(Who::Everybody) };
    // The type of the field depends on the architecture.
    #[allow(clippy::unnecessary_cast)]
    if system.f_type as u64 & u64::from(u32::MAX) != FUSE {
        return None;
    }
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", directory.as_raw_fd())).unwrap_or_default();
    // A name in the table can be any bytes.
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    match user(&about, &String::from_utf8_lossy(&mounts)) {
        Some(Some(uid)) if !is_trusted(uid) => Some(Who::User(uid)),
        Some(_) => None,
        None => Some(Who::Everybody),
    }
}

/// The user who mounted the file system of an open file, from its line in `/proc/self/fdinfo` and
/// from the mount table. `None` if the mount is not in the table, and `Some(None)` if no user runs
/// the file system, as with virtiofs.
fn user(about: &str, mounts: &str) -> Option<Option<u32>> {
    let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    let mount = mounts.lines().find(|line| line.split(' ').next() == Some(id))?;
    // The type, the source and the options follow the dash. The kernel writes a space within these
    // fields as `\040`.
    let options = mount.split(' ').skip_while(|field| *field != "-").nth(3)?;
    Some(options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_mount_is_found() {
        let about = "pos:\t0\nflags:\t012200000\nmnt_id:\t61\nino:\t1\n";
        let table = |options: &str| {
            format!(
                "36 35 98:0 / / rw - ext4 /dev/vda rw,user_id=0\n61 36 0:41 / /tmp/a rw shared:1 - fuse.x a\\040,user_id=0 {options}\n"
            )
        };
        assert_eq!(user(about, &table("rw,user_id=1000,group_id=0,allow_other")), Some(Some(1000)));
        assert_eq!(user(about, &table("rw")), Some(None));
        assert_eq!((user(about, ""), user("", &table("rw"))), (None, None));
    }
}
