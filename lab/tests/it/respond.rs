//! The responder against the kernel's network stack in another network namespace.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, bind, sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use steerage::{Batch, BucketId, Builder, Cpu, CpuId, CpuMask, Handle, Handler, Input, Running, Snapshot, Timestamp};
use steerage_device::af_packet::{AfPacketOptions, Direction};
use steerage_device::fault::{Fault, FaultCounts, FaultTotals, Faults};
use steerage_device::output;
use steerage_fixtures::handlers::{self, Wire};
use steerage_fixtures::namespaces::{Namespaces, address, any, cutting_socket, message_arrives, ping, udp_exchange};
use steerage_fixtures::{HANG, assert_at_rest, until};
use steerage_lab::respond::{Config, End, Fate, Moved, Respond, Responding};

const MAC: [u8; 6] = [2, 0, 0, 0, 0x77, 1];
const V4: &str = "10.210.0.2";
const V6: &str = "fd00:210::2";
const ECHO: u16 = 7;
/// The port of the service with requests of 10 bytes and responses of 50,000 bytes.
const RR: u16 = 5000;
const CLIENT: usize = 0;

fn config() -> Config {
    let config = Config::new(vec![address(V4), address(V6)], MAC, 1500).unwrap();
    config.request_response(RR, 10, 50_000).unwrap()
}

fn input(interface: &str) -> Input {
    let options = AfPacketOptions::new(interface)
        .direction(Direction::In)
        .finish_checksums(true)
        .block_timeout(Duration::from_millis(1));
    options.open().unwrap().input
}

/// The kernel's network stack in a namespace, and the responder that exchanges packets with it.
struct Net {
    namespaces: Namespaces,
    responding: Arc<Responding>,
    handle: Handle,
    running: Mutex<Vec<Running<()>>>,
    faults: Vec<Arc<FaultCounts>>,
}

impl Net {
    fn new(config: Config, cpus: usize) -> Option<Self> {
        Self::with(config, cpus, None, |respond| respond)
    }

    /// Segments are merged before the responder gets them.
    fn merging(config: Config) -> Option<Self> {
        Self::built(config, 2, None, |builder| builder.coalesce(true), |respond| respond)
    }

    fn with<H: Handler<Report = ()>>(
        config: Config,
        cpus: usize,
        faults: Option<Faults>,
        around: fn(Respond) -> H,
    ) -> Option<Self> {
        Self::built(config, cpus, faults, |builder| builder, around)
    }

    fn built<H: Handler<Report = ()>>(
        config: Config,
        cpus: usize,
        faults: Option<Faults>,
        with: fn(Builder) -> Builder,
        around: fn(Respond) -> H,
    ) -> Option<Self> {
        let namespaces = Namespaces::new(if faults.is_some() { 3 } else { 2 })?;
        let server = if faults.is_some() { 2 } else { 1 };
        namespaces.veth((CLIENT, "c0"), (1, "s0"));
        namespaces.address(CLIENT, 1, "c0");
        // Makes the kernel split segments that are longer than the MTU of a real cable.
        namespaces.must(CLIENT, "link set dev c0 gso_max_segs 1");
        let wire = faults.map(|faults| {
            namespaces.veth((1, "w0"), (2, "s0"));
            namespaces.within(1, || wire(faults))
        });
        let responding = Responding::new(config);
        let running = namespaces.within(server, || {
            let ours = Arc::clone(&responding);
            let builder = Builder::new().virtual_cpus(cpus).input(input("s0")).always_hash(true).check_order(true);
            let builder = builder.output(output::open_for("s0", cpus).unwrap()).originated_max(512);
            with(builder).build(move |_| around(ours.handler())).unwrap().start().unwrap()
        });
        let (handle, mut all, mut faults) = (running.handle(), vec![running], Vec::new());
        if let Some((wire, counts)) = wire {
            all.push(wire);
            faults.extend(counts);
        }
        Some(Self { namespaces, responding, handle, running: Mutex::new(all), faults })
    }

    fn client<R: Send>(&self, body: impl FnOnce() -> R + Send) -> R {
        self.namespaces.within(CLIENT, body)
    }

