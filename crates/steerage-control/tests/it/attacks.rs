//! Tests attacks by other users: planted links, fake sockets, and attempts to use up connections or
//! open files.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::{Resource, Rlimit, Uid, getrlimit, setrlimit};
use steerage_control::{
    CLIENTS_MAX, CLIENTS_PER_USER_MAX, Client, Listening, OPEN_FILES_MAX, OPEN_FILES_PER_USER_MAX, SocketError, find,
};
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{NOBODY, is_root, until};

use crate::common::{ByFiles, BySocket, Instance};

const MASK: &str = "sys/class/net/synthetic/queues/rx-0/rps_cpus";

fn as_mallory<T: Send>(attack: impl FnOnce() -> T + Send) -> T {
    let attack = || {
        let mallory = Uid::from_raw(NOBODY);
        rustix::thread::set_thread_res_uid(mallory, mallory, mallory).unwrap();
        attack()
    };
    thread::scope(|scope| scope.spawn(attack).join().unwrap())
}

fn directory(scratch: &Scratch, name: &str, owner: u32, mode: u32) -> PathBuf {
    let path = scratch.join(name);
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    lchown(&path, Some(owner), None).unwrap();
    path
}

fn link(to: &Path, at: &Path, owner: u32) {
    symlink(to, at).unwrap();
    lchown(at, Some(owner), None).unwrap();
}

