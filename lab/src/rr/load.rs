//! A load generator like netperf's TCP_RR and UDP_RR: one request in flight per connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::cpu_time::CpuTime;
use crate::error::LabError;
use crate::histogram::Histogram;
use crate::measurement::Measurement;

const CONNECT_MAX: Duration = Duration::from_secs(10);

/// After this time, a datagram counts as lost and is sent again. (UDP_RR of netperf stops after a
/// lost datagram.)
const LOST_AFTER: Duration = Duration::from_secs(1);

/// The interval of checks for lost datagrams and for the end of the measured time.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// The number of events that epoll returns at a time: about the default number of connections.
pub(super) const EVENTS: usize = 512;

pub(super) const OTHER_FILES: u64 = 64;

const PIECE_BYTES: usize = 64 << 10;

/// The options of a load.
#[derive(Clone, Debug)]
pub struct Load {
    /// The address and port of the server.
    pub target: SocketAddr,
    /// If true, requests and responses are UDP datagrams.
    pub udp: bool,
    /// The number of connections, each with one request in flight.
    pub connections: usize,
    /// The number of threads, which share the connections.
    pub threads: usize,
    /// The length of a request in bytes.
    pub request: usize,
    /// The length of a response in bytes.
    pub response: usize,
    /// The time before the measurement begins.
    pub warm_up: Duration,
    /// The time that is measured.
    pub measured: Duration,
}

/// The result of a load.
#[derive(Debug)]
pub struct Measured {
    elapsed: Duration,
    latency: Histogram,
    /// The mean number of CPUs that this process used. `machine_cpus`: the mean number of CPUs that
    /// the whole machine used.
    process_cpus: f64,
    machine_cpus: Option<f64>,
    /// The number of connections that broke.
    pub broken: u64,
    lost: u64,
    /// Why the first connection broke.
    pub first_error: Option<String>,
}

impl Measured {
    /// Returns the result as metrics.
    pub fn measurement(&self) -> Measurement {
        let per_second = self.latency.count() as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let percentiles = [("p50_us", 500), ("p90_us", 900), ("p99_us", 990), ("p999_us", 999)];
        let all = percentiles.into_iter().fold(Measurement::of("ktps", per_second / 1e3), |all, (name, permille)| {
            all.and(name, micros(self.latency.permille(permille)))
        });
        all.and("max_us", micros(self.latency.max()))
            .and("client_cpus", self.process_cpus)
            .and("cpus", self.machine_cpus.unwrap_or(f64::NAN))
            .and("cpu_us", 1e6 * self.machine_cpus.unwrap_or(f64::NAN) / per_second)
            .and("lost", self.lost as f64)
            .and("broken", self.broken as f64)
    }
}

/// Connects to the server, warms up, and measures the load.
///
/// # Errors
/// Returns an error if the connections to the server fail, or if no request gets a response.
pub fn measure(args: &Load) -> Result<Measured, LabError> {
    allow_files(args.connections as u64 + OTHER_FILES);
    let threads = args.threads.min(args.connections);
    let share = |nth: usize| args.connections / threads + usize::from(nth < args.connections % threads);
    let mut shares: Vec<Share> = (0..threads).map(|nth| Share::connect(args, share(nth))).collect::<Result<_, _>>()?;
    let barrier = Barrier::new(threads + 1);
    let results: Vec<io::Result<Tally>> = thread::scope(|scope| {
        let run = |share| scope.spawn(|| run_share(share, &barrier, args));
        let running: Vec<_> = shares.iter_mut().map(run).collect();
        barrier.wait();
        running
            .into_iter()
            .map(|share| share.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
            .collect()
    });
    let mut measured = Measured {
        elapsed: Duration::ZERO,
        latency: Histogram::new(),
        process_cpus: 0.0,
        machine_cpus: None,
        broken: 0,
        lost: 0,
        first_error: None,
    };
    for tally in results {
        let tally = tally.map_err(|error| LabError::set_up("responses", error))?;
        measured.latency.merge(&tally.latency);
        measured.broken += tally.broken;
        measured.lost += tally.lost;
        measured.first_error = measured.first_error.or(tally.first_error);
        // Threads detect the end of the measured time at different moments, so the longest measured
        // time counts.
        if tally.elapsed > measured.elapsed {
            measured.elapsed = tally.elapsed;
            (measured.process_cpus, measured.machine_cpus) = tally.cpus;
        }
    }
    match (&measured.first_error, measured.latency.count()) {
        (Some(error), 0) => Err(LabError::set_up("a response", format!("{}: {error}", args.target))),
        (None, 0) => Err(LabError::set_up("a response", format!("does {} serve such requests?", args.target))),
        _ => Ok(measured),
    }
}

/// Ignores errors: if the kernel rejects the limit on open files, a later connect fails.
pub(super) fn allow_files(needed: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        let most = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum });
    }
}

enum Stream {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Stream {
    fn connect(target: SocketAddr, udp: bool) -> io::Result<Self> {
        if udp {
            let any: SocketAddr = if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
            let socket = UdpSocket::bind(any)?;
            socket.connect(target)?;
            socket.set_nonblocking(true)?;
            return Ok(Self::Udp(socket));
        }
        let stream = TcpStream::connect_timeout(&target, CONNECT_MAX)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self::Tcp(stream))
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*stream).write(bytes),
            Self::Udp(socket) => socket.send(bytes),
        }
    }

    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => match (&*stream).read(bytes) {
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                other => other,
            },
            Self::Udp(socket) => socket.recv(bytes),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Udp(socket) => socket.as_fd(),
        }
    }
}

