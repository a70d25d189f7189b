//! Mounts with `fusermount3`, which also unmounts once this process ends or asks for it.
//!
//! `fusermount3` passes the opened `/dev/fuse` through a socket, and then watches that socket. When
//! its other end is gone, it opens the directory. If that fails with "Transport endpoint is not
//! connected", nobody serves the mount any more, and it unmounts. So a process that is killed leaves
//! no mount, and nothing of this process needs a privilege after the start.

use std::io::{self, ErrorKind, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use steerage_guard::program;

use crate::limits::UNMOUNT_MAX;

const PROGRAM: &str = "fusermount3";

/// The variable with the number of the socket, which is the program's standard input here.
const SOCKET_VARIABLE: (&str, &str) = ("_FUSE_COMMFD", "0");

/// Why `fusermount3` did not mount or unmount.
#[derive(Debug)]
pub(super) enum Failure {
    /// The program is not installed.
    NotInstalled,
    /// The program could not be started, or its answer could not be read.
    Io(io::Error),
    /// The program refused. The string is its last line.
    Refused(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The end of the socket that `fusermount3` watches while the tree is mounted.
#[derive(Debug)]
pub(super) struct Watched {
    socket: UnixStream,
    /// When a process ends, the kernel closes its descriptors one after another. The program must
    /// not look at the directory before the process's `/dev/fuse` is closed. One copy of the socket
    /// has a smaller number than `/dev/fuse` and the other one a larger number, so the socket goes
    /// away last in either order.
    _copy: OwnedFd,
}

/// Mounts on a directory. Returns the opened `/dev/fuse`.
pub(super) fn mount(directory: &Path, options: &str) -> Result<(OwnedFd, Watched), Failure> {
    let (socket, of_program) = UnixStream::pair()?;
    let mut command = Command::new(PROGRAM);
    command.args(["-o", options, "--"]).arg(directory).env(SOCKET_VARIABLE.0, SOCKET_VARIABLE.1);
    command.stdin(OwnedFd::from(of_program)).stdout(Stdio::null()).stderr(Stdio::piped());
    // In a process group of its own, it does not get the signal of Ctrl-C.
    let child = program::start(command.process_group(0)).map_err(start_failed)?;
    // The command has a copy of the program's end of the socket, which would hide its end.
    drop(command);
    let Some(fuse) = receive(&socket)? else {
        let output = child.wait_with_output()?;
        return Err(Failure::Refused(last_line(&output.stderr)));
    };
    // The program now runs until it has unmounted. It becomes a zombie then, which goes away with
    // this process: the sandbox of a run does not allow it to wait for a process.
    let copy = rustix::io::fcntl_dupfd_cloexec(&socket, fuse.as_raw_fd().saturating_add(1)).map_err(io::Error::from)?;
    socket.set_read_timeout(Some(UNMOUNT_MAX))?;
    Ok((fuse, Watched { socket, _copy: copy }))
}

/// Unmounts what a process left that is gone.
pub(super) fn unmount(directory: &Path) -> Result<(), Failure> {
    let mut command = Command::new(PROGRAM);
    command.args(["-u", "-z", "--"]).arg(directory);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = program::start(&mut command).map_err(start_failed)?.wait_with_output()?;
    if output.status.success() { Ok(()) } else { Err(Failure::Refused(last_line(&output.stderr))) }
}

impl Watched {
    /// Makes the program look at the directory, and waits until the program has ended.
    ///
    /// # Errors
    /// If the program does not end in time.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)?;
        loop {
            match self.socket.read(&mut [0]) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn start_failed(error: io::Error) -> Failure {
    if error.kind() == ErrorKind::NotFound { Failure::NotInstalled } else { Failure::Io(error) }
}

/// Receives a descriptor, or `None` if the other end of the socket is closed without one.
fn receive(socket: &UnixStream) -> Result<Option<OwnedFd>, Failure> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut passed = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::io::retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut passed, flags))
        .map_err(io::Error::from)?;
    let descriptors = passed.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.flatten().next())
}

/// The last line that is not empty, without the program's name.
fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
    line.strip_prefix(PROGRAM).and_then(|line| line.strip_prefix(": ")).unwrap_or(line).to_owned()
}
