//! Metrics of an instance in Prometheus' text format, as a string or over HTTP as `GET /metrics`.
//!
//! docs/metrics.md describes each metric. Flows and buckets have no metrics of their own, so the
//! number of metrics depends only on the numbers of queues, CPUs, and counters of the packet
//! function ([`Builder::counters`](steerage::Builder::counters)).
//!
//! ```
//! use steerage::packet::each;
//! use steerage::{Builder, testing};
//! use steerage_control::metrics;
//!
//! let input = testing::input(vec![[0; 60]; 100]);
//! let ledger = Builder::new().virtual_cpus(2).input(input).build(each(|_packet| {}))?.start()?.join().snapshot;
//! let page = metrics::text(&ledger, "limiter");
//! assert!(page.contains("\nlimiter_received_packets_total{device=\"frames\",queue=\"0\"} 100\n"), "{page}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod families;
mod page;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use prometheus_client::metrics::MetricType;
use steerage::{Handle, Snapshot};

pub use crate::http::{BindError, Listener, Server};
use crate::http::{Body, Resource, Site};
pub use families::names;

/// The default address, for programs on this machine only. All ports in the Prometheus project's
/// list of default ports, 9100 to 9999, are taken.
pub const ADDRESS_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10_777);

/// The prefix of all names, unless [`Source::prefix`] sets another.
pub const PREFIX_DEFAULT: &str = "steerage";

/// Returns the metrics of a snapshot, and the counters of the user's packet function, as text.
/// `prefix` and `_` precede each name, unless the prefix is empty. Characters that are not allowed
/// in names become `_`.
pub fn text(snapshot: &Snapshot, prefix: &str) -> String {
    page::text(page::Content { snapshot: Some(snapshot.clone()), ..page::Content::default() }, prefix)
}

/// The source of a metrics page: an instance, and optional additional metrics.
pub struct Source {
    handle: Option<Handle>,
    version: Option<&'static str>,
    more: Option<More>,
    prefix: String,
}

/// Returns additional metrics, such as those of a handler. Each call must return the same list of
/// metrics.
pub type More = Box<dyn Fn() -> Vec<Metric> + Send>;

impl Source {
    /// Creates a source of metrics for the instance `handle`. Pass `None` if the program handles no
    /// packets.
    pub fn new(handle: impl Into<Option<Handle>>) -> Self {
        Self { handle: handle.into(), version: None, more: None, prefix: PREFIX_DEFAULT.to_owned() }
    }

    /// Sets the prefix of all names, as for [`text`]. The default is [`PREFIX_DEFAULT`].
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// Sets the version that `PREFIX_build_info` shows.
    #[must_use]
    pub fn version(self, version: &'static str) -> Self {
        Self { version: Some(version), ..self }
    }

    /// Adds metrics to those of the snapshot, which already has the counters of the packet function
    /// ([`Builder::counters`](steerage::Builder::counters)). `more` is called at each request.
    #[must_use]
    pub fn more(self, more: More) -> Self {
        Self { more: Some(more), ..self }
    }

    /// Returns the metrics as text.
    pub fn text(&self) -> String {
        let snapshot = self.handle.as_ref().map(|handle| handle.snapshot());
        let more = self.more.as_ref().map(|more| more()).unwrap_or_default();
        page::text(page::Content { snapshot, more, version: self.version }, &self.prefix)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source of {}_*", self.prefix)
    }
}

/// An additional metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name of the metric according to Prometheus'
    /// [conventions](https://prometheus.io/docs/practices/naming/), without the prefix `steerage_`
    /// and a counter's suffix `_total`. The name must not be in [`names`], because Prometheus
    /// refuses a page that contains a metric twice.
    pub name: &'static str,
    /// The help text of the metric, one sentence.
    pub help: &'static str,
    /// Whether the metric is a counter or a gauge.
    pub kind: MetricKind,
    /// The values of the metric. If a metric has several values, each value needs a label (name and
    /// value) that distinguishes it from the others.
    pub samples: Vec<(Option<(&'static str, &'static str)>, u64)>,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only increases.
    Counter,
    /// A value that can increase and decrease.
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
    /// Creates a counter with a single value.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Counter, samples: vec![(None, value)] }
    }

    /// Creates a counter with several values, each with a different value of the label `label`.
    pub fn counters(
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> Self {
        let samples = values.into_iter().map(|(value, count)| (Some((label, value)), count)).collect();
        Self { name, help, kind: MetricKind::Counter, samples }
    }

    /// Creates a gauge with a single value.
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Gauge, samples: vec![(None, value)] }
    }

    /// Returns the full name of the metric, with the default prefix and a counter's `_total`.
    pub fn served_as(&self) -> String {
        format!("{PREFIX_DEFAULT}_{}", families::with_suffix(self.name, self.kind.in_prometheus_words()))
    }
}

const PATH: &str = "/metrics";

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Listener {
    /// Starts a thread that serves the metrics over HTTP.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn serve(self, source: Source) -> io::Result<Server> {
        let page = Resource::new(PATH, CONTENT_TYPE, "", Body::Made(Box::new(move |_| source.text())));
        self.serve_site("metrics", Site::new(PATH, vec![page]).names_by("--metrics-host NAME"))
    }
}
