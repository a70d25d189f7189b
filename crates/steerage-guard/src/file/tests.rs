#![allow(clippy::print_stderr, reason = "tests that test nothing have to say so")]

use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};

use rustix::fs::{CWD, Mode};
use rustix::process::geteuid;

use super::*;

const SOMEBODY: u32 = 65534;

/// A directory with given permissions, and a file outside of the directory that must not change.
struct Ground {
    root: PathBuf,
}

impl Ground {
    fn new(name: &str, mode: u32) -> Self {
        let root = std::env::temp_dir().join(format!("steerage-file-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("in")).unwrap();
        fs::write(root.join("target"), "untouched").unwrap();
        fs::set_permissions(root.join("in"), fs::Permissions::from_mode(mode)).unwrap();
        Self { root }
    }

    fn name(&self) -> PathBuf {
        self.root.join("in/name")
    }

    fn target(&self) -> String {
        fs::read_to_string(self.root.join("target")).unwrap()
    }

    fn plant(&self, uid: u32) {
        symlink(self.root.join("target"), self.name()).unwrap();
        lchown(self.name(), Some(uid), Some(uid)).unwrap();
    }

    fn names(&self) -> Vec<OsString> {
        fs::read_dir(self.root.join("in")).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn is_root() -> bool {
    let is_root = geteuid().is_root();
    assert!(is_root || std::env::var("CI").as_deref() != Ok("true"), "this test needs root");
    if !is_root {
        eprintln!("skipped: this test needs root, to plant links of another user");
    }
    is_root
}

#[test]
fn a_planted_link_is_replaced_and_what_it_leads_to_is_untouched() {
    if !is_root() {
        return;
    }
    // Tests three directories: a sticky directory, a directory that the attacker owns, and a
    // directory of root to which all users can write.
    for (nth, (mode, owner)) in [(0o1777, 0), (0o755, SOMEBODY), (0o777, 0)].into_iter().enumerate() {
        type Make = fn(&Path) -> io::Result<()>;
        let makes: [Make; 3] = [
            |path| write(path, b"new", Readers::All),
            |path| match open(path, Readers::Group)? {
                Opened::File(mut file) => file.write_all(b"new"),
                Opened::Special(_) => panic!("that is a file"),
            },
            |path| {
                let new = NewFile::create(path, Readers::Group)?;
                new.file().write_all(b"new")?;
                new.finish().map(drop)
            },
        ];
        for (how, make) in makes.iter().enumerate() {
            let ground = Ground::new(&format!("planted-{nth}-{how}"), mode);
            lchown(ground.root.join("in"), Some(owner), Some(owner)).unwrap();
            ground.plant(SOMEBODY);
            make(&ground.name()).unwrap();
            assert_eq!(ground.target(), "untouched");
            let there = fs::symlink_metadata(ground.name()).unwrap();
            assert!(there.is_file() && there.uid() == 0, "{there:?}");
            assert_eq!(fs::read_to_string(ground.name()).unwrap(), "new");
            assert_eq!(ground.names(), ["name"]);
        }
    }
}

#[test]
fn a_link_of_ones_own_is_followed() {
    let ground = Ground::new("own", 0o755);
    ground.plant(geteuid().as_raw());
    write(&ground.name(), b"new", Readers::All).unwrap();
    assert!(fs::symlink_metadata(ground.name()).unwrap().is_symlink());
    assert_eq!(ground.target(), "new");
}

#[test]
fn an_old_file_is_replaced_and_not_written_to() {
    let ground = Ground::new("old", 0o755);
    fs::write(ground.name(), "old").unwrap();
    // Another hard link to the old file still has the old content.
    fs::hard_link(ground.name(), ground.root.join("link")).unwrap();
    let new = NewFile::create(&ground.name(), Readers::Group).unwrap();
    new.file().write_all(b"half").unwrap();
    assert_eq!(fs::read_to_string(ground.name()).unwrap(), "old", "until it is finished");
    drop(new);
    assert_eq!((fs::read_to_string(ground.name()).unwrap().as_str(), ground.names().len()), ("old", 1));
    write(&ground.name(), b"new", Readers::Group).unwrap();
    assert_eq!(fs::read_to_string(ground.name()).unwrap(), "new");
    assert_eq!(fs::read_to_string(ground.root.join("link")).unwrap(), "old");
}

#[test]
fn captured_data_is_not_for_everybody() {
    let ground = Ground::new("mode", 0o755);
    for (readers, mode) in [(Readers::Group, 0o640), (Readers::All, 0o644)] {
        let opened = open(&ground.name(), readers).unwrap();
        let Opened::File(file) = opened else { panic!("{opened:?}") };
        // The umask can remove permissions of the new file, but cannot add any.
        assert_eq!(file.metadata().unwrap().mode() & 0o777 & !mode, 0);
        assert_eq!(file.metadata().unwrap().mode() & 0o600, 0o600);
    }
}

#[test]
fn a_fifo_is_written_to_once_somebody_reads() {
    let ground = Ground::new("fifo", 0o755);
    rustix::fs::mknodat(CWD, ground.name(), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let error = open(&ground.name(), Readers::Group).unwrap_err();
    assert!(has_no_reader(&error), "{error}");
    let how = OFlags::RDONLY | OFlags::NONBLOCK;
    let mut reader = File::from(rustix::fs::openat(CWD, ground.name(), how, Mode::empty()).unwrap());
    write(&ground.name(), b"through", Readers::Group).unwrap();
    let mut read = String::new();
    reader.read_to_string(&mut read).unwrap();
    assert_eq!(read, "through");
    let error = NewFile::create(&ground.name(), Readers::Group).unwrap_err();
    assert!(error.to_string().contains("neither a file"), "{error}");
}

#[test]
fn a_planted_fifo_gets_nothing_whatever_the_directory_is() {
    if !is_root() {
        return;
    }
    for (nth, mode) in [0o1777, 0o777, 0o755].into_iter().enumerate() {
        let ground = Ground::new(&format!("planted-fifo-{nth}"), mode);
        rustix::fs::mknodat(CWD, ground.name(), FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
        lchown(ground.name(), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
        let reader = rustix::fs::openat(CWD, ground.name(), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
        let error = open(&ground.name(), Readers::Group).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains("user 65534 owns the FIFO"), "{error}");
        assert!(write(&ground.name(), b"secret", Readers::All).is_err());
        let mut read = Vec::new();
        File::from(reader).read_to_end(&mut read).unwrap();
        assert_eq!(read, b"");
    }
}

#[test]
fn a_device_counts_in_a_directory_of_ours_only() {
    if !is_root() {
        return;
    }
    let null = rustix::fs::makedev(1, 3);
    for (nth, (mode, owner, is_written)) in
        [(0o755, 0, true), (0o755, SOMEBODY, false), (0o1777, 0, false), (0o775, 0, false)].into_iter().enumerate()
    {
        let ground = Ground::new(&format!("device-{nth}"), mode);
        lchown(ground.root.join("in"), Some(owner), Some(SOMEBODY)).unwrap();
        match rustix::fs::mknodat(CWD, ground.name(), FileType::CharacterDevice, Mode::from_raw_mode(0o666), null) {
            Err(error) => {
                eprintln!("skipped: this test needs device files: {error}");
                return;
            }
            Ok(()) => assert_eq!(ground.names(), ["name"]),
        }
        let opened = open(&ground.name(), Readers::All);
        assert_eq!(opened.is_ok(), is_written, "{opened:?}");
    }
}

#[test]
fn a_file_of_a_descriptor_is_written_to_and_not_replaced() {
    let ground = Ground::new("descriptor", 0o755);
    fs::write(ground.name(), "before ").unwrap();
    let file = File::options().append(true).open(ground.name()).unwrap();
    let path = PathBuf::from(format!("/dev/fd/{}", file.as_raw_fd()));
    let inode = file.metadata().unwrap().ino();
    write(&path, b"after", Readers::All).unwrap();
    assert_eq!(fs::read_to_string(ground.name()).unwrap(), "before after");
    assert_eq!((fs::metadata(ground.name()).unwrap().ino(), ground.names().len()), (inode, 1));
    assert!(NewFile::create(&path, Readers::All).is_err());
    drop(file);
    assert!(open(&path, Readers::All).is_err());
}

#[test]
fn the_directory_of_a_planted_link_is_not_that_of_its_target() {
    if !is_root() {
        return;
    }
    let ground = Ground::new("landlock", 0o1777);
    ground.plant(SOMEBODY);
    let place = |name: &Path| fs::read_link(directory_of(name).unwrap().through()).unwrap();
    let root = fs::canonicalize(&ground.root).unwrap();
    assert_eq!(place(&ground.name()), root.join("in"));
    fs::remove_file(ground.name()).unwrap();
    fs::set_permissions(root.join("in"), fs::Permissions::from_mode(0o755)).unwrap();
    ground.plant(geteuid().as_raw());
    assert_eq!(place(&ground.name()), root);
}

#[test]
fn a_name_with_a_time_is_created_with_its_directories() {
    let ground = Ground::new("dated", 0o755);
    let name = ground.root.join("in/%Y/%m/name");
    let directory = directory_of(&name).unwrap();
    assert_eq!(fs::read_link(directory.through()).unwrap(), fs::canonicalize(ground.root.join("in")).unwrap());
    probe(&name).unwrap();
    assert_eq!(ground.names().len(), 0);
    let new = NewFile::create_with_directories(&ground.root.join("in/2026/11/name"), Readers::Group).unwrap();
    new.finish().unwrap();
    assert!(ground.root.join("in/2026/11/name").is_file());
    assert!(probe(&ground.root.join("missing/%Y/name")).is_err());
    let place = |name: &str| fs::read_link(directory_of(Path::new(name)).unwrap().through()).unwrap();
    let working = std::env::current_dir().unwrap();
    assert_eq!((place("%Y/flows.csv"), place("flows-%H.csv"), place("/%Y/x")), (working.clone(), working, "/".into()));
}

#[test]
fn devices_and_directories_stay_what_they_are() {
    assert!(matches!(open(Path::new("/dev/null"), Readers::All), Ok(Opened::Special(_))));
    assert!(NewFile::create(Path::new("/dev/null"), Readers::All).is_err());
    write(Path::new("/dev/null"), b"nothing", Readers::All).unwrap();
    let ground = Ground::new("directory", 0o755);
    let directory = ground.root.join("in");
    assert!(open(&directory, Readers::All).is_err() && NewFile::create(Path::new("/"), Readers::All).is_err());
    assert!(directory.is_dir());
}

#[test]
fn a_durable_file_replaces_the_old_one_and_leaves_nothing_else() {
    let ground = Ground::new("durable", 0o755);
    let place = &ground.root;
    let path = place.join("new/eth0.json");
    for text in ["one", "two"] {
        write_durably(&path, text.as_bytes(), Readers::All).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    assert_eq!(fs::read_dir(place.join("new")).unwrap().count(), 1);
}