    fn ended(&self, end: End) -> u64 {
        self.responding.so_far().ended(end)
    }

    fn until_ended(&self, end: End, count: u64) {
        until(end.name(), || self.ended(end) == count);
    }

    /// Each received packet must have one outcome, and each connection one reason for its end.
    fn end(self) -> Snapshot {
        let mut ended = self.running.into_inner().unwrap().into_iter().map(handlers::end);
        let snapshot = ended.next().unwrap();
        ended.for_each(drop);
        let counts = self.responding.so_far();
        let fates: u64 = Fate::ALL.iter().map(|fate| counts.get(*fate)).sum();
        let lost_after = snapshot.dropped().get(steerage::stats::DropReason::TxFull);
        assert_eq!(fates + counts.merged, snapshot.delivered() + lost_after);
        let ends: u64 = End::ALL.iter().map(|end| counts.ended(*end)).sum();
        assert_eq!((counts.open, counts.opened), (0, ends), "{counts:?}");
        snapshot
    }
}

fn wire(faults: Faults) -> (Running<()>, [Arc<FaultCounts>; 2]) {
    let (one, first) = Fault::new(input("s0"), faults);
    let (other, second) = Fault::new(input("w0"), faults.seed(faults.seed + 1));
    let builder = Builder::new().virtual_cpus(1).input(one).input(other);
    let outputs = ["s0", "w0"].map(|name| output::open_for(name, 1).unwrap());
    let builder = outputs.into_iter().fold(builder, Builder::output);
    (builder.build(|_| Wire(1)).unwrap().start().unwrap(), [first, second])
}

fn connect(to: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::new(address(to), port), HANG)?;
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream.set_write_timeout(Some(HANG)).unwrap();
    stream.set_nodelay(true).unwrap();
    Ok(stream)
}

fn payload(of: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (of * 131 + at * 7 + (at >> 8)) as u8).collect()
}

/// Sends bytes to the echo service, and compares the reply.
fn echo(stream: &TcpStream, bytes: &[u8]) {
    thread::scope(|scope| {
        scope.spawn(|| (&*stream).write_all(bytes).unwrap());
        let mut got = vec![0; bytes.len()];
        (&*stream).read_exact(&mut got).unwrap();
        assert!(got == bytes, "what came back is not what was sent");
    });
}

fn ask(mut stream: &TcpStream, times: usize) {
    for _ in 0..times {
        stream.write_all(&[0x5a; 10]).unwrap();
        let mut got = vec![0; 50_000];
        stream.read_exact(&mut got).unwrap();
        assert!(got.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8), "the response");
    }
}

fn close(mut stream: TcpStream) {
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 100]).unwrap(), 0);
}

