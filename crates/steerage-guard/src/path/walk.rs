use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::access::Access;
use super::error::{PathError, Who};
use super::{Directory, PATH_ONLY, is_trusted};

/// The kernel's limit for the links in one path.
const LINKS_MAX: usize = 40;

#[derive(Clone, Copy, Debug)]
pub(super) enum Missing {
    Fails,
    LastIsCreated(u32),
    IsCreated(u32),
}

impl Missing {
    fn mode(self, is_last: bool) -> Option<u32> {
        match self {
            Self::IsCreated(mode) => Some(mode),
            Self::LastIsCreated(mode) if is_last => Some(mode),
            Self::LastIsCreated(_) | Self::Fails => None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Walk {
    /// The directories that were opened so far. The last directory in the list is the current
    /// directory. `..` leads to the previous directory in the list, even if another user has moved
    /// the current directory meanwhile.
    at: Vec<Directory>,
    left: Vec<OsString>,
    links: usize,
    /// Who can change the working directory at which the path begins. `None` if the working
    /// directory is trusted, or if the path is absolute.
    chosen: Option<Who>,
    /// True if another program will resolve the path again, which forbids directories that a group
    /// can replace.
    strict: bool,
}

impl Walk {
    pub(super) fn begin(path: &Path) -> Result<Self, PathError> {
        if path.is_absolute() {
            return Ok(Self { at: vec![root()?], left: names(path), links: 0, chosen: None, strict: false });
        }
        if path.as_os_str().is_empty() {
            return Err(Errno::NOENT.into());
        }
        let fd = rustix::fs::openat(CWD, ".", PATH_ONLY | OFlags::DIRECTORY, Mode::empty())?;
        Self::begin_in(Directory { fd, path: PathBuf::from("."), of_others: false }, path)
    }

    pub(super) fn strict(self) -> Self {
        Self { strict: true, ..self }
    }

    pub(super) fn begin_in(start: Directory, path: &Path) -> Result<Self, PathError> {
        let chosen = match start.access()? {
            Access::Ours => None,
            Access::Sticky(by) | Access::Others(by) => Some(by),
        };
        Ok(Self { at: vec![start], left: names(path), links: 0, chosen, strict: false })
    }

    pub(super) fn reach_end(mut self, missing: Missing) -> Result<Directory, PathError> {
        while let Some(name) = self.left.pop() {
            self.step(&name, missing)?;
        }
        self.at.pop().ok_or_else(|| Errno::NOENT.into())
    }

    pub(super) fn reach_holder(mut self, missing: Missing) -> Result<(Directory, OsString), PathError> {
        loop {
            if let Some(number) = self.descriptor() {
                return Err(PathError::Descriptor(number));
            }
            let name = self.left.pop().ok_or(Errno::ISDIR)?;
            if !self.left.is_empty() {
                self.step(&name, missing)?;
                continue;
            }
            if name == ".." {
                return Err(Errno::ISDIR.into());
            }
            match rustix::fs::openat(self.here()?, &name, PATH_ONLY, Mode::empty()) {
                Ok(next) if self.may_follow(&rustix::fs::fstat(&next)?, self.here()?.access()?) => {
                    self.follow(next.as_fd())?;
                }
                Ok(_) | Err(Errno::NOENT) => break self.at.pop().map(|directory| (directory, name)),
                Err(error) => return Err(error.into()),
            }
        }
        .ok_or_else(|| Errno::NOENT.into())
    }

    fn here(&self) -> Result<&Directory, PathError> {
        self.at.last().ok_or_else(|| Errno::NOENT.into())
    }

    /// Returns N if the rest of the path is `/proc/self/fd/N`, a descriptor of this process.
    fn descriptor(&self) -> Option<RawFd> {
        let [root] = &self.at[..] else { return None };
        let [number, fd, process, proc] = &self.left[..] else { return None };
        let own = std::process::id().to_string();
        let is_own = ["self", "thread-self", &own].iter().any(|own| process == own);
        let digits = number.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
        (root.path == Path::new("/") && proc == "proc" && fd == "fd" && is_own).then(|| digits.parse().ok())?
    }

    fn step(&mut self, name: &OsStr, missing: Missing) -> Result<(), PathError> {
        if name == ".." {
            return self.step_up();
        }
        let mode = missing.mode(self.left.is_empty());
        let here = self.here()?;
        let access = here.access()?;
        let of_others = here.of_others || access.is_of_user();
        let changeable = |by| PathError::Changeable { directory: here.path.clone(), by };
        // In an untrusted working directory, only links are refused.
        let others = if let (Access::Others(by), None) = (access, self.chosen) { Some(by) } else { None };
        let next = match (rustix::fs::openat(here, name, PATH_ONLY, Mode::empty()), mode, others) {
            (Err(Errno::NOENT), Some(mode), _) => {
                match rustix::fs::mkdirat(here, name, Mode::from_raw_mode(mode)) {
                    // Another process of this user may have created the directory.
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                let created = here.open_own_with(name, of_others)?;
                self.at.push(created);
                return Ok(());
            }
            (Ok(_), Some(_), Some(by)) => {
                // An earlier run, or an earlier file of this run, may have created the directory.
                let created = here.open_own_with(name, of_others).map_err(|_| changeable(by))?;
                self.at.push(created);
                return Ok(());
            }
            (Ok(next), _, Some(by @ Who::Group(_))) => {
                let stat = rustix::fs::fstat(&next)?;
                let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                if self.strict || !is_directory || !is_trusted(stat.st_uid) {
                    return Err(changeable(by));
                }
                next
            }
            (_, _, Some(by)) => return Err(changeable(by)),
            (next, _, None) => next?,
        };
        let stat = rustix::fs::fstat(&next)?;
        let path = here.path.join(name);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                // If another user can change the new directory, the next name on the path causes an
                // error.
                self.at.push(Directory { fd: next, path, of_others });
                Ok(())
            }
            FileType::Symlink if self.may_follow(&stat, access) => self.follow(next.as_fd()),
            FileType::Symlink => {
                let by = match (access, self.chosen) {
                    _ if !is_trusted(stat.st_uid) => Who::User(stat.st_uid),
                    (Access::Sticky(by) | Access::Others(by), _) | (Access::Ours, Some(by)) => by,
                    (Access::Ours, None) => return Err(Errno::AGAIN.into()),
                };
                Err(PathError::Link { link: path, by })
            }
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    fn step_up(&mut self) -> Result<(), PathError> {
        if self.at.len() > 1 {
            self.at.pop();
            return Ok(());
        }
        let here = self.here()?;
        if here.path == Path::new("/") {
            return Ok(());
        }
        // Another user who can change the working directory may move it elsewhere.
        here.only_ours()?;
        let fd = rustix::fs::openat(here, "..", PATH_ONLY | OFlags::DIRECTORY, Mode::empty())?;
        self.at = vec![Directory { fd, path: here.path.join(".."), of_others: false }];
        Ok(())
    }

    /// Returns true if `next` is a link that only root or the user can have put here.
    fn may_follow(&self, next: &Stat, access: Access) -> bool {
        let is_link = FileType::from_raw_mode(next.st_mode) == FileType::Symlink;
        is_link && is_trusted(next.st_uid) && self.chosen.is_none() && access == Access::Ours
    }

    fn follow(&mut self, link: BorrowedFd<'_>) -> Result<(), PathError> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        let target = rustix::fs::readlinkat(link, "", Vec::new())?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            self.at = vec![root()?];
        }
        self.left.extend(names(&target));
        Ok(())
    }
}

fn root() -> Result<Directory, PathError> {
    let fd = rustix::fs::openat(CWD, "/", PATH_ONLY | OFlags::DIRECTORY, Mode::empty())?;
    Ok(Directory { fd, path: PathBuf::from("/"), of_others: false })
}

fn names(path: &Path) -> Vec<OsString> {
    let name = |part: Component<'_>| {
        matches!(part, Component::Normal(_) | Component::ParentDir).then(|| part.as_os_str().to_owned())
    };
    path.components().rev().filter_map(name).collect()
}
