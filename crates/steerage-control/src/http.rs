//! A small HTTP server for [`metrics`](crate::metrics) and the [live page](crate::web).
//!
//! [`Listener::bind`] binds the socket, which requires a capability for some addresses. A single
//! thread serves all clients until the [`Server`] is dropped. The thread never waits for a client,
//! because each client has a limited buffer and a limited time. A flood disconnects only clients of
//! the host that has the most clients.
//!
//! Only requests to an IP address, to a name of this machine or to names from
//! [`Listener::answering_to`] are answered.

mod hosts;
mod request;
mod serve;
mod site;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

pub(crate) use site::{Body, Resource, Site};

/// Why the server cannot listen at an address.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve {what} at {address}: {error}; {}", advice(.error))]
pub struct BindError {
    what: &'static str,
    address: SocketAddr,
    error: io::Error,
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another program has that port: choose another port",
        io::ErrorKind::AddrNotAvailable => "this machine has no such address: `ip address` lists those it has",
        io::ErrorKind::PermissionDenied => "ports below 1024 are for root: choose a higher one",
        _ => "choose another address",
    }
}

/// A listening socket. Clients that connect wait until the server starts.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    hosts: hosts::Hosts,
}

impl Listener {
    /// Listens at `address`. Port 0 lets the kernel choose. `what` names the service in errors.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the address.
    pub fn bind(what: &'static str, address: SocketAddr) -> Result<Self, BindError> {
        let bound = TcpListener::bind(address).and_then(|socket| {
            socket.set_nonblocking(true)?;
            let address = socket.local_addr()?;
            Ok(Self { socket, address, hosts: hosts::Hosts::with_own_name(&[]) })
        });
        bound.map_err(|error| BindError { what, address, error })
    }

    /// Also answers requests whose header `Host` has one of these names. The server always answers
    /// requests to `localhost`, to the machine's own name and to any IP address. All other names
    /// are refused, because the owner of a DNS name can make it resolve to this machine.
    #[must_use]
    pub fn answering_to(mut self, names: &[String]) -> Self {
        self.hosts = hosts::Hosts::with_own_name(names);
        self
    }

    /// Returns the address at which the server listens, with the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn serve_site(self, name: &str, site: Site) -> io::Result<Server> {
        let (stop, stopped) = UnixStream::pair()?;
        let thread = thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || serve::run(&self.socket, &stopped, &self.hosts, &site))?;
        Ok(Server { stop: Some(stop), thread: Some(thread) })
    }
}

/// A running HTTP server. Dropping this value stops the server.
#[derive(Debug)]
pub struct Server {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Closing this end of the socket pair stops the thread of the server.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn answer(received: &[u8]) -> Option<Vec<u8>> {
    let site = Site::new("/x", vec![Resource::plain("/x", Body::Made(Box::new(|_| "steerage_x 1\n".to_owned())))]);
    request::answer(received, &hosts::Hosts::new(&[]), &site, &site.turn())
}
