//! Tests `get` and `top` with processes that pretend to be instances of steerage, and with users
//! who have no directory for control sockets.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use serde_json::{Value, json};
use steerage_control::Client;
use steerage_fixtures::namespaces::{address, ping};
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{NOBODY, is_root, until};

use crate::forward;
use crate::metrics;
use crate::program::{Ran, Started, command};
use crate::web;

/// An escape sequence that clears a terminal, in its two encodings, and characters that overwrite
/// the current line.
const ESCAPES: &str = "\u{1b}[2J\u{9b}2J\rinnocent";

/// A directory to which all users may write, like /tmp.
struct Place(Scratch);

impl Place {
    fn new() -> Self {
        Self(Scratch::with_mode(0o1777))
    }

    fn run(&self, args: &[&str]) -> Ran {
        ran(command(args).env("STEERAGE_RUNTIME_DIR", self.0.as_os_str()))
    }
}

fn ran(command: &mut Command) -> Ran {
    Ran::of(command.output().unwrap())
}

/// Starts a server that answers every request with text that contains escape sequences.
fn impostor(at: &Path) {
    let listener = UnixListener::bind(at).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            for line in BufReader::new(&stream).lines().map_while(Result::ok) {
                let asked: Value = serde_json::from_str(&line).unwrap();
                let answer = if asked["get"] == "" {
                    json!({"error": "EISDIR", "message": ESCAPES})
                } else if asked["get"] == "refused" || asked.get("set").is_some() {
                    json!({"error": ESCAPES, "message": ESCAPES})
                } else if asked.get("list").is_some() {
                    json!({"entries": [{"name": format!("x\n{ESCAPES}"), "type": "file"}]})
                } else if asked.get("snapshot").is_some() {
                    json!({"snapshot": report()})
                } else {
                    json!({"value": format!("{ESCAPES}\nsecond line\n")})
                };
                let _ = writeln!(&stream, "{answer}");
            }
        }
    });
}

fn report() -> Value {
    let mut dropped = json!({"device": 1});
    dropped[ESCAPES] = 7.into();
    let queue = json!({"device": ESCAPES, "hash": ESCAPES, "rps_cpus_list": "0-3", "dropped": dropped});
    let top = json!({"kind": ESCAPES, "source": ESCAPES, "destination": ESCAPES, "bytes": 1});
    let snapshot = json!({
        "seconds": 1.0, "received": 10, "dropped": dropped, "queues": [queue], "cpus": [{"cpu": 0}],
        "outputs": [{"device": ESCAPES, "dropped": dropped}], "moves": {"by_cause": dropped},
    });
    json!({
        "schema": 2, "version": ESCAPES, "started": "2026-11-21T17:00:00Z", "snapshot": snapshot,
        "app": {"flows": {"total": 1}}, "traffic": {"top": [top]},
    })
}

fn assert_harmless(ran: &Ran) {
    let obeyed = |c: char| c.is_control() && c != '\n';
    assert!(!ran.out.contains(obeyed) && !ran.err.contains(obeyed), "{ran:?}");
    let shown = ran.out.contains("\\u{1b}[2J") || ran.err.contains("\\u{1b}[2J");
    assert!(shown, "{ran:?}");
}

#[test]
fn a_terminal_obeys_nothing_that_an_instance_says() {
    let place = Place::new();
    let socket = place.0.join("x.sock");
    impostor(&socket);
    let to = ["--to", socket.to_str().unwrap()];
    let value = place.run(&[&["get", "value"][..], &to].concat());
    assert_harmless(&value);
    assert_eq!((value.code, value.out.lines().nth(1)), (Some(0), Some("second line")));
    let names = place.run(&[&["get"][..], &to].concat());
    assert_harmless(&names);
    assert_eq!(names.out.lines().count(), 1, "{names:?}");
    assert_harmless(&place.run(&[&["get", "refused"][..], &to].concat()));
    assert_harmless(&place.run(&[&["set", "refused", "1"][..], &to].concat()));
    let top = place.run(&[&["top", "--once", "--interval", "10ms"][..], &to].concat());
    assert_harmless(&top);
    assert_eq!(top.code, Some(0), "{top:?}");
}

