//! Clients, a thread each: who hangs, hangs alone.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::listening::Listening;
use super::protocol::{self, Report};
use crate::limits::{CLIENT_IDLE_MAX, CLIENT_READS_WITHIN, CLIENTS_MAX, REQUEST_BYTES_MAX};
use crate::tree::Tree;

/// How long no new client is taken after the kernel could not give us one: descriptors may be short for a while.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// The tree served over a socket, until this is dropped.
#[derive(Debug)]
pub struct Serving {
    listening: Arc<Listening>,
    clients: Arc<Mutex<Clients>>,
}

#[derive(Debug, Default)]
struct Clients {
    /// Their connections, to cut them at the end.
    open: HashMap<u64, UnixStream>,
    next: u64,
    ended: bool,
}

impl Listening {
    /// Answers clients on threads of their own. `report` makes what a `snapshot` is answered with: a JSON object.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn serve(self, tree: Arc<Tree>, report: impl Fn() -> String + Send + Sync + 'static) -> io::Result<Serving> {
        let report: Arc<Report> = Arc::new(Box::new(report));
        let serving = Serving { listening: Arc::new(self), clients: Arc::default() };
        let listener = serving.listening.listener.try_clone()?;
        let clients = Arc::clone(&serving.clients);
        thread::Builder::new().name("control".to_owned()).spawn(move || {
            loop {
                let accepted = listener.accept();
                if locked(&clients).ended {
                    return;
                }
                match accepted {
                    Ok((stream, _)) => begin(stream, &clients, &tree, &report),
                    Err(error) => {
                        tracing::warn!("cannot take a client of the control socket: {error}");
                        thread::sleep(ACCEPT_AGAIN);
                    }
                }
            }
        })?;
        Ok(serving)
    }
}

impl Serving {
    /// Where it listens.
    pub fn path(&self) -> &std::path::Path {
        self.listening.path()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut clients = locked(&self.clients);
        clients.ended = true;
        // It wakes whoever waits for a client.
        let _ = rustix::net::shutdown(&self.listening.listener, rustix::net::Shutdown::Both);
        for (_, stream) in clients.open.drain() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Starts a thread for a client, or sends it away.
fn begin(stream: UnixStream, clients: &Arc<Mutex<Clients>>, tree: &Arc<Tree>, report: &Arc<Report>) {
    let mut all = locked(clients);
    let copy = stream.try_clone().ok().filter(|_| all.open.len() < CLIENTS_MAX);
    let Some(copy) = copy else {
        drop(all);
        let _ = stream.set_nonblocking(true);
        let _ =
            (&stream).write_all(b"{\"error\":\"EBUSY\",\"message\":\"too many clients at a time: try again later\"}\n");
        return;
    };
    let id = all.next;
    all.next += 1;
    all.open.insert(id, copy);
    drop(all);
    let (at_end, tree, report) = (Arc::clone(clients), Arc::clone(tree), Arc::clone(report));
    let started = thread::Builder::new().name("control/client".to_owned()).spawn(move || {
        if let Err(error) = talk(&stream, &tree, &report) {
            tracing::debug!("a client of the control socket is gone: {error}");
        }
        locked(&at_end).open.remove(&id);
    });
    if let Err(error) = started {
        tracing::warn!("cannot start a thread for a client of the control socket: {error}");
        locked(clients).open.remove(&id);
    }
}

/// Answers line by line, until the client has gone.
fn talk(stream: &UnixStream, tree: &Tree, report: &Report) -> io::Result<()> {
    let uid = rustix::net::sockopt::socket_peercred(stream)?.uid.as_raw();
    stream.set_read_timeout(Some(CLIENT_IDLE_MAX))?;
    stream.set_write_timeout(Some(CLIENT_READS_WITHIN))?;
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    loop {
        let mut line = Vec::new();
        let read = (&mut reader).take(REQUEST_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        if read == REQUEST_BYTES_MAX && line.last() != Some(&b'\n') {
            let too_long =
                format!("{{\"error\":\"EINVAL\",\"message\":\"a request has at most {REQUEST_BYTES_MAX} bytes\"}}\n");
            return writer.write_all(too_long.as_bytes());
        }
        let mut answer = protocol::answer(&line, uid, tree, report);
        answer.push('\n');
        writer.write_all(answer.as_bytes())?;
    }
}

fn locked(clients: &Mutex<Clients>) -> MutexGuard<'_, Clients> {
    clients.lock().unwrap_or_else(PoisonError::into_inner)
}
