//! The report of a run as one JSON object. `--json` prints the report, the control socket sends it,
//! and `top` reads it. docs/report.md describes its keys. A new version may add keys without
//! changing [`SCHEMA`]. [`SCHEMA`] increases if the meaning of a key changes, or if a new drop
//! reason or a new cause of moves is added. A reader that ignored a new drop reason would compute
//! wrong sums.
//!
//! Every user of the machine may see a [`Document`], which contains counters. Only root and the
//! user of the run may see the traffic itself, for which there is a separate type, [`Traffic`].
//! Because of the two types, a field that is added to `Document` is public, and a field that is
//! added to `Traffic` is private.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use steerage::limits::{CPUS_MAX, OUTPUTS_MAX, QUEUES_MAX};
use steerage::{Snapshot, WallTime};
use steerage_capture::{CaptureInfo, link_name};
use steerage_control::{Audience, REPORT_SCHEMA};
use steerage_guard::sandbox::InForce;
use steerage_meter::FlowRecord;

use super::flows::FlowCounters;
use super::forward::ForwardReport;
use crate::args::TOP_MAX;

/// The version of the report's schema.
pub(crate) const SCHEMA: u32 = REPORT_SCHEMA;

/// The maximum length of a list in a report, which is the maximum number of flows of `meter -t`.
/// The limit for lists is needed because a report comes from another process, perhaps of another
/// user. Even a short entry of a list could need much memory, such as a list of all CPUs for each
/// of a million queues.
const LIST_MAX: usize = TOP_MAX;
const _: () = assert!(LIST_MAX >= QUEUES_MAX && LIST_MAX >= CPUS_MAX && LIST_MAX >= OUTPUTS_MAX);

/// Returns the length of the longest list in the JSON value.
fn longest_list(value: &Value) -> usize {
    match value {
        Value::Array(of) => of.iter().map(longest_list).max().unwrap_or(0).max(of.len()),
        Value::Object(of) => of.values().map(longest_list).max().unwrap_or(0),
        _ => 0,
    }
}

/// A report of a run without its traffic.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Document {
    schema: u32,
    r#type: Cow<'static, str>,
    pub(crate) version: Cow<'static, str>,
    /// The time at which the run began. A report with another start time belongs to another run.
    #[serde(with = "rfc3339")]
    pub(crate) started: SystemTime,
    /// The reason why the run ended, or `None` if the run continues.
    pub(crate) ended_by: Option<EndedBy>,
    /// The ledger of the run.
    pub(crate) snapshot: Snapshot,
    /// The counts that only the packet function of this command counts.
    pub(crate) app: App,
    /// For each CPU, the number of bytes that its packet function handled. The map with the number
    /// of handled bytes of each CPU is empty until the run has ended.
    pub(crate) handled_bytes: BTreeMap<u16, u64>,
    /// The contents of the capture files, if the run reads any.
    pub(crate) capture: Option<Recorded>,
    /// The restrictions of the sandbox, if the run is in a sandbox.
    pub(crate) sandbox: Option<Sandbox>,
}

impl Document {
    /// Creates a document with the parts that the reports of all commands have.
    pub(crate) fn new(started: SystemTime, ended_by: Option<EndedBy>, snapshot: Snapshot) -> Self {
        Self {
            schema: SCHEMA,
            r#type: "report".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            started,
            ended_by,
            snapshot,
            app: App::default(),
            handled_bytes: BTreeMap::new(),
            capture: None,
            sandbox: None,
        }
    }

    /// Returns the document for `audience` in one line, without a newline. The document for the
    /// public audience does not contain `traffic`.
    pub(super) fn line(&self, traffic: &Traffic<&FlowRecord>, audience: Audience) -> io::Result<String> {
        Ok(match audience {
            Audience::Public => serde_json::to_string(self)?,
            Audience::Private => serde_json::to_string(&WithTraffic { document: self, traffic })?,
        })
    }

    /// Returns the document with its traffic as a JSON value, which [`read`](Self::read) can read.
    pub(super) fn value(&self, traffic: &Traffic<&FlowRecord>) -> Result<Value, String> {
        serde_json::to_value(WithTraffic { document: self, traffic }).map_err(|error| error.to_string())
    }

    /// Reads the report of another process. Returns the document, and the traffic if this user may
    /// see it.
    ///
    /// # Errors
    /// Returns an error of one line if the report has another schema, or if the value is not a
    /// report.
    pub(crate) fn read<F: DeserializeOwned>(mut report: Value) -> Result<(Self, Option<Traffic<F>>), String> {
        let schema = report["schema"].as_u64().unwrap_or(0);
        if schema != u64::from(SCHEMA) {
            let version = report["version"].as_str().unwrap_or("unknown");
            return Err(format!(
                "cannot read the reports of that run: it is steerage {version} with schema {schema}, and this is {} with schema \
                 {SCHEMA}; use the `steerage` that the run was started with",
                env!("CARGO_PKG_VERSION"),
            ));
        }
        let longest = longest_list(&report);
        if longest > LIST_MAX {
            return Err(format!(
                "cannot read the report of that run: it has a list of {longest} entries, and at most {LIST_MAX} are possible"
            ));
        }
        let wrong = |error: serde_json::Error| format!("cannot read the report of that run: {error}");
        let traffic = report.get_mut("traffic").map(Value::take);
        let traffic = traffic.map(serde_json::from_value).transpose().map_err(wrong)?;
        Ok((serde_json::from_value(report).map_err(wrong)?, traffic))
    }
}

