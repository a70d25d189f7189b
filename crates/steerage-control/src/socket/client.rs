use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{Value, json};

use crate::history::Event;
use crate::limits::{ANSWER_BYTES_MAX, ANSWERED_WITHIN, SET_WITHIN};

/// A connection to a running instance.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The instance refused the request.
    #[error("{code}: {message}")]
    Refused {
        /// The name of the kernel's error number, such as `EINVAL`.
        code: String,
        /// Why the instance refused the request, in one line.
        message: String,
    },
    /// No reply from the instance arrived within this time.
    #[error("timed out: the instance did not answer within {} s; is it stopped?", .0.as_secs())]
    TimedOut(Duration),
    /// The connection to the instance failed.
    #[error("the instance does not answer: {0}")]
    System(#[from] io::Error),
    /// The instance's reply is not a valid reply to the request.
    #[error("the process that answers there is no steerage of this version")]
    Nonsense,
}

impl Client {
    /// Connects to the instance that listens at `path`.
    ///
    /// # Errors
    /// The kernel's error, or `TimedOut` if the kernel's queue of waiting clients stays full.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // The kernel applies the send timeout of a socket to `connect`, too.
        set_socket_timeout(&socket, Timeout::Send, Some(ANSWERED_WITHIN))?;
        match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
            Err(Errno::AGAIN) => {
                let why = format!("timed out: no connection within {} s", ANSWERED_WITHIN.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, why))
            }
            connected => {
                connected?;
                Ok(Self { stream: BufReader::new(socket.into()) })
            }
        }
    }

    /// Returns the user of the listening process. If the process has changed its user, this is the
    /// user at the time when the process began to listen.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn peer(&self) -> io::Result<u32> {
        Ok(socket_peercred(self.stream.get_ref())?.uid.as_raw())
    }

    /// Returns the process number of the listening process.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn peer_process(&self) -> io::Result<u32> {
        Ok(socket_peercred(self.stream.get_ref())?.pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// Returns the value of the attribute at `path`, with its newline.
    ///
    /// # Errors
    /// Returns an error if the attribute does not exist, or no reply arrives.
    pub fn get(&mut self, path: &str) -> Result<String, ClientError> {
        self.text(&json!({"get": path}), ANSWERED_WITHIN)
    }

    /// Sets the attribute at `path`, and returns its new value.
    ///
    /// # Errors
    /// Returns an error if the attribute does not exist or does not accept the value, if this user
    /// may not set it, or if no reply arrives.
    pub fn set(&mut self, path: &str, value: &str) -> Result<String, ClientError> {
        self.text(&json!({"set": path, "value": value}), SET_WITHIN)
    }

    /// Returns the names in the directory at `path`, and whether each is a directory.
    ///
    /// # Errors
    /// Returns an error if the path does not exist, or no reply arrives.
    pub fn list(&mut self, path: &str) -> Result<Vec<(String, bool)>, ClientError> {
        let answer = self.ask(&json!({"list": path}), "entries", ANSWERED_WITHIN)?;
        let entry = |entry: &Value| Some((entry["name"].as_str()?.to_owned(), entry["type"] == "directory"));
        answer.as_array().and_then(|all| all.iter().map(entry).collect()).ok_or(ClientError::Nonsense)
    }

    /// Returns the changes of attributes with a number greater than `after`, the oldest first.
    ///
    /// # Errors
    /// Returns an error if no reply arrives.
    pub fn events(&mut self, after: u64) -> Result<Vec<Event>, ClientError> {
        let answer = self.ask(&json!({"events": after}), "events", ANSWERED_WITHIN)?;
        serde_json::from_value(answer).map_err(|_| ClientError::Nonsense)
    }

    /// Returns the current report of the run, which docs/report.md describes.
    ///
    /// # Errors
    /// Returns an error if no reply arrives.
    pub fn snapshot(&mut self) -> Result<Value, ClientError> {
        self.ask(&json!({"snapshot": true}), "snapshot", ANSWERED_WITHIN)
    }

    /// Returns the instance's protocol version, program version, process number and user.
    ///
    /// # Errors
    /// Returns an error if no reply arrives.
    pub fn hello(&mut self) -> Result<Value, ClientError> {
        self.ask(&json!({"hello": true}), "hello", ANSWERED_WITHIN)
    }

    /// Requests copies of the packets that `wanted` describes. The packets arrive over
    /// the returned connection until the instance ends or the connection is closed.
    ///
    /// # Errors
    /// Returns an error if this user may not see the packets, if the request is wrong, or if no
    /// reply arrives.
    pub fn packets(mut self, wanted: &Value) -> Result<BufReader<UnixStream>, ClientError> {
        self.ask(&json!({"packets": wanted}), "packets", ANSWERED_WITHIN)?;
        Ok(self.stream)
    }

    fn text(&mut self, request: &Value, within: Duration) -> Result<String, ClientError> {
        let answer = self.ask(request, "value", within)?;
        answer.as_str().map(str::to_owned).ok_or(ClientError::Nonsense)
    }

    fn ask(&mut self, request: &Value, key: &str, within: Duration) -> Result<Value, ClientError> {
        // An instance with too many clients replies with an error and closes the connection. The
        // client can read the error even if the client's request could not be sent.
        let sent = self.stream.get_mut().write_all(format!("{request}\n").as_bytes());
        let line = match (sent, self.line(within)) {
            (_, Ok(line)) if !line.is_empty() => line,
            (Err(error), _) => return Err(of(error, ANSWERED_WITHIN)),
            (Ok(()), Err(error)) => return Err(of(error, within)),
            (Ok(()), Ok(_)) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        };
        let mut answer: Value = serde_json::from_slice(&line).map_err(|_| ClientError::Nonsense)?;
        if let Some(code) = answer["error"].as_str() {
            let message = answer["message"].as_str().unwrap_or("").to_owned();
            return Err(ClientError::Refused { code: code.to_owned(), message });
        }
        answer.get_mut(key).map(Value::take).ok_or(ClientError::Nonsense)
    }

    /// Reads up to the next newline or the end of the input, within the time `within`.
    fn line(&mut self, within: Duration) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + within;
        let mut line = Vec::new();
        while line.len() < ANSWER_BYTES_MAX {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.get_ref().set_read_timeout(Some(left))?;
            let part = match self.stream.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                part => part?,
            };
            let end = part.iter().position(|byte| *byte == b'\n');
            let length = end.map_or(part.len(), |end| end + 1);
            line.extend_from_slice(&part[..length]);
            self.stream.consume(length);
            if end.is_some() || length == 0 {
                break;
            }
        }
        Ok(line)
    }
}

fn of(error: io::Error, within: Duration) -> ClientError {
    match error.kind() {
        // The kernel reports EAGAIN (`WouldBlock`) when the timeout of a socket expires.
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ClientError::TimedOut(within),
        _ => ClientError::System(error),
    }
}
