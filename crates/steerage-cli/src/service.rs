//! Tells the service manager that the run has started, by the protocol of sd_notify(3).

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// The socket of the service manager, or `None` if there is no service manager.
#[derive(Debug, Default)]
pub(crate) struct ServiceManager(Option<UnixDatagram>);

impl ServiceManager {
    /// Connects to the service manager. Call `connect` before the sandbox is entered, because the
    /// sandbox allows no new sockets.
    pub(crate) fn connect() -> Self {
        let name = env::var_os(SOCKET_VARIABLE);
        Self(name.and_then(|name| {
            let connected = connect(&name);
            connected.inspect_err(|error| tracing::warn!("there is no way to reach the service manager: {error}")).ok()
        }))
    }

    pub(crate) fn ready(&self) {
        if let Some(Err(error)) = self.0.as_ref().map(|socket| socket.send(b"READY=1")) {
            tracing::warn!("the service manager does not know that the run has started: {error}");
        }
    }
}

fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    match name.as_bytes().strip_prefix(b"@") {
        Some(name) => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
        None => socket.connect(name)?,
    }
    Ok(socket)
}
