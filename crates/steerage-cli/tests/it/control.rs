//! Reads and changes the settings of a running instance, with `get` and `set`, and with common
//! programs in the mounted control tree.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::signal::{Signal, kill};
use serde_json::Value;
use steerage_fixtures::cable::Net;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{HANG, NOBODY, is_installed, is_root, skip, until};

use crate::program::{Ends, Ran, Started, assert_balanced, children, command};

const MASK: &str = "sys/class/net/synthetic/queues/rx-0/rps_cpus";
/// The time within which fusermount3 unmounts the tree, even on a busy machine.
const UNMOUNT_MAX: Duration = Duration::from_secs(15);

const ENDLESS: [&str; 7] =
    ["count", "synthetic:rate=20000,queues=2", "--virtual-cpus", "4", "--seconds", "0", "--check-order"];

struct Place(Scratch);

impl Place {
    fn new() -> Self {
        let scratch = Scratch::new();
        fs::create_dir(scratch.join("tree")).unwrap();
        Self(scratch)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        command.env("STEERAGE_RUNTIME_DIR", self.0.as_os_str());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        Ran::of(self.command(args).output().unwrap())
    }

    fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{args:?}: {ran:?}");
        ran.out
    }

    fn start(&self, more: &[&str]) -> Started {
        Started::of(self.command(&[&ENDLESS[..], more, &["--json", "-v"]].concat()).spawn().unwrap())
    }

    fn tree(&self) -> PathBuf {
        self.0.join("tree")
    }

    /// Returns `None` if the tree cannot be mounted. In CI, the test fails instead.
    fn mounted(&self) -> Option<Started> {
        self.mounted_of(&ENDLESS)
    }

    fn mounted_of(&self, args: &[&str]) -> Option<Started> {
        if !fs::exists("/dev/fuse").unwrap_or(false) {
            skip("mounting takes /dev/fuse");
            return None;
        }
        if !is_root() || !is_installed("fusermount3", "fuse3") {
            return None;
        }
        let tree = self.tree();
        let more = ["--control", tree.to_str().unwrap(), "--json", "-v"];
        Some(Started::of(self.command(&[args, &more].concat()).spawn().unwrap()))
    }

    fn is_mounted(&self) -> bool {
        let tree = format!(" {} ", self.tree().display());
        fs::read_to_string("/proc/mounts").unwrap().lines().any(|line| line.contains(&tree))
    }

    fn shell(&self, script: &str) -> Output {
        Command::new("sh").args(["-c", script]).current_dir(self.tree()).stdin(Stdio::null()).output().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.tree()).stderr(Stdio::null()).status();
    }
}

#[test]
fn get_and_set_ask_the_only_instance() {
    let place = Place::new();
    let nobody = place.run(&["get"]);
    assert_eq!(nobody.code, Some(1));
    assert!(nobody.complaint().contains("was found: start one"), "{nobody:?}");

    let run = place.start(&[]);
    let paths = place.ok(&["get"]);
    assert!(
        paths.lines().any(|path| path == MASK) && paths.lines().any(|path| path == "proc/net/softnet_stat"),
        "{paths}"
    );
    assert_eq!(place.ok(&["get", MASK]), "f\n");
    assert_eq!(place.ok(&["set", MASK, "6"]), "");
    assert_eq!(place.ok(&["get", &format!("/{MASK}")]), "6\n");
    assert_eq!(place.ok(&["get", "proc/sys/net/core"]).lines().count(), 6);
    let history = place.ok(&["get", "steerage/history"]);
    assert!(history.contains(&format!(" {MASK} f 6 ")) && history.lines().count() == 1, "{history}");
    for (value, code) in [("0xf", "EINVAL"), ("10", "EOVERFLOW")] {
        let refused = place.run(&["set", MASK, value]);
        assert_eq!(refused.code, Some(1));
        assert!(refused.complaint().contains(&format!("{code}: ")), "{refused:?}");
    }
    // The synthetic device writes each frame directly to a page, and supports no `copybreak`.
    let copybreak = "sys/class/net/synthetic/queues/rx-1/copybreak";
    let refused = place.run(&["set", copybreak, "200"]);
    let says = ": cannot set copybreak of receive queue 1: Operation not supported: ";
    assert!(
        refused.code == Some(1) && refused.complaint().contains("EOPNOTSUPP: ") && refused.complaint().contains(says),
        "{refused:?}"
    );
    assert_eq!((place.ok(&["set", copybreak, "0"]), place.ok(&["get", copybreak])), (String::new(), "0\n".to_owned()));
    let missing = place.run(&["get", "no/such"]);
    assert!(missing.complaint().contains("ENOENT: "), "{missing:?}");

    let report = run.stop(Signal::SIGTERM);
    assert_eq!(
        (&report["snapshot"]["reordered"], &report["snapshot"]["queues"][0]["rps_cpus_list"]),
        (&0.into(), &"1-2".into())
    );
    assert_eq!(fs::read_dir(&place.0).unwrap().count(), 1, "the socket is left behind");
}

