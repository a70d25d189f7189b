//! The objects that another user plants for the tests, and the directories that contain them.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use nix::libc::makedev;
use nix::sys::stat::{Mode, SFlag, mknod};
use nix::unistd::mkfifo;
use steerage_fixtures::NOBODY;
use steerage_fixtures::scratch::Scratch;

use super::table::Names;

/// `--flows` chooses the file format by the extension.
pub(super) const NAME: &str = "out.csv";

pub(super) const UNTOUCHED: &str = "untouched";

pub(super) struct Ground {
    pub(super) root: Scratch,
}

/// A planted object, and the form of the path that leads to this object.
#[derive(Clone, Copy, Debug)]
pub(super) enum Planted {
    Link,
    LinkToNothing,
    /// A symbolic link of root to a symbolic link of the user `NOBODY`.
    Chain,
    DirectoryLink,
    /// The program's working directory is the other user's directory.
    DirectoryLinkFromThere,
    Fifo,
    Device,
    HardLink,
    /// A symbolic link of root that a member of a group has moved into the group's directory.
    InGroupDirectory,
    DirectoryLinkInGroupDirectory,
    InStickyDirectory,
    /// A symbolic link of root that the user `NOBODY` has moved.
    MovedToStickyDirectory,
    DirectoryLinkInStickyDirectory,
}

impl Planted {
    pub(super) const ALL: [Self; 13] = [
        Self::Link,
        Self::LinkToNothing,
        Self::Chain,
        Self::DirectoryLink,
        Self::DirectoryLinkFromThere,
        Self::Fifo,
        Self::Device,
        Self::HardLink,
        Self::InGroupDirectory,
        Self::DirectoryLinkInGroupDirectory,
        Self::InStickyDirectory,
        Self::MovedToStickyDirectory,
        Self::DirectoryLinkInStickyDirectory,
    ];
}

impl Ground {
    pub(super) fn new() -> Self {
        let ground = Self { root: Scratch::new() };
        ground.directory("protected", 0, 0, 0o755);
        fs::write(ground.at("protected").join(NAME), UNTOUCHED).unwrap();
        ground.directory("x", NOBODY, NOBODY, 0o755);
        ground.directory("group", 0, NOBODY, 0o775);
        ground.directory("sticky", 0, 0, 0o1777);
        ground.directory("plain", 0, 0, 0o755);
        ground
    }

    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    pub(super) fn directory(&self, path: &str, uid: u32, gid: u32, mode: u32) {
        fs::create_dir(self.at(path)).unwrap();
        lchown(self.at(path), Some(uid), Some(gid)).unwrap();
        fs::set_permissions(self.at(path), Permissions::from_mode(mode)).unwrap();
    }

    pub(super) fn link(&self, path: &str, uid: u32, target: &Path) {
        symlink(target, self.at(path)).unwrap();
        lchown(self.at(path), Some(uid), Some(uid)).unwrap();
    }

    pub(super) fn plant(&self, planted: Planted, names: Names) -> (PathBuf, PathBuf) {
        // The other user wants root to write to the target of the planted link.
        let target = match names {
            Names::File => self.at("protected").join(NAME),
            Names::Directory => self.at("protected"),
        };
        let (here, there) = (self.root.to_path_buf(), self.at("x").join(NAME));
        let named = |directory: &str| format!("{directory}/{NAME}");
        // Returns the path of a new file below `link` if the option names a file, and `link` itself
        // for other options.
        let below = |link: PathBuf| match names {
            Names::File => link.join("new.csv"),
            Names::Directory => link,
        };
        let path = match planted {
            Planted::Link => {
                self.link(&named("x"), NOBODY, &target);
                there
            }
            Planted::LinkToNothing => {
                self.link(&named("x"), NOBODY, &self.at("protected/new.csv"));
                there
            }
            Planted::Chain => {
                self.link(&named("x"), NOBODY, &target);
                self.link(NAME, 0, &there);
                self.at(NAME)
            }
            Planted::DirectoryLink => {
                self.link("x/logs", NOBODY, &self.at("protected"));
                below(self.at("x/logs"))
            }
            Planted::DirectoryLinkFromThere => {
                self.link("x/logs", NOBODY, &self.at("protected"));
                return (below(PathBuf::from("logs")), self.at("x"));
            }
            Planted::Fifo => {
                mkfifo(&there, Mode::empty()).unwrap();
                lchown(&there, Some(NOBODY), Some(NOBODY)).unwrap();
                fs::set_permissions(&there, Permissions::from_mode(0o666)).unwrap();
                there
            }
            Planted::Device => {
                mknod(&there, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(1, 3)).unwrap();
                lchown(&there, Some(NOBODY), Some(NOBODY)).unwrap();
                there
            }
            Planted::HardLink => {
                fs::hard_link(self.at("protected").join(NAME), &there).unwrap();
                there
            }
            Planted::InGroupDirectory => {
                self.link(&named("group"), 0, &target);
                self.at("group").join(NAME)
            }
            Planted::DirectoryLinkInGroupDirectory => {
                self.link("group/logs", 0, &self.at("protected"));
                below(self.at("group/logs"))
            }
            Planted::InStickyDirectory => {
                self.link(&named("sticky"), NOBODY, &target);
                self.at("sticky").join(NAME)
            }
            Planted::MovedToStickyDirectory => {
                self.link(&named("sticky"), 0, &target);
                self.at("sticky").join(NAME)
            }
            Planted::DirectoryLinkInStickyDirectory => {
                self.link("sticky/logs", NOBODY, &self.at("protected"));
                below(self.at("sticky/logs"))
            }
        };
        (path, here)
    }

    pub(super) fn assert_untouched(&self, what: &str) {
        let entries = fs::read_dir(self.at("protected")).unwrap();
        let names: Vec<OsString> = entries.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [NAME], "{what}");
        let file = self.at("protected").join(NAME);
        assert_eq!(fs::read_to_string(&file).unwrap(), UNTOUCHED, "{what}");
        let metadata = fs::symlink_metadata(&file).unwrap();
        assert!(metadata.is_file() && metadata.uid() == 0, "{what}: {metadata:?}");
        let directory = fs::metadata(self.at("protected")).unwrap();
        assert_eq!((directory.mode() & 0o7777, directory.uid()), (0o755, 0), "{what}");
    }
}
