//! `top --web` serves the live page of the instance that it watches.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use steerage_control::Audience;

use super::POLL_TIME;
use super::remote::Remote;
use crate::error::Error;
use crate::view::Seen;
use crate::web::Web;

/// The last report: for the public, and for a client with the key of the live page.
#[derive(Debug, Default)]
struct Last([String; 2]);

impl Last {
    fn of(report: Result<Value, String>) -> Self {
        let mut report = match report.and_then(|report| Seen::of(report.clone()).map(|_| report)) {
            Ok(report) => report,
            Err(why) => {
                let gone = json!({ "gone": why }).to_string();
                return Self([gone.clone(), gone]);
            }
        };
        let private = report.to_string();
        report.as_object_mut().map(|keys| keys.remove("traffic"));
        Self([report.to_string(), private])
    }

    fn text(&self, audience: Audience) -> String {
        self.0[usize::from(audience == Audience::Private)].clone()
    }
}

/// The instance gets one request in each interval, regardless of the number of clients. If the
/// instance does not reply, the live page shows that.
pub(super) fn serve(mut remote: Remote, web: &Web, interval: Duration, ended: &AtomicBool) -> Result<(), Error> {
    let last = Arc::new(Mutex::new(Last::of(remote.report())));
    let served = Arc::clone(&last);
    let _server = web.serve(move |audience| locked(&served).text(audience))?;
    tracing::info!("the live page is served; signals are listened to");
    let mut due = Instant::now() + interval;
    while !ended.load(Ordering::Relaxed) {
        thread::sleep(POLL_TIME);
        if due <= Instant::now() {
            let report = Last::of(remote.report());
            *locked(&last) = report;
            due = Instant::now() + interval;
        }
    }
    Ok(())
}

fn locked(last: &Mutex<Last>) -> MutexGuard<'_, Last> {
    last.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Document;

    #[test]
    fn only_the_key_shows_the_traffic() {
        let mut report = serde_json::to_value(Document::default()).unwrap();
        report["traffic"] = json!({"top": [{"source": "192.0.2.7"}]});
        let last = Last::of(Ok(report));
        assert!(last.text(Audience::Private).contains("192.0.2.7"));
        let public = last.text(Audience::Public);
        assert!(public.contains("snapshot") && !public.contains("traffic"), "{public}");
    }

    #[test]
    fn a_report_that_cannot_be_read_is_an_answer() {
        let text = |report| Last::of(report).text(Audience::Public);
        assert_eq!(text(Err("no run".to_owned())), r#"{"gone":"no run"}"#);
        assert!(text(Ok(json!({"schema": 1, "version": "0.0.1"}))).contains("0.0.1 with schema 1"));
    }
}
