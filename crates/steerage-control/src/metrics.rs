//! Metrics for Prometheus, served over HTTP: `GET /metrics` and nothing else.
//!
//! [`Listener::bind`] binds the socket, which may need a privilege. [`Listener::serve`] starts one thread, which serves
//! clients until the returned [`Server`] is dropped. The thread reads the ledger for requests, and does not disturb
//! the data path. It waits for no client: each has a limited buffer and limited time, and if there are too many, a
//! client of the host that has the most makes way.
//!
//! docs/metrics.md describes each metric. No metric exists per flow or per bucket, so their number depends only on
//! queues and CPUs.
//!
//! The server answers to addresses and to the names of its machine only. [`Listener::answering_to`] adds names.

mod families;
mod hosts;
mod http;
mod page;
mod serve;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

use prometheus_client::metrics::MetricType;
use steerage::Handle;

pub use families::names;

/// The address at which metrics are served by default: this machine only. Ports 9100 to 9999, which
/// Prometheus keeps a list of, are all taken.
pub const ADDRESS_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10_777);

/// The instance and the values that the metrics are made from.
pub struct Source {
    /// The instance whose ledger is served.
    pub handle: Handle,
    /// The program's version, for `steerage_build_info`.
    pub version: &'static str,
    /// The packet function's own metrics, if it has any. The server calls this for each page.
    pub more: Option<More>,
}

/// Returns a packet function's own metrics. Each call returns the same metrics, with new values.
pub type More = Box<dyn Fn() -> Vec<Metric> + Send>;

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

/// A metric of a packet function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name, by Prometheus' [conventions](https://prometheus.io/docs/practices/naming/),
    /// without the prefix `steerage_` and without a counter's suffix `_total`.
    ///
    /// The ledger's metrics, which [`names`] lists, must not be used again: Prometheus refuses a
    /// page that has a metric twice.
    pub name: &'static str,
    /// The help text of the metric, as a sentence.
    pub help: &'static str,
    /// Whether the value can shrink.
    pub kind: MetricKind,
    /// The values. Each has a label, as name and value, if the metric has several.
    pub samples: Vec<(Option<(&'static str, &'static str)>, u64)>,
}

/// Whether a metric's value can shrink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// The value only grows.
    Counter,
    /// The value grows and shrinks.
    Gauge,
}

impl MetricKind {
    fn in_prometheus_words(self) -> MetricType {
        match self {
            Self::Counter => MetricType::Counter,
            Self::Gauge => MetricType::Gauge,
        }
    }
}

impl Metric {
    /// A single value that only grows.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Counter, samples: vec![(None, value)] }
    }

    /// Several values that only grow. Each has its own value of the label `label`.
    pub fn counters(
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> Self {
        let samples = values.into_iter().map(|(value, count)| (Some((label, value)), count)).collect();
        Self { name, help, kind: MetricKind::Counter, samples }
    }

    /// A single value that grows and shrinks.
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Gauge, samples: vec![(None, value)] }
    }

    /// The full name of the metric, as it is served.
    pub fn served_as(&self) -> String {
        families::served_as(self.name, self.kind.in_prometheus_words())
    }
}

/// Why the server cannot listen at an address.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics at {address}: {error}; {}", advice(.error))]
pub struct BindError {
    address: SocketAddr,
    error: io::Error,
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another program has that port: choose another port",
        io::ErrorKind::AddrNotAvailable => "this machine has no such address: `ip address` lists those it has",
        io::ErrorKind::PermissionDenied => "ports below 1024 are for root: choose a higher one",
        _ => "choose another address",
    }
}

/// A socket that listens. Clients that connect wait until [`serve`](Self::serve) is called.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    hosts: hosts::Hosts,
}

impl Listener {
    /// Listens at `address`. With port 0, the kernel chooses a port.
    ///
    /// # Errors
    /// If the kernel refuses the address.
    pub fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let bound = TcpListener::bind(address).and_then(|socket| {
            socket.set_nonblocking(true)?;
            let address = socket.local_addr()?;
            Ok(Self { socket, address, hosts: hosts::Hosts::with_own_name(&[]) })
        });
        bound.map_err(|error| BindError { address, error })
    }

    /// Also answers requests whose header `Host` has one of these names. Other names than these,
    /// `localhost` and the machine's own are refused, because DNS can lead anybody's name here.
    /// Addresses are always accepted.
    #[must_use]
    pub fn answering_to(mut self, names: &[String]) -> Self {
        self.hosts = hosts::Hosts::with_own_name(names);
        self
    }

    /// The address at which it listens, with the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts a thread that answers clients.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn serve(self, source: Source) -> io::Result<Server> {
        let (stop, stopped) = UnixStream::pair()?;
        let thread = thread::Builder::new().name("metrics".to_owned());
        let thread = thread.spawn(move || serve::run(&self.socket, &stopped, &self.hosts, &|| page::of(&source)))?;
        Ok(Server { stop: Some(stop), thread: Some(thread) })
    }
}

/// A running metrics server. It stops when this is dropped.
#[derive(Debug)]
pub struct Server {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // The thread sees that this end of the pair is closed.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers the head of an HTTP request, with a page of one metric.
pub(crate) fn answer(received: &[u8]) -> Option<Vec<u8>> {
    http::answer(received, &hosts::Hosts::new(&[]), &|| "steerage_x 1\n")
}
