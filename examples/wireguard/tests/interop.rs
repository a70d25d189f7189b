//! Tests the gateway with wireguard-go, each in its own network namespace. The tests need root and
//! the program `wireguard`. The command `go install golang.zx2c4.com/wireguard@latest` installs
//! this program. The program `wireguard` must be in the `PATH`, or the environment variable
//! `WIREGUARD_GO` must contain its path.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs, process};

use base64::prelude::{BASE64_STANDARD, Engine};
use boringtun::x25519::{PublicKey, StaticSecret};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use steerage_fixtures::namespaces::{Namespaces, address, ping, tcp_transfer};
use steerage_fixtures::{skip, until};

/// The namespace of the gateway.
const GATEWAY: usize = 0;
/// The namespace of wireguard-go.
const PEER: usize = 1;

/// A key pair. The gateway and wireguard-go read keys in different formats: hexadecimal or base 64.
struct Keys {
    secret: [u8; 32],
    public: [u8; 32],
}

impl Keys {
    fn new() -> Self {
        let secret = StaticSecret::from(std::array::from_fn(|_| fastrand::u8(..)));
        Self { secret: secret.to_bytes(), public: PublicKey::from(&secret).to_bytes() }
    }
}

fn hex(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A child process. When this value is dropped, the process is killed.
struct Running(Child);

impl Running {
    fn end(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// A wireguard-go that is configured through its socket.
struct WireguardGo {
    program: PathBuf,
    name: String,
    running: Option<Running>,
    settings: String,
}

impl WireguardGo {
    /// Starts wireguard-go. After a restart, wireguard-go has no session.
    fn start(&mut self, namespaces: &Namespaces) {
        self.running = None;
        let mut command = Command::new(&self.program);
        command.args(["-f", &self.name]).env("LOG_LEVEL", "error").stdout(Stdio::null());
        self.running = Some(Running(namespaces.within(PEER, || command.spawn().unwrap())));
        until("wireguard-go listens", || UnixStream::connect(self.socket()).is_ok());
        assert!(self.ask(&format!("set=1\n{}\n", self.settings)).starts_with("errno=0"), "{}", self.settings);
        namespaces.must(PEER, &format!("addr add 10.99.0.2/24 dev {}", self.name));
        namespaces.must(PEER, &format!("link set {} up", self.name));
    }

    fn socket(&self) -> PathBuf {
        Path::new("/var/run/wireguard").join(format!("{}.sock", self.name))
    }

    fn ask(&self, request: &str) -> String {
        let mut socket = UnixStream::connect(self.socket()).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let (mut answer, mut part) = (String::new(), [0; 4096]);
        while !answer.ends_with("\n\n") {
            let len = socket.read(&mut part).unwrap();
            assert_ne!(len, 0, "wireguard-go hung up");
            answer.push_str(std::str::from_utf8(&part[..len]).unwrap());
        }
        answer
    }

    /// Returns a numeric value that wireguard-go reports about its peer.
    fn number(&self, key: &str) -> u64 {
        let answer = self.ask("get=1\n\n");
        let value = answer.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}

/// Returns the number of times that the kernel of a namespace has received TCP packets out of order
/// (`TCPSACKReorder` in /proc/net/netstat).
fn reordered(namespaces: &Namespaces, nth: usize) -> u64 {
    let text = namespaces.within(nth, || fs::read_to_string("/proc/thread-self/net/netstat").unwrap());
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: ")).map(str::split_whitespace);
    let (names, mut values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.into_iter().position(|name| name == "TCPSACKReorder").unwrap();
    values.nth(at).unwrap().parse().unwrap()
}

fn wireguard_go() -> Option<PathBuf> {
    let on_path = env::var_os("PATH").into_iter().flat_map(|path| env::split_paths(&path).collect::<Vec<_>>());
    let found = on_path.map(|directory| directory.join("wireguard")).find(|program| program.exists());
    let program = env::var_os("WIREGUARD_GO").map(PathBuf::from).or(found);
    if program.is_none() {
        skip("there is no wireguard-go here: go install golang.zx2c4.com/wireguard@latest");
    }
    program
}

/// The gateway and wireguard-go make handshakes. Traffic in both directions stays in order while
/// the peer's bucket moves. The connection also works again after the peer has changed its address
/// or lost its session.
#[test]
fn it_understands_wireguard_go() {
    let Some(program) = wireguard_go() else { return };
    let Some(namespaces) = Namespaces::new(2) else { return };
    namespaces.veth((GATEWAY, "near"), (PEER, "far"));
    namespaces.address(GATEWAY, 1, "near");
    namespaces.address(PEER, 2, "far");

    let (ours, theirs, psk) = (Keys::new(), Keys::new(), Keys::new().secret);
    let base64 = |key: &[u8]| BASE64_STANDARD.encode(key);
    let file = env::temp_dir().join(format!("steerage-wireguard-{}.conf", process::id()));
    let configuration = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 51820\n[Peer]\nPublicKey = {}\nPresharedKey = {}\n\
         AllowedIPs = 10.99.0.2\nEndpoint = 10.210.0.2:51821\nPersistentKeepalive = 1\n",
        base64(&ours.secret),
        base64(&theirs.public),
        base64(&psk)
    );
    fs::write(&file, configuration).unwrap();
    let name = format!("wg{}", process::id());
    let mut go = WireguardGo {
        program,
        running: None,
        settings: format!(
            "private_key={}\nlisten_port=51821\npublic_key={}\npreshared_key={}\nallowed_ip=10.99.0.1/32\n",
            hex(&theirs.secret),
            hex(&ours.public),
            hex(&psk)
        ),
        name,
    };
    go.start(&namespaces);

    let mut command = Command::new(env!("CARGO_BIN_EXE_steerage-wireguard"));
    command.arg(&file).args(["wg0", "--shake"]).stdout(Stdio::null());
    let mut gateway = Running(namespaces.within(GATEWAY, || command.spawn().unwrap()));

    // The gateway begins the handshake, because the gateway sends keepalives. Before the handshake,
    // the gateway's peer (wireguard-go) does not know the gateway's address.
    until("there is a session", || go.number("last_handshake_time_sec") > 0);
    let received = go.number("rx_bytes");
    until("keepalives arrive", || go.number("rx_bytes") > received);
    namespaces.must(GATEWAY, "addr add 10.99.0.1/24 dev wg0");
    namespaces.must(GATEWAY, "link set wg0 up");
    let ping_both = || {
        namespaces.within(PEER, || ping(address("10.99.0.1"), 56));
        namespaces.within(GATEWAY, || ping(address("10.99.0.2"), 1300));
    };
    ping_both();

    // During these TCP transfers, the buckets (groups of flows) move between CPUs a hundred times a
    // second.
    tcp_transfer(&namespaces, PEER, GATEWAY, address("10.99.0.1"), 50_000_000);
    tcp_transfer(&namespaces, GATEWAY, PEER, address("10.99.0.2"), 50_000_000);
    assert_eq!([reordered(&namespaces, GATEWAY), reordered(&namespaces, PEER)], [0, 0]);

    // The peer moves to another address, and sends a packet. The gateway replies to the peer's new
    // address.
    namespaces.must(PEER, "addr del 10.210.0.2/24 dev far");
    namespaces.must(PEER, "addr add 10.210.0.77/24 dev far");
    ping_both();

    // The peer restarts, and has no session any more. The gateway must still know the peer's latest
    // address.
    let first = go.number("last_handshake_time_sec");
    go.settings += "endpoint=10.210.0.1:51820\n";
    go.start(&namespaces);
    ping_both();
    assert!(go.number("last_handshake_time_sec") >= first);

    gateway.end();
    fs::remove_file(file).unwrap();
}

/// Starts the gateway at the other end of the veth. The gateway's configuration has one peer.
fn gateway(namespaces: &Namespaces, nth: usize, ours: &Keys, theirs: &Keys, options: &[&str]) -> Running {
    let file = env::temp_dir().join(format!("steerage-wireguard-{}-{nth}.conf", process::id()));
    let configuration = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 51820\n[Peer]\nPublicKey = {}\nAllowedIPs = 10.99.0.{other}\n\
         Endpoint = 10.210.0.{other}:51820\nPersistentKeepalive = 1\n",
        BASE64_STANDARD.encode(ours.secret),
        BASE64_STANDARD.encode(theirs.public),
        other = 2 - nth,
    );
    fs::write(&file, configuration).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_steerage-wireguard"));
    command.arg(&file).arg("wg0").args(options).stdout(Stdio::piped());
    let running = Running(namespaces.within(nth, || command.spawn().unwrap()));
    until("the gateway has its interface", || {
        namespaces.within(nth, || fs::exists("/proc/thread-self/net/dev_snmp6/wg0").unwrap())
    });
    fs::remove_file(file).unwrap();
    namespaces.must(nth, &format!("addr add 10.99.0.{}/24 dev wg0", nth + 1));
    namespaces.must(nth, "link set wg0 up");
    running
}

/// TCP data arrives unchanged with each combination of `--no-offload` and `--gro`. Packets are
/// merged only if the options allow the kernel or steerage to merge them.
#[test]
fn merging_is_a_choice() {
    for (options, merges) in
        [(&["--no-offload"][..], false), (&["--no-offload", "--gro"], true), (&[], true), (&["--gro"], true)]
    {
        let Some(namespaces) = Namespaces::new(2) else { return };
        namespaces.veth((GATEWAY, "near"), (PEER, "far"));
        namespaces.address(GATEWAY, 1, "near");
        namespaces.address(PEER, 2, "far");
        let (ours, theirs) = (Keys::new(), Keys::new());
        let far = gateway(&namespaces, PEER, &theirs, &ours, &[]);
        let mut near = gateway(&namespaces, GATEWAY, &ours, &theirs, options);
        tcp_transfer(&namespaces, PEER, GATEWAY, address("10.99.0.1"), 20_000_000);
        tcp_transfer(&namespaces, GATEWAY, PEER, address("10.99.0.2"), 20_000_000);
        assert_eq!([reordered(&namespaces, GATEWAY), reordered(&namespaces, PEER)], [0, 0], "{options:?}");
        near.end();
        let mut counted = String::new();
        near.0.stdout.take().unwrap().read_to_string(&mut counted).unwrap();
        let (_, merged) = counted.split_once("merged: ").unwrap_or_else(|| panic!("{options:?}: {counted}"));
        let merged: u64 = merged.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
        assert_eq!(merged > 0, merges, "{options:?}: {counted}");
        drop(far);
    }
}
