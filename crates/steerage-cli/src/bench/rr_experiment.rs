//! The experiment that RPS was published with: requests and responses over many connections, the kernel's stack beside
//! `steerage respond` as the server, with steering and without.

use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use steerage::{CpuId, CpuMask};
use steerage_lab::benchmark::{Benchmark, Description, Settings};
use steerage_lab::error::BenchError;
use steerage_lab::measurement::Measurement;
use steerage_lab::placement::pin;
use steerage_lab::published::RPS;
use steerage_lab::report::ChartKind;

use super::namespaces::{End, NamespacePair, SERVER_ADDRESS};
use super::rr::{self, Load, OTHER_FILES};
use super::server::Server;
use crate::host_cpus::nr_cpu_ids;

const DESCRIPTION: Description = Description {
    name: "rr",
    title: "Requests and responses: the kernel's stack beside respond",
    question: "Many connections, each with a request of a byte under way or its response of a byte. The client is on one CPU, with the \
               kernel's sockets; the server, behind a veth, is on another: the kernel's stack and one thread with epoll, or respond. With \
               steering, all CPUs may be the server's, so that it shares one with the client.",
    published: Some(&RPS),
    x: "",
    rounds: 3,
};

const PORT: u16 = 5000;

/// How long a server may take to start, and to stop.
const PATIENCE: Duration = Duration::from_secs(20);

/// How much longer than its run a server may live if this process dies and cannot stop it.
const LEFT_ALONE: Duration = Duration::from_secs(60);

/// The options of each run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) connections: usize,
    pub(crate) threads: usize,
    pub(crate) request: usize,
    pub(crate) response: usize,
    pub(crate) warm_up: Duration,
    pub(crate) measured: Duration,
}

/// The server of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Serving {
    /// The kernel's stack, with rps_cpus or without.
    Kernel { steers: bool },
    /// `steerage respond` by a device, on one CPU or on all.
    Respond { xdp: bool, steers: bool },
}

const KERNEL: &str = "kernel, no steering";
const KERNEL_RPS: &str = "kernel, rps_cpus";
const PACKET: &str = "respond, no steering";
const PACKET_ALL: &str = "respond, balance";
const XDP: &str = "respond by AF_XDP, no steering";
const XDP_ALL: &str = "respond by AF_XDP, balance";

const WAYS: [(&str, Serving); 6] = [
    (KERNEL, Serving::Kernel { steers: false }),
    (PACKET, Serving::Respond { xdp: false, steers: false }),
    (XDP, Serving::Respond { xdp: true, steers: false }),
    (KERNEL_RPS, Serving::Kernel { steers: true }),
    (PACKET_ALL, Serving::Respond { xdp: false, steers: true }),
    (XDP_ALL, Serving::Respond { xdp: true, steers: true }),
];

/// The experiment. If namespaces cannot be created, it has no cases, and states the reason.
pub(crate) fn plan(settings: &Settings, shape: Shape) -> Benchmark {
    let mut plan = Benchmark::new(DESCRIPTION, settings)
        .metric("ktps", "transactions", "k/s", true)
        .metric("p50_us", "median latency", "us", false)
        .metric("p99_us", "latency, 99 of 100", "us", false)
        .metric("cpus", "the machine's CPU time", "CPUs", false)
        .compare(PACKET, KERNEL)
        .compare(XDP, KERNEL)
        .compare(PACKET_ALL, KERNEL_RPS)
        .compare(XDP_ALL, KERNEL_RPS)
        .compare(KERNEL_RPS, KERNEL)
        .beside(&RPS)
        .compare(PACKET_ALL, PACKET)
        .compare(XDP_ALL, XDP)
        .chart(ChartKind::Bars, "ktps", "Transactions")
        .chart(ChartKind::Bars, "p50_us", "Median latency")
        .chart(ChartKind::Distribution, "", "Latency");
    if settings.cpus.len() < 2 {
        plan.skip("all of it: it takes 2 CPUs, one for the client and one for the server".to_owned());
        return plan;
    }
    let namespaces = match NamespacePair::new() {
        Ok(namespaces) => Arc::new(namespaces),
        Err(error) => {
            plan.skip(error.to_string());
            return plan;
        }
    };
    plan.takes(shape.warm_up + shape.measured + Duration::from_millis(300));
    for (name, serving) in WAYS {
        let trial = Trial { namespaces: Arc::clone(&namespaces), cpus: settings.cpus.clone(), shape, serving };
        plan.case(name, None, 2, move || trial.once());
    }
    plan
}

struct Trial {
    namespaces: Arc<NamespacePair>,
    /// The client's CPU, the server's, and others.
    cpus: Vec<usize>,
    shape: Shape,
    serving: Serving,
}

impl Trial {
    fn once(&self) -> Result<Measurement, BenchError> {
        self.namespaces.forget()?;
        match self.serving {
            Serving::Kernel { steers } => self.beside_kernel(steers),
            Serving::Respond { xdp, steers } => {
                let mut respond = Respond::start(&self.namespaces, &self.args(xdp, steers))?;
                let figures = self.load();
                respond.stop();
                figures
            }
        }
    }

    fn mask(&self) -> CpuMask {
        self.cpus.iter().map(|cpu| CpuId(*cpu as u16)).collect()
    }