#[test]
fn masks_of_the_start_are_shown() {
    let place = Place::new();
    let run = place.start(&["--rps-cpus", "rx-0=0", "--rps-cpus", "synthetic/rx-1=6"]);
    assert_eq!(place.ok(&["get", MASK]), "0\n");
    assert_eq!(place.ok(&["get", &MASK.replace("rx-0", "rx-1")]), "6\n");
    assert_eq!(place.ok(&["set", MASK, "f"]), "");
    assert_eq!(place.ok(&["get", MASK]), "f\n");
    let report = run.stop(Signal::SIGTERM);
    assert_eq!(
        (&report["snapshot"]["reordered"], &report["snapshot"]["queues"][1]["rps_cpus_list"]),
        (&0.into(), &"1-2".into())
    );
}

#[test]
fn of_several_instances_one_is_chosen() {
    let place = Place::new();
    let (one, other) = (place.start(&["--socket", "left"]), place.start(&[]));
    let several = place.run(&["get", MASK]);
    assert_eq!(several.code, Some(1));
    let line = several.complaint();
    assert!(
        line.contains("there are 2 runs") && line.contains("left") && line.contains(&other.id().to_string()),
        "{line}"
    );
    assert_eq!(place.ok(&["set", MASK, "1", "--to", "left"]), "");
    assert_eq!(place.ok(&["get", MASK, "--to", &other.id().to_string()]), "f\n");
    assert_eq!(place.ok(&["get", MASK, "--to", place.0.join("left.sock").to_str().unwrap()]), "1\n");
    // The process number also names a run whose socket has a name.
    assert_eq!(place.ok(&["get", MASK, "--to", &one.id().to_string()]), "1\n");
    let nameless = place.run(&["dump", "right"]);
    let line = nameless.complaint();
    assert!(line.contains("no run right was found: there are 2 runs: ") && line.contains("left"), "{line}");
    let taken = place.run(&["count", "-c", "1", "--socket", "left"]);
    assert!(taken.complaint().contains("another instance listens"), "{taken:?}");
    one.stop(Signal::SIGTERM);
    other.stop(Signal::SIGTERM);
}

#[test]
fn without_a_socket_nobody_can_ask() {
    let place = Place::new();
    let run = place.start(&["--socket", "none"]);
    assert_eq!(fs::read_dir(&place.0).unwrap().count(), 1);
    run.stop(Signal::SIGTERM);
}

/// Each search for instances removes the control sockets of killed instances.
#[test]
fn a_killed_instance_is_not_in_the_way() {
    let place = Place::new();
    let run = place.start(&[]);
    let socket = place.0.join(format!("{}.sock", run.id()));
    assert!(socket.exists());
    run.signal(Signal::SIGKILL);
    run.end_unread();
    assert!(socket.exists());
    assert!(place.run(&["get"]).complaint().contains("was found: start one"));
    assert!(!socket.exists());
}

#[test]
fn a_snapshot_is_the_report() {
    let place = Place::new();
    let run = place.start(&["--socket", "x"]);
    let mut stream = UnixStream::connect(place.0.join("x.sock")).unwrap();
    let mut last = 0;
    until("packets come in", || {
        stream.write_all(b"{\"snapshot\":true}\n").unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        let report = &answer["snapshot"];
        assert_balanced(report);
        assert_eq!((&report["type"], &report["ended_by"]), (&"report".into(), &Value::Null));
        let received = report["snapshot"]["received"].as_u64().unwrap();
        assert!(received >= last);
        last = received;
        received > 1000
    });
    run.stop(Signal::SIGTERM);
}

