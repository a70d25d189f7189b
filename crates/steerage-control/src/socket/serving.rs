//! Each client of the control socket has a thread, so that a client that hangs does not block the
//! others.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::listening::Listening;
use super::protocol::{self, Asked, PacketSender, Packets, Report};
use crate::audience::Audience;
use crate::clients::{Clients, Otherwise, Sharing};
use crate::limits::{
    CLIENT_IDLE_MAX, CLIENT_IDLE_SCARCE, CLIENT_READS_WITHIN, CLIENTS_MAX, CLIENTS_PER_USER_MAX, CLIENTS_RESERVED,
    REQUEST_BYTES_MAX,
};
use crate::quota::{Party, Quota, QuotaFull};
use crate::tree::Tree;

/// The pause after a failed `accept`, for example because no file descriptor is free.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// A control tree that is served over a socket until this value is dropped.
#[derive(Debug)]
pub struct Serving {
    listening: Arc<Listening>,
    all: Arc<Mutex<All>>,
}

/// The connections of all clients, which the server keeps in order to disconnect the clients.
#[derive(Debug)]
struct All {
    clients: Clients<UnixStream>,
    ended: bool,
}

#[derive(Clone)]
struct Shared {
    all: Arc<Mutex<All>>,
    tree: Arc<Tree>,
    report: Arc<Report>,
    packets: Arc<Packets>,
}

impl Listening {
    /// Serves clients on separate threads. `report` returns the JSON object for a `snapshot`
    /// request, with only what the audience may see.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub fn serve(
        self,
        tree: Arc<Tree>,
        report: impl Fn(Audience) -> String + Send + Sync + 'static,
    ) -> io::Result<Serving> {
        self.serve_with_packets(tree, report, |_| Err("this run shows no packets".to_owned()))
    }

    /// Serves clients like [`serve`](Self::serve), and also sends copies of packets to clients of
    /// root and of the instance's user. `packets` gets the request, and returns a function that
    /// sends packets over the client's connection on the client's thread.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub fn serve_with_packets(
        self,
        tree: Arc<Tree>,
        report: impl Fn(Audience) -> String + Send + Sync + 'static,
        packets: impl Fn(&serde_json::Value) -> Result<PacketSender, String> + Send + Sync + 'static,
    ) -> io::Result<Serving> {
        let owner = Some(tree.uid());
        let quota = Quota { all: CLIENTS_MAX, reserved: CLIENTS_RESERVED, per_party: CLIENTS_PER_USER_MAX, owner };
        let sharing = Sharing { quota, silent: CLIENT_IDLE_SCARCE, otherwise: Otherwise::Refuse };
        let all = Arc::new(Mutex::new(All { clients: Clients::new(sharing), ended: false }));
        let serving = Serving { listening: Arc::new(self), all: Arc::clone(&all) };
        let shared = Shared { all, tree, report: Arc::new(Box::new(report)), packets: Arc::new(Box::new(packets)) };
        let listener = serving.listening.listener.try_clone()?;
        thread::Builder::new().name("control".to_owned()).spawn(move || {
            loop {
                let accepted = listener.accept();
                if locked(&shared.all).ended {
                    return;
                }
                match accepted {
                    Ok((stream, _)) => begin(stream, &shared),
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
    /// Returns the path of the control socket.
    pub fn path(&self) -> &std::path::Path {
        self.listening.path()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut all = locked(&self.all);
        all.ended = true;
        // The shutdown wakes the thread that waits in `accept`.
        let _ = rustix::net::shutdown(&self.listening.listener, rustix::net::Shutdown::Both);
        all.clients.drain().for_each(cut);
    }
}

fn begin(stream: UnixStream, shared: &Shared) {
    let begun = rustix::net::sockopt::socket_peercred(&stream)
        .map_err(io::Error::from)
        .and_then(|peer| Ok((peer.uid.as_raw(), stream.try_clone()?)));
    let (uid, copy) = match begun {
        Ok(begun) => begun,
        Err(error) => return tracing::warn!("cannot serve a client of the control socket: {error}"),
    };
    let mut all = locked(&shared.all);
    if all.ended {
        return;
    }
    let admitted = all.clients.admit(Party::User(uid), Instant::now(), copy);
    drop(all);
    let id = match admitted {
        Ok((id, silent)) => {
            silent.into_iter().for_each(cut);
            id
        }
        Err(full) => return send_away(&stream, uid, full),
    };
    let of_client = shared.clone();
    let admitted = Admitted { id, all: Arc::clone(&shared.all) };
    let started = thread::Builder::new().name("control/client".to_owned()).spawn(move || {
        if let Err(error) = talk(&stream, &admitted, uid, &of_client) {
            tracing::debug!("a client of the control socket is gone: {error}");
        }
    });
    if let Err(error) = started {
        tracing::warn!("cannot start a thread for a client of the control socket: {error}");
    }
}

/// Removes the client from the list when its thread ends, even by a panic. The list has a copy of
/// the connection, which would stay open.
struct Admitted {
    id: u64,
    all: Arc<Mutex<All>>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        locked(&self.all).clients.leaves(self.id);
    }
}

fn send_away(mut stream: &UnixStream, uid: u32, full: QuotaFull) {
    let why = match full {
        QuotaFull::Party => format!("user {uid} has too many connections: close one, or try again later"),
        QuotaFull::All => "too many clients at a time: try again later".to_owned(),
    };
    // The thread that accepts clients must not wait for any client.
    let _ = stream.set_nonblocking(true);
    let _ = stream.write_all(format!("{{\"error\":\"EBUSY\",\"message\":\"{why}\"}}\n").as_bytes());
}

fn cut(stream: UnixStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

fn talk(stream: &UnixStream, admitted: &Admitted, uid: u32, shared: &Shared) -> io::Result<()> {
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
        if !locked(&shared.all).clients.asks(admitted.id) {
            return Ok(());
        }
        let (mut answer, sender) = match protocol::asked(&line) {
            Ok(Asked::Packets { packets }) => protocol::packets(&packets, uid, &shared.tree, &shared.packets),
            asked => (protocol::answer(asked, uid, &shared.tree, &shared.report), None),
        };
        answer.push('\n');
        let answered = writer.write_all(answer.as_bytes());
        if let Some(sender) = sender {
            // The function `sender` must run even if the client is gone, because `sender` also ends
            // the copying of packets for the client.
            sender(stream);
            return answered;
        }
        answered?;
        locked(&shared.all).clients.answered(admitted.id, Instant::now());
    }
}

fn locked(all: &Mutex<All>) -> MutexGuard<'_, All> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}