#[test]
fn the_kernel_gets_its_answers() {
    let Some(net) = Net::new(config(), 2) else { return };
    for to in [V4, V6] {
        net.client(|| {
            ping(address(to), 0);
            ping(address(to), 1400);
            udp_exchange(SocketAddr::new(address(to), ECHO), 100, 700);
            udp_exchange(SocketAddr::new(address(to), ECHO), 1, 4);
            let stream = connect(to, ECHO).unwrap();
            echo(&stream, &payload(1, 1));
            echo(&stream, &payload(2, 300_000));
            close(stream);
            let stream = connect(to, RR).unwrap();
            ask(&stream, 5);
            // After a half-close, the remaining responses still arrive.
            (&stream).write_all(&[1; 30]).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut rest = Vec::new();
            (&stream).read_to_end(&mut rest).unwrap();
            assert_eq!(rest.len(), 150_000);
            assert_eq!(connect(to, 99).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        });
    }
    net.until_ended(End::Closed, 4);
    let counts = net.responding.so_far();
    assert_eq!((counts.opened, counts.transactions), (4, 16));
    for fate in [Fate::Arp, Fate::Neighbour, Fate::IcmpEcho, Fate::UdpEcho, Fate::Syn, Fate::Tcp, Fate::Reset] {
        assert!(counts.get(fate) > 0, "{}", fate.name());
    }
    net.end();
}

#[test]
fn merged_segments_get_the_same_answers() {
    let Some(net) = Net::merging(config()) else { return };
    for to in [V4, V6] {
        let merged = || net.responding.so_far().merged;
        let before = merged();
        net.client(|| {
            let stream = connect(to, ECHO).unwrap();
            until("segments are merged", || {
                echo(&stream, &payload(2, 300_000));
                merged() > before
            });
            close(stream);
            let stream = connect(to, RR).unwrap();
            ask(&stream, 5);
            close(stream);
            // The kernel splits this message into several datagrams.
            let before = merged();
            let socket = cutting_socket(any(address(to)), 700);
            until("datagrams are merged", || {
                message_arrives((&socket, SocketAddr::new(address(to), ECHO)), &socket, 14_000, 700);
                merged() > before
            });
            ping(address(to), 1400);
            // No service listens on this port.
            assert_eq!(connect(to, 99).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        });
    }
    net.until_ended(End::Closed, 4);
    assert_eq!(net.responding.so_far().transactions, 10);
    assert_eq!(net.end().reordered(), Some(0));
}

fn allow_files(count: u64) {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(count), hard.max(count)).unwrap();
}

/// Data flows over each connection while the connections move from CPU to CPU.
#[test]
fn no_connection_breaks_while_masks_change() {
    const CONNECTIONS: usize = 2000;
    const THREADS: usize = 4;
    const CHANGES: u32 = 24;
    allow_files(CONNECTIONS as u64 + 500);
    let Some(net) = Net::new(config(), 4) else { return };
    let (changes, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    let (open, handle) = (AtomicU32::new(0), net.handle.clone());
    net.client(|| ping(address(V4), 0));
    let connections = |share: usize| {
        let streams: Vec<TcpStream> = (0..CONNECTIONS / THREADS).map(|_| connect(V4, ECHO).unwrap()).collect();
        open.fetch_add(streams.len() as u32, Ordering::SeqCst);
        let mut round = 0;
        while round < 3 || changes.load(Ordering::SeqCst) < CHANGES {
            round += 1;
            let of = |nth: usize| payload((share * CONNECTIONS + nth) * 31 + round, 900 + nth % 1000);
            streams.iter().enumerate().for_each(|(nth, mut stream)| stream.write_all(&of(nth)).unwrap());
            for (nth, mut stream) in streams.iter().enumerate() {
                let mut got = vec![0; of(nth).len()];
                stream.read_exact(&mut got).unwrap();
                assert!(got == of(nth), "connection {nth} in round {round}");
            }
        }
        streams.into_iter().for_each(close);
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let masks = [&[0_u16][..], &[1, 2], &[0, 1, 2, 3], &[3], &[0, 3], &[1]];
            for mask in masks.iter().cycle() {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                if open.load(Ordering::SeqCst) < CONNECTIONS as u32 {
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                let mask: CpuMask = mask.iter().map(|cpu| CpuId(*cpu)).collect();
                handle.set_rps_cpus(&mask).unwrap();
                until("masks are in force", || handle.is_settled() || is_over.load(Ordering::SeqCst));
                changes.fetch_add(1, Ordering::SeqCst);
            }
        });
        let ours = &connections;
        let clients: Vec<_> = (0..THREADS)
            .map(|nth| {
                scope.spawn({
                    let net = &net;
                    move || net.client(|| ours(nth))
                })
            })
            .collect();
        let ended: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::SeqCst);
        ended.into_iter().for_each(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    });
    net.until_ended(End::Closed, CONNECTIONS as u64);
    let counts = net.responding.so_far();
    assert_eq!((counts.opened, counts.open), (CONNECTIONS as u64, 0));
    assert_eq!(counts.tcp_bytes_in, counts.tcp_bytes_out);
    assert_eq!((counts.ended(End::Lost), counts.get(Fate::Reset)), (0, 0));
    let snapshot = net.end();
    assert!(snapshot.moves.buckets > 4096, "{:?}", snapshot.moves);
}

