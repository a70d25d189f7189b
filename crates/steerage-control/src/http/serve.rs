//! The thread that serves all HTTP clients, without letting any client wait for another.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::hosts::Hosts;
use super::request::{self, REQUEST_BYTES_MAX};
use super::site::{Site, Turn};
use crate::clients::{Clients, Otherwise, Sharing};
use crate::quota::{Party, Quota};

/// The maximum number of simultaneous clients. A new client replaces an older one.
const CLIENTS_MAX: usize = 16;

/// The time within which a client must send its request. A new client may replace a client that
/// exceeds this time. A request from Prometheus arrives within a fraction of a second, even from
/// the other side of the world.
const SILENT_MAX: Duration = Duration::from_secs(1);

/// The maximum number of new clients in one turn of the server's loop. The kernel's queue of new
/// connections has fewer entries (the standard library requests 128), so each turn empties the
/// queue, even in a flood.
const ACCEPTED_A_TURN: usize = 256;

/// The maximum time from a client's connection to the end of the reply: the default timeout of
/// Prometheus.
const CLIENT_TIME_MAX: Duration = Duration::from_secs(10);

/// The pause after `accept` has found no free file descriptor. If the server did not pause,
/// `accept` would fail again at once.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// How long a stopping server waits for clients to read their replies. Clients on this machine read
/// their replies within milliseconds.
const FINISH_MAX: Duration = Duration::from_millis(500);

/// The maximum number of reads in one turn of the loop from a client that has got its reply.
const LEFTOVERS_A_TURN: usize = 16;

struct Serve<'a> {
    clients: Clients<HttpClient>,
    hosts: &'a Hosts,
    site: &'a Site,
}

/// Serves clients until the other end of `stopped` is closed.
pub(super) fn run(listener: &TcpListener, stopped: &UnixStream, hosts: &Hosts, site: &Site) {
    let quota = Quota { all: CLIENTS_MAX, reserved: 0, per_party: CLIENTS_MAX, owner: None };
    let sharing = Sharing { quota, silent: SILENT_MAX, otherwise: Otherwise::Replace };
    let mut serve = Serve { clients: Clients::new(sharing), hosts, site };
    let mut refused_until: Option<Instant> = None;
    loop {
        let now = Instant::now();
        serve.clients.retain(|client| client.until > now);
        refused_until = refused_until.filter(|until| *until > now);
        let due = serve.clients.iter().map(|(_, client)| client.until).chain(refused_until).min();
        let time = due.map(|due| due - now);
        let Ok(ready) = wait(listener, stopped, &serve.clients, refused_until.is_some(), time) else {
            tracing::error!("cannot wait for the clients of the HTTP server; it stops");
            return;
        };
        if ready.stopped {
            return serve.finish(&site.turn());
        }
        let turn = site.turn();
        for id in ready.clients {
            serve.go_on(id, &turn);
        }
        if ready.listener && serve.admit(listener, &turn).is_err() {
            refused_until = Some(Instant::now() + REFUSED_PAUSE);
        }
    }
}

impl Serve<'_> {
    /// Serves each new client at once, because the client's request has often arrived already.
    fn admit(&mut self, listener: &TcpListener, turn: &Turn<'_>) -> io::Result<()> {
        for _ in 0..ACCEPTED_A_TURN {
            let (stream, address) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The new client has already disconnected, or a signal has interrupted `accept`.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => continue,
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            let now = Instant::now();
            let client = HttpClient { stream, until: now + CLIENT_TIME_MAX, state: State::Asks(Vec::new()) };
            // `admit` cannot fail: with [`Otherwise::Replace`], an older client makes way.
            if let Ok((id, _gone)) = self.clients.admit(Party::host(address.ip()), now, client) {
                self.go_on(id, turn);
            }
        }
        Ok(())
    }

    /// Completes the replies that the server has begun to send.
    fn finish(&mut self, turn: &Turn<'_>) {
        let until = Instant::now() + FINISH_MAX;
        loop {
            self.clients.retain(|client| matches!(client.state, State::IsTold(..)));
            let mut fds: Vec<PollFd<'_>> =
                self.clients.iter().map(|(_, client)| PollFd::new(client.stream.as_fd(), PollFlags::POLLOUT)).collect();
            let left = until.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            if fds.is_empty() || left.is_zero() || !matches!(poll(&mut fds, timeout), Ok(1..)) {
                return;
            }
            let ids: Vec<u64> = self.clients.iter().map(|(id, _)| id).collect();
            ids.into_iter().for_each(|id| self.go_on(id, turn));
        }
    }

    fn go_on(&mut self, id: u64, turn: &Turn<'_>) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let stays = client.go_on(self.hosts, self.site, turn);
        match client.state {
            State::Asks(_) => {}
            State::IsTold(..) => drop(self.clients.asks(id)),
            State::Leaves => self.clients.answered(id, Instant::now()),
        }
        if !stays {
            self.clients.leaves(id);
        }
    }
}

