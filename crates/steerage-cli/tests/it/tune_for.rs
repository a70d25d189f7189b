//! Tests `steerage tune --for`, which prepares an interface for a purpose, and restores the
//! interface later.

use std::path::Path;
use std::process::Command;

use steerage_fixtures::cable::Net;
use steerage_fixtures::is_installed;
use steerage_fixtures::scratch::Scratch;

use crate::program::Ran;

/// Runs `tune` in the network namespace of `near0`, with the namespace's /sys.
fn tune(net: &Net, state: &Path, args: &[&str]) -> Ran {
    let program = env!("CARGO_BIN_EXE_steerage");
    let args = [&["netns", "exec", &net.near, program, "tune"], args].concat();
    Ran::of(Command::new("ip").args(args).env("STEERAGE_STATE_DIR", state).output().unwrap())
}

fn features(net: &Net) -> String {
    let output = Command::new("ip").args(["netns", "exec", &net.near, "ethtool", "-k", "near0"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_capture_sees_packets_as_on_the_wire_until_it_is_undone() {
    if !is_installed("ethtool", "ethtool") {
        return;
    }
    let Some(net) = Net::new() else { return };
    let state = Scratch::new();
    let run = |args: &[&str]| tune(&net, &state, args);
    assert!(
        Command::new("ip")
            .args(["netns", "exec", &net.near, "ethtool", "-K", "near0", "gro", "on"])
            .status()
            .unwrap()
            .success()
    );
    let before = features(&net);

    let shown = run(&["near0", "--for", "listen"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert!(shown.out.contains("ethtool -K near0 gro off\n") && shown.out.contains("Nothing was changed"), "{shown:?}");
    assert_eq!(features(&net), before);
    let link = run(&["near0", "--for", "listen", "--write", "link"]);
    assert!(link.out.contains("GenericReceiveOffload=no\n"), "{link:?}");

    let applied = run(&["near0", "--for", "listen", "--apply"]);
    assert_eq!(applied.code, Some(0), "{applied:?}");
    assert!(features(&net).contains("generic-receive-offload: off"), "{applied:?}");
    assert_eq!(run(&["near0", "--check"]).code, Some(0));
    let after = features(&net);
    assert_eq!(run(&["near0", "--for", "listen", "--apply"]).code, Some(0));
    assert_eq!(features(&net), after);

    let undone = run(&["--undo", "near0"]);
    assert_eq!((undone.code, features(&net)), (Some(0), before), "{undone:?}");
}

#[test]
fn af_xdp_defers_interrupts() {
    let Some(net) = Net::new() else { return };
    let state = Scratch::new();
    let applied = tune(&net, &state, &["--for", "af_xdp", "near0", "--apply"]);
    assert_eq!(applied.code, Some(0), "{applied:?}");
    assert!(applied.out.contains("echo 2 > /sys/class/net/near0/napi_defer_hard_irqs\n"), "{applied:?}");
    let check = tune(&net, &state, &["near0", "--check"]);
    assert_eq!(check.code, Some(0), "{check:?}");
    assert_eq!(tune(&net, &state, &["--undo", "near0"]).code, Some(0));
}

/// A veth has no rules that assign packets to queues, so `tune` refuses before it changes anything.
#[test]
fn traffic_that_the_card_cannot_lead_is_refused() {
    let Some(net) = Net::new() else { return };
    let state = Scratch::new();
    for apply in [&["--apply"][..], &[]] {
        let args = ["--for", "af_xdp", "near0", "--flow", "tcp4 dst-port 443", "--queues", "0"];
        let refused = tune(&net, &state, &[&args, apply].concat());
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert_eq!(
            refused.complaint(),
            "steerage: near0 cannot lead this traffic to queues: its driver has no rules for queues (ethtool -N); nothing was changed"
        );
    }
    assert!(!state.join("near0.json").exists());
    for (wrong, why) in [
        (&["--for", "af_xdp", "near0", "--flow", "tcp4 dst-port 443"][..], "--queues"),
        (&["near0", "--flow", "tcp4 dst-port 443", "--queues", "0"], "--for"),
        (&["--for", "af_xdp", "near0", "--flow", "http", "--queues", "0"], "write a flow as for ethtool -N"),
        (&["--for", "af_xdp", "near0", "--flow", "tcp4 dst-port 443", "--queues", "x"], "write numbers of queues"),
        (&["near0", "--metrics=9000"], "--watch"),
    ] {
        let ran = tune(&net, &state, wrong);
        assert!(ran.code == Some(2) && ran.err.contains(why), "{wrong:?}: {ran:?}");
    }
}

/// With a .link file, `tune` itself applies only the settings for which .link files have no key.
#[test]
fn what_a_link_file_can_set_is_left_to_systemd() {
    if !is_installed("ethtool", "ethtool") {
        return;
    }
    let Some(net) = Net::new() else { return };
    let (state, program) = (Scratch::new(), env!("CARGO_BIN_EXE_steerage"));
    let tune = format!("{program} tune near0 --for listen --apply --write link");
    // `ip netns exec` creates a mount namespace, so the mounts of the shell script do not change
    // the machine.
    let text = format!(
        "export STEERAGE_STATE_DIR={}; mount -t tmpfs none /etc; mount -t tmpfs none /run; mkdir -p /run/udev/data; \
         gro() {{ echo $1: $(ethtool -k near0 | grep ^generic-receive-offload); }}; \
         ethtool -K near0 gro on; {tune}; gro first; {program} tune near0 --check; echo check $?; {tune}; gro second; \
         cat /etc/systemd/network/10-steerage-near0.link; {program} tune --undo; ls /etc/systemd/network",
        state.display()
    );
    let ran = Ran::of(Command::new("ip").args(["netns", "exec", &net.near, "sh", "-c", &text]).output().unwrap());
    for part in [
        "first: generic-receive-offload: on\n",
        "check 0\n",
        "Nothing was changed.\nsecond: generic-receive-offload: on\n",
        "\nGenericReceiveOffload=no\n",
        "udevadm trigger --action=add /sys/class/net/near0\n",
    ] {
        assert!(ran.out.contains(part), "{part}: {ran:?}");
    }
    assert!(!ran.out.lines().any(|line| line == "10-steerage-near0.link"), "{ran:?}");
}
