//! A small HTTP server, which serves [`metrics`](crate::metrics) and the [live page](crate::web).
//!
//! [`Listener::bind`] binds the server's socket, for which some addresses require a capability.
//! After the server has started, a single thread serves all HTTP clients until the [`Server`] is
//! dropped. The thread never waits for a single client, because each client has a limited buffer
//! and a limited time. If there are too many clients, the thread disconnects a client of the host
//! that has the most clients.
//!
//! The server answers only requests whose header `Host` contains an IP address or a name of the
//! server's machine. [`Listener::answering_to`] adds further names.

mod hosts;
mod request;
mod serve;
mod site;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

pub(crate) use site::{Body, Resource, Site};

/// The reason why the server cannot listen at an address.
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

/// A listening socket for HTTP clients. Clients that connect wait until the server starts.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    hosts: hosts::Hosts,
}

impl Listener {
    /// Binds a socket to `address` and listens. If the port is 0, the kernel chooses a port. `what`
    /// names the service in error messages.
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

    /// Makes the server also answer requests whose header `Host` has one of these names. The server
    /// also answers to `localhost`, to the machine's own name, and to any IP address. The server
    /// refuses all other host names, because the owner of any DNS name can make the name resolve to
    /// this machine.
    #[must_use]
    pub fn answering_to(mut self, names: &[String]) -> Self {
        self.hosts = hosts::Hosts::with_own_name(names);
        self
    }

    /// Returns the address of the listening socket, with the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts a thread called `name` that serves the resources of `site` to HTTP clients.
    pub(crate) fn serve_site(self, name: &str, site: Site) -> io::Result<Server> {
        let (stop, stopped) = UnixStream::pair()?;
        let thread = thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || serve::run(&self.socket, &stopped, &self.hosts, &site))?;
        Ok(Server { stop: Some(stop), thread: Some(thread) })
    }
}

/// A running HTTP server. The HTTP server stops when this value is dropped.
#[derive(Debug)]
pub struct Server {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // `stop` is one end of a socket pair. The server's thread stops when this end of the socket
        // pair is closed.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the server's reply to a request line with its headers, for the fuzz targets. Returns
/// `None` if the headers are incomplete.
pub(crate) fn answer(received: &[u8]) -> Option<Vec<u8>> {
    let site = Site::new("/x", vec![Resource::plain("/x", Body::Made(Box::new(|_| "steerage_x 1\n".to_owned())))]);
    request::answer(received, &hosts::Hosts::new(&[]), &site, &site.turn())
}