#[test]
fn cat_echo_ls_and_find_work() {
    let place = Place::new();
    let Some(run) = place.mounted() else { return };
    let shell = |script: &str| Ran::of(place.shell(script));
    let said = |script: &str| {
        let ran = shell(script);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{script}: {ran:?}");
        ran.out
    };
    assert_eq!(said(&format!("cat {MASK}")), "f\n");
    assert_eq!(said(&format!("echo 3 > {MASK}; cat {MASK}; printf c >> {MASK}; cat {MASK}")), "3\nc\n");
    // Users set RPS with a shell loop over all queues of an interface.
    let script = "for f in sys/class/net/synthetic/queues/rx-*/rps_cpus; do echo 6 > $f || exit; done";
    assert_eq!(said(script), "");
    assert_eq!(said("cat sys/class/net/*/queues/rx-*/rps_cpus"), "6\n6\n");
    assert_eq!(
        said("echo 500 > proc/sys/net/core/netdev_max_backlog; cat proc/sys/net/core/netdev_max_backlog"),
        "500\n"
    );
    assert_eq!(said("wc -l < proc/net/softnet_stat").trim(), "4");

    // The error message of the shell's built-in echo does not show why a write failed.
    let refused = shell(&format!("/bin/echo 0xf > {MASK}"));
    assert!(refused.code != Some(0) && refused.err.contains("Invalid argument"), "{refused:?}");
    let refused = shell(&format!("/bin/echo 10 > {MASK}"));
    assert!(refused.code != Some(0) && refused.err.contains("Value too large for defined data type"), "{refused:?}");
    // `softnet_stat` is read-only, even for root.
    assert!(shell("echo 1 > proc/net/softnet_stat").err.contains("Permission denied"));
    assert!(shell("rm proc/net/softnet_stat").code != Some(0) && shell("touch x").code != Some(0));
    assert_eq!(said(&format!("cat {MASK}")), "6\n");

    let listed = said("ls -lR");
    assert!(listed.lines().any(|line| line.starts_with("-rw-r--r--") && line.ends_with("rps_cpus")), "{listed}");
    let mut found: Vec<String> = said("find . -type f | cut -c 3-").lines().map(str::to_owned).collect();
    let mut told: Vec<String> = place.ok(&["get"]).lines().map(str::to_owned).collect();
    found.sort();
    told.sort();
    assert_eq!(found, told);
    assert_eq!(said("find . -type f -exec cat {} + > /dev/null"), "");

    // The run ends although a file of the tree is open, and the tree is the working directory of a
    // process.
    let open = fs::File::open(place.tree().join(MASK)).unwrap();
    let mut inside = Ends(Command::new("sleep").arg("60").current_dir(place.tree()).spawn().unwrap());
    let report = run.stop(Signal::SIGTERM);
    assert!(!place.is_mounted());
    assert_eq!(
        (&report["snapshot"]["reordered"], &report["snapshot"]["queues"][1]["rps_cpus_list"]),
        (&0.into(), &"1-2".into())
    );
    drop(open);
    inside.kill().unwrap();
}

#[test]
fn others_may_look_and_not_write() {
    let place = Place::new();
    let Some(run) = place.mounted() else { return };
    let as_nobody = |command: &mut Command| Ran::of(command.uid(NOBODY).gid(NOBODY).output().unwrap());
    let path = place.tree().join(MASK);
    let read = as_nobody(Command::new("cat").arg(&path));
    assert_eq!((read.code, read.out.as_str()), (Some(0), "f\n"), "{read:?}");
    let script = format!("echo 3 > {}", path.display());
    let written = as_nobody(Command::new("sh").args(["-c", &script]));
    assert!(written.code != Some(0) && written.err.contains("Permission denied"), "{written:?}");
    // The permission check must apply to the user who writes to the file, and not to the user who
    // opened it.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let given = as_nobody(Command::new("sh").args(["-c", "/bin/echo 3"]).stdout(file));
    assert!(given.code != Some(0) && given.err.contains("Operation not permitted"), "{given:?}");

    assert_eq!(fs::read_to_string(&path).unwrap(), "f\n");
    let socket = place.0.join(format!("{}.sock", run.id()));
    assert_eq!(fs::metadata(socket).unwrap().permissions().mode() & 0o777, 0o666);
    run.stop(Signal::SIGTERM);
}

