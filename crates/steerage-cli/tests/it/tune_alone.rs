//! One `steerage tune` at a time changes an interface, and each one restores what it has changed,
//! even if the interface vanishes or another undo file is damaged.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::ChildStdout;

use serde_json::{Value, json};
use steerage_fixtures::cable::Net;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{skip, until};

use crate::program::{Ends, Ran};
use crate::tune::{files, kept, ran, shell, stop, tune, with_traffic};

const MACHINES_MASK: &str = "/proc/sys/net/core/rps_default_mask";

/// Starts `tune --watch`, and returns when it watches, with its standard output.
fn watch(net: &Net, state: &Path) -> (Ends, BufReader<ChildStdout>) {
    let mut child = Ends(tune(net, state, "near0 --watch").spawn().unwrap());
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "watching near0\n");
    (child, out)
}

fn assert_refused(refused: &Ran, holder: &Ends, why: &str) {
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert_eq!(
        refused.complaint(),
        format!("steerage: another steerage tune (process {}) {why}", holder.id()),
        "{refused:?}"
    );
}

const NEAR0_IS_HELD: &str =
    "measures or watches near0: end it first (a service: sudo systemctl stop steerage-tune@near0)";

#[test]
fn nothing_changes_an_interface_that_is_watched() {
    let Some(net) = Net::new() else { return };
    let (state, before) = (Scratch::new(), files(&net));
    kept(&net, &state, "1");
    let set = files(&net);
    let (mut child, _out) = watch(&net, &state);
    for args in ["--undo", "--undo near0", "near0 --apply", "near0 --watch --keep", "near0 --for listen --apply"] {
        assert_refused(&ran(&net, &state, args), &child, NEAR0_IS_HELD);
    }
    assert_eq!(files(&net), set);
    assert_eq!(ran(&net, &state, "near0 --check").code, Some(0));
    stop(&mut child);
    assert!(child.wait().unwrap().success());
    assert_eq!(files(&net), before);
    assert_eq!(fs::read_dir(&*state).unwrap().count(), 0, "a file is left");
    let undone = ran(&net, &state, "--undo near0");
    assert!(undone.code == Some(0) && undone.out.starts_with("nothing to undo: "), "{undone:?}");
}

/// A kill frees the locks, although it leaves their files.
#[test]
fn nothing_changes_an_interface_that_is_measured() {
    let Some(net) = Net::new() else { return };
    let (state, before) = (Scratch::new(), files(&net));
    shell(&net, "ip link add near1 type veth peer name near2");
    with_traffic(&net, || {
        let mut child = Ends(tune(&net, &state, "near0 --apply --global --test-window 1h").spawn().unwrap());
        until("the undo file", || state.join("near0.json").exists());
        let record = fs::read(state.join("near0.json")).unwrap();
        for args in ["near0 --apply --test-window 50ms", "near0 --watch", "--undo"] {
            assert_refused(&ran(&net, &state, args), &child, NEAR0_IS_HELD);
        }
        // Candidates of near0 would become the old values in the undo file of near1.
        let other = ran(&net, &state, "near1 --apply --global --test-window 50ms");
        assert_refused(&other, &child, "measures settings of the whole machine: try again when it has ended");
        assert_eq!(fs::read(state.join("near0.json")).unwrap(), record);
        child.kill().unwrap();
        child.wait().unwrap();
    });
    let undone = ran(&net, &state, "--undo");
    assert_eq!((undone.code, undone.err.as_str()), (Some(0), ""), "{undone:?}");
    assert_eq!(files(&net), before);
}

#[test]
fn a_damaged_undo_file_does_not_keep_others_from_being_undone() {
    let Some(net) = Net::new() else { return };
    let (state, before) = (Scratch::new(), files(&net));
    kept(&net, &state, "1");
    for name in ["aa.json", "zz.json"] {
        fs::write(state.join(name), "garbage").unwrap();
    }
    let undone = ran(&net, &state, "--undo");
    assert_eq!(undone.code, Some(1), "{undone:?}");
    assert!(undone.complaint().contains("cannot read the undo file"), "{undone:?}");
    assert!(undone.out.starts_with("near0: restored 1 value\n"), "{undone:?}");
    assert_eq!(files(&net), before);
    // A damaged file is an error, even if it is the only file.
    let undone = ran(&net, &state, "--undo");
    assert_eq!((undone.code, undone.out.as_str()), (Some(1), ""), "{undone:?}");
}

#[test]
fn a_watch_restores_settings_of_the_machine_if_the_interface_vanishes() {
    let Some(net) = Net::new() else { return };
    if !Path::new(MACHINES_MASK).exists() {
        return skip("this kernel has no rps_default_mask");
    }
    let state = Scratch::new();
    let mask = || shell(&net, &format!("cat {MACHINES_MASK}"));
    let before = mask();
    kept(&net, &state, "1");
    let file = state.join("near0.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    for (list, value) in [("before", json!(before.trim())), ("ours", json!(["1"])), ("kept", json!("1"))] {
        record[list][MACHINES_MASK] = value;
    }
    fs::write(&file, record.to_string()).unwrap();
    shell(&net, &format!("echo 1 > {MACHINES_MASK}"));
    assert_ne!(mask(), before);
    let (mut child, out) = watch(&net, &state);
    shell(&net, "ip link del near0");
    let err = io::read_to_string(child.stderr.take().unwrap()).unwrap();
    let ended = Ran { code: child.wait().unwrap().code(), out: io::read_to_string(out).unwrap(), err };
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.complaint(), "steerage: near0 is gone: start tune again when the interface is back");
    assert!(ended.out.contains("restored 1 value\n"), "{ended:?}");
    assert_eq!((mask(), file.exists()), (before, false));
}
