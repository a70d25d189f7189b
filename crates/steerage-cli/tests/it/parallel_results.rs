//! Tests the directory of `steerage parallel --results`, whose output no other user can redirect.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::Path;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use steerage_fixtures::{NOBODY, is_root, scratch::Scratch};

use crate::parallel::capture;
use crate::program::{Ran, run};

const SCRIPT: &str = "pwd; cat >/dev/null; echo to stderr >&2";

fn results_in(out: &Path) -> Ran {
    run(&["parallel", capture(), "-j", "1", "-q", "--results", out.to_str().unwrap(), "--", "sh", "-c", SCRIPT])
}

fn give(path: &Path) {
    lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
}

/// A description of a directory entry, a function that creates the entry, and the result of a new
/// run. The result is `Ok` if the run replaces the entry, and otherwise a part of the error
/// message.
type Planted = (&'static str, fn(&Path, &Path), Result<(), &'static str>);

const PLANTED: [Planted; 9] = [
    (
        "an older result",
        |out, _| fs::write(out.join("1/stdout"), "a longer text than that of the new run").unwrap(),
        Ok(()),
    ),
    (
        "a link",
        |out, victim| {
            symlink(victim, out.join("1/stdout")).unwrap();
            give(&out.join("1/stdout"));
        },
        Ok(()),
    ),
    ("a hard link", |out, victim| fs::hard_link(victim, out.join("1/stderr")).unwrap(), Ok(())),
    (
        "a FIFO",
        |out, _| {
            mkfifo(&out.join("1/stdout"), Mode::S_IRWXU | Mode::S_IRWXO).unwrap();
            give(&out.join("1/stdout"));
        },
        Ok(()),
    ),
    ("a directory of another user for all jobs", |out, _| give(out), Err("user 65534 can change the directory")),
    (
        "a directory of another user for a job",
        |out, _| give(&out.join("1")),
        Err("user 65534 can change the directory"),
    ),
    (
        "a directory that a group may write to",
        |out, _| {
            chown(out, None, Some(NOBODY)).unwrap();
            fs::set_permissions(out, fs::Permissions::from_mode(0o775)).unwrap();
        },
        Err("group 65534 can change the directory"),
    ),
    (
        "a link for the directory of a job",
        |out, victim| {
            fs::remove_dir(out.join("1")).unwrap();
            symlink(victim.parent().unwrap(), out.join("1")).unwrap();
            give(&out.join("1"));
        },
        Err("--results: cannot make"),
    ),
    (
        "a link for the directory of all jobs",
        |out, victim| {
            fs::remove_dir_all(out).unwrap();
            symlink(victim.parent().unwrap(), out).unwrap();
            give(out);
        },
        Err("user 65534 can change the link"),
    ),
];

#[test]
fn planted_objects_are_replaced_or_refused_and_never_written_to() {
    if !is_root() {
        return;
    }
    for (what, plant, wanted) in PLANTED {
        let scratch = Scratch::new();
        let (out, victims) = (scratch.join("out"), scratch.join("victims"));
        let victim = victims.join("victim");
        fs::create_dir_all(out.join("1")).unwrap();
        fs::create_dir(&victims).unwrap();
        fs::write(&victim, "as before").unwrap();
        plant(&out, &victim);
        let ran = results_in(&out);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "as before", "{what}: {ran:?}");
        assert_eq!(fs::read_dir(&victims).unwrap().count(), 1, "{what}: {ran:?}");
        match wanted {
            Ok(()) => {
                assert_eq!(ran.code, Some(0), "{what}: {ran:?}");
                let text = |name: &str| fs::read_to_string(out.join("1").join(name)).unwrap();
                assert_eq!(
                    text("stdout"),
                    format!("{}\n", fs::canonicalize(out.join("1")).unwrap().display()),
                    "{what}"
                );
                assert_eq!(text("stderr"), "to stderr\n", "{what}");
            }
            Err(said) => {
                assert_eq!(ran.code, Some(255), "{what}: {ran:?}");
                assert!(ran.complaint().contains(said), "{what}: {ran:?}");
            }
        }
    }
}

/// A second run replaces the files of the first run. A process that is still reading the old files
/// can read them to their end.
#[test]
fn results_are_new_files_for_owner_and_group() {
    let scratch = Scratch::new();
    let out = scratch.join("out");
    assert_eq!(results_in(&out).code, Some(0));
    let old = fs::metadata(out.join("1/stdout")).unwrap();
    let kept = fs::File::open(out.join("1/stdout")).unwrap();
    assert_eq!(results_in(&out).code, Some(0));
    let new = fs::metadata(out.join("1/stdout")).unwrap();
    assert!(old.ino() != new.ino() && kept.metadata().unwrap().nlink() == 0);
    for path in ["1/stdout", "1/stderr"] {
        assert_eq!(fs::metadata(out.join(path)).unwrap().mode() & 0o137, 0, "{path}");
    }
}

/// With the results of more jobs than this run has, `DIR/*/stdout` would be the output of two runs.
#[test]
fn results_of_an_earlier_run_with_more_jobs_are_refused() {
    let scratch = Scratch::new();
    let out = scratch.join("out");
    for name in ["2", "02", "notes"] {
        fs::create_dir_all(out.join(name)).unwrap();
    }
    let ran = results_in(&out);
    assert_eq!(ran.code, Some(255), "{ran:?}");
    let said = format!("--results: there is {}/2, but this run has 1 job: remove the results", out.display());
    assert!(ran.complaint().contains(&said) && !out.join("1").exists(), "{ran:?}");
    fs::remove_dir(out.join("2")).unwrap();
    assert_eq!(results_in(&out).code, Some(0));
}