/// Every user can create a socket in /tmp.
#[test]
fn another_users_instance_is_not_taken_for_ours() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let socket = place.0.join("4711.sock");
    std::thread::scope(|scope| {
        let listen = || {
            let nobody = rustix::thread::Uid::from_raw(NOBODY);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            impostor(&socket);
        };
        scope.spawn(listen).join().unwrap();
    });
    for args in [&["get", "value"][..], &["top", "--once"], &["set", "value", "1"]] {
        let ran = place.run(args);
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
        assert!(ran.complaint().contains("no run of root was found"), "{ran:?}");
    }
    let named = place.run(&["get", "value", "--to", "4711"]);
    assert!(named.complaint().contains("no run 4711 was found"), "{named:?}");
    // The program checks the user of the listening process, and not the owner of the socket file.
    nix::unistd::chown(&socket, Some(0.into()), None).unwrap();
    let given = place.run(&["get", "value"]);
    assert!(given.complaint().contains(&format!("a process of user {NOBODY} listens there")), "{given:?}");
    // A path on the command line may name the socket of any user.
    assert_eq!(place.run(&["get", "value", "--to", socket.to_str().unwrap()]).code, Some(0));
}

#[test]
fn an_instance_that_is_stopped_is_said_to_time_out() {
    let place = Place::new();
    let socket = place.0.join("x.sock");
    let endless = ["count", "synthetic:rate=20000", "--virtual-cpus", "2", "--seconds", "0", "--json"];
    let run = Started::new(&[&endless[..], &["--socket", socket.to_str().unwrap()]].concat());
    run.signal(Signal::SIGSTOP);
    let asked = place.run(&["get", "proc/net/softnet_stat", "--to", socket.to_str().unwrap()]);
    assert!(asked.complaint().contains("timed out"), "{asked:?}");
    run.signal(Signal::SIGCONT);
    run.signal(Signal::SIGTERM);
    assert_eq!(run.end().code, Some(0));
}

fn attributes(client: &mut Client, directory: &str) -> String {
    let entries = client.list(directory).unwrap();
    let text = entries.into_iter().map(|(name, is_directory)| {
        let path = format!("{directory}/{name}");
        if is_directory { attributes(client, &path) } else { client.get(&path).unwrap() }
    });
    text.collect()
}

/// Returns the IP addresses in a text, without their ports.
fn addresses(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !(c.is_ascii_hexdigit() || ".:[]".contains(c)));
    // An address has the form `[ADDRESS]:PORT`, `ADDRESS:PORT` or `ADDRESS`, and a full stop may
    // follow.
    let is_address = |word: &&str| word.parse::<IpAddr>().is_ok() || word.parse::<SocketAddr>().is_ok();
    let trimmed = words.map(|word| word.trim_end_matches('.'));
    let bare = trimmed.flat_map(|word| [word, word.trim_end_matches(':'), word.trim_matches(['[', ']'])]);
    // The display of buckets consists of dots and colons, so `::` is no address.
    bare.filter(is_address).filter(|word| *word != "::").map(str::to_owned).collect()
}

