#![allow(clippy::print_stderr, reason = "tests that test nothing have to say so")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::groups::{accounts, private_group};
use super::*;

const SOMEBODY: u32 = 65534;

struct Ground(PathBuf);

impl Ground {
    fn new() -> Self {
        // `Relaxed` is sufficient: each test needs a number of its own, in any order.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("steerage-path-{}-{number}", std::process::id()));
        // A test process that was killed leaves its directory, and process IDs return.
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
        // The temporary directory may be sticky. A link in a sticky directory is not followed.
        Self(fs::canonicalize(root).unwrap())
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    fn directory(&self, path: &str, uid: u32, mode: u32) {
        fs::create_dir(self.at(path)).unwrap();
        lchown(self.at(path), Some(uid), Some(uid)).unwrap();
        fs::set_permissions(self.at(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn link(&self, path: &str, uid: u32, target: impl AsRef<Path>) {
        symlink(target, self.at(path)).unwrap();
        lchown(self.at(path), Some(uid), Some(uid)).unwrap();
    }

    fn holding(&self, path: &str) -> Result<String, String> {
        self.place(Directory::holding(&self.at(path)))
    }

    fn holding_from(&self, working: &str, path: &str) -> Result<String, String> {
        let fd = rustix::fs::openat(CWD, self.at(working), PATH_ONLY, Mode::empty()).unwrap();
        let start = Directory { fd, path: PathBuf::from("."), of_others: false };
        self.place(Walk::begin_in(start, Path::new(path)).and_then(|walk| walk.reach_holder(Missing::Fails)))
    }

    fn place(&self, found: Result<(Directory, OsString), PathError>) -> Result<String, String> {
        let (directory, name) = found.map_err(|error| self.short(&error))?;
        let place = fs::read_link(directory.through()).unwrap().join(name);
        Ok(place.strip_prefix(&self.0).unwrap_or(&place).to_str().unwrap().to_owned())
    }

    fn opened(&self, found: Result<Directory, PathError>) -> Result<(), String> {
        found.map(drop).map_err(|error| self.short(&error))
    }

    fn short(&self, error: &PathError) -> String {
        let message = error.to_string().replace(&format!("{}/", self.0.display()), "");
        message.split(": name").next().unwrap().to_owned()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_root() -> bool {
    let is_root = geteuid().is_root();
    assert!(is_root || std::env::var("CI").as_deref() != Ok("true"), "this test needs root");
    if !is_root {
        eprintln!("skipped: this test needs root, to create directories and links of another user");
    }
    is_root
}

fn me() -> u32 {
    geteuid().as_raw()
}

fn ok(place: &str) -> Result<String, String> {
    Ok(place.to_owned())
}

fn refused(message: &str) -> Result<String, String> {
    Err(message.to_owned())
}

#[test]
fn directories_and_links_of_ours_are_walked() {
    let ground = Ground::new();
    ground.directory("a", me(), 0o755);
    ground.directory("a/b", me(), 0o755);
    ground.link("a/to-b", me(), "b");
    ground.link("to-a", me(), ground.at("a"));
    ground.link("chain", me(), "to-a/to-b/../to-b");
    assert_eq!(ground.holding("f"), ok("f"));
    assert_eq!(ground.holding("a/./b//../f"), ok("a/f"));
    assert_eq!(ground.holding("chain/f"), ok("a/b/f"));
    // A new file is created at the target of a link, even if the target does not exist.
    ground.link("file", me(), "chain/g");
    assert_eq!(ground.holding("file"), ok("a/b/g"));
    assert_eq!(ground.holding("missing/f"), refused("No such file or directory (os error 2)"));
    fs::write(ground.at("plain"), "").unwrap();
    assert_eq!(ground.holding("plain/f"), refused("Not a directory (os error 20)"));
    for no_name in ["/", "..", "a/.."] {
        assert_eq!(ground.holding(no_name), refused("Is a directory (os error 21)"), "{no_name}");
    }
}

#[test]
fn links_in_a_circle_end() {
    let ground = Ground::new();
    ground.link("one", me(), "two");
    ground.link("two", me(), "one");
    let error = refused("Too many levels of symbolic links (os error 40)");
    assert_eq!((ground.holding("one"), ground.holding("one/f")), (error.clone(), error));
}

#[test]
fn a_directory_of_another_user_ends_the_way_unless_it_is_the_last() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    ground.directory("x", SOMEBODY, 0o755);
    ground.directory("x/logs", SOMEBODY, 0o755);
    ground.directory("x/mine", me(), 0o755);
    assert_eq!(ground.holding("x/f"), ok("x/f"));
    for deeper in ["x/logs/f", "x/mine/f", "x/missing/f", "x/../x/logs/f"] {
        assert_eq!(ground.holding(deeper), refused("user 65534 can change the directory x"), "{deeper}");
    }
    // `..` leads back to the directory that was opened before.
    assert_eq!(ground.holding("x/../f"), ok("f"));
}

#[test]
fn a_directory_that_a_group_or_everybody_may_write_to_leads_at_most_to_plain_directories_of_ours() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    for (name, gid, mode, who) in
        [("group", SOMEBODY, 0o775, "group 65534"), ("open", 0, 0o757, "every user"), ("both", 0, 0o777, "every user")]
    {
        ground.directory(name, me(), mode);
        lchown(ground.at(name), Some(me()), Some(gid)).unwrap();
        ground.directory(&format!("{name}/in"), me(), 0o755);
        ground.link(&format!("{name}/to-in"), me(), "in");
        let error = refused(&format!("{who} can change the directory {name}"));
        ground.directory(&format!("{name}/theirs"), SOMEBODY, 0o755);
        let in_ours = ground.holding(&format!("{name}/in/f"));
        assert_eq!(in_ours, if name == "group" { ok("group/in/f") } else { error.clone() });
        assert!(Directory::open_strict(&ground.at(&format!("{name}/in"))).is_err());
        assert_eq!(ground.holding(&format!("{name}/theirs/f")), error);
        assert_eq!(ground.holding(&format!("{name}/to-in/f")), error);
        assert_eq!(ground.opened(Directory::open(&ground.at(name))).map(|()| String::new()), error);
        // A link at the end of a path is not followed in an untrusted directory, but replaced.
        assert_eq!(ground.holding(&format!("{name}/to-in")), ok(&format!("{name}/to-in")));
    }
}

#[test]
fn in_a_sticky_directory_plain_directories_of_ours_are_walked() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    ground.directory("tmp", 0, 0o1777);
    ground.directory("tmp/mine", me(), 0o755);
    ground.directory("tmp/theirs", SOMEBODY, 0o755);
    ground.link("tmp/link", me(), "mine");
    ground.link("tmp/their-link", SOMEBODY, "mine");
    assert_eq!(ground.holding("tmp/mine/f"), ok("tmp/mine/f"));
    assert_eq!(ground.holding("tmp/theirs/f"), ok("tmp/theirs/f"));
    assert_eq!(ground.holding("tmp/theirs/in/f"), refused("user 65534 can change the directory tmp/theirs"));
    assert!(Directory::open(&ground.at("tmp/theirs")).is_err());
    assert_eq!(ground.holding("tmp/link/f"), refused("every user can change the link tmp/link"));
    assert_eq!(ground.holding("tmp/their-link/f"), refused("user 65534 can change the link tmp/their-link"));
    assert_eq!(ground.holding("tmp/link"), ok("tmp/link"));
    // The sticky bit does not protect entries from the owner of the directory.
    ground.directory("sticky", SOMEBODY, 0o1777);
    ground.directory("sticky/mine", me(), 0o755);
    assert_eq!(ground.holding("sticky/mine/f"), refused("user 65534 can change the directory sticky"));
    assert_eq!(ground.opened(Directory::open(&ground.at("tmp"))), Ok(()));
    assert!(Directory::open(&ground.at("sticky")).is_err());
    assert!(Directory::open_strict(&ground.at("tmp")).is_err());
}

#[test]
fn a_link_of_another_user_is_followed_nowhere() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    ground.directory("protected", me(), 0o755);
    ground.link("logs", SOMEBODY, "protected");
    assert_eq!(ground.holding("logs/f"), refused("user 65534 can change the link logs"));
    assert_eq!(ground.holding("logs"), ok("logs"));
    // The target of a safe link is a second link, which is not safe.
    ground.directory("x", SOMEBODY, 0o755);
    ground.link("x/second", SOMEBODY, ground.at("protected/conf"));
    ground.link("first", me(), "x/second");
    assert_eq!(ground.holding("first"), ok("x/second"));
    ground.link("directories", me(), "logs");
    assert_eq!(ground.holding("directories/f"), refused("user 65534 can change the link logs"));
    ground.link("x/root-made", me(), ground.at("protected/conf"));
    assert_eq!(ground.holding("x/root-made"), ok("x/root-made"));
}

#[test]
fn a_working_directory_of_another_user_may_have_plain_directories() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    ground.directory("home", SOMEBODY, 0o755);
    ground.directory("home/logs", SOMEBODY, 0o755);
    ground.directory("home/logs/mine", me(), 0o755);
    ground.directory("protected", me(), 0o755);
    ground.link("home/away", SOMEBODY, ground.at("protected"));
    ground.link("home/logs/mine/away", me(), ground.at("protected"));
    assert_eq!(ground.holding_from("home", "f"), ok("home/f"));
    assert_eq!(ground.holding_from("home", "logs/f"), ok("home/logs/f"));
    assert_eq!(ground.holding_from("home", "logs/mine/../f"), ok("home/logs/f"));
    assert_eq!(ground.holding_from("home", "away/f"), refused("user 65534 can change the link ./away"));
    assert_eq!(ground.holding_from("home", "away"), ok("home/away"));
    let error = refused("user 65534 can change the link ./logs/mine/away");
    assert_eq!(ground.holding_from("home", "logs/mine/away/f"), error);
    assert_eq!(ground.holding_from("home", "../f"), refused("user 65534 can change the directory ."));
    // From a trusted working directory, the rules are those for an absolute path.
    ground.directory("ours", me(), 0o755);
    ground.link("ours/link", me(), "../protected");
    ground.link("ours/home", me(), "../home");
    assert_eq!(ground.holding_from("ours", "link/f"), ok("protected/f"));
    assert_eq!(ground.holding_from("ours", "../home/f"), ok("home/f"));
    assert_eq!(ground.holding_from("ours", "home/logs/f"), refused("user 65534 can change the directory ./../home"));
    assert_eq!(ground.holding_from("home/logs/mine", "../f"), ok("home/logs/f"));
    assert_eq!(ground.holding_from("home/logs/mine", "../../f"), refused("user 65534 can change the directory ./.."));
}

#[test]
fn missing_directories_are_created_and_checked() {
    let ground = Ground::new();
    let made = Directory::create_all(&ground.at("2026/11/27"), 0o755).unwrap();
    assert_eq!(fs::read_link(made.through()).unwrap(), ground.at("2026/11/27"));
    assert_eq!(fs::metadata(ground.at("2026/11")).unwrap().mode() & 0o022, 0);
    assert!(made.is_ours().unwrap());
    Directory::create_all(&ground.at("2026/11/27"), 0o755).unwrap();
    assert!(Directory::open_or_create(&ground.at("run/steerage/x"), 0o755).is_err());
    Directory::open_or_create(&ground.at("run"), 0o755).unwrap();
    Directory::open_or_create(&ground.at("run"), 0o755).unwrap();
    fs::write(ground.at("file"), "").unwrap();
    assert!(Directory::open_or_create(&ground.at("file"), 0o755).is_err());
    assert!(Directory::open_or_create(&ground.at("file/in"), 0o755).is_err());
}

#[test]
fn a_directory_that_another_user_put_there_is_not_taken_for_a_created_one() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    ground.directory("x", SOMEBODY, 0o755);
    ground.directory("protected", me(), 0o755);
    let create = |path: &str| ground.opened(Directory::create_all(&ground.at(path), 0o755));
    // The second call uses the directory `x/11` that the first call created.
    assert_eq!((create("x/11/27"), create("x/11/28")), (Ok(()), Ok(())));
    let error = Err("user 65534 can change the directory x".to_owned());
    ground.directory("x/theirs", SOMEBODY, 0o755);
    ground.directory("x/open", me(), 0o777);
    ground.link("x/link", SOMEBODY, ground.at("protected"));
    ground.link("x/root-made", me(), ground.at("protected"));
    for planted in ["x/theirs/27", "x/open/27", "x/link/27", "x/root-made/27", "x/link", "x/theirs"] {
        assert_eq!(create(planted), error, "{planted}");
    }
    assert_eq!(fs::read_dir(ground.at("protected")).unwrap().count(), 0);
}

