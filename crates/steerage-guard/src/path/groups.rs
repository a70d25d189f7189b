use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::geteuid;

/// The maximum size of `/etc/passwd` and of `/etc/group`: about 100,000 entries. If a file is
/// larger, no group counts as private.
const ACCOUNTS_BYTES_MAX: u64 = 8 << 20;

/// Returns true if the effective user is the only member of the group `gid`. The group may write to
/// the directory. Returns false if the directory has an access list (ACL).
pub(super) fn is_private(gid: u32, directory: BorrowedFd<'_>) -> bool {
    static PRIVATE: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    let uid = geteuid().as_raw();
    let private = PRIVATE.get_or_init(|| {
        let (users, groups) = (accounts("/etc/passwd")?, accounts("/etc/group")?);
        Some((uid, private_group(uid, &users, &groups)?))
    });
    if *private != Some((uid, gid)) {
        return false;
    }
    // If a directory has an access list (ACL), the group bits of its mode are the maximum for all
    // users and groups in the list.
    let through = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let list = rustix::fs::getxattr(through, "system.posix_acl_access", &mut [0_u8; 0][..]);
    matches!(list, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

pub(super) fn accounts(path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(ACCOUNTS_BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= ACCOUNTS_BYTES_MAX).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// A private group has the user's name, is the user's primary group, and has no other member.
/// `users` and `groups` are the contents of `/etc/passwd` and `/etc/group`.
pub(super) fn private_group(uid: u32, users: &str, groups: &str) -> Option<u32> {
    let user = |line: &'_ str| {
        let mut fields = line.split(':');
        let (name, uid, gid) = (fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        Some((name, uid, gid))
    };
    let users: Vec<(String, u32, u32)> = users.lines().filter_map(user).collect();
    let (name, _, gid) = users.iter().find(|(_, number, _)| *number == uid)?;
    let is_shared = users.iter().any(|(_, other, primary)| primary == gid && *other != uid);
    let mut groups = groups.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [group, _, number, members] = fields[..] else { return None };
        (number.parse() == Ok(*gid)).then_some((group, members))
    });
    let (group, members) = groups.next()?;
    let is_private = group == name && members.split(',').all(|member| member.is_empty() || member == name);
    (is_private && !is_shared && groups.next().is_none()).then_some(*gid)
}