fn addresses_in(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => addresses(text),
        Value::Array(of) => of.iter().flat_map(addresses_in).collect(),
        Value::Object(of) => {
            of.iter().flat_map(|(key, value)| [addresses(key), addresses_in(value)].concat()).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}

#[test]
fn addresses_are_found_in_text() {
    for (text, found) in [
        ("udp 10.0.0.1:5 > 10.0.0.2:80", &["10.0.0.1:5", "10.0.0.2:80"][..]),
        ("tcp [2001:db8::1]:443 > 2001:db8::2", &["[2001:db8::1]:443", "2001:db8::2"]),
        ("no route to 192.0.2.7.", &["192.0.2.7"]),
        ("2026-11-21T17:00:00.123456Z 0.1.0 0-3,8 00000000 17:00:00 af_packet", &[]),
    ] {
        let mut unique = addresses(text);
        unique.dedup();
        assert_eq!(unique, found, "{text}");
    }
}

/// Collects everything that another user can read: replies of the control socket, metrics, the live
/// page, and the output of `top`.
fn seen_by_others(socket: &Path) -> Value {
    let ask = || {
        let nobody = rustix::thread::Uid::from_raw(NOBODY);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let mut client = Client::connect(socket).unwrap();
        let report = client.snapshot().unwrap();
        let (hello, events) = (client.hello().unwrap(), format!("{:?}", client.events(0).unwrap()));
        json!({ "report": report, "hello": hello, "events": events, "attributes": attributes(&mut client, "") })
    };
    std::thread::scope(|scope| scope.spawn(ask).join().unwrap())
}

/// Requests the report as root until `is_wanted` returns true.
fn wait_for(socket: &Path, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let mut client = Client::connect(socket).unwrap();
    let mut report = Value::Null;
    until(what, || {
        report = client.snapshot().unwrap();
        is_wanted(&report)
    });
    report
}

/// Other users see the counters of root's runs, but no address of the traffic. The test searches
/// the whole report, including parts that future versions add. The names of devices and IPFIX
/// collectors may contain addresses, but they are public, like the command line of a run.
#[test]
fn no_reply_to_other_users_has_an_address() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let (socket, capture) = (place.0.join("x.sock"), place.0.join("x.pcap"));
    let (to, output) = (socket.to_str().unwrap(), format!("pcap:{}", capture.display()));
    // A run as short as this reports no elephant flow. Other tests check the addresses of elephant
    // flows.
    let traffic = "synthetic:flows=50,mix=udp4+tcp6";
    let commands: [&[&str]; 4] = [
        &["count", traffic],
        &["meter", "synthetic:rate=20000,flows=50,mix=udp4+tcp6", "-t", "50"],
        &["fanout", "synthetic:rate=20000,flows=50", "--to", &output],
        &["send", &output, "synthetic:rate=20000,flows=50"],
    ];
    for command in commands {
        let args =
            [command, &["--virtual-cpus", "2", "--seconds", "0", "--json", metrics::ANY, web::ANY, "--socket", to]]
                .concat();
        let run = Started::new(&args);
        let meters = command[0] == "meter";
        let private = wait_for(&socket, "there is traffic", |report| {
            let top = report["traffic"]["top"].as_array();
            report["snapshot"]["received"].as_u64() > Some(0) && (!meters || top.is_some_and(|top| !top.is_empty()))
        });
        // Root's report contains addresses, so `addresses_in` must find IPv4 and IPv6 addresses in
        // the report.
        let of_root = addresses_in(&private).join(" ");
        assert!(!meters || (of_root.contains('.') && of_root.contains("::")), "{private}");
        let metrics_at = metrics::address(&run);
        let mut seen = seen_by_others(&socket);
        seen["metrics"] = metrics::get(metrics_at).into();
        // Every user of the machine can connect to the live page.
        let page = web::address(&run).0;
        seen["web"] = web::report(page, None);
        assert_eq!(addresses_in(&seen), [""; 0], "{command:?}: {seen}");
        assert!(seen["report"]["snapshot"]["received"].as_u64() > Some(0), "{seen}");
        run.signal(Signal::SIGINT);
        assert_eq!(addresses_in(&web::last_report(page)), [""; 0]);
        assert_eq!(run.end().code, Some(0));
    }
}

