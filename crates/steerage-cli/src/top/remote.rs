//! The connection to the instance that `top` watches.

use std::io;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use serde_json::Value;
use steerage_control::Client;
use steerage_control::instances::InstanceSocket;
use steerage_text::{printable, printable_lines};

use crate::view::{Bucket, Seen};

const DEVICES: &str = "sys/class/net";

/// A connection to the instance. After a failed request, the next request connects again.
#[derive(Debug)]
pub(super) struct Remote {
    socket: InstanceSocket,
    client: Option<Client>,
    /// The directories of the queues in the control tree, in the order of the report. The list of
    /// queue directories is requested again only after the number of queues has changed or the
    /// connection has failed.
    queues: Vec<String>,
}

impl Remote {
    pub(super) fn new(socket: InstanceSocket) -> Self {
        Self { socket, client: None, queues: Vec::new() }
    }

    /// Requests the report, and removes control characters from its texts.
    pub(super) fn report(&mut self) -> Result<Value, String> {
        let report = self.client().and_then(|client| client.snapshot().map_err(|error| error.to_string()));
        if report.is_err() {
            self.client = None;
        }
        let mut report = report.map_err(|why| printable(&why))?;
        make_printable(&mut report);
        Ok(report)
    }

    pub(super) fn read(&mut self, queue: usize) -> Result<(Seen, Vec<Bucket>), String> {
        let seen = self.try_read(queue);
        if seen.is_err() {
            (self.client, self.queues) = (None, Vec::new());
        }
        seen.map_err(|why| printable(&why))
    }

    fn try_read(&mut self, queue: usize) -> Result<(Seen, Vec<Bucket>), String> {
        let seen = Seen::of(self.report()?)?;
        if self.queues.len() != seen.document.snapshot.queues.len() {
            self.queues = self.directories()?;
        }
        let Some(directory) = self.queues.get(queue).cloned() else { return Ok((seen, Vec::new())) };
        let text = self.client()?.get(&format!("{directory}/bucket_load")).map_err(|error| error.to_string())?;
        Ok((seen, buckets(&text)))
    }

    /// Sets the RPS mask of a queue. Returns the mask that the instance uses after the change.
    pub(super) fn set_mask(&mut self, queue: usize, list: &str) -> Result<String, String> {
        let Some(directory) = self.queues.get(queue).cloned() else { return Err("there is no such queue".to_owned()) };
        let set = self.client()?.set(&format!("{directory}/rps_cpus_list"), list);
        set.map(|list| printable_lines(&list)).map_err(|error| printable(&error.to_string()))
    }

    pub(super) fn path(&self) -> &Path {
        self.socket.path()
    }

    pub(super) fn connect(&mut self) -> Result<(), String> {
        self.client().map(drop)
    }

    fn client(&mut self) -> Result<&mut Client, String> {
        if self.client.is_none() {
            let failed = |error: io::Error| {
                format!("no run answers at {}: {error}; name the socket of a run", self.socket.path().display())
            };
            self.client = Some(self.socket.connect().map_err(failed)?);
        }
        self.client.as_mut().ok_or_else(|| "not connected".to_owned())
    }

    /// Returns the queues' directories in the control tree, grouped by device.
    fn directories(&mut self) -> Result<Vec<String>, String> {
        let client = self.client()?;
        let mut found = Vec::new();
        for (device, _) in client.list(DEVICES).map_err(|error| error.to_string())? {
            let queues = format!("{DEVICES}/{device}/queues");
            // A device that only sends packets has no queues.
            let mut names: Vec<String> =
                client.list(&queues).unwrap_or_default().into_iter().map(|(name, _)| name).collect();
            names.sort_by_key(|name| name.trim_start_matches("rx-").parse::<u32>().unwrap_or(u32::MAX));
            found.extend(
                names.into_iter().filter(|name| name.starts_with("rx-")).map(|name| format!("{queues}/{name}")),
            );
        }
        Ok(found)
    }

    /// Moves the connection to a separate thread, so that a slow reply does not delay the handling
    /// of keys. The thread ends when the sender of queries is dropped.
    pub(super) fn on_a_thread(mut self) -> io::Result<(Sender<Query>, Receiver<Reply>)> {
        let (queries, to_send) = mpsc::channel();
        let (to_return, replies) = mpsc::channel();
        thread::Builder::new().name("top".to_owned()).spawn(move || {
            for query in to_send {
                let reply = match query {
                    Query::Read { queue } => match self.read(queue) {
                        Ok((seen, buckets)) => Reply::Seen { seen: Box::new(seen), queue, buckets },
                        Err(why) => Reply::Gone(why),
                    },
                    Query::SetMask { queue, list } => Reply::Set(self.set_mask(queue, &list)),
                };
                if to_return.send(reply).is_err() {
                    return;
                }
            }
        })?;
        Ok((queries, replies))
    }
}

#[derive(Debug)]
pub(super) enum Query {
    Read { queue: usize },
    SetMask { queue: usize, list: String },
}

#[derive(Debug)]
pub(super) enum Reply {
    Seen { seen: Box<Seen>, queue: usize, buckets: Vec<Bucket> },
    Gone(String),
    Set(Result<String, String>),
}

/// Removes control characters from a report, because the instance may be another user's process.
fn make_printable(report: &mut Value) {
    match report {
        Value::String(text) => *text = printable(text),
        Value::Array(values) => values.iter_mut().for_each(make_printable),
        Value::Object(entries) => {
            let made = std::mem::take(entries).into_iter().map(|(name, mut value)| {
                make_printable(&mut value);
                (printable(&name), value)
            });
            *entries = made.collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Parses the attribute that has a line `BUCKET CPU PACKETS MOVES` for each bucket, in order.
fn buckets(text: &str) -> Vec<Bucket> {
    let bucket = |line: &str| {
        let mut words = line.split(' ').skip(1);
        Some(Bucket { cpu: words.next()?.parse().ok()?, packets: words.next()?.parse().ok()? })
    };
    text.lines().filter_map(bucket).take(steerage::limits::BUCKETS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_a_line() {
        let of = |cpu, packets| Bucket { cpu, packets };
        assert_eq!(buckets("0 0 17 0\n1 11 0 3\n"), [of(0, 17), of(11, 0)]);
        assert!(buckets("").is_empty() && buckets("nonsense\n0 x 1 2\n0 1\n").is_empty());
    }
}
