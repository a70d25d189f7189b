//! The report of a run as one JSON object, which `--json` prints, the control socket sends, and
//! `top` reads. docs/report.md describes its keys. A new version may add keys without changing
//! [`SCHEMA`]. [`SCHEMA`] increases if the meaning of a key changes, or if a drop reason or a cause
//! of bucket moves is added, because a reader that ignores a drop reason computes wrong sums.
//!
//! Every user of the machine may see a [`Document`]. Only root and the user of the run may see the
//! traffic itself ([`Traffic`]).

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

pub(crate) const SCHEMA: u32 = REPORT_SCHEMA;

/// The maximum length of a list in a report. The limit exists because the report comes from another
/// process, perhaps of another user. For example, a list of all CPUs for each of a million queues
/// would need much memory.
const LIST_MAX: usize = TOP_MAX;
const _: () = assert!(LIST_MAX >= QUEUES_MAX && LIST_MAX >= CPUS_MAX && LIST_MAX >= OUTPUTS_MAX);

fn longest_list(value: &Value) -> usize {
    match value {
        Value::Array(of) => of.iter().map(longest_list).max().unwrap_or(0).max(of.len()),
        Value::Object(of) => of.values().map(longest_list).max().unwrap_or(0),
        _ => 0,
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Document {
    schema: u32,
    r#type: Cow<'static, str>,
    pub(crate) version: Cow<'static, str>,
    /// A report with another start time belongs to another run.
    #[serde(with = "rfc3339")]
    pub(crate) started: SystemTime,
    /// Why the run ended, or `None` if the run continues.
    pub(crate) ended_by: Option<EndedBy>,
    pub(crate) snapshot: Snapshot,
    /// The counts of this command's packet function.
    pub(crate) app: App,
    /// The bytes that each CPU handled. Empty until the run has ended.
    pub(crate) handled_bytes: BTreeMap<u16, u64>,
    pub(crate) capture: Option<Recorded>,
    pub(crate) sandbox: Option<Sandbox>,
}

impl Document {
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

    /// Returns the report as one line of JSON, without a newline. Only a report for
    /// [`Audience::Private`] (root and the run's user) contains `traffic`.
    pub(super) fn line(&self, traffic: &Traffic<&FlowRecord>, audience: Audience) -> io::Result<String> {
        Ok(match audience {
            Audience::Public => serde_json::to_string(self)?,
            Audience::Private => serde_json::to_string(&WithTraffic { document: self, traffic })?,
        })
    }

    pub(super) fn value(&self, traffic: &Traffic<&FlowRecord>) -> Result<Value, String> {
        serde_json::to_value(WithTraffic { document: self, traffic }).map_err(|error| error.to_string())
    }

    /// Reads the report of another process. The traffic is `None` if the user of this process may
    /// not see it.
    ///
    /// # Errors
    /// Returns an error of one line if the value is not a report, or has another schema.
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

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct App {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) flows: Option<FlowCounters>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) forward: Option<ForwardReport>,
}

/// The part of a report that only root and the user of the run may see.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Traffic<F> {
    /// The largest flows. `None` if the command meters no flows, or has not collected the flows.
    pub(crate) top: Option<Vec<F>>,
    /// The largest flow of each elephant (a bucket that takes more than half of a CPU).
    #[serde(default)]
    pub(crate) elephants: Vec<ElephantFlow>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ElephantFlow {
    /// The index of the steering group in `snapshot.groups`.
    group: usize,
    bucket: u16,
    flow: String,
}

impl ElephantFlow {
    pub(super) fn of_all(snapshot: &Snapshot) -> Vec<Self> {
        let groups = snapshot.groups.iter().enumerate();
        let elephants = groups.flat_map(|(group, of)| of.elephants.iter().map(move |elephant| (group, elephant)));
        let named = |(group, elephant): (usize, &steerage::stats::Elephant)| {
            Some(Self { group, bucket: elephant.bucket, flow: elephant.flow?.to_string() })
        };
        elephants.filter_map(named).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EndedBy {
    Input,
    /// The run reached its limit on packets (`-c`).
    Packets,
    /// The run reached its time limit (`--seconds`).
    Seconds,
    /// A signal or the key `q` ended the run, or the reader of the reports closed the pipe.
    Signal,
    Error,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Recorded {
    /// The link types of the files, in the order in which the link types appeared in the files.
    pub(crate) links: Vec<String>,
    first: Option<Time>,
    last: Option<Time>,
    recorded_seconds: Option<f64>,
    pub(crate) filtered: u64,
    pub(crate) bad_times: u64,
    /// The number of bytes that were read. A compressed file is counted by its size on disk.
    pub(crate) bytes_read: u64,
    pub(crate) bytes_total: Option<u64>,
}

impl Recorded {
    pub(crate) fn of(info: &CaptureInfo) -> Self {
        let (first, last) = info.times().unzip();
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

    pub(crate) fn time(&self) -> Option<Duration> {
        self.first.zip(self.last).map(|(first, last)| last.0.since(first.0))
    }
}

/// The time of a packet, with nanoseconds in JSON.
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