/// The data of a `forward` run also contains the router's own addresses.
#[test]
fn no_reply_of_a_router_to_other_users_has_an_address() {
    if !is_root() {
        return;
    }
    let Some(namespaces) = forward::linked() else { return };
    let place = Place::new();
    let socket = place.0.join("x.sock");
    let args = ["forward", "r0", "r1", "--virtual-cpus", "2", "--json", "-v", "--socket", socket.to_str().unwrap()];
    let run = Started::of(namespaces.within(forward::ROUTER, || command(&args).spawn().unwrap()));
    for far in [forward::FAR4, forward::FAR6] {
        namespaces.within(forward::ONE, || ping(address(far), 56));
    }
    wait_for(&socket, "a packet is forwarded", |report| report["app"]["forward"]["forwarded"].as_u64() > Some(0));
    let seen = seen_by_others(&socket);
    assert_eq!(addresses_in(&seen), [""; 0], "{seen}");
    assert!(seen["report"]["app"]["forward"]["routes"].as_u64() > Some(0), "{seen}");
    run.signal(Signal::SIGINT);
    assert_eq!(run.end().code, Some(0));
}

#[test]
fn flows_are_not_for_other_users() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let program = for_anybody(&place);
    let socket = place.0.join("meter.sock");
    let to = socket.to_str().unwrap();
    let args =
        ["meter", "synthetic:rate=20000,flows=50", "--virtual-cpus", "2", "--seconds", "0", "--json", "--socket", to];
    let run = Started::new(&args);
    wait_for(&socket, "the largest flows are known", |report| report["traffic"]["top"].is_array());
    let top = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.args(["top", "--once", "--interval", "50ms", "--to", to]).args(args).stdin(Stdio::null());
        ran(command.uid(NOBODY).gid(NOBODY))
    };
    let (table, line) = (top(&[]), top(&["--json"]));
    assert_eq!((table.code, line.code), (Some(0), Some(0)), "{table:?} {line:?}");
    let why = |line: &&str| line.contains("only root and the user of the run may see");
    assert_eq!(table.out.lines().filter(why).count(), 1, "{table:?}");
    assert!(table.out.contains(" active  "), "{table:?}");
    let report: Value = serde_json::from_str(&line.out).unwrap();
    assert!(report["app"]["flows"]["total"].as_u64() > Some(0) && report.get("traffic").is_none(), "{report}");
    assert_eq!([addresses(&table.out), addresses(&line.out)].concat(), [""; 0]);
    run.stop(Signal::SIGINT);
}

/// A copy of the program that every user can run. The build directory may be readable only by root.
fn for_anybody(place: &Place) -> PathBuf {
    place.0.install("steerage", env!("CARGO_BIN_EXE_steerage"))
}

#[test]
fn a_user_without_a_place_for_a_socket_is_told_so() {
    let place = Place::new();
    let program = for_anybody(&place);
    let unprivileged = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.args(args).stdin(Stdio::null()).env_remove("XDG_RUNTIME_DIR").env_remove("STEERAGE_RUNTIME_DIR");
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    };
    let count = ["count", "synthetic:packets=10", "--virtual-cpus", "1"];
    let run = ran(&mut unprivileged(&count));
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.err.starts_with("no control socket: XDG_RUNTIME_DIR is not set"), "{run:?}");
    for silent in ["-q", "--socket=none"] {
        let run = ran(&mut unprivileged(&[&count[..], &[silent]].concat()));
        assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "{run:?}");
    }
    // Without `--to`, the program would also find instances of root.
    let asked = ran(&mut unprivileged(&["get", "--to", "mine"]));
    assert!(
        asked.complaint().contains("without XDG_RUNTIME_DIR a run has a control socket only with --socket PATH"),
        "{asked:?}"
    );

    // A socket directory to which other users may write is refused, too.
    let mut run = unprivileged(&count);
    let open = place.0.join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let run = ran(run.env("STEERAGE_RUNTIME_DIR", &open));
    assert!(run.err.contains("no control socket: no socket in ") && run.code == Some(0), "{run:?}");
}