#[derive(Serialize)]
struct WithTraffic<'a> {
    #[serde(flatten)]
    document: &'a Document,
    traffic: &'a Traffic<&'a FlowRecord>,
}

impl Default for Document {
    fn default() -> Self {
        Self::new(SystemTime::UNIX_EPOCH, None, Snapshot::default())
    }
}

/// The counts that only some packet functions have.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct App {
    /// The counts of `meter`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) flows: Option<FlowCounters>,
    /// The counts of `forward`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) forward: Option<ForwardReport>,
}

/// The private part of a report, which only root and the user of the run may see. `F` is the type
/// of a flow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Traffic<F> {
    /// The largest flows, if the command meters flows and the largest flows are known.
    pub(crate) top: Option<Vec<F>>,
    /// The largest flow of each elephant (a bucket that takes more than half of a CPU), for all
    /// steering groups.
    #[serde(default)]
    pub(crate) elephants: Vec<ElephantFlow>,
}

/// The flow to which most packets of an elephant bucket belong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ElephantFlow {
    /// The index of the steering group in `snapshot.groups`.
    group: usize,
    bucket: u16,
    flow: String,
}

impl ElephantFlow {
    /// Returns the flows of all elephants (very busy buckets) in `snapshot`.
    pub(super) fn of_all(snapshot: &Snapshot) -> Vec<Self> {
        let groups = snapshot.groups.iter().enumerate();
        let elephants = groups.flat_map(|(group, of)| of.elephants.iter().map(move |elephant| (group, elephant)));
        let named = |(group, elephant): (usize, &steerage::stats::Elephant)| {
            Some(Self { group, bucket: elephant.bucket, flow: elephant.flow?.to_string() })
        };
        elephants.filter_map(named).collect()
    }
}

/// The reason why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EndedBy {
    /// The input of the run ended.
    Input,
    /// The limit on packets (`-c`) was reached.
    Packets,
    /// The time limit (`--seconds`) was reached.
    Seconds,
    /// The signal INT or TERM ended the run.
    Signal,
    /// A device failed.
    Error,
}

/// The properties of the capture files, as far as the run has read them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Recorded {
    /// The names of the link types, in the order in which the link types appeared in the files.
    pub(crate) links: Vec<String>,
    /// The times of the earliest packet (`first`) and of the latest packet (`last`).
    first: Option<Time>,
    last: Option<Time>,
    recorded_seconds: Option<f64>,
    /// The number of packets that the filter removed, plus the number of packets whose timestamp is
    /// out of range.
    pub(crate) filtered: u64,
    pub(crate) bad_times: u64,
    /// The number of bytes that have been read from the files, and the total number of bytes if it
    /// is known. The bytes of a compressed file are counted as stored on disk.
    pub(crate) bytes_read: u64,
    pub(crate) bytes_total: Option<u64>,
}

impl Recorded {
    pub(crate) fn of(info: &CaptureInfo) -> Self {
        let (first, last) = info.times().unzip();
        // The times in capture files have a resolution of nanoseconds.
        let recorded_seconds = first.zip(last).map(|(first, last)| last.since(first).as_nanos() as f64 / 1e9);
        Self {
            links: info.links().into_iter().map(|link| link_name(link).into_owned()).collect(),
            first: first.map(Time),
            last: last.map(Time),
            recorded_seconds,
            filtered: info.filtered(),
            bad_times: info.bad_times(),
            bytes_read: info.bytes_read(),
            bytes_total: info.bytes_total(),
        }
    }

    /// Returns the time from the earliest to the latest packet.
    pub(crate) fn time(&self) -> Option<Duration> {
        self.first.zip(self.last).map(|(first, last)| last.0.since(first.0))
    }
}

/// The time of a packet. In JSON, the time is written with nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
struct Time(WallTime);

impl From<Time> for String {
    fn from(time: Time) -> Self {
        humantime::format_rfc3339_nanos(time.0.into()).to_string()
    }
}

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let time = humantime::parse_rfc3339(&text).map_err(|error| error.to_string())?;
        let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH).map_err(|error| error.to_string())?;
        let nanos = u64::try_from(since_1970.as_nanos()).map_err(|error| error.to_string())?;
        Ok(Self(WallTime::from_nanos(nanos)))
    }
}

/// The restrictions that the sandbox of a run enforces.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Sandbox {
    seccomp: bool,
    landlock: Cow<'static, str>,
}

impl Sandbox {
    pub(crate) fn of(in_force: &InForce) -> Self {
        Self { seccomp: in_force.seccomp(), landlock: in_force.landlock().into() }
    }
}

/// Writes and reads a time in RFC 3339 format, with microseconds.
pub(super) mod rfc3339 {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_micros(*time))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        humantime::parse_rfc3339(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}
