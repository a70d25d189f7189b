//! Serves metrics to Prometheus over HTTP: only `GET /metrics`.
//!
//! [`Listener::bind`] binds the socket, which may need a privilege. [`Listener::serve`] starts one
//! thread, which serves clients until the returned [`Server`] is dropped. For each request, the
//! thread reads the ledger without disturbing the data path. The thread waits for no client: each
//! client has a limited buffer and limited time. If there are too many clients, a client of the
//! host with the most clients is disconnected.
//!
//! docs/metrics.md describes each metric. No metric exists per flow or per bucket, so the number of
//! metrics depends only on queues and CPUs.
//!
//! The server only answers requests to addresses and to the names of its machine.
//! [`Listener::answering_to`] adds names.

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

/// The default address for metrics: only this machine can connect. Prometheus keeps a list of
/// default ports from 9100 to 9999, and all of these ports are taken.
pub const ADDRESS_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10_777);

/// The instance and the values that the metrics come from.
pub struct Source {
    /// The instance whose ledger is served. `None` for a program that handles no packets.
    pub handle: Option<Handle>,
    /// The program's version, for `steerage_build_info`.
    pub version: &'static str,
    /// The handler's own metrics, if it has any. The server calls this function for each page.
    pub more: Option<More>,
}

/// Returns a handler's own metrics. Each call must return the same metrics, with the current
/// values.
pub type More = Box<dyn Fn() -> Vec<Metric> + Send>;

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

/// A metric of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name according to Prometheus'
    /// [conventions](https://prometheus.io/docs/practices/naming/), without the prefix `steerage_`
    /// and without a counter's suffix `_total`.
    ///
    /// The ledger's metrics, which [`names`] lists, must not be repeated: Prometheus refuses a page
    /// that contains a metric twice.
    pub name: &'static str,
    /// The help text of the metric, as a sentence.
    pub help: &'static str,
    /// Whether the value can decrease.
    pub kind: MetricKind,
    /// The values. If the metric has several values, each has a label with a name and a value.
    pub samples: Vec<(Option<(&'static str, &'static str)>, u64)>,
}

/// Whether a metric's value can decrease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// The value only increases.
    Counter,
    /// The value increases and decreases.
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
    /// A metric with a single value that only increases.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Counter, samples: vec![(None, value)] }
    }

    /// A metric with several values that only increase. Each value has its own value of the label
    /// `label`.
    pub fn counters(
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> Self {
        let samples = values.into_iter().map(|(value, count)| (Some((label, value)), count)).collect();
        Self { name, help, kind: MetricKind::Counter, samples }
    }

    /// A metric with a single value that increases and decreases.
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Gauge, samples: vec![(None, value)] }
    }

    /// The full name of the metric, as it is served.
    pub fn served_as(&self) -> String {
        families::served_as(self.name, self.kind.in_prometheus_words())
    }
}

/// The reason for which the server cannot listen at an address.
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

/// A listening socket. Clients that connect wait until [`serve`](Self::serve) is called.
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

    /// Also answers requests whose header `Host` has one of these names. Names other than these
    /// names, `localhost` and the machine's own name are refused, because anyone can make a DNS
    /// name resolve to this machine. Addresses are always accepted.
    #[must_use]
    pub fn answering_to(mut self, names: &[String]) -> Self {
        self.hosts = hosts::Hosts::with_own_name(names);
        self
    }

    /// The address of the listening socket, with the port that the kernel chose.
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

/// A running metrics server, which stops when this value is dropped.
#[derive(Debug)]
pub struct Server {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server's thread sees that this end of the pair is closed.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn answer(received: &[u8]) -> Option<Vec<u8>> {
    http::answer(received, &hosts::Hosts::new(&[]), &|| "steerage_x 1\n")
}
