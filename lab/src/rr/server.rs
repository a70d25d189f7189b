//! A request-response server on the kernel's sockets: one thread with one epoll instance.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::load::{EVENTS, LOOK};

const LISTENER: u64 = u64::MAX;

const PIECE_BYTES: usize = 64 << 10;

pub(super) struct Server {
    listener: TcpListener,
    epoll: std::os::fd::OwnedFd,
    connections: Vec<Option<(TcpStream, usize)>>,
    request: usize,
    response: Vec<u8>,
    piece: Vec<u8>,
}

impl Server {
    pub(super) fn listen(at: SocketAddr, request: usize, response: usize) -> io::Result<Self> {
        let listener = TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        let (response, piece) = (vec![0; response], vec![0; PIECE_BYTES]);
        Ok(Self { listener, epoll, connections: Vec::new(), request, response, piece })
    }

    pub(super) fn serve(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let wait = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as i64 };
        let mut events = Vec::with_capacity(EVENTS);
        // `Relaxed` suffices: no other data depends on the flag.
        while !stop.load(Ordering::Relaxed) {
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                // The field `data` is copied, because on some architectures it is not aligned in
                // the epoll event.
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
        // An error may mean that a client closed its connection before it was accepted.
        while let Ok((stream, _)) = self.listener.accept() {
            // The socket is a blocking one: the server reads only after epoll events, and writes
            // whole responses.
            stream.set_nodelay(true)?;
            let at = self.connections.len() as u64;
            epoll::add(&self.epoll, &stream, EventData::new_u64(at), EventFlags::IN)?;
            self.connections.push(Some((stream, self.request)));
        }
        Ok(())
    }

    /// Reads a part of a request, and sends the response when the request is complete. Closes the
    /// connection after an error, or if the client has ended it.
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
