//! A netlink socket for requests, dumps of whole tables, and reports of changes.

use std::io;
use std::os::fd::OwnedFd;

use netlink_packet_core::{
    Emitable, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer, NetlinkHeader, parse_i32,
    parse_u32,
};
use nix::sys::socket::SetSockOpt;
use nix::sys::socket::sockopt::SetBool;
use rustix::io::{Errno, write};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::attributes;

/// The maximum number of requests for a dump (a listing of a whole table). A dump is repeated if
/// the table changes meanwhile. If the table changes during each of these dumps, the caller must
/// rely on the reported changes.
const DUMPS_MAX: usize = 3;

/// The maximum size of a datagram in bytes. A part of a dump has at most 32 KiB, and an attribute
/// at most 64 KiB.
const DATAGRAM_BYTES_MAX: usize = 128 << 10;

/// The maximum number of datagrams that one call of `read_datagrams` receives.
const DATAGRAMS_MAX: usize = 4096;

const HEADER_BYTES: usize = 16;
/// The kernel's text about an error.
const NLMSGERR_ATTR_MSG: u16 = 1;

/// Requests error texts from the kernel.
#[derive(Clone)]
struct ExtendedAck;
nix::setsockopt_impl!(ExtendedAck, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, bool, SetBool);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    sequence: u32,
    pub(crate) body: &'a [u8],
}

pub(crate) type Each<'a> = &'a mut dyn FnMut(Message<'_>);

/// A socket that never waits for a reply. The kernel handles a request during the system call that
/// sends the request. The system call may wait for the kernel's lock on all links. The kernel
/// creates the next part of a dump when the program receives the previous part.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) fd: OwnedFd,
    /// The buffer for changes, which is reused. Each request allocates its own buffer.
    buffer: Box<[u8]>,
    sequence: u32,
}

impl Socket {
    /// Opens a socket that receives the messages to the multicast groups `groups`. `None` means the
    /// family rtnetlink.
    pub(crate) fn open(family: Option<Protocol>, groups: u32) -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, family)?;
        // Ignore an error: before Linux 4.12, the kernel reports errors only as numbers.
        let _ = ExtendedAck.set(&fd, &true);
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        let buffer = if groups == 0 { Box::default() } else { vec![0; DATAGRAM_BYTES_MAX].into() };
        Ok(Self { fd, buffer, sequence: 0 })
    }

    /// Sends a request. `flags` contains `NLM_F_DUMP` for a whole table, and `NLM_F_ACK` for other
    /// requests. If a table changes during a dump, `each` may get an entry twice.
    pub(crate) fn request(&mut self, kind: u16, flags: u16, body: &[u8], each: Each<'_>) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        (header.message_type, header.flags) = (kind, NLM_F_REQUEST | flags);
        (header.length, header.sequence_number) = ((HEADER_BYTES + body.len()) as u32, self.sequence);
        let mut message = vec![0; HEADER_BYTES];
        header.emit(&mut message);
        message.extend(body);
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        for _ in 0..DUMPS_MAX {
            write(&self.fd, &message)?;
            if self.reply(&mut buffer, each)? {
                break;
            }
        }
        Ok(())
    }

    /// Returns false if the reply is a dump of a table that changed meanwhile.
    fn reply(&self, buffer: &mut [u8], each: Each<'_>) -> io::Result<bool> {
        let mut is_consistent = true;
        loop {
            let datagram = receive(&self.fd, buffer).map_err(|error| match error {
                Errno::AGAIN => io::Error::new(io::ErrorKind::TimedOut, "the kernel did not reply"),
                other => other.into(),
            })?;
            for message in messages(datagram) {
                // The message belongs to an earlier request whose reply came late.
                if message.sequence != self.sequence {
                    continue;
                }
                is_consistent &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_ERROR | NLMSG_DONE => return outcome(message).map(|()| is_consistent),
                    _ => each(message),
                }
            }
        }
    }

    /// Calls `each` with every message that has arrived. Returns false if messages were lost.
    pub(crate) fn read(&mut self, each: Each<'_>) -> bool {
        self.read_datagrams(&mut |datagram| messages(datagram).for_each(&mut *each))
    }

    /// Calls `each` with every datagram that has arrived. Returns false if datagrams were lost.
    pub(crate) fn read_datagrams(&mut self, each: &mut dyn FnMut(&[u8])) -> bool {
        let mut is_complete = true;
        for _ in 0..DATAGRAMS_MAX {
            match receive(&self.fd, &mut self.buffer) {
                Ok(datagram) => each(datagram),
                Err(Errno::NOBUFS | Errno::MSGSIZE) => is_complete = false,
                Err(_) => break,
            }
        }
        is_complete
    }
}

fn receive<'a>(fd: &OwnedFd, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    loop {
        match recv(fd, &mut *buffer, RecvFlags::TRUNC) {
            Ok((_, length)) if length > buffer.len() => return Err(Errno::MSGSIZE),
            Ok((length, _)) => return Ok(&buffer[..length]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The iterator ends at the first message that is cut off.
fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let message = NetlinkBuffer::new_checked(datagram).ok()?;
        datagram = datagram.get((message.length() as usize).next_multiple_of(4)..).unwrap_or_default();
        Some(Message {
            kind: message.message_type(),
            flags: message.flags(),
            sequence: message.sequence_number(),
            body: message.payload(),
        })
    })
}

