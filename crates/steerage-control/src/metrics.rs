//! Metrics for Prometheus, served over HTTP: `GET /metrics` and nothing else.
//!
//! [`Listener::bind`] binds the socket, which may need a privilege. [`Listener::serve`] starts one thread, which serves
//! clients until the returned [`Server`] is dropped. The thread reads the ledger for each request, and does not disturb
//! the data path. It waits for no client: each has a limited buffer and limited time, and if there are too many, the
//! oldest is disconnected.
//!
//! docs/metrics.md describes each metric. No metric exists per flow or per bucket, so their number depends only on
//! queues and CPUs.

mod families;
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

/// Where metrics are served unless another address is chosen: on this machine only. The ports that Prometheus keeps a list
/// of, 9100 to 9999, are all taken.
pub const ADDRESS_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10_777);

/// What there is to tell.
pub struct Source {
    /// Whose ledger it is.
    pub handle: Handle,
    /// The program's version, for `steerage_build_info`.
    pub version: &'static str,
    /// What the packet function has to tell: asked for each page.
    pub more: Option<More>,
}

/// Tells a packet function's own metrics, each time the same ones.
pub type More = Box<dyn Fn() -> Vec<Metric> + Send>;

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

/// A metric of a packet function's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// What Prometheus' [conventions](https://prometheus.io/docs/practices/naming/) make of it, without the `steerage_` before it
    /// and a counter's `_total` behind it.
    /// None of the ledger's, which [`names`] lists: Prometheus refuses a page that has a metric twice.
    pub name: &'static str,
    /// What it says, as a sentence.
    pub help: &'static str,
    /// How it changes.
    pub kind: MetricKind,
    /// Its values, each with the label that tells it from the others: a label's name and value.
    pub samples: Vec<(Option<(&'static str, &'static str)>, u64)>,
}

/// How a metric changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows.
    Counter,
    /// It grows and shrinks.
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
    /// A number that only grows.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Counter, samples: vec![(None, value)] }
    }

    /// Several, told apart by what `label` says.
    pub fn counters(
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> Self {
        let samples = values.into_iter().map(|(value, count)| (Some((label, value)), count)).collect();
        Self { name, help, kind: MetricKind::Counter, samples }
    }

    /// A number that grows and shrinks.
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Gauge, samples: vec![(None, value)] }
    }

    /// Its name, as it is served.
    pub fn served_as(&self) -> String {
        families::served_as(self.name, self.kind.in_prometheus_words())
    }
}

/// The address cannot be listened at.
#[derive(Debug)]
pub struct BindError {
    address: SocketAddr,
    error: io::Error,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, error } = self;
        let advice = match error.kind() {
            io::ErrorKind::AddrInUse => "another program has that port: choose another port",
            io::ErrorKind::AddrNotAvailable => "this machine has no such address: `ip address` lists those it has",
            io::ErrorKind::PermissionDenied => "ports below 1024 are for root: choose a higher one",
            _ => "choose another address",
        };
        write!(f, "cannot serve metrics at {address}: {error}; {advice}")
    }
}

impl std::error::Error for BindError {}

/// An address that is listened at; whoever connects waits until there is something to tell.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Listens at `address`; port 0 has the kernel choose one.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let bound = TcpListener::bind(address).and_then(|socket| {
            socket.set_nonblocking(true)?;
            let address = socket.local_addr()?;
            Ok(Self { socket, address })
        });
        bound.map_err(|error| BindError { address, error })
    }

    /// Where it listens, with the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Has a thread of its own answer whoever asks.
    ///
    /// # Errors
    /// If there can be no such thread.
    pub fn serve(self, source: Source) -> io::Result<Server> {
        let (stop, stopped) = UnixStream::pair()?;
        let thread = thread::Builder::new().name("metrics".to_owned());
        let thread = thread.spawn(move || serve::run(&self.socket, &stopped, &|| page::of(&source)))?;
        Ok(Server { stop: Some(stop), thread: Some(thread) })
    }
}

/// Metrics being served; no more once it is dropped.
#[derive(Debug)]
pub struct Server {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // The other end hears of it.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Answers the head of an HTTP request, with a page of one metric.
pub(crate) fn answer(received: &[u8]) -> Option<Vec<u8>> {
    http::answer(received, &|| "steerage_x 1\n".to_owned())
}
