//! Metrics of an instance in Prometheus' text format. This module can serve the text of the metrics
//! over HTTP. It serves only the request `GET /metrics`. A program can also serve the text of the
//! metrics by its own means.
//!
//! docs/metrics.md describes each metric. There are no metrics for single flows or buckets.
//! Therefore the number of metrics depends only on the numbers of queues, CPUs, and counters of the
//! packet function ([`Builder::counters`](steerage::Builder::counters)).
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

/// The default address of the metrics server. Only programs on this machine can connect to this
/// address. The Prometheus project has a list of default ports from 9100 to 9999, and all ports in
/// the list are taken.
pub const ADDRESS_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10_777);

/// The prefix of the names of all metrics, unless [`Source::prefix`] sets another prefix.
pub const PREFIX_DEFAULT: &str = "steerage";

/// Returns the metrics of a snapshot as text. The text contains the ledger (all counts of packets)
/// and the counters of the packet function. The name of each metric begins with `prefix` and `_`. A
/// character of the prefix that is not allowed in the name of a metric becomes `_`. If the prefix
/// is empty, the names have no prefix.
pub fn text(snapshot: &Snapshot, prefix: &str) -> String {
    page::text(page::Content { snapshot: Some(snapshot.clone()), ..page::Content::default() }, prefix)
}

/// The source of the metrics: an instance, and optional additional metrics.
pub struct Source {
    handle: Option<Handle>,
    version: Option<&'static str>,
    more: Option<More>,
    prefix: String,
}

/// A function that returns additional metrics, for example those of a handler. Each call of this
/// function must return the same list of metrics, with their current values.
pub type More = Box<dyn Fn() -> Vec<Metric> + Send>;

impl Source {
    /// Creates a source of the metrics of the instance `handle`. Use `None` as the handle if the
    /// program handles no packets.
    pub fn new(handle: impl Into<Option<Handle>>) -> Self {
        Self { handle: handle.into(), version: None, more: None, prefix: PREFIX_DEFAULT.to_owned() }
    }

    /// Sets the prefix of all metrics, as for [`text`]. The default prefix is [`PREFIX_DEFAULT`].
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// Sets the version of the program. The metric `PREFIX_build_info` shows this version.
    #[must_use]
    pub fn version(self, version: &'static str) -> Self {
        Self { version: Some(version), ..self }
    }

    /// Adds metrics that are not in the ledger (all counts of packets). Each time that a client
    /// requests metrics, the source calls the function `more`. The ledger already contains the
    /// counters of a packet function (see [`Builder::counters`](steerage::Builder::counters)).
    #[must_use]
    pub fn more(self, more: More) -> Self {
        Self { more: Some(more), ..self }
    }

    /// Returns the metrics as text, with their current values.
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

/// A metric that a program adds to the metrics of steerage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name of the metric according to Prometheus'
    /// [conventions](https://prometheus.io/docs/practices/naming/), without the prefix `steerage_`
    /// and without the suffix `_total` of a counter.
    ///
    /// The name must differ from the names of steerage's own metrics, which [`names`] lists.
    /// Prometheus refuses a page that contains a metric twice.
    pub name: &'static str,
    /// The help text of the metric, as a sentence.
    pub help: &'static str,
    /// The kind of the metric: a counter or a gauge.
    pub kind: MetricKind,
    /// The values of the metric. If the metric has several values, each value has a label that
    /// identifies it. A label consists of a name and a value.
    pub samples: Vec<(Option<(&'static str, &'static str)>, u64)>,
}

/// The kind of a metric: only the value of a gauge can decrease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// The value of a counter only increases.
    Counter,
    /// The value of a gauge can increase and decrease.
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
    /// Creates a counter: a metric with a single value that only increases.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Counter, samples: vec![(None, value)] }
    }

    /// Creates a counter with several values that only increase. Each value of the counter has a
    /// different value of the label `label`.
    pub fn counters(
        name: &'static str,
        help: &'static str,
        label: &'static str,
        values: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> Self {
        let samples = values.into_iter().map(|(value, count)| (Some((label, value)), count)).collect();
        Self { name, help, kind: MetricKind::Counter, samples }
    }

    /// Creates a gauge: a metric with a single value that can increase and decrease.
    pub fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Self { name, help, kind: MetricKind::Gauge, samples: vec![(None, value)] }
    }

    /// Returns the full name of the metric, with the default prefix and the suffix `_total` of a
    /// counter.
    pub fn served_as(&self) -> String {
        format!("{PREFIX_DEFAULT}_{}", families::with_suffix(self.name, self.kind.in_prometheus_words()))
    }
}

const PATH: &str = "/metrics";

/// The content type of Prometheus' text format.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Listener {
    /// Starts a thread that serves the metrics of `source` over HTTP.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn serve(self, source: Source) -> io::Result<Server> {
        let page = Resource::new(PATH, CONTENT_TYPE, "", Body::Made(Box::new(move |_| source.text())));
        self.serve_site("metrics", Site::new(PATH, vec![page]).names_by("--metrics-host NAME"))
    }
}