struct Ready {
    stopped: bool,
    listener: bool,
    clients: Vec<u64>,
}

fn wait(
    listener: &TcpListener,
    stopped: &UnixStream,
    clients: &Clients<HttpClient>,
    closed: bool,
    time: Option<Duration>,
) -> io::Result<Ready> {
    let wanted = if closed { PollFlags::empty() } else { PollFlags::POLLIN };
    let mut fds = vec![PollFd::new(stopped.as_fd(), PollFlags::POLLIN), PollFd::new(listener.as_fd(), wanted)];
    fds.extend(clients.iter().map(|(_, client)| PollFd::new(client.stream.as_fd(), client.wants())));
    let timeout = match time {
        None => PollTimeout::NONE,
        // Rounding the timeout up keeps the thread from waking up shortly before its deadline.
        Some(time) => PollTimeout::try_from(time + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX),
    };
    match poll(&mut fds, timeout) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    let is_ready = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
    Ok(Ready {
        stopped: is_ready(&fds[0]),
        listener: is_ready(&fds[1]),
        clients: clients.iter().zip(&fds[2..]).filter(|(_, fd)| is_ready(fd)).map(|((id, _), _)| id).collect(),
    })
}

struct HttpClient {
    stream: TcpStream,
    until: Instant,
    state: State,
}

enum State {
    Asks(Vec<u8>),
    /// The client gets this reply. The number says how many bytes of the reply the server has sent.
    IsTold(Vec<u8>, usize),
    /// The reply is sent, and the server reads the client's remaining input. If the server closed
    /// the connection with unread input, the kernel would discard the part of the reply that the
    /// client has not read.
    Leaves,
}

impl HttpClient {
    fn wants(&self) -> PollFlags {
        if matches!(self.state, State::IsTold(..)) { PollFlags::POLLOUT } else { PollFlags::POLLIN }
    }

    /// Serves the client until the thread would block. Returns false if the connection has ended.
    fn go_on(&mut self, hosts: &Hosts, site: &Site, turn: &Turn<'_>) -> bool {
        loop {
            match self.step(hosts, site, turn) {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }

    fn step(&mut self, hosts: &Hosts, site: &Site, turn: &Turn<'_>) -> io::Result<ControlFlow<()>> {
        let mut bytes = [0; REQUEST_BYTES_MAX];
        match &mut self.state {
            State::Asks(received) => {
                let room = REQUEST_BYTES_MAX - received.len();
                let length = self.stream.read(&mut bytes[..room])?;
                received.extend(&bytes[..length]);
                match request::answer(received, hosts, site, turn) {
                    Some(answer) => self.state = State::IsTold(answer, 0),
                    None if length == 0 => return Ok(ControlFlow::Break(())),
                    None => {}
                }
            }
            State::IsTold(answer, sent) => {
                *sent += self.stream.write(&answer[*sent..])?;
                if *sent == answer.len() {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.state = State::Leaves;
                }
            }
            State::Leaves => {
                for _ in 0..LEFTOVERS_A_TURN {
                    if self.stream.read(&mut bytes)? == 0 {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                // The server serves all other clients before it reads more from this client.
                return Err(ErrorKind::WouldBlock.into());
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
