//! The JSON report that `steerage top` and the [live page](crate::web) read, for programs with
//! their own instance. docs/report.md describes its keys.

use std::time::SystemTime;

use serde::Serialize;
use steerage::{Handle, Snapshot};

use crate::audience::Audience;

/// The version of the report's schema. `steerage top` reads only reports of its own version.
pub const REPORT_SCHEMA: u32 = 2;

/// Returns a function that makes the report of an instance, for `Listening::serve` and
/// `Listener::serve_page`. The report contains the [counters](steerage::Builder::counters) of the
/// packet function, but no flows.
///
/// ```
/// use steerage::packet::each;
/// use steerage::{Builder, testing};
/// use steerage_control::{Audience, reports};
///
/// let input = testing::input(vec![[0; 60]; 100]);
/// let running = Builder::new().virtual_cpus(2).input(input).build(each(|_packet| {}))?.start()?;
/// let report = reports(running.handle());
/// running.join();
/// assert!(report(Audience::Public).contains(r#""delivered":100,"#));
/// # Ok::<(), steerage::BuildError>(())
/// ```
pub fn reports(handle: Handle) -> impl Fn(Audience) -> String + Clone + Send + Sync + 'static {
    let started = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
    move |audience| {
        let report = Report {
            schema: REPORT_SCHEMA,
            r#type: "report",
            version: env!("CARGO_PKG_VERSION"),
            started: &started,
            ended_by: None,
            snapshot: handle.snapshot(),
            app: Empty {},
            handled_bytes: Empty {},
            capture: None,
            sandbox: None,
            traffic: (audience == Audience::Private).then(Traffic::default),
        };
        serde_json::to_string(&report).unwrap_or_else(|_| "{}".to_owned())
    }
}

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    r#type: &'static str,
    version: &'static str,
    started: &'a str,
    /// `ended_by` is always `None`, because an instance that has ended sends no reports.
    ended_by: Option<Empty>,
    snapshot: Snapshot,
    app: Empty,
    handled_bytes: Empty,
    capture: Option<Empty>,
    sandbox: Option<Empty>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic: Option<Traffic>,
}

/// The type of fields that only commands of the program `steerage` fill in.
#[derive(Serialize)]
struct Empty {}

#[derive(Default, Serialize)]
struct Traffic {
    top: Option<Empty>,
    elephants: Vec<Empty>,
}