#[test]
fn an_opened_directory_is_not_changed_by_others() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    ground.directory("x", SOMEBODY, 0o755);
    ground.directory("ours", me(), 0o755);
    let error = Err("user 65534 can change the directory x".to_owned());
    assert_eq!(ground.opened(Directory::open(&ground.at("x"))), error);
    assert_eq!(ground.opened(Directory::open_or_create(&ground.at("x"), 0o755)), error);
    assert_eq!(ground.opened(Directory::open_strict(&ground.at("x"))), error);
    let last = Directory::open_for_new_files(&ground.at("x")).unwrap();
    assert!(!last.is_ours().unwrap());
    assert_eq!(ground.opened(Directory::open(&ground.at("ours"))), Ok(()));
    assert_eq!(ground.opened(Directory::open_strict(&ground.at("ours"))), Ok(()));
}

#[test]
fn operations_take_single_names() {
    let ground = Ground::new();
    let directory = Directory::open(&ground.0).unwrap();
    for path in ["", ".", "..", "a/b", "/tmp/x", "../x"] {
        let name = OsStr::new(path);
        assert!(directory.create_dir(name, 0o755).is_err(), "{path}");
        assert!(directory.create_new_file(name, 0o644).is_err() && directory.stat(name).is_err(), "{path}");
        assert!(directory.remove_file(name).is_err() && directory.rename(name, OsStr::new("x")).is_err(), "{path}");
    }
    let (a, b) = (OsStr::new("a"), OsStr::new("b"));
    directory.create_new_file(a, 0o600).unwrap();
    assert!(directory.create_new_file(a, 0o600).is_err() && directory.create_dir(a, 0o755).is_err());
    directory.create_dir(b, 0o755).unwrap();
    assert!(directory.rename_unless_taken(a, b).is_err());
    let mut entries = directory.entries().unwrap();
    entries.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(entries, [(a.to_owned(), FileType::RegularFile), (b.to_owned(), FileType::Directory)]);
    directory.remove_file(a).unwrap();
    directory.remove_dir(b).unwrap();
    assert_eq!(directory.entries().unwrap(), []);
    // A planted link with the name of the new file is not followed.
    symlink(ground.at("elsewhere"), ground.at("a")).unwrap();
    assert!(directory.create_new_file(a, 0o600).is_err() && !ground.at("elsewhere").exists());
}

