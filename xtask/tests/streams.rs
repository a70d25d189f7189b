//! Errors go to standard error, because scripts read the standard output of `xtask`.

use std::process::Command;

#[test]
fn faults_are_on_standard_error() {
    let empty = std::env::temp_dir().join(format!("xtask-streams-{}", std::process::id()));
    // A test process that was killed leaves its directory, and process IDs return.
    let _ = std::fs::remove_dir_all(&empty);
    std::fs::create_dir(&empty).unwrap();
    let run =
        |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_xtask")).args(args).current_dir(&empty).output().unwrap();
    let ran = [run(&[]), run(&["strict-path"])];
    std::fs::remove_dir(&empty).unwrap();
    for ran in ran {
        let err = String::from_utf8(ran.stderr).unwrap();
        assert_eq!((ran.status.code(), ran.stdout.len()), (Some(1), 0), "{err}");
        assert!(err.starts_with("xtask: cannot read crates/"), "{err}");
    }
}
