//! The history of changes. Each entry says which attribute changed, when, which user changed it,
//! and the effect.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::limits::EVENTS_MAX;

/// A change that is in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// The number of the change. Numbers start at 1 and have no gaps.
    pub number: u64,
    /// When the change came into force, in seconds since 1970-01-01 00:00 UTC.
    pub time: f64,
    /// The attribute's path.
    pub path: String,
    /// The value before the change, without its newline.
    pub from: String,
    /// The value after the change, without its newline.
    pub to: String,
    /// The user that made the change.
    pub uid: u32,
    /// How many buckets moved to another CPU during the change.
    pub buckets: u64,
    /// How long the change took, in seconds.
    pub seconds: f64,
}

/// The last [`EVENTS_MAX`] changes.
#[derive(Debug, Default)]
pub(crate) struct History {
    events: VecDeque<Event>,
    last: u64,
}

impl History {
    /// Records a change that came into force now. Fills in its number and time.
    pub(crate) fn note(&mut self, event: Event) {
        self.last += 1;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Event { number: self.last, time: now.as_secs_f64(), ..event });
    }

    /// The changes whose number is above `number`.
    pub(crate) fn since(&self, number: u64) -> Vec<Event> {
        self.events.iter().filter(|event| event.number > number).cloned().collect()
    }

    /// One line per change: number, time, path, from, to, uid, buckets, seconds.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for event in &self.events {
            let Event { number, time, path, from, to, uid, buckets, seconds } = event;
            // An empty list of CPUs must be visible.
            let [from, to] = [from, to].map(|value| if value.is_empty() { "-" } else { value });
            let _ = writeln!(text, "{number} {time:.6} {path} {from} {to} {uid} {buckets} {seconds:.6}");
        }
        text
    }
}
