//! Repeats the published experiment on RPS with requests and responses over many connections. The
//! servers are the kernel's network stack and the program `respond`, each with and without
//! steering.

mod cpu_time;
mod load;
mod namespaces;
mod server;

use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use steerage::topology::Topology;
use steerage::{CpuId, CpuMask, limits::CPUS_MAX};

use crate::error::LabError;
use crate::experiment::{Experiment, Settings};
use crate::host::READY;
use crate::measurement::Measurement;
use crate::placement::pin;
use load::OTHER_FILES;
use namespaces::{End, NamespacePair, SERVER_ADDRESS};
use server::Server;

pub use load::{Load, Measured, measure};

const PORT: u16 = 5000;

/// The length of a request and of a response in bytes, as in the published experiment.
const MESSAGE_BYTES: usize = 1;

/// If this process dies, `respond` ends at most this time after the planned end of its run.
const LEFT_ALONE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Serving {
    /// The kernel's network stack, with or without `rps_cpus`.
    Kernel { steers: bool },
    /// `respond` with AF_XDP or AF_PACKET, on one CPU or on all CPUs.
    Respond { xdp: bool, steers: bool },
}

const WAYS: [(&str, Serving); 6] = [
    ("kernel, no steering", Serving::Kernel { steers: false }),
    ("respond, no steering", Serving::Respond { xdp: false, steers: false }),
    ("respond by AF_XDP, no steering", Serving::Respond { xdp: true, steers: false }),
    ("kernel, rps_cpus", Serving::Kernel { steers: true }),
    ("respond, balance", Serving::Respond { xdp: false, steers: true }),
    ("respond by AF_XDP, balance", Serving::Respond { xdp: true, steers: true }),
];

/// Without network namespaces, the experiment has no cases, and reports the reason.
pub(crate) fn plan(settings: &Settings) -> Vec<Experiment> {
    let mut experiment = Experiment::new("rr", 3, settings);
    if settings.cpus.len() < 2 {
        experiment.skip("all of it: it takes 2 CPUs, one for the client and one for the server".to_owned());
        return vec![experiment];
    }
    let namespaces = match NamespacePair::new() {
        Ok(namespaces) => Arc::new(namespaces),
        Err(error) => {
            experiment.skip(error.to_string());
            return vec![experiment];
        }
    };
    experiment.takes(settings.warm_up + settings.rr_measured + Duration::from_millis(300));
    for (name, serving) in WAYS {
        let (connections, warm_up, measured) = (settings.connections, settings.warm_up, settings.rr_measured);
        let cpus = settings.cpus.clone();
        let trial = Trial { namespaces: Arc::clone(&namespaces), cpus, connections, warm_up, measured, serving };
        experiment.case(name, None, 2, move || trial.once());
    }
    vec![experiment]
}

struct Trial {
    namespaces: Arc<NamespacePair>,
    cpus: Vec<usize>,
    connections: usize,
    warm_up: Duration,
    measured: Duration,
    serving: Serving,
}

impl Trial {
    fn once(&self) -> Result<Measurement, LabError> {
        self.namespaces.forget()?;
        match self.serving {
            Serving::Kernel { steers } => self.beside_kernel(steers),
            Serving::Respond { xdp, steers } => {
                // Dropping `_respond` stops the process.
                let _respond = Respond::start(&self.namespaces, &self.args(xdp, steers))?;
                self.load()
            }
        }
    }

    fn mask(&self) -> CpuMask {
        self.cpus.iter().map(|cpu| CpuId(*cpu as u16)).collect()
    }

    fn args(&self, xdp: bool, steers: bool) -> Vec<String> {
        let interface = End::Server.interface();
        let device = if xdp { format!("af_xdp:{interface}") } else { interface.to_owned() };
        let [a, b, c, d] = SERVER_ADDRESS;
        let alone = (self.warm_up + self.measured + LEFT_ALONE).as_secs();
        let mut args = format!(
            "respond {device} --address {a}.{b}.{c}.{d} --rr {PORT}:{MESSAGE_BYTES}:{MESSAGE_BYTES} --seconds {alone} --rx-cpu {}",
            self.cpus[1]
        );
        let cpus = if steers { self.mask().to_string() } else { self.cpus[1].to_string() };
        args += &format!(" --cpus {cpus}");
        if xdp {
            // Packets between the two ends of a veth have no computed checksums.
            args += " --trust-checksums";
        }
        args.split_whitespace().map(str::to_owned).collect()
    }