#[test]
fn what_a_network_does_to_packets_no_byte_minds() {
    let faults = Faults::new(42).lose(20).duplicate(20).corrupt(10).reorder(30).delay(20, Duration::from_millis(3));
    let Some(net) = Net::with(config(), 2, Some(faults), |respond| respond) else { return };
    // The kernel resends lost ARP requests and neighbour solicitations.
    [V4, V6].iter().for_each(|to| net.client(|| ping(address(to), 100)));
    thread::scope(|scope| {
        for nth in 0..30 {
            let net = &net;
            let to = if nth % 2 == 0 { V4 } else { V6 };
            scope.spawn(move || {
                net.client(|| {
                    let stream = connect(to, ECHO).unwrap();
                    echo(&stream, &payload(nth, 15_000));
                    close(stream);
                    let stream = connect(to, RR).unwrap();
                    ask(&stream, 1);
                    close(stream);
                });
            });
        }
    });
    for counts in &net.faults {
        let FaultTotals { lost, duplicated, corrupted, reordered, delayed, .. } = counts.read();
        let each = [lost, duplicated, corrupted, reordered, delayed];
        assert!(each.iter().all(|count| *count > 0), "{each:?}");
    }
    let counts = net.responding.so_far();
    assert_eq!((counts.transactions, counts.ended(End::Lost), counts.ended(End::Aborted)), (30, 0, 0));
    assert!(counts.get(Fate::BadChecksum) > 0, "{counts:?}");
    net.end();
}