#[test]
fn links_to_descriptors_stand_for_the_descriptors() {
    let ground = Ground::new();
    let own = format!("/proc/{}/fd/7", std::process::id());
    ground.link("out", me(), "/dev/stdout");
    let out = ground.at("out");
    for (path, number) in
        [("/dev/stdout", 1), ("/dev/stderr", 2), ("/dev/fd/3", 3), (&own, 7), (out.to_str().unwrap(), 1)]
    {
        let found = Directory::holding(Path::new(path));
        assert!(matches!(found, Err(PathError::Descriptor(at)) if at == number), "{path}: {found:?}");
    }
    for path in ["/proc/self/fd/x", "/proc/self/fd/+1", "/proc/self/fd/1/x", "/proc/1/fd/1"] {
        assert!(!matches!(Directory::holding(Path::new(path)), Err(PathError::Descriptor(_))), "{path}");
    }
}

#[test]
fn a_group_is_private_if_nobody_else_is_in_it() {
    let users = "root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\nx:x:1001:100::/home/x:/bin/sh\n";
    let private = |users: &str, groups: &str| private_group(1000, users, groups);
    assert_eq!(private(users, "root:x:0:\nme:x:1000:\n"), Some(1000));
    assert_eq!(private(users, "me:x:1000:me\n"), Some(1000));
    for groups in
        ["me:x:1000:me,x\n", "me:x:1000:x\n", "staff:x:1000:\n", "me:x:1001:\n", "me:x:1000:\nalso:x:1000:x\n", ""]
    {
        assert_eq!(private(users, groups), None, "{groups}");
    }
    let shared = users.replace(":1001:100:", ":1001:1000:");
    assert_eq!(private(&shared, "me:x:1000:\n"), None);
    assert_eq!(private("x:x:1001:100::/home/x:/bin/sh\n+::::::\n", "me:x:1000:\n"), None);
}