fn outcome(message: Message<'_>) -> io::Result<()> {
    let code = message.body.get(..4).and_then(|code| parse_i32(code).ok()).unwrap_or_default();
    if code == 0 {
        return Ok(());
    }
    let error = io::Error::from_raw_os_error(code.saturating_neg());
    // The attributes of an error message follow the copy of the failed request.
    let rest = message.body.get(4..).unwrap_or_default();
    let request = if message.kind == NLMSG_DONE { Some(0) } else { rest.get(..4).and_then(|it| parse_u32(it).ok()) };
    let request = request.and_then(|length| (length as usize).checked_next_multiple_of(4));
    let explanation = request.and_then(|length| attributes::find(rest.get(length..)?, NLMSGERR_ATTR_MSG));
    Err(match explanation {
        Some(text) => io::Error::new(error.kind(), format!("{error}: {}", attributes::text(text))),
        None => error,
    })
}

#[cfg(test)]
mod tests {
    use rustix::net::socketpair;

    use super::*;

    fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let length = (HEADER_BYTES + body.len()) as u32;
        let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8], body].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn a_message_that_is_cut_off_ends_the_datagram() {
        let datagram = [message(16, 0, b"abc"), message(17, 0, b"defg")].concat();
        let read =
            |datagram| messages(datagram).map(|message| (message.kind, message.body.to_vec())).collect::<Vec<_>>();
        assert_eq!(read(&datagram), [(16, b"abc".to_vec()), (17, b"defg".to_vec())]);
        for cut in 20..datagram.len() {
            assert_eq!(read(&datagram[..cut]), [(16, b"abc".to_vec())], "{cut}");
        }
        assert_eq!(read(&[3; 40]), []);
        assert_eq!(read(&[0; 40]), []);
    }

    fn pair() -> (Socket, OwnedFd) {
        let (fd, kernel) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::NONBLOCK, None).unwrap();
        (Socket { fd, buffer: vec![0; 256].into(), sequence: 0 }, kernel)
    }

    /// The socket `kernel` answers the request with these datagrams.
    fn reply(socket: &mut Socket, kernel: &OwnedFd, datagrams: &[Vec<u8>]) -> io::Result<Vec<Vec<u8>>> {
        for datagram in datagrams {
            let mut datagram = datagram.clone();
            // The sequence number 0 stands for the number of the next request.
            if datagram[8] == 0 {
                datagram[8..12].copy_from_slice(&(socket.sequence + 1).to_ne_bytes());
            }
            write(kernel, &datagram).unwrap();
        }
        let mut bodies = Vec::new();
        socket.request(20, 0, b"what", &mut |message| bodies.push(message.body.to_vec())).map(|()| bodies)
    }

    #[test]
    fn an_interrupted_dump_is_made_again_but_not_forever() {
        let (mut socket, kernel) = pair();
        let (interrupted, whole) = (message(16, NLM_F_DUMP_INTR, b"olds"), message(16, 0, b"news"));
        let done = message(NLMSG_DONE, 0, &[0; 4]);
        let replies = [interrupted.clone(), done.clone(), whole, done.clone()];
        assert_eq!(reply(&mut socket, &kernel, &replies).unwrap(), [b"olds", b"news"]);
        let forever: Vec<Vec<u8>> = (0..DUMPS_MAX).flat_map(|_| [interrupted.clone(), done.clone()]).collect();
        assert_eq!(reply(&mut socket, &kernel, &forever).unwrap().len(), DUMPS_MAX);
        let replies = [message(NLMSG_DONE, NLM_F_DUMP_INTR, &[0; 4]), done];
        assert_eq!(reply(&mut socket, &kernel, &replies).unwrap(), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn what_came_too_late_is_not_the_next_reply() {
        let (mut socket, kernel) = pair();
        assert_eq!(reply(&mut socket, &kernel, &[]).unwrap_err().kind(), io::ErrorKind::TimedOut);
        let mut late = [message(16, 0, b"late"), message(NLMSG_ERROR, 0, &[0; 20])];
        late.iter_mut().for_each(|datagram| datagram[8] = 1);
        let now = [message(16, 0, b"here"), message(NLMSG_ERROR, 0, &[0; 20])];
        assert_eq!(reply(&mut socket, &kernel, &[late, now].concat()).unwrap(), [b"here"]);
    }

    #[test]
    fn a_datagram_that_is_too_long_is_an_error_and_a_lost_change() {
        let (mut socket, kernel) = pair();
        assert!(reply(&mut socket, &kernel, &[message(16, 0, &[1; 300])]).is_err());
        write(&kernel, &message(16, 0, &[1; 300])).unwrap();
        write(&kernel, &message(16, 0, b"here")).unwrap();
        let mut bodies = Vec::new();
        assert!(!socket.read(&mut |message| bodies.push(message.body.to_vec())));
        assert_eq!(bodies, [b"here"]);
        assert!(socket.read(&mut |_| panic!("there is no more")));
    }

    #[test]
    fn errors_are_in_the_kernels_words() {
        let words = attributes::serialized(&[attributes::attribute(NLMSGERR_ATTR_MSG, b"no such queue\0")]);
        let error = |kind, flags, parts: &[&[u8]]| {
            let bytes = message(kind, flags, &[&(-libc::EPERM).to_ne_bytes(), &parts.concat()[..]].concat());
            outcome(messages(&bytes).next().unwrap()).unwrap_err()
        };
        let request = message(20, 1, b"what was asked");
        for error in [error(NLMSG_ERROR, 0, &[&request, &words]), error(NLMSG_DONE, 0, &[&words])] {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            assert!(error.to_string().ends_with(": no such queue"), "{error}");
        }
        // Some error messages have no text, or a truncated copy of the request.
        for parts in [&[&request[..]][..], &[&request[..6]], &[&[255; 16]], &[]] {
            assert_eq!(error(NLMSG_ERROR, 0, parts).raw_os_error(), Some(libc::EPERM));
        }
        assert!(outcome(Message { kind: NLMSG_ERROR, flags: 0, sequence: 0, body: &[0; 20] }).is_ok());
    }
}
