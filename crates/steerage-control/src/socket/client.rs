//! The other end: what `steerage get` and `set` ask by.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};

use crate::history::Event;
use crate::limits::{ANSWER_BYTES_MAX, ANSWERED_WITHIN};

/// A connection to a running instance.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

/// Why there is no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError {
    /// The instance says no.
    Refused {
        /// The error number's name, such as `EINVAL`.
        code: String,
        /// Why, in one line.
        message: String,
    },
    /// The connection failed.
    System(io::Error),
    /// What came is no answer to what was asked.
    Nonsense,
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { code, message } => write!(f, "{code}: {message}"),
            Self::System(error) => write!(f, "the instance does not answer: {error}"),
            Self::Nonsense => f.write_str("what answers there is no steerage of this version"),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl Client {
    /// Connects to the instance that listens at `path`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(ANSWERED_WITHIN))?;
        stream.set_write_timeout(Some(ANSWERED_WITHIN))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// What the attribute at `path` says, with its newline.
    ///
    /// # Errors
    /// If there is none, or no answer.
    pub fn get(&mut self, path: &str) -> Result<String, ClientError> {
        self.text(&json!({"get": path}))
    }

    /// Sets the attribute at `path`; returns what it says then.
    ///
    /// # Errors
    /// If there is none, it cannot be set to that or not by this user, or there is no answer.
    pub fn set(&mut self, path: &str, value: &str) -> Result<String, ClientError> {
        self.text(&json!({"set": path, "value": value}))
    }

    /// The names in the directory at `path`, and whether each is a directory; nothing of an attribute.
    ///
    /// # Errors
    /// If there is none, or no answer.
    pub fn list(&mut self, path: &str) -> Result<Vec<(String, bool)>, ClientError> {
        let answer = self.ask(&json!({"list": path}), "entries")?;
        let entry = |entry: &Value| Some((entry["name"].as_str()?.to_owned(), entry["type"] == "directory"));
        answer.as_array().and_then(|all| all.iter().map(entry).collect()).ok_or(ClientError::Nonsense)
    }

    /// The changes after the one of that number, the oldest first.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn events(&mut self, after: u64) -> Result<Vec<Event>, ClientError> {
        let answer = self.ask(&json!({"events": after}), "events")?;
        serde_json::from_value(answer).map_err(|_| ClientError::Nonsense)
    }

    /// The report as it stands now: docs/report.md.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn snapshot(&mut self) -> Result<Value, ClientError> {
        self.ask(&json!({"snapshot": true}), "snapshot")
    }

    /// Who it is: protocol, version, pid and uid.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn hello(&mut self) -> Result<Value, ClientError> {
        self.ask(&json!({"hello": true}), "hello")
    }

    fn text(&mut self, request: &Value) -> Result<String, ClientError> {
        let answer = self.ask(request, "value")?;
        answer.as_str().map(str::to_owned).ok_or(ClientError::Nonsense)
    }

    /// What stands under `key` in the answer.
    fn ask(&mut self, request: &Value, key: &str) -> Result<Value, ClientError> {
        // An instance that has too many clients says so and closes; its words are there to be read all the same.
        let sent = self.stream.get_mut().write_all(format!("{request}\n").as_bytes());
        let mut line = String::new();
        let read = (&mut self.stream).take(ANSWER_BYTES_MAX as u64).read_line(&mut line);
        match (sent, read) {
            (_, Ok(1..)) => {}
            (Err(error), _) | (_, Err(error)) => return Err(error.into()),
            (Ok(()), Ok(_)) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
        let mut answer: Value = serde_json::from_str(&line).map_err(|_| ClientError::Nonsense)?;
        if let Some(code) = answer["error"].as_str() {
            let message = answer["message"].as_str().unwrap_or("").to_owned();
            return Err(ClientError::Refused { code: code.to_owned(), message });
        }
        answer.get_mut(key).map(Value::take).ok_or(ClientError::Nonsense)
    }
}
