//! The thread that serves all clients. It keeps the state of each client, so no client waits for
//! another.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::http::{self, REQUEST_BYTES_MAX};

/// The most clients at a time. One Prometheus server is one client. If another client connects, the
/// oldest is disconnected, so clients that only hold their connections keep no others out.
pub(super) const CLIENTS_MAX: usize = 16;

/// How long a client may take from connecting to the end of its answer. It is Prometheus' default
/// timeout.
const CLIENT_TIME_MAX: Duration = Duration::from_secs(10);

/// How long no client is accepted after the kernel refused to accept one (no file descriptor is
/// left). A new attempt would fail again at once.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// The most bytes that are read per turn from a client that already has its answer, in buffers of
/// [`REQUEST_BYTES_MAX`].
const LEFTOVERS_A_TURN: usize = 16;

/// Answers clients until the other end of `stopped` is closed.
pub(super) fn run(listener: &TcpListener, stopped: &UnixStream, page: &dyn Fn() -> String) {
    let mut clients: VecDeque<HttpClient> = VecDeque::with_capacity(CLIENTS_MAX);
    let mut refused_until: Option<Instant> = None;
    loop {
        let now = Instant::now();
        clients.retain(|client| client.until > now);
        refused_until = refused_until.filter(|until| *until > now);
        let due = clients.iter().map(|client| client.until).chain(refused_until).min();
        let Ok(ready) = wait(listener, stopped, &clients, refused_until.is_some(), due.map(|due| due - now)) else {
            tracing::error!("the kernel does not say who asks for metrics; they are served no more");
            return;
        };
        if ready.stopped {
            return;
        }
        let mut nth = 0;
        clients.retain_mut(|client| {
            let (is_ready, goes_on) = (ready.clients[nth], nth + 1);
            nth = goes_on;
            !is_ready || client.go_on(page)
        });
        if ready.listener && admit(listener, &mut clients).is_err() {
            refused_until = Some(Instant::now() + REFUSED_PAUSE);
        }
    }
}

struct Ready {
    stopped: bool,
    listener: bool,
    clients: Vec<bool>,
}

/// Waits for a client, for the stop signal, or until `time` has passed.
fn wait(
    listener: &TcpListener,
    stopped: &UnixStream,
    clients: &VecDeque<HttpClient>,
    closed: bool,
    time: Option<Duration>,
) -> io::Result<Ready> {
    let wanted = if closed { PollFlags::empty() } else { PollFlags::POLLIN };
    let mut fds = vec![PollFd::new(stopped.as_fd(), PollFlags::POLLIN), PollFd::new(listener.as_fd(), wanted)];
    fds.extend(clients.iter().map(|client| PollFd::new(client.stream.as_fd(), client.wants())));
    let timeout = match time {
        None => PollTimeout::NONE,
        // Rounded up: a wake-up just before the deadline would need a second one.
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
        clients: fds[2..].iter().map(is_ready).collect(),
    })
}

/// Accepts waiting clients, at most [`CLIENTS_MAX`] in one call.
fn admit(listener: &TcpListener, clients: &mut VecDeque<HttpClient>) -> io::Result<()> {
    for _ in 0..CLIENTS_MAX {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // The client has gone already, or a signal arrived.
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => continue,
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(true)?;
        if clients.len() == CLIENTS_MAX {
            clients.pop_front();
        }
        clients.push_back(HttpClient {
            stream,
            until: Instant::now() + CLIENT_TIME_MAX,
            state: State::Asks(Vec::new()),
        });
    }
    Ok(())
}

struct HttpClient {
    stream: TcpStream,
    until: Instant,
    state: State,
}

enum State {
    /// The client sends its request. These bytes have arrived so far.
    Asks(Vec<u8>),
    /// The client receives its answer. The number says how many bytes are sent.
    IsTold(Vec<u8>, usize),
    /// The client has its answer. If we closed the connection with unread input, the kernel would
    /// discard what the client has not read yet.
    Leaves,
}

impl HttpClient {
    fn wants(&self) -> PollFlags {
        if matches!(self.state, State::IsTold(..)) { PollFlags::POLLOUT } else { PollFlags::POLLIN }
    }

    /// Serves the client as far as possible without waiting. Returns whether the client stays.
    fn go_on(&mut self, page: &dyn Fn() -> String) -> bool {
        loop {
            match self.step(page) {
                Ok(Step::On) => {}
                Ok(Step::Done) => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }

    fn step(&mut self, page: &dyn Fn() -> String) -> io::Result<Step> {
        let mut bytes = [0; REQUEST_BYTES_MAX];
        match &mut self.state {
            State::Asks(received) => {
                let room = REQUEST_BYTES_MAX - received.len();
                let length = self.stream.read(&mut bytes[..room])?;
                received.extend(&bytes[..length]);
                match http::answer(received, page) {
                    Some(answer) => self.state = State::IsTold(answer, 0),
                    None if length == 0 => return Ok(Step::Done),
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
                        return Ok(Step::Done);
                    }
                }
                // There is more to read, but the other clients have their turn first.
                return Err(ErrorKind::WouldBlock.into());
            }
        }
        Ok(Step::On)
    }
}

enum Step {
    On,
    Done,
}