/// Mallory, the attacker, replaces new files in the directory with links to a file of root.
#[test]
fn a_planted_link_opens_no_file_of_roots() {
    const TRIES: usize = 500;
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let theirs = directory(&scratch, "theirs", NOBODY, 0o755);
    let secret = scratch.join("secret");
    fs::write(&secret, "of root's").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let done = AtomicBool::new(false);
    let attack = || {
        while !done.load(Ordering::Relaxed) {
            for entry in fs::read_dir(&theirs).unwrap().flatten() {
                if fs::remove_file(entry.path()).is_ok() {
                    let _ = symlink(&secret, entry.path());
                }
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| as_mallory(attack));
        for _ in 0..TRIES {
            let _ = Listening::bind(&theirs.join("x.sock"));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::metadata(&secret).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn a_directory_that_others_can_change_is_refused() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let ours = directory(&scratch, "ours", 0, 0o755);
    let cases = [("theirs", NOBODY, 0o755), ("groups", 0, 0o775), ("everybodys", 0, 0o757), ("sticky", NOBODY, 0o1777)];
    for (name, owner, mode) in cases {
        let path = directory(&scratch, name, owner, mode).join("x.sock");
        // The directory belongs to a group with members other than root.
        lchown(scratch.join(name), None, Some(NOBODY)).unwrap();
        let refused = Listening::bind(&path);
        assert!(matches!(refused, Err(SocketError::Directory { .. })), "{name}: {refused:?}");
        assert!(!path.exists());
    }
    // Mallory's links are not followed, even if they lead to a directory of root.
    let public = directory(&scratch, "public", 0, 0o1777);
    link(&ours, &public.join("last"), NOBODY);
    link(&scratch, &public.join("midst"), NOBODY);
    for path in ["last/x.sock", "midst/ours/x.sock"] {
        let refused = Listening::bind(&public.join(path));
        assert!(matches!(refused, Err(SocketError::Directory { .. })), "{path}: {refused:?}");
    }
    assert_eq!(fs::read_dir(&ours).unwrap().count(), 0);

    // Root's links are followed in directories that only root can change. In a directory like /tmp,
    // root's links are not followed, because Mallory could have moved a link there.
    link(&ours, &public.join("own"), 0);
    link(&ours, &scratch.join("own"), 0);
    let moved = Listening::bind(&public.join("own/x.sock"));
    assert!(matches!(moved, Err(SocketError::Directory { .. })), "{moved:?}");
    let followed = Listening::bind(&scratch.join("own/x.sock")).unwrap();
    assert_eq!(fs::symlink_metadata(ours.join("x.sock")).unwrap().mode() & 0o777, 0o666);
    drop(followed);
    let sticky = Listening::bind(&public.join("x.sock")).unwrap();
    let made = Listening::bind(&ours.join("new/x.sock")).unwrap();
    drop((sticky, made));
    // In a directory like /tmp, root cannot replace Mallory's socket.
    as_mallory(|| drop(UnixListener::bind(public.join("taken.sock")).unwrap()));
    let taken = Listening::bind(&public.join("taken.sock"));
    assert!(matches!(taken, Err(SocketError::NotOurs(_))), "{taken:?}");
    assert!(public.join("taken.sock").exists());
}

/// A search for instances removes dead sockets of this user, and finds no sockets of other users.
#[test]
fn a_search_trusts_and_removes_nothing_of_mallorys() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let (ours, public) = (directory(&scratch, "ours", 0, 0o755), directory(&scratch, "public", 0, 0o1777));
    let dead = ours.join("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    link(&ours, &public.join("link"), NOBODY);
    let found = find(&public.join("link"));
    assert!(matches!(found, Err(SocketError::Directory { .. })), "{found:?}");
    assert!(dead.exists(), "a socket was removed through a link");

    let theirs = as_mallory(|| {
        drop(UnixListener::bind(public.join("dead.sock")).unwrap());
        UnixListener::bind(public.join("1.sock")).unwrap()
    });
    let listening = Listening::bind(&public.join("2.sock")).unwrap();
    assert_eq!(find(&public).unwrap(), [listening.path()]);
    assert!(public.join("dead.sock").exists());
    drop(theirs);
    assert_eq!(find(&ours).unwrap(), [] as [PathBuf; 0]);
    assert!(!dead.exists());
}

/// Mallory's silent connections do not lock out root and the user of the instance.
#[test]
fn nobody_is_locked_out_of_the_socket() {
    const OWNER: u32 = 12345;
    const OTHER: u32 = 12346;
    if !is_root() {
        return;
    }
    let instance = Instance::of_user(OWNER, "synthetic:rate=1000", 2, steerage_control::CpuView::new(2));
    let socket = BySocket::new(&instance.tree);
    let path = &socket.path;
    let taken: Vec<UnixStream> = as_mallory(|| {
        let connect = |_| {
            let mut stream = UnixStream::connect(path).unwrap();
            // An instance does not read the request of a client that it refuses.
            let _ = stream.write_all(b"{\"hello\":true}\n");
            stream.read_exact(&mut [0; 8]).unwrap();
            stream
        };
        (0..2 * CLIENTS_MAX).map(connect).collect()
    });
    assert_eq!(Client::connect(path).unwrap().get(MASK).unwrap(), "3\n");
    for user in [OWNER, OTHER] {
        let ask = || {
            let user = Uid::from_raw(user);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            Client::connect(path).unwrap().get(MASK).unwrap()
        };
        assert_eq!(thread::scope(|scope| scope.spawn(ask).join().unwrap()), "3\n");
    }
    let is_served = |mut stream: UnixStream| {
        let _ = stream.write_all(b"{\"hello\":true}\n").and_then(|()| stream.shutdown(Shutdown::Write));
        let mut rest = String::new();
        let _ = stream.read_to_string(&mut rest);
        rest.contains("{\"hello\"")
    };
    assert_eq!(taken.into_iter().map(is_served).filter(|served| *served).count(), CLIENTS_PER_USER_MAX);
}

#[test]
fn nobody_is_locked_out_of_the_files() {
    let instance = Instance::quiet(2);
    if !is_root() {
        return;
    }
    let Some(files) = ByFiles::new(&instance.tree) else { return };
    // The test process needs a higher limit of open files than the instance. The limit is not
    // lowered again, because other tests run in the same process.
    let enough = 2 * OPEN_FILES_MAX as u64;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = |limit: Option<u64>| limit.map(|limit| limit.max(enough));
    setrlimit(Resource::Nofile, Rlimit { current: raised(current), maximum: raised(maximum) }).unwrap();
    let path = files.at(MASK);
    let (taken, refused): (Vec<File>, io::Error) = as_mallory(|| {
        let mut taken = Vec::new();
        loop {
            match File::open(&path) {
                Ok(file) => taken.push(file),
                Err(error) => return (taken, error),
            }
        }
    });
    let limit = format!("{} open files, then: {refused}", taken.len());
    assert_eq!(fs::read_to_string(&path).map_err(|error| error.to_string()), Ok("3\n".to_owned()), "{limit}");
    assert_eq!(taken.len(), OPEN_FILES_PER_USER_MAX, "{limit}");
    drop(taken);
    // The kernel needs a short time before a closed file no longer counts as open.
    until("a file can be opened again", || as_mallory(|| File::open(&path).is_ok()));
}