struct Connection {
    stream: Stream,
    to_write: usize,
    to_read: usize,
    asked: Instant,
}

struct Share {
    epoll: std::os::fd::OwnedFd,
    connections: Vec<Option<Connection>>,
    piece: Vec<u8>,
}

struct Tally {
    elapsed: Duration,
    latency: Histogram,
    cpus: (f64, Option<f64>),
    broken: u64,
    lost: u64,
    first_error: Option<String>,
}

impl Share {
    fn connect(args: &Load, count: usize) -> Result<Self, LabError> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|error| LabError::set_up("an epoll", error))?;
        let mut connections = Vec::with_capacity(count);
        for nth in 0..count {
            let refused = |error| {
                LabError::set_up("a connection", format!("{}, with {nth} connections made: {error}", args.target))
            };
            let stream = Stream::connect(args.target, args.udp).map_err(refused)?;
            // Edge-triggered events require reading and writing until the call would block.
            let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
            epoll::add(&epoll, &stream, EventData::new_u64(nth as u64), flags)
                .map_err(|error| LabError::set_up("events of a socket", error))?;
            let (to_write, to_read) = (args.request, args.response);
            connections.push(Some(Connection { stream, to_write, to_read, asked: Instant::now() }));
        }
        Ok(Self { epoll, connections, piece: vec![0; PIECE_BYTES] })
    }
}

fn run_share(share: &mut Share, barrier: &Barrier, args: &Load) -> io::Result<Tally> {
    let mut tally = Tally {
        elapsed: Duration::ZERO,
        latency: Histogram::new(),
        cpus: (0.0, None),
        broken: 0,
        lost: 0,
        first_error: None,
    };
    let mut events = Vec::with_capacity(EVENTS);
    barrier.wait();
    let now = Instant::now();
    share.connections.iter_mut().flatten().for_each(|connection| connection.asked = now);
    let (mut begin, mut next_look) = (now + args.warm_up, now + LOOK);
    let (mut before, mut is_warm) = (CpuTime::now(), false);
    let wait = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
    loop {
        events.clear();
        match epoll::wait(&share.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            // `data` is a copy, because on some architectures, the field of the epoll event is not
            // aligned.
            let data = event.data;
            let at = data.u64() as usize;
            share.go_on(at, args, is_warm, &mut tally);
        }
        let now = Instant::now();
        if now < next_look {
            continue;
        }
        next_look = now + LOOK;
        if !is_warm && now >= begin {
            (is_warm, begin, before) = (true, now, CpuTime::now());
        } else if is_warm && now >= begin + args.measured {
            tally.elapsed = now - begin;
            tally.cpus = CpuTime::now().since(before, tally.elapsed);
            return Ok(tally);
        }
        if args.udp {
            share.ask_again(args, now, &mut tally);
        }
        if share.connections.iter().all(Option::is_none) {
            tally.elapsed = now.saturating_duration_since(begin);
            return Ok(tally);
        }
    }
}

impl Share {
    fn go_on(&mut self, at: usize, args: &Load, is_warm: bool, tally: &mut Tally) {
        let Some(connection) = &mut self.connections[at] else { return };
        if let Err(error) = connection.go_on(&mut self.piece, args, is_warm, tally) {
            tally.broken += 1;
            tally.first_error.get_or_insert_with(|| error.to_string());
            self.connections[at] = None;
        }
    }

    fn ask_again(&mut self, args: &Load, now: Instant, tally: &mut Tally) {
        for connection in self.connections.iter_mut().flatten() {
            if now.duration_since(connection.asked) >= LOST_AFTER {
                (connection.to_write, connection.to_read, connection.asked) = (args.request, args.response, now);
                tally.lost += 1;
                // If the socket's buffer is full, epoll reports an event when it has space.
                let _ = connection.write(&self.piece);
            }
        }
    }
}

impl Connection {
    fn go_on(&mut self, piece: &mut [u8], args: &Load, is_warm: bool, tally: &mut Tally) -> io::Result<()> {
        loop {
            if !self.write(piece)? {
                return Ok(());
            }
            let read = match self.stream.read(piece) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if read > self.to_read || args.udp && read < self.to_read {
                let wrong = format!("{read} bytes came where {} were to come", self.to_read);
                return Err(io::Error::new(io::ErrorKind::InvalidData, wrong));
            }
            self.to_read -= read;
            if self.to_read == 0 {
                let now = Instant::now();
                if is_warm {
                    tally.latency.add((now - self.asked).as_nanos() as u64);
                }
                (self.to_write, self.to_read, self.asked) = (args.request, args.response, now);
            } else if read < piece.len() {
                // Epoll reports an event when more data arrives.
                return Ok(());
            }
            // No response can arrive before the request is written.
            if self.to_write > 0 {
                self.write(piece)?;
                return Ok(());
            }
        }
    }

    /// Returns true if the whole request is written.
    fn write(&mut self, piece: &[u8]) -> io::Result<bool> {
        while self.to_write > 0 {
            match self.stream.write(&piece[..self.to_write.min(piece.len())]) {
                Ok(written) => self.to_write -= written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