#[test]
fn the_run_keeps_no_privilege_to_unmount() {
    let place = Place::new();
    let Some(run) = place.mounted() else { return };
    for task in fs::read_dir(format!("/proc/{}/task", run.id())).unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let permitted = status.lines().find_map(|line| line.strip_prefix("CapPrm:")).unwrap();
        assert_eq!(u64::from_str_radix(permitted.trim(), 16), Ok(0), "{status}");
    }
    let names: Vec<_> = children(run.id()).iter().map(|id| fs::read_to_string(format!("/proc/{id}/comm"))).collect();
    assert!(matches!(&names[..], [Ok(name)] if name == "fusermount3\n"), "{names:?}");
    run.stop(Signal::SIGTERM);
    assert!(!place.is_mounted());
}

#[test]
fn a_killed_instance_leaves_no_mount_that_is_in_the_way() {
    let place = Place::new();
    let mut first = place.mounted();
    if first.is_none() {
        return;
    }
    // If other mounts change at the same moment, fusermount3 may not find the tree's mount in
    // /proc/mounts, and does not unmount it. The next run replaces a mount that was left.
    let is_taken_away = (0..3).any(|_| {
        let run = first.take().or_else(|| place.mounted()).unwrap();
        run.signal(Signal::SIGKILL);
        run.end_unread();
        let killed = Instant::now();
        while place.is_mounted() && killed.elapsed() < UNMOUNT_MAX {
            thread::sleep(Duration::from_millis(5));
        }
        !place.is_mounted()
    });
    assert!(is_taken_away, "the mounts of three killed runs are left");

    let run = place.mounted().unwrap();
    for child in children(run.id()) {
        kill(child, Signal::SIGKILL).unwrap();
    }
    run.signal(Signal::SIGKILL);
    run.end_unread();
    let stale = Ran::of(Command::new("ls").arg(place.tree()).output().unwrap());
    assert!(stale.err.contains("Transport endpoint is not connected"), "{stale:?}");
    let heir = place.mounted().unwrap();
    assert_eq!(fs::read_to_string(place.tree().join(MASK)).unwrap(), "f\n");

    // A run does not take over the mount of a running instance, and does not mount a tree over a
    // directory that contains files.
    let second = place.run(&["count", "-c", "1", "--control", place.tree().to_str().unwrap()]);
    let whose = format!("the tree of process {} is mounted there", heir.id());
    assert!(second.complaint().contains(&whose), "{second:?}");
    heir.stop(Signal::SIGTERM);
    assert!(!place.is_mounted());
    let missing = place.run(&["count", "-c", "1", "--control", "/no/such/directory"]);
    assert!(missing.complaint().contains("name a directory that is there"), "{missing:?}");
}

/// A stopped process does not answer requests for its control tree, so another run must find the
/// process without accessing the tree.
#[test]
fn a_mount_that_hangs_is_not_asked() {
    let place = Place::new();
    let Some(first) = place.mounted() else { return };
    first.signal(Signal::SIGSTOP);
    let tree = place.tree();
    let second = place.command(&["count", "-c", "1", "--control", tree.to_str().unwrap()]).spawn().unwrap();
    let mut second = Ends(second);
    until("the second run is refused", || second.try_wait().unwrap().is_some());
    let mut line = String::new();
    second.stderr.take().unwrap().read_to_string(&mut line).unwrap();
    assert!(line.contains(&format!("the tree of process {} is mounted there", first.id())), "{line}");
    first.signal(Signal::SIGCONT);
    first.stop(Signal::SIGTERM);
}

