//! The history of changes: which attribute, when, by whom, and the effect.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::limits::EVENTS_MAX;

/// A change that is in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// From 1 on, without a gap.
    pub number: u64,
    /// When it was in force, in seconds since 1970-01-01 00:00 UTC.
    pub time: f64,
    /// The attribute's path.
    pub path: String,
    /// What was in force before, without its newline.
    pub from: String,
    /// What is in force since.
    pub to: String,
    /// Who changed it.
    pub uid: u32,
    /// Buckets that changed their CPU meanwhile.
    pub buckets: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// The last [`EVENTS_MAX`] of them.
#[derive(Debug, Default)]
pub(crate) struct History {
    events: VecDeque<Event>,
    last: u64,
}

impl History {
    /// Notes one that came into force now; its number and time are filled in.
    pub(crate) fn note(&mut self, event: Event) {
        self.last += 1;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Event { number: self.last, time: now.as_secs_f64(), ..event });
    }

    /// Those after `number`.
    pub(crate) fn since(&self, number: u64) -> Vec<Event> {
        self.events.iter().filter(|event| event.number > number).cloned().collect()
    }

    /// One a line: number, time, path, from, to, uid, buckets, seconds.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for event in &self.events {
            let Event { number, time, path, from, to, uid, buckets, seconds } = event;
            // An empty list of CPUs is to be seen.
            let [from, to] = [from, to].map(|value| if value.is_empty() { "-" } else { value });
            let _ = writeln!(text, "{number} {time:.6} {path} {from} {to} {uid} {buckets} {seconds:.6}");
        }
        text
    }
}