    fn beside_kernel(&self, steers: bool) -> Result<Measurement, LabError> {
        self.namespaces.serve_by_kernel(true)?;
        let nr_cpu_ids = Topology::read().nr_cpu_ids().unwrap_or(CPUS_MAX);
        let mask = if steers { self.mask().to_bitmap(nr_cpu_ids) } else { "0".to_owned() };
        let figures = self.namespaces.set_rps_cpus(&mask).and_then(|()| {
            load::allow_files(2 * self.connections as u64 + OTHER_FILES);
            self.with_server()
        });
        let cleaned = self.namespaces.set_rps_cpus("0").and(self.namespaces.serve_by_kernel(false));
        figures.and_then(|figures| cleaned.map(|()| figures))
    }

    fn with_server(&self) -> Result<Measurement, LabError> {
        let failed = |error: io::Error| LabError::set_up("a server by the kernel's sockets", error);
        let at = SocketAddr::from((SERVER_ADDRESS, PORT));
        let listen = || Server::listen(at, MESSAGE_BYTES, MESSAGE_BYTES);
        let mut server = self.namespaces.within(End::Server, listen).map_err(failed)?;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let serving = scope.spawn(|| {
                pin(self.cpus[1])?;
                server.serve(&stop).map_err(failed)
            });
            let figures = self.load();
            stop.store(true, Ordering::Relaxed);
            serving.join().unwrap_or(Err(LabError::Panicked)).and(figures)
        })
    }

    fn load(&self) -> Result<Measurement, LabError> {
        let load = Load {
            target: SocketAddr::from((SERVER_ADDRESS, PORT)),
            udp: false,
            connections: self.connections,
            threads: 1,
            request: MESSAGE_BYTES,
            response: MESSAGE_BYTES,
            warm_up: self.warm_up,
            measured: self.measured,
        };
        self.namespaces.enter(End::Client).map_err(|error| LabError::set_up("into a namespace", error))?;
        pin(self.cpus[0])?;
        let measured = measure(&load)?;
        match measured.first_error.as_deref() {
            Some(why) => {
                Err(LabError::set_up("whole responses", format!("{} connections broke: {why}", measured.broken)))
            }
            None => Ok(measured.measurement()),
        }
    }
}

/// A process `steerage-lab respond`, which ends when its standard input ends: when this value is
/// dropped, or when this process dies.
struct Respond {
    child: Child,
    /// Reads standard error to its end, so that `respond` never blocks when it writes.
    said: Option<JoinHandle<()>>,
}

impl Respond {
    fn start(namespaces: &NamespacePair, args: &[String]) -> Result<Self, LabError> {
        let failed = |error: io::Error| LabError::set_up("a server by steerage", error);
        let spawn = || {
            let mut command = Command::new("/proc/self/exe");
            command.args(args).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
            // In a process group of its own, `respond` does not get the signal of Ctrl-C.
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
}

impl Drop for Respond {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
        if let Some(said) = self.said.take() {
            let _ = said.join();
        }
    }
}

/// Waits until the process is ready. If the process ends earlier, the error contains the last line
/// of its standard error.
fn until_ready(err: &mut BufReader<ChildStderr>) -> io::Result<()> {
    let mut last = String::new();
    loop {
        let mut line = String::new();
        if err.take(LINE_MAX).read_line(&mut line)? == 0 {
            let why = last.trim().trim_start_matches("steerage-lab: ").to_owned();
            return Err(io::Error::other(if why.is_empty() { "it ended at once".to_owned() } else { why }));
        }
        if line.trim() == READY {
            return Ok(());
        }
        last = line;
    }
}

const LINE_MAX: u64 = 1 << 16;