/// Another user repeatedly exchanges a directory on the path of the mount point with a symbolic
/// link. A tree that is mounted through this link could hide a directory of root.
#[test]
fn a_path_that_another_user_can_change_is_refused() {
    /// Without the check of the path, about one of twelve runs mounted the tree through the other
    /// user's symbolic link.
    const TRIES: usize = 60;
    let place = Place::new();
    if place.mounted().map(|run| run.stop(Signal::SIGTERM)).is_none() {
        return;
    }
    let (home, of_root) = (place.0.join("home"), place.0.join("root"));
    let (way, link) = (home.join("way"), home.join("link"));
    for directory in [&way, &of_root] {
        fs::create_dir_all(directory.join("tree")).unwrap();
    }
    std::os::unix::fs::symlink(&of_root, &link).unwrap();
    for path in [&home, &way, &link] {
        std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let (ends, has_ended) = mpsc::channel::<()>();
    let exchange = {
        let (way, link) = (way.clone(), link.clone());
        thread::spawn(move || {
            while has_ended.try_recv() == Err(TryRecvError::Empty) {
                let exchanged = renameat2(AT_FDCWD, &way, AT_FDCWD, &link, RenameFlags::RENAME_EXCHANGE);
                exchanged.unwrap();
            }
        })
    };
    let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap().matches(place.0.to_str().unwrap()).count();
    for _ in 0..TRIES {
        let refused = place.run(&["count", "-c", "1", "--control", way.join("tree").to_str().unwrap()]);
        assert!(refused.complaint().contains(&format!("user {NOBODY} can change the ")), "{refused:?}");
        assert_eq!(mounts(), 0);
    }
    drop(ends);
    exchange.join().unwrap();
}

#[test]
fn without_fusermount3_one_line_names_its_package() {
    let place = Place::new();
    let mut command = place.command(&["count", "-c", "1", "--control", place.tree().to_str().unwrap()]);
    let refused = Ran::of(command.env("PATH", &*place.0).output().unwrap());
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.complaint().ends_with("install it (apt install fuse3), or use `steerage get` and `set`"),
        "{refused:?}"
    );
}

fn metrics(address: &str) -> Vec<String> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page.lines().filter(|line| line.starts_with("node_")).map(str::to_owned).collect()
}

#[test]
fn node_exporter_reads_the_tree() {
    const EXPORTER: &str = "prometheus-node-exporter";
    let place = Place::new();
    let devices =
        ["count", "lo", "synthetic:packets=30000,rate=100000", "--virtual-cpus", "2", "--seconds", "0", "-Q", "in"];
    let Some(()) = place.mounted().map(|run| drop(run.stop(Signal::SIGTERM))) else { return };
    let tree = place.tree();
    let more = ["--control", tree.to_str().unwrap(), "--json", "-v"];
    let run = Started::of(place.command(&[&devices[..], &more].concat()).spawn().unwrap());
    let exporter = Command::new(EXPORTER)
        .args(["--collector.disable-defaults", "--collector.softnet", "--collector.netclass"])
        .args(["--web.listen-address=127.0.0.1:0".to_owned(), format!("--path.procfs={}/proc", tree.display())])
        .arg(format!("--path.sysfs={}/sys", tree.display()))
        .stderr(Stdio::piped())
        .spawn();
    let mut exporter = match exporter {
        Ok(exporter) => Ends(exporter),
        Err(error) => {
            run.stop(Signal::SIGTERM);
            return skip(&format!("{EXPORTER}: {error}"));
        }
    };
    let log = BufReader::new(exporter.stderr.take().unwrap());
    let mut lines = log.lines().map_while(Result::ok);
    let address =
        lines.find_map(|line| line.split_once("\"Listening on\" address=").map(|(_, to)| to.trim().to_owned()));
    let address = address.expect("it listens");
    // A full pipe would block the exporter.
    let rest = thread::spawn(move || lines.for_each(drop));

    let count = |name: &str| -> u64 {
        place.ok(&["get", &format!("sys/class/net/synthetic/statistics/{name}")]).trim().parse().unwrap()
    };
    until("all packets have come", || count("rx_packets") + count("rx_missed_errors") == 30_000);
    // Other programs may send packets over lo at any time, so each value of the exporter must lie
    // between the values of the counter before and after the export.
    let softnet = || -> Vec<Vec<u64>> {
        let column = |text: &str| u64::from_str_radix(text, 16).unwrap();
        place.ok(&["get", "proc/net/softnet_stat"]).lines().map(|line| line.split(' ').map(column).collect()).collect()
    };
    let before = softnet();
    let metrics = metrics(&address);
    let after = softnet();
    let value = |key: &str| -> u64 {
        let line = metrics.iter().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_else(|| panic!("{key}: {metrics:?}")).trim().parse::<f64>().unwrap() as u64
    };
    assert!(before.len() == 2 && before.iter().map(|row| row[0]).sum::<u64>() > 0, "{before:?}");
    for (cpu, (before, after)) in before.iter().zip(&after).enumerate() {
        for (nth, name) in ["processed", "dropped", "times_squeezed"].into_iter().enumerate() {
            let value = value(&format!("node_softnet_{name}_total{{cpu=\"{cpu}\"}}"));
            assert!((before[nth]..=after[nth]).contains(&value), "{name}: {value}, {before:?}, {after:?}");
        }
    }
    for collector in ["softnet", "netclass"] {
        assert_eq!(value(&format!("node_scrape_collector_success{{collector=\"{collector}\"}}")), 1);
    }
    let kernels = |name: &str| fs::read_to_string(format!("/sys/class/net/lo/{name}")).unwrap().trim().to_owned();
    assert_eq!(value("node_network_mtu_bytes{device=\"lo\"}").to_string(), kernels("mtu"));
    assert_eq!(value("node_network_iface_id{device=\"lo\"}").to_string(), kernels("ifindex"));
    let info =
        metrics.iter().find(|line| line.starts_with("node_network_info") && line.contains("device=\"lo\"")).unwrap();
    assert!(info.contains(&format!("operstate=\"{}\"", kernels("operstate"))), "{info}");
    assert!(metrics.iter().any(|line| line.starts_with("node_network_up{device=\"synthetic\"}")));

    exporter.kill().unwrap();
    rest.join().unwrap();
    run.stop(Signal::SIGTERM);
}