#[test]
fn a_group_of_root_alone_may_write() {
    if !is_root() {
        return;
    }
    let (users, groups) = (accounts("/etc/passwd").unwrap_or_default(), accounts("/etc/group").unwrap_or_default());
    let is_private = private_group(0, &users, &groups) == Some(0);
    let ground = Ground::new();
    ground.directory("group", 0, 0o775);
    let directory = Directory::open_for_new_files(&ground.at("group")).unwrap();
    assert_eq!(directory.is_ours().unwrap(), is_private);
    // An access list (ACL) that also gives access to the user with ID 65534: user::rwx,
    // user:65534:rwx, group::r-x, mask::rwx, other::r-x.
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, u32::MAX), (2, 7, SOMEBODY), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(tag.to_le_bytes().into_iter().chain(permissions.to_le_bytes()).chain(id.to_le_bytes()));
    }
    let set =
        rustix::fs::setxattr(ground.at("group"), "system.posix_acl_access", &list, rustix::fs::XattrFlags::empty());
    match set {
        Ok(()) => assert!(!directory.is_ours().unwrap()),
        Err(error) => eprintln!("the access list is not tested: {error}"),
    }
}

#[test]
fn messages_are_one_line_and_say_what_to_do() {
    let error = PathError::Changeable { directory: PathBuf::from("/home/x"), by: Who::User(1000) };
    let advice = "can change, or change to the directory first";
    let only = if me() == 0 { "root" } else { "you and root" };
    let message = format!("user 1000 can change the directory /home/x: name a directory that only {only} {advice}");
    assert_eq!(error.to_string(), message);
    let error = io::Error::from(PathError::Link { link: PathBuf::from("/home/x/logs"), by: Who::User(1000) });
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(error.to_string(), "user 1000 can change the link /home/x/logs: name the directory that it leads to");
    assert_eq!(io::Error::from(PathError::from(Errno::NXIO)).raw_os_error(), Some(Errno::NXIO.raw_os_error()));
}
