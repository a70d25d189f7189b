//! The history of changes to attributes. For each change, the history contains the attribute, the
//! time, the user and the effect.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::SystemTime;

use crate::limits::EVENTS_MAX;

/// A change of an attribute's value that has taken effect.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "socket", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Event {
    /// The number of the change in the history. The numbers of the changes start at 1 and have no
    /// gaps.
    pub number: u64,
    /// The time at which the change took effect, in seconds since 1970-01-01 00:00 UTC.
    pub time: f64,
    /// The path of the changed attribute.
    pub path: String,
    /// The attribute's value before the change, without the newline.
    pub from: String,
    /// The attribute's value after the change, without the newline.
    pub to: String,
    /// The ID of the user who made the change.
    pub uid: u32,
    /// The number of buckets that moved to other CPUs because of the change.
    pub buckets: u64,
    /// The time that the change needed to take effect, in seconds.
    pub seconds: f64,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    events: VecDeque<Event>,
    last: u64,
}

impl History {
    /// Adds to the history a change that takes effect now. Sets the number and the time of the
    /// change.
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

    /// Returns the history as text, with one line for each change: number, time, path, from, to,
    /// uid, buckets, seconds.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for event in &self.events {
            let Event { number, time, path, from, to, uid, buckets, seconds } = event;
            // In the text, an empty CPU list is written as `-`, so that no column is empty.
            let [from, to] = [from, to].map(|value| if value.is_empty() { "-" } else { value });
            let _ = writeln!(text, "{number} {time:.6} {path} {from} {to} {uid} {buckets} {seconds:.6}");
        }
        text
    }
}