/// With older kernels, an interface must be down while it is renamed.
fn rename(net: &Net) {
    for change in ["near0 down", "near0 name renamed0", "renamed0 up"] {
        let words = ["-n", &net.near, "link", "set", "dev"].into_iter().chain(change.split(' '));
        assert!(Command::new("ip").args(words).status().unwrap().success(), "{change}");
    }
}

#[test]
fn a_renamed_interface_is_followed() {
    let Some(net) = Net::new() else { return };
    let place = Place::new();
    // `ip netns exec` mounts the namespace's /sys, where the program finds the namespace's
    // interfaces.
    let program = place.command(&["count", "near0", "--seconds", "0", "--json", "-v"]);
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &net.near]).arg(program.get_program()).args(program.get_args());
    command
        .env("STEERAGE_RUNTIME_DIR", place.0.as_os_str())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let run = Started::of(command.spawn().unwrap());
    let kernels = |name: &str| place.ok(&["get", &format!("sys/class/net/{name}")]);
    let index = kernels("near0/ifindex");
    assert_eq!(kernels("near0/mtu"), "1500\n");
    rename(&net);

    assert_eq!((kernels("renamed0/mtu").as_str(), kernels("renamed0/ifindex")), ("1500\n", index));
    assert_eq!(kernels("renamed0/kind"), "af_packet\n");
    until("the interface is up", || kernels("renamed0/operstate") == "up\n");
    let old = place.run(&["get", "sys/class/net/near0/mtu"]);
    assert!(old.code == Some(1) && old.complaint().contains("there is no `sys/class/net/near0/mtu`"), "{old:?}");
    place.ok(&["set", "sys/class/net/renamed0/queues/rx-0/rps_cpus", "1"]);
    let report = run.stop(Signal::SIGTERM);
    assert_eq!(report["snapshot"]["queues"][0]["device"], "renamed0");
}

/// The kernel may cache most file names of the tree for an hour, but not the names of the
/// interfaces' directories.
#[test]
fn a_renamed_interface_has_its_new_name_where_the_tree_is_mounted() {
    let Some(net) = Net::new() else { return };
    let place = Place::new();
    let Some(run) = net.near(|| place.mounted_of(&["count", "near0", "--seconds", "0"])) else { return };
    let listed = || fs::read_dir(place.tree().join("sys/class/net")).unwrap().map(|entry| entry.unwrap().file_name());
    let kind = |name: &str| fs::read_to_string(place.tree().join("sys/class/net").join(name).join("kind"));
    assert_eq!(kind("near0").unwrap(), "af_packet\n");
    rename(&net);
    assert_eq!(kind("renamed0").unwrap(), "af_packet\n");
    assert_eq!(kind("near0").unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert_eq!(listed().collect::<Vec<_>>(), ["renamed0"]);
    run.stop(Signal::SIGTERM);
}
