//! A server of requests by the kernel's sockets: one thread, one epoll, a response for each request.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::rr::{EVENTS, LOOK};

/// What stands for the listener among connections.
const LISTENER: u64 = u64::MAX;

/// How much is read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Listens; nobody is answered before [`Server::serve`].
pub(super) struct Server {
    listener: TcpListener,
    epoll: std::os::fd::OwnedFd,
    /// Connections, each with how much of its request has not come yet.
    connections: Vec<Option<(TcpStream, usize)>>,
    request: usize,
    response: Vec<u8>,
    piece: Vec<u8>,
}

impl Server {
    /// At an address of this namespace.
    pub(super) fn listen(at: SocketAddr, request: usize, response: usize) -> io::Result<Self> {
        let listener = TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        let (response, piece) = (vec![0; response], vec![0; PIECE_BYTES]);
        Ok(Self { listener, epoll, connections: Vec::new(), request, response, piece })
    }

    /// Answers until somebody says stop.
    pub(super) fn serve(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let wait = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        let mut events = Vec::with_capacity(EVENTS);
        // Relaxed: nothing else is told by it.
        while !stop.load(Ordering::Relaxed) {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                // It is packed on some machines: copied, not referred to.
                let data = event.data;
                match data.u64() {
                    LISTENER => self.accept()?,
                    at => self.answer(at as usize),
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        // One that went away before it was accepted is nothing to stop for.
        while let Ok((stream, _)) = self.listener.accept() {
            // It blocks: it is only read when something has come, and a response is written whole.
            stream.set_nodelay(true)?;
            let at = self.connections.len() as u64;
            epoll::add(&self.epoll, &stream, EventData::new_u64(at), EventFlags::IN)?;
            self.connections.push(Some((stream, self.request)));
        }
        Ok(())
    }

    /// Takes what has come of a request, and answers it once it is whole. One that fails or ends is closed.
    fn answer(&mut self, at: usize) {
        let Some(place @ Some(_)) = self.connections.get_mut(at) else { return };
        let Some((stream, lacks)) = place else { return };
        let most = self.piece.len().min(*lacks);
        let goes_on = match stream.read(&mut self.piece[..most]) {
            Ok(0) => false,
            Ok(read) => {
                *lacks -= read;
                let whole = *lacks == 0;
                if whole {
                    *lacks = self.request;
                }
                !whole || stream.write_all(&self.response).is_ok()
            }
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        };
        if !goes_on {
            *place = None;
        }
    }
}
