use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;

use rustix::process::geteuid;
use steerage::{DeviceError, Output};
use steerage_guard::file::{self, Readers};

use super::encode::StreamFormat;
use super::peer_user;
use super::save::{READER_LOOK, open_when_read};
use super::stream::{StreamOptions, stream};

const FORMAT: StreamFormat = StreamFormat::PcapNanos;

/// Makes an output that writes pcap with nanoseconds to a FIFO. A missing FIFO is created.
///
/// While the FIFO has no reader, this function calls `waits` with the number of earlier calls, and
/// stops waiting when `waits` returns false.
///
/// # Errors
/// [`DeviceError`] if the path cannot be a FIFO, or if `waits` returns false.
///
/// ```no_run
/// let output = steerage_capture::fifo("packets", |asked| asked < 10)?;
/// # Ok::<(), steerage::DeviceError>(())
/// ```
pub fn fifo(path: impl AsRef<Path>, waits: impl FnMut(u64) -> bool) -> Result<Output, DeviceError> {
    let path = path.as_ref();
    let name = path.to_string_lossy().into_owned();
    let failed = |operation, error| DeviceError::new(name.clone(), operation, error);
    file::create_fifo(path, Readers::Group).map_err(|error| {
        if error.kind() == io::ErrorKind::AlreadyExists {
            let cause = io::Error::other("it is there already and no FIFO");
            return failed("make the FIFO", cause).advise("name another path, or write pcap:FILE for a file");
        }
        failed("make the FIFO", error)
    })?;
    let file = open_when_read(path, waits).map_err(|error| failed("open", error))?;
    stream(name, file, StreamOptions::new(FORMAT)).map(|(output, _)| output)
}

/// An event while an output waits for its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waiting {
    /// There is no reader yet.
    Looked {
        /// The number of times that the output has checked whether a reader has connected.
        before: u64,
    },
    /// The first client from any machine that can reach this address can read the traffic.
    OpenToOthers(SocketAddr),
    /// A client on this machine was rejected, because it runs as another user, who is not root.
    Refused {
        /// The address of the client.
        client: SocketAddr,
        /// The user of the client, or `None` if the client has closed its socket already.
        uid: Option<u32>,
        /// The number of rejected clients, including this client.
        count: u64,
    },
}

/// Makes an output that sends pcap with nanoseconds to the first client at `address`, such as
/// `127.0.0.1:57012`. Wireshark, Zeek and Arkime can read this protocol (PCAP over IP).
///
/// A client on this machine that runs neither as this process's user nor as root is disconnected.
/// If other machines can reach the address, the first client from any of them can read the traffic.
///
/// While no client is connected, this function calls `waits` with a [`Waiting`] event, and stops
/// waiting when `waits` returns false.
///
/// # Errors
/// [`DeviceError`] if the process cannot listen at the address, if the kernel does not report the
/// user of a client, or if `waits` returns false.
///
/// ```no_run
/// use steerage_capture::{Waiting, listen};
///
/// let output = listen("127.0.0.1:57012", |waiting| !matches!(waiting, Waiting::Looked { before: 10 }))?;
/// # Ok::<(), steerage::DeviceError>(())
/// ```
pub fn listen(address: &str, mut waits: impl FnMut(Waiting) -> bool) -> Result<Output, DeviceError> {
    let failed = |error| {
        let error = DeviceError::new(address, "listen at", error);
        error.advise("write a free address of this machine and a port, such as 127.0.0.1:57012")
    };
    let given_up = || failed(io::ErrorKind::TimedOut.into());
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let at = listener.local_addr().map_err(failed)?;
    if !at.ip().to_canonical().is_loopback() && !waits(Waiting::OpenToOthers(at)) {
        return Err(given_up());
    }
    let (mut before, mut count) = (0, 0);
    loop {
        match listener.accept() {
            Ok((connection, client)) => match allowed(&connection, client).map_err(failed)? {
                Allowed::Yes => {
                    return stream(address, connection, StreamOptions::new(FORMAT)).map(|(output, _)| output);
                }
                Allowed::No(uid) => {
                    count += 1;
                    if !waits(Waiting::Refused { client, uid, count }) {
                        return Err(given_up());
                    }
                }
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && waits(Waiting::Looked { before }) => {
                thread::sleep(READER_LOOK);
                before += 1;
            }
            // The client has already closed its connection.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

enum Allowed {
    Yes,
    /// The client's user, whose user ID is given if it is known, is not allowed to read the stream.
    No(Option<u32>),
}

/// Other users on this machine may not read this user's capture.
fn allowed(connection: &TcpStream, client: SocketAddr) -> io::Result<Allowed> {
    Ok(match peer_user::of(client, connection.local_addr()?)? {
        Some(uid) if uid == 0 || uid == geteuid().as_raw() => Allowed::Yes,
        // The client runs on another machine.
        None if !client.ip().to_canonical().is_loopback() => Allowed::Yes,
        uid => Allowed::No(uid),
    })
}
