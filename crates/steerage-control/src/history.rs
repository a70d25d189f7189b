use std::collections::VecDeque;
use std::fmt::Write;
use std::time::SystemTime;

use crate::limits::EVENTS_MAX;

/// A change of an attribute that has taken effect.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "socket", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Event {
    /// The number of the change, counted from 1 without gaps.
    pub number: u64,
    /// When the change took effect, in seconds since 1970-01-01 00:00 UTC.
    pub time: f64,
    /// The path of the attribute.
    pub path: String,
    /// The old value, without the newline.
    pub from: String,
    /// The new value, without the newline.
    pub to: String,
    /// The user who made the change.
    pub uid: u32,
    /// The number of buckets that moved to other CPUs.
    pub buckets: u64,
    /// The time in seconds until the change took effect.
    pub seconds: f64,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    events: VecDeque<Event>,
    last: u64,
}

impl History {
    /// Adds a change to the history, with a new number.
    pub(crate) fn note(&mut self, event: Event) {
        self.last += 1;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Event { number: self.last, time: now.as_secs_f64(), ..event });
    }

    pub(crate) fn since(&self, number: u64) -> Vec<Event> {
        self.events.iter().filter(|event| event.number > number).cloned().collect()
    }

    /// Returns one line for each change: number, time, path, from, to, uid, buckets, seconds.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for event in &self.events {
            let Event { number, time, path, from, to, uid, buckets, seconds } = event;
            // An empty value is written as `-`, so that no column is empty.
            let [from, to] = [from, to].map(|value| if value.is_empty() { "-" } else { value });
            let _ = writeln!(text, "{number} {time:.6} {path} {from} {to} {uid} {buckets} {seconds:.6}");
        }
        text
    }
}