    /// The arguments of `steerage respond`.
    fn args(&self, xdp: bool, steers: bool) -> Vec<String> {
        let Shape { request, response, warm_up, measured, .. } = self.shape;
        let interface = End::Server.interface();
        let device = if xdp { format!("af_xdp:{interface}") } else { interface.to_owned() };
        let [a, b, c, d] = SERVER_ADDRESS;
        let alone = (warm_up + measured + LEFT_ALONE).as_secs();
        let mut args = format!(
            "respond {device} --address {a}.{b}.{c}.{d} --rr {PORT}:{request}:{response} --json -v --seconds {alone} --rx-cpu {}",
            self.cpus[1]
        );
        let cpus = if steers { self.mask().to_string() } else { self.cpus[1].to_string() };
        args += &format!(" --cpus {cpus}");
        if xdp {
            // Packets between the ends of a veth have no checksums.
            args += " --trust-checksums";
        }
        args.split_whitespace().map(str::to_owned).collect()
    }

    fn beside_kernel(&self, steers: bool) -> Result<Measurement, BenchError> {
        self.namespaces.serve_by_kernel(true)?;
        let mask = if steers { self.mask().to_bitmap(nr_cpu_ids()) } else { "0".to_owned() };
        let figures = self.namespaces.set_rps_cpus(&mask).and_then(|()| {
            rr::allow_files(2 * self.shape.connections as u64 + OTHER_FILES);
            self.with_server()
        });
        let cleaned = self.namespaces.set_rps_cpus("0").and(self.namespaces.serve_by_kernel(false));
        figures.and_then(|figures| cleaned.map(|()| figures))
    }

    fn with_server(&self) -> Result<Measurement, BenchError> {
        let failed = |error: io::Error| BenchError::set_up("a server by the kernel's sockets", error);
        let at = SocketAddr::from((SERVER_ADDRESS, PORT));
        let listen = || Server::listen(at, self.shape.request, self.shape.response);
        let mut server = self.namespaces.within(End::Server, listen).map_err(failed)?;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let serving = scope.spawn(|| {
                pin(self.cpus[1])?;
                server.serve(&stop).map_err(failed)
            });
            let figures = self.load();
            stop.store(true, Ordering::Relaxed);
            serving.join().unwrap_or(Err(BenchError::Panicked)).and(figures)
        })
    }

    /// Runs the client on this thread and on threads that it starts.
    fn load(&self) -> Result<Measurement, BenchError> {
        let Shape { connections, threads, request, response, warm_up, measured } = self.shape;
        let target = SocketAddr::from((SERVER_ADDRESS, PORT));
        let load = Load { target, udp: false, connections, threads, request, response, warm_up, seconds: measured };
        self.namespaces.enter(End::Client).map_err(|error| BenchError::set_up("into a namespace", error))?;
        pin(self.cpus[0])?;
        let measured = rr::measure(&load, || Ok(())).map_err(|error| BenchError::set_up("responses", error))?;
        if measured.broken > 0 {
            let why = measured.first_error.as_deref().unwrap_or("unknown");
            return Err(BenchError::set_up("whole responses", format!("{} connections broke: {why}", measured.broken)));
        }
        let micros = |permille| measured.latency.permille(permille) as f64 / 1e3;
        let figures =
            Measurement::of("ktps", measured.per_second() / 1e3).and("p50_us", micros(500)).and("p99_us", micros(990));
        let figures = measured.machine_cpus.into_iter().fold(figures, |figures, cpus| figures.and("cpus", cpus));
        Ok(Measurement { latencies: measured.latency.latencies(), ..figures })
    }
}

/// `steerage respond` in a process of its own, which is killed when this is dropped.
struct Respond {
    child: Child,
    /// Reads its standard error to the end, so that it never blocks.
    said: Option<JoinHandle<()>>,
}

impl Respond {
    fn start(namespaces: &NamespacePair, args: &[String]) -> Result<Self, BenchError> {
        let failed = |error: io::Error| BenchError::set_up("`steerage respond`", error);
        let spawn = || {
            let mut command = Command::new("/proc/self/exe");
            command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            // In a process group of its own it does not get the signal of Ctrl-C. We stop it.
            command.process_group(0).spawn()
        };
        let mut child = namespaces.within(End::Server, spawn).map_err(failed)?;
        let err = child.stderr.take();
        let mut respond = Self { child, said: None };
        let Some(err) = err else { return Ok(respond) };
        let mut err = BufReader::new(err);
        until_ready(&mut err).map_err(failed)?;
        respond.said = Some(thread::spawn(move || drop(io::copy(&mut err, &mut io::sink()))));
        Ok(respond)
    }

    fn stop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // An error means that it has ended already.
            let _ = kill_process(pid, Signal::TERM);
        }
        let start = Instant::now();
        while start.elapsed() < PATIENCE && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Reads its standard error until it is ready. If it ends before, its last line is the reason.
fn until_ready(err: &mut BufReader<ChildStderr>) -> io::Result<()> {
    let mut last = String::new();
    loop {
        let mut line = String::new();
        if err.take(LINE_MAX).read_line(&mut line)? == 0 {
            let why = last.trim().trim_start_matches("steerage: ").to_owned();
            return Err(io::Error::other(if why.is_empty() { "it ended at once".to_owned() } else { why }));
        }
        if line.contains("signals are listened to") {
            return Ok(());
        }
        last = line;
    }
}

/// The longest line that is read.
const LINE_MAX: u64 = 1 << 16;

impl Drop for Respond {
    fn drop(&mut self) {
        // This does nothing if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(said) = self.said.take() {
            let _ = said.join();
        }
    }
}
