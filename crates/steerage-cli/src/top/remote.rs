//! The instance that is watched, by its control socket.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use steerage_control::Client;

use super::snapshot::Snapshot;

/// Where the devices of the tree stand.
const DEVICES: &str = "sys/class/net";

/// An instance by its socket. Connected anew whenever that failed: an instance that comes back is the same to us.
#[derive(Debug)]
pub(super) struct Remote {
    socket: PathBuf,
    client: Option<Client>,
    /// The directories of its queues, in the order of the report; asked for once.
    queues: Vec<String>,
}

impl Remote {
    /// The instance that listens there.
    pub(super) fn new(socket: PathBuf) -> Self {
        Self { socket, client: None, queues: Vec::new() }
    }

    /// What it tells of itself, and who has which bucket of the `queue`th queue.
    pub(super) fn look(&mut self, queue: usize) -> Result<(Snapshot, Vec<u16>), String> {
        let seen = self.try_to_look(queue);
        if seen.is_err() {
            (self.client, self.queues) = (None, Vec::new());
        }
        seen
    }

    fn try_to_look(&mut self, queue: usize) -> Result<(Snapshot, Vec<u16>), String> {
        let report = self.client()?.snapshot().map_err(|error| error.to_string())?;
        let snapshot: Snapshot = serde_json::from_value(report).map_err(|error| error.to_string())?;
        if self.queues.len() != snapshot.queues.len() {
            self.queues = self.directories()?;
        }
        let Some(directory) = self.queues.get(queue).cloned() else { return Ok((snapshot, Vec::new())) };
        let text = self.client()?.get(&format!("{directory}/buckets")).map_err(|error| error.to_string())?;
        Ok((snapshot, buckets(&text)))
    }

    /// Has the `queue`th queue's packets spread over the CPUs of `list`; what is in force then.
    pub(super) fn set_mask(&mut self, queue: usize, list: &str) -> Result<String, String> {
        let Some(directory) = self.queues.get(queue).cloned() else { return Err("there is no such queue".to_owned()) };
        self.client()?.set(&format!("{directory}/rps_cpus_list"), list).map_err(|error| error.to_string())
    }

    fn client(&mut self) -> Result<&mut Client, String> {
        if self.client.is_none() {
            let failed = |error: io::Error| format!("no run answers at {}: {error}", self.socket.display());
            self.client = Some(Client::connect(&self.socket).map_err(failed)?);
        }
        self.client.as_mut().ok_or_else(|| "not connected".to_owned())
    }

    /// The queues' directories, device by device.
    fn directories(&mut self) -> Result<Vec<String>, String> {
        let client = self.client()?;
        let mut found = Vec::new();
        for (device, _) in client.list(DEVICES).map_err(|error| error.to_string())? {
            let queues = format!("{DEVICES}/{device}/queues");
            // What is only an output has none.
            let mut names: Vec<String> =
                client.list(&queues).unwrap_or_default().into_iter().map(|(name, _)| name).collect();
            names.sort_by_key(|name| name.trim_start_matches("rx-").parse::<u32>().unwrap_or(u32::MAX));
            found.extend(
                names.into_iter().filter(|name| name.starts_with("rx-")).map(|name| format!("{queues}/{name}")),
            );
        }
        Ok(found)
    }

    /// The same on a thread of its own: what it does not answer at once holds up no key.
    pub(super) fn on_a_thread(mut self) -> io::Result<RemoteThread> {
        let (ask, asked) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        thread::Builder::new().name("top".to_owned()).spawn(move || {
            for asked in asked {
                let answer = match asked {
                    Asked::Look { queue } => match self.look(queue) {
                        Ok((snapshot, buckets)) => Told::Seen(Box::new(snapshot), buckets),
                        Err(why) => Told::Gone(why),
                    },
                    Asked::SetMask { queue, list } => Told::Set(self.set_mask(queue, &list)),
                };
                if tell.send(answer).is_err() {
                    return;
                }
            }
        })?;
        Ok(RemoteThread { ask, told })
    }
}

/// What is asked of an instance.
#[derive(Debug)]
pub(super) enum Asked {
    Look { queue: usize },
    SetMask { queue: usize, list: String },
}

/// What it answers.
#[derive(Debug)]
pub(super) enum Told {
    Seen(Box<Snapshot>, Vec<u16>),
    Gone(String),
    Set(Result<String, String>),
}

/// An instance that is asked on a thread of its own.
#[derive(Debug)]
pub(super) struct RemoteThread {
    ask: Sender<Asked>,
    told: Receiver<Told>,
}

impl RemoteThread {
    pub(super) fn ask(&self, what: Asked) {
        // The thread ends only when this is dropped.
        let _ = self.ask.send(what);
    }

    /// What was answered meanwhile, if anything was.
    pub(super) fn told(&self) -> Option<Told> {
        self.told.try_recv().ok()
    }
}

/// From `0-2047 0` and `2048 1`, one a line, to each bucket's CPU.
fn buckets(text: &str) -> Vec<u16> {
    let stretch = |line: &str| -> Option<(usize, u16)> {
        let (buckets, cpu) = line.split_once(' ')?;
        let (first, last) = buckets.split_once('-').unwrap_or((buckets, buckets));
        let length = (last.parse::<usize>().ok()? + 1).checked_sub(first.parse().ok()?)?;
        Some((length.min(steerage::BUCKETS), cpu.trim().parse().ok()?))
    };
    text.lines().filter_map(stretch).flat_map(|(length, cpu)| std::iter::repeat_n(cpu, length)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_of_buckets() {
        assert_eq!(buckets("0-2 0\n3 11\n4-5 0\n"), [0, 0, 0, 11, 0, 0]);
        assert!(buckets("").is_empty() && buckets("nonsense\n5-3 1\n1-x 2\n").is_empty());
    }
}
