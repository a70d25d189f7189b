//! Tests `steerage tune` in network namespaces: it applies, checks, watches and undoes settings,
//! even after the program was killed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use steerage_fixtures::cable::{NEAR, Net};
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{HANG, exposition, until};

use crate::metrics::{ANY, get};
use crate::program::{Ends, Ran, children, command, run};

/// Returns a `tune` command that runs in the network namespace of `near0`. `ip netns exec` mounts
/// the /sys of the namespace.
pub(crate) fn tune(net: &Net, state: &Path, args: &str) -> Command {
    let program = command(&[]);
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &net.near]).arg(program.get_program()).arg("tune").args(args.split_whitespace());
    command.env("STEERAGE_STATE_DIR", state).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn ran(net: &Net, state: &Path, args: &str) -> Ran {
    let ran = Ran::of(tune(net, state, args).output().unwrap());
    let (warnings, rest): (Vec<&str>, Vec<&str>) =
        ran.err.split_inclusive('\n').partition(|line| line.contains("--test-window"));
    assert_eq!(warnings.len(), usize::from(args.contains("--test-window")), "{ran:?}");
    Ran { err: rest.concat(), ..ran }
}

/// Runs a shell command in the network namespace of `near0`, with the namespace's /sys.
pub(crate) fn shell(net: &Net, text: &str) -> String {
    let done = Command::new("ip").args(["netns", "exec", &net.near, "sh", "-c", text]).output().unwrap();
    assert!(done.status.success(), "{text}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// Returns the contents of each file that `tune` may change.
pub(crate) fn files(net: &Net) -> BTreeMap<String, String> {
    let text = "cd /sys/class/net/near0; for f in queues/*/*ps_cpus queues/*/rps_flow_cnt threaded gro_flush_timeout \
                napi_defer_hard_irqs /proc/sys/net/core/rps_default_mask; do echo \"$f $(cat $f 2>&1)\"; done";
    let all = shell(net, text);
    assert!(all.lines().count() >= 7, "{all}");
    all.lines().filter_map(|line| line.split_once(' ')).map(|(file, text)| (file.to_owned(), text.to_owned())).collect()
}

/// Writes the undo file of a `tune --apply` that set this RPS mask for the first queue.
pub(crate) fn kept(net: &Net, state: &Path, mask: &str) {
    kept_on("near0", net, state, mask);
}

fn kept_on(interface: &str, net: &Net, state: &Path, mask: &str) {
    let knob = &format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
    let read = |file: &str| shell(net, &format!("cat {file}")).trim().to_owned();
    let record = serde_json::json!({
        "version": 1,
        "interface": interface,
        "identity": {
            "boot": read("/proc/sys/kernel/random/boot_id"),
            "namespace": shell(net, "readlink /proc/self/ns/net").trim(),
            "index": read(&format!("/sys/class/net/{interface}/ifindex")),
        },
        "before": { knob: read(knob) },
        "ours": { knob: [mask] },
        "kept": { knob: mask },
        "banned": [],
        "link_file": null,
    });
    shell(net, &format!("echo {mask} > {knob}"));
    fs::write(state.join(format!("{interface}.json")), record.to_string()).unwrap();
}

pub(crate) fn with_traffic<R>(net: &Net, body: impl FnOnce() -> R) -> R {
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            net.far(|| {
                let sockets: Vec<UdpSocket> = (0..8).map(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).collect();
                while !ends.load(Ordering::Relaxed) {
                    for socket in &sockets {
                        // No socket listens on port 9, so `send_to` returns the ICMP error for an
                        // earlier datagram.
                        let _ = socket.send_to(&[0; 64], (NEAR, 9));
                    }
                    thread::sleep(Duration::from_micros(200));
                }
            });
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        ends.store(true, Ordering::Relaxed);
        sender.join().unwrap();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn without_options_nothing_is_changed_and_commands_are_printed() {
    let Some(net) = Net::with("numrxqueues 2 numtxqueues 2") else { return };
    let (state, before) = (Scratch::new(), files(&net));
    let shown = ran(&net, &state, "near0 --global --irq --allow-reset --test-window 50ms");
    assert_eq!((shown.code, shown.err.as_str()), (Some(0), ""), "{shown:?}");
    for part in ["> /sys/class/net/near0/queues/rx-0/rps_cpus", "RPS off", "Nothing was changed."] {
        assert!(shown.out.contains(part), "{part}: {}", shown.out);
    }
    assert_eq!(files(&net), before);
    assert_eq!(fs::read_dir(&*state).unwrap().count(), 0);
    assert_eq!(
        run(&["tune", "no-such-if"]).complaint(),
        "steerage: there is no interface no-such-if: `ip link` lists the interfaces"
    );
    assert_eq!(run(&["tune"]).code, Some(2));
    let short = run(&["tune", "near0", "--apply", "--window", "4s"]);
    assert!(short.code == Some(2) && short.err.contains("write 5s or more"), "{short:?}");
}

#[test]
fn the_flows_are_listened_to() {
    let Some(net) = Net::new() else { return };
    let state = Scratch::new();
    let quiet = ran(&net, &state, "near0 --test-window 50ms");
    assert!(quiet.out.contains("\nflows: not seen: no packet with a flow arrived\n"), "{quiet:?}");
    let busy = with_traffic(&net, || ran(&net, &state, "near0 --test-window 1s"));
    let line = busy.out.lines().find(|line| line.starts_with("flows: ")).unwrap();
    let count: u32 = line["flows: ".len()..].split(',').next().unwrap().parse().unwrap_or_else(|_| panic!("{busy:?}"));
    assert!((2..=20).contains(&count) && line.contains("the largest with "), "{busy:?}");
    // Without the capability to listen, `tune` prints all other facts.
    let program = command(&[]).get_program().to_string_lossy().into_owned();
    let dropped = format!("exec setpriv --bounding-set -net_raw,-net_admin --inh-caps -all {program} tune near0");
    let unprivileged = Command::new("ip").args(["netns", "exec", &net.near, "sh", "-c", &dropped]).output().unwrap();
    let unprivileged = Ran::of(unprivileged);
    assert_eq!(unprivileged.code, Some(0), "{unprivileged:?}");
    let line = unprivileged.out.lines().find(|line| line.starts_with("flows: ")).unwrap();
    assert!(line.starts_with("flows: not seen: ") && line.contains("CAP_NET_RAW"), "{unprivileged:?}");
    assert!(unprivileged.out.contains("RPS off"), "{unprivileged:?}");
}

#[test]
fn a_signal_ends_the_listening() {
    let Some(net) = Net::new() else { return };
    let (state, before) = (Scratch::new(), files(&net));
    let mut child = Ends(tune(&net, &state, "near0 --apply").spawn().unwrap());
    until("explain runs", || !children(child.id()).is_empty());
    stop(&mut child);
    until("the end", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!((files(&net), state.join("near0.json").exists()), (before, false));
}

/// Changing the number of queues of a veth takes its link down. `tune` asks before it takes down
/// the interface of an SSH connection.
#[test]
fn the_way_to_this_machine_is_not_taken_down_unasked() {
    if !steerage_fixtures::is_installed("ethtool", "ethtool") {
        return;
    }
    let Some(net) = Net::with("numrxqueues 2 numtxqueues 2") else { return };
    let state = Scratch::new();
    shell(&net, "ethtool -L near0 rx 1");
    let apply = "near0 --apply --allow-reset --test-window 50ms";
    let is_refused = |ran: &Ran, why: &str| ran.code == Some(1) && ran.complaint().contains(why);
    let free = ran(&net, &state, apply);
    assert!(is_refused(&free, "too little traffic"), "{free:?}");
    let why = "--allow-reset may take near0 down for a moment, and the SSH connection to 10.209.0.1 is through near0: add --yes";
    let by_ssh = |args: &str| {
        let client = "10.209.0.2 50000 10.209.0.1 22";
        Ran::of(tune(&net, &state, args).env("SSH_CONNECTION", client).output().unwrap())
    };
    let refused = by_ssh(apply);
    assert!(refused.code == Some(1) && refused.err.contains(why), "{refused:?}");
    let allowed = by_ssh(&format!("{apply} --yes"));
    assert!(allowed.err.contains("too little traffic"), "{allowed:?}");
    shell(&net, "ip route add default via 10.209.0.2 dev near0");
    let refused = ran(&net, &state, apply);
    assert!(is_refused(&refused, "near0 has the default route: add --yes"), "{refused:?}");
    assert!(is_refused(&ran(&net, &state, &format!("{apply} --yes")), "too little traffic"));
    // Settings other than the number of queues do not take the link down.
    assert!(is_refused(&ran(&net, &state, "near0 --apply --test-window 50ms"), "too little traffic"));
}

#[test]
fn without_traffic_there_is_nothing_to_compare() {
    let Some(net) = Net::new() else { return };
    let (state, before) = (Scratch::new(), files(&net));
    let quiet = ran(&net, &state, "near0 --apply --test-window 50ms");
    assert_eq!(quiet.code, Some(1), "{quiet:?}");
    assert!(quiet.complaint().contains("too little traffic"), "{quiet:?}");
    assert_eq!(files(&net), before);
    assert_eq!(ran(&net, &state, "--undo").code, Some(0));
    assert_eq!(ran(&net, &state, "near0 --check").code, Some(3));
}

#[test]
fn undo_takes_several_interfaces_and_the_other_modes_one() {
    let refused = run(&["tune", "near0", "near1", "--apply"]);
    let why = "only --undo takes several interfaces: write the command once for each of near0, near1";
    assert!(refused.code == Some(2) && refused.complaint().contains(why), "{refused:?}");
    let Some(net) = Net::new() else { return };
    let (state, before) = (Scratch::new(), files(&net));
    shell(&net, "ip link add near1 type veth peer name near2");
    for interface in ["near0", "near1", "near2"] {
        kept_on(interface, &net, &state, "1");
    }
    let undone = ran(&net, &state, "--undo near1 near0 near1 near3");
    assert_eq!((undone.code, undone.err.as_str()), (Some(0), ""), "{undone:?}");
    let first = format!("nothing to undo: {} has no undo file for near3\nnear1: ", state.display());
    assert!(undone.out.starts_with(&first) && undone.out.contains("\nnear0: "), "{undone:?}");
    assert_eq!(files(&net), before);
    let masks = shell(&net, "cat /sys/class/net/near[12]/queues/rx-0/rps_cpus");
    let is_on: Vec<bool> = masks.lines().map(|mask| mask.ends_with('1')).collect();
    assert_eq!(is_on, [false, true], "near2 was not named: {masks}");
    assert_eq!(ran(&net, &state, "--undo").out.lines().next().map(|line| &line[..6]), Some("near2:"));
}

/// Kills `tune` at ten different moments, at which different candidate settings may be in force.
#[test]
fn after_a_kill_undo_restores_every_file() {
    let Some(net) = Net::with("numrxqueues 2 numtxqueues 2") else { return };
    let (state, before) = (Scratch::new(), files(&net));
    let mut changed = 0;
    with_traffic(&net, || {
        for nth in 0..10_u64 {
            let mut child = tune(&net, &state, "near0 --apply --global --test-window 20ms").spawn().unwrap();
            // The undo file must exist before the first change.
            until("the undo file or the end", || {
                state.join("near0.json").exists() || child.try_wait().unwrap().is_some()
            });
            thread::sleep(Duration::from_millis(nth * nth * 7 % 200));
            let _ = child.kill();
            child.wait().unwrap();
            changed += usize::from(files(&net) != before);
            let undone = ran(&net, &state, "--undo");
            assert_eq!((undone.code, undone.err.as_str()), (Some(0), ""), "{undone:?}");
            assert!(!undone.out.contains("left alone"), "{undone:?}");
            assert_eq!(files(&net), before, "{nth}: {undone:?}");
            assert!(!state.join("near0.json").exists());
        }
    });
    assert!(changed > 0, "no kill came while a candidate was in force");
}

#[test]
fn a_signal_restores_before_the_verdict() {
    let Some(net) = Net::new() else { return };
    let (state, before) = (Scratch::new(), files(&net));
    let mut child = with_traffic(&net, || {
        // The window (measuring time) of an hour does not end before the signal arrives.
        let child = tune(&net, &state, "near0 --apply --test-window 1h").spawn().unwrap();
        until("the undo file", || state.join("near0.json").exists());
        child
    });
    stop(&mut child);
    let ended = Ran::of(child.wait_with_output().unwrap());
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("interrupted before it had measured: everything is as it was"), "{ended:?}");
    assert_eq!((files(&net), state.join("near0.json").exists()), (before, false));
}

pub(crate) fn stop(child: &mut Child) {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
}

/// Returns the effective capabilities of a thread.
fn capabilities(child: &Child, thread: &str) -> String {
    let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let status = |task: std::io::Result<fs::DirEntry>| fs::read_to_string(task.unwrap().path().join("status")).unwrap();
    let all: Vec<String> = tasks.map(status).collect();
    let named = all.iter().find(|status| status.starts_with(&format!("Name:\t{thread}\n")));
    let named = named.unwrap_or_else(|| panic!("no thread {thread} in {all:?}"));
    named.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap().to_owned()
}

#[test]
fn check_and_a_second_apply_change_nothing() {
    let Some(net) = Net::with("numrxqueues 2 numtxqueues 2") else { return };
    let (state, before) = (Scratch::new(), files(&net));
    kept(&net, &state, "1");
    for _ in 0..2 {
        let checked = ran(&net, &state, "near0 --check");
        assert_eq!((checked.code, checked.out.as_str()), (Some(0), ""), "{checked:?}");
        let applied = ran(&net, &state, "near0 --apply");
        assert!(applied.out.contains("near0 is as tune left it: nothing was changed"), "{applied:?}");
    }
    shell(&net, "echo 2 > /sys/class/net/near0/queues/rx-0/rps_cpus");
    let checked = ran(&net, &state, "near0 --check");
    assert_eq!(checked.code, Some(3), "{checked:?}");
    assert_eq!(checked.out, "/sys/class/net/near0/queues/rx-0/rps_cpus is 2, and not 1\n");
    // `tune` does not restore a setting that another program has changed.
    let undone = ran(&net, &state, "--undo near0");
    assert!(undone.out.contains("is 2, which tune did not set: left alone"), "{undone:?}");
    shell(&net, "echo 0 > /sys/class/net/near0/queues/rx-0/rps_cpus");
    assert_eq!(files(&net), before);
}

#[test]
fn a_watch_sets_the_mask_again_and_restores_it_at_the_end() {
    let Some(net) = Net::new() else { return };
    let (state, before) = (Scratch::new(), files(&net));
    for keep in [true, false] {
        kept(&net, &state, "1");
        let args = if keep { "near0 --watch --keep" } else { "near0 --watch" };
        let mut child = tune(&net, &state, &format!("{args} {ANY}")).spawn().unwrap();
        let mut address = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut address).unwrap();
        let address = address.trim_end().strip_prefix("metrics at http://").unwrap().strip_suffix("/metrics").unwrap();
        let metrics = || exposition::read(&net.near(|| get(address.parse().unwrap())));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert_eq!(lines.next().as_deref(), Some("watching near0"));
        shell(&net, "echo 0 > /sys/class/net/near0/queues/rx-0/rps_cpus; ip link set near0 down; ip link set near0 up");
        let line = lines.next().unwrap();
        assert_eq!(line, "set /sys/class/net/near0/queues/rx-0/rps_cpus to 1 again (it was 0)");
        let page = metrics();
        assert_eq!(page.get("steerage_tune_set_again_total{stage=\"rps_cpus\"}"), 1.0);
        assert_eq!(page.sum("steerage_tune_failures_total"), 0.0);
        assert!(page.get("steerage_tune_events_total{about=\"link\"}") >= 1.0, "{page:?}");
        // Only the thread that changes settings has a capability.
        assert_eq!(capabilities(&child, "metrics"), "0000000000000000");
        assert_ne!(capabilities(&child, "steerage"), "0000000000000000");
        // `tune --watch` serves no metrics about packets.
        assert_eq!(page.families.len(), 4, "{page:?}");
        stop(&mut child);
        assert!(child.wait().unwrap().success());
        assert_eq!(files(&net) == before, !keep);
        if keep {
            let undone = ran(&net, &state, "--undo");
            assert_eq!(undone.code, Some(0), "{undone:?}");
            assert_eq!(files(&net), before, "{undone:?}");
        }
    }
    kept(&net, &state, "1");
    let mut child = tune(&net, &state, "near0 --watch").spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("watching near0"));
    shell(&net, "ip link del near0");
    let start = std::time::Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < HANG);
        thread::sleep(Duration::from_millis(5));
    }
    let ended = Ran::of(child.wait_with_output().unwrap());
    assert_eq!(ended.complaint(), "steerage: near0 is gone: start tune again when the interface is back");
}