#[test]
fn a_slow_reader_holds_up_itself_alone() {
    let Some(net) = Net::new(config(), 1) else { return };
    net.client(|| {
        let mut slow = connect(V4, ECHO).unwrap();
        slow.set_nonblocking(true).unwrap();
        let bytes = payload(5, 8 << 20);
        let mut written = 0;
        // The client never reads, and writes until its socket accepts no more bytes.
        let mut stuck = 0;
        while stuck < 50 {
            match slow.write(&bytes[written..]) {
                Ok(more) => (written, stuck) = (written + more, 0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    stuck += 1;
                    thread::sleep(Duration::from_millis(10));
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(written < bytes.len());
        let other = connect(V4, ECHO).unwrap();
        echo(&other, &payload(6, 20_000));
        close(other);
        slow.set_nonblocking(false).unwrap();
        let mut got = vec![0; written];
        slow.read_exact(&mut got).unwrap();
        assert!(got == bytes[..written]);
        close(slow);
    });
    net.until_ended(End::Closed, 2);
    net.end();
}

#[test]
fn a_reset_ends_a_connection_and_one_too_many_is_reset() {
    let Some(net) = Net::new(config().connections_max(10).per_peer_max(10), 2) else { return };
    net.client(|| {
        let open = || {
            let stream = connect(V4, ECHO).unwrap();
            echo(&stream, b"open");
            stream
        };
        let mut streams: Vec<TcpStream> = (0..10).map(|_| open()).collect();
        assert_eq!(net.responding.so_far().open, 10);
        assert_eq!(connect(V4, ECHO).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        // Closes the connection with a reset.
        let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        let stream = streams.pop().unwrap();
        setsockopt(&stream, sockopt::Linger, &linger).unwrap();
        drop(stream);
        net.until_ended(End::Aborted, 1);
        streams.push(open());
        streams.into_iter().for_each(close);
    });
    net.until_ended(End::Closed, 10);
    assert_eq!(net.responding.so_far().refused, 1);
    net.end();
}

/// With this socket, a `connect` or a read fails after the time [`HANG`].
fn client_socket() -> OwnedFd {
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let hang = TimeVal::seconds(HANG.as_secs() as i64);
    setsockopt(&socket, sockopt::SendTimeout, &hang).unwrap();
    setsockopt(&socket, sockopt::ReceiveTimeout, &hang).unwrap();
    socket
}

/// With TCP Fast Open, Linux sends data in a SYN.
#[test]
fn a_kernel_that_sends_data_in_its_syn_is_answered() {
    let Some(net) = Net::new(config(), 1) else { return };
    net.client(|| {
        // In `tcp_fastopen`, 4 stands for data in a SYN even without a Fast Open cookie of an
        // earlier connection.
        std::fs::write("/proc/sys/net/ipv4/tcp_fastopen", "5").unwrap();
        let socket = client_socket();
        let to = SockaddrIn::from_str(&format!("{V4}:{ECHO}")).unwrap();
        let fast_open = MsgFlags::from_bits_retain(nix::libc::MSG_FASTOPEN);
        assert_eq!(sendto(socket.as_raw_fd(), b"early", &to, fast_open).unwrap(), 5);
        let mut stream = TcpStream::from(socket);
        let mut got = [0; 5];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"early");
        close(stream);
    });
    net.until_ended(End::Closed, 1);
    net.end();
}

/// After a restart, the peer's kernel replies to the challenge ACK with a reset.
#[test]
fn a_kernel_that_forgot_its_connection_connects_again() {
    let Some(net) = Net::new(config(), 1) else { return };
    net.client(|| {
        let connected = |port: u16| {
            let socket = client_socket();
            setsockopt(&socket, sockopt::ReuseAddr, &true).unwrap();
            bind(socket.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, port)).unwrap();
            let to = SockaddrIn::from_str(&format!("{V4}:{ECHO}")).unwrap();
            // A child that another test has just started may hold the first socket open, until the
            // child executes its program.
            until("the address of the first connection is free", || {
                match nix::sys::socket::connect(socket.as_raw_fd(), &to) {
                    Err(Errno::EADDRNOTAVAIL) => false,
                    connected => {
                        connected.unwrap();
                        true
                    }
                }
            });
            let stream = TcpStream::from(socket);
            echo(&stream, b"here");
            stream
        };
        let first = connected(0);
        let port = first.local_addr().unwrap().port();
        // In the mode `TCP_REPAIR`, closing a socket sends neither a FIN nor a reset.
        setsockopt(&first, sockopt::TcpRepair, &1).unwrap();
        drop(first);
        close(connected(port));
    });
    net.until_ended(End::Closed, 1);
    assert_eq!(net.ended(End::Aborted), 1);
    net.end();
}

#[test]
fn who_says_nothing_is_reset() {
    // On a loaded machine, the client may not run for a second before it sends.
    let Some(net) = Net::new(config().idle(Duration::from_secs(3)), 1) else { return };
    net.client(|| {
        let mut stream = connect(V6, ECHO).unwrap();
        echo(&stream, b"there");
        assert_eq!(stream.read(&mut [0; 10]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    });
    net.until_ended(End::Idle, 1);
    net.end();
}

struct Panics(Respond);

impl Handler for Panics {
    type Moved = Moved;
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        assert!(!batch.iter_mut().any(|packet| packet.data().ends_with(b"panic, please")), "as was asked for");
        self.0.handle(batch, cpu);
    }

    fn tick(&mut self, cpu: &mut Cpu) -> Option<Timestamp> {
        self.0.tick(cpu)
    }

    fn bucket_leaves(&mut self, bucket: BucketId) -> Option<Moved> {
        self.0.bucket_leaves(bucket)
    }

    fn bucket_arrives(&mut self, bucket: BucketId, state: Moved) {
        self.0.bucket_arrives(bucket, state);
    }

    fn finish(self, cpu: &mut Cpu) {
        self.0.finish(cpu);
    }
}

#[test]
fn a_panic_loses_connections_and_their_peers_are_told() {
    let Some(net) = Net::with(config(), 1, None, Panics) else { return };
    net.client(|| {
        let streams: Vec<TcpStream> = (0..100).map(|_| connect(V4, ECHO).unwrap()).collect();
        streams.iter().for_each(|stream| echo(stream, b"still here"));
        UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"panic, please", (V4, 9)).unwrap();
        net.until_ended(End::Lost, 100);
        for mut stream in streams {
            let _ = stream.write_all(b"and now?");
            assert_eq!(stream.read(&mut [0; 10]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        }
        let stream = connect(V4, ECHO).unwrap();
        echo(&stream, b"a new one");
        close(stream);
    });
    net.until_ended(End::Closed, 1);
    let (responding, running) = (Arc::clone(&net.responding), net.running.into_inner().unwrap());
    let snapshot = running.into_iter().map(handlers::end).next().unwrap();
    assert_at_rest(&snapshot);
    assert_eq!(snapshot.cpus[0].panics, 1);
    assert_eq!(responding.so_far().open, 0);
}