#[test]
fn a_read_only_sys_is_explained() {
    let Some(net) = Net::new() else { return };
    let state = Scratch::new();
    kept(&net, &state, "1");
    let program = command(&[]).get_program().to_string_lossy().into_owned();
    let refused = Command::new("ip")
        .args(["netns", "exec", &net.near, "sh", "-c"])
        .arg(format!(
            "echo 2 > /sys/class/net/near0/queues/rx-0/rps_cpus && mount -o remount,ro /sys && exec {program} tune near0 --apply"
        ))
        .env("STEERAGE_STATE_DIR", &*state)
        .output();
    let refused = Ran::of(refused.unwrap());
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.complaint().contains("rps_cpus to 1: Read-only file system"), "{refused:?}");
    assert!(refused.complaint().contains("run tune on the host"), "{refused:?}");
}

/// `tune` writes the RPS mask to a systemd .link file, which must repeat the settings of the
/// current .link file. The sandbox must allow reading the current .link file.
#[test]
fn a_link_file_is_written_and_removed_again() {
    let Some(net) = Net::new() else { return };
    let state = Scratch::new();
    kept(&net, &state, "1");
    let program = command(&[]).get_program().to_string_lossy().into_owned();
    let link = "/etc/systemd/network/10-steerage-near0.link";
    // `ip netns exec` creates a mount namespace, so these mounts do not change the machine.
    let text = format!(
        "export STEERAGE_STATE_DIR={}; mount -t tmpfs none /etc; mount -t tmpfs none /run; \
         mkdir -p /run/udev/data /run/systemd/network; \
         echo E:ID_NET_LINK_FILE=/run/systemd/network/1.link > /run/udev/data/n$(cat /sys/class/net/near0/ifindex); \
         printf '[Link]\\nNamePolicy=keep slot\\n' > /run/systemd/network/1.link; \
         if [ -d /usr/lib/systemd ]; then mount -t tmpfs none /usr/lib/systemd; touch /usr/lib/systemd/libsystemd-shared-257.so; fi; \
         mask=/sys/class/net/near0/queues/rx-0/rps_cpus; \
         for time in first second; do {program} tune near0 --apply --write link; echo $time mask $(cat $mask); \
         {program} tune near0 --check; echo $time check $?; done; cat {link}; \
         echo 1 > $mask; {program} tune near0 --check; echo systemd check $?; {program} tune near0 --apply; echo third mask $(cat $mask); \
         cp {link} /run/copy; echo >> {link}; {program} tune near0 --check; echo changed check $?; cp /run/copy {link}; \
         {program} tune --undo; echo undone mask $(cat $mask); ls /etc/systemd/network",
        state.display()
    );
    let said = shell(&net, &text);
    assert!(said.contains("\n[Link]\nNamePolicy=keep slot\nReceivePacketSteeringCPUMask=0\n"), "{said}");
    assert!(said.contains(&format!("wrote {link}: systemd sets these values when near0 next appears")), "{said}");
    assert!(said.contains("udevadm trigger --action=add /sys/class/net/near0\n"), "{said}");
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(" mask ") || line.contains(" check ")).collect();
    assert_eq!(
        lines,
        [
            "first mask 0",
            "first check 0",
            "second mask 0",
            "second check 0",
            "systemd check 0",
            "third mask 1",
            "changed check 3",
            "undone mask 0"
        ]
    );
    assert!(said.contains("10-steerage-near0.link was changed since tune wrote it\n"), "{said}");
    assert!(!said.lines().any(|line| line == "10-steerage-near0.link"), "{said}");
}
