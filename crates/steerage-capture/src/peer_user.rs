//! Finds the user at the other end of a TCP connection from this machine, in the kernel's lists of
//! sockets (proc(5), /proc/net/tcp).

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};

/// The kernel's lists of TCP sockets in this thread's network namespace, for IPv4 and for IPv6.
const LISTS: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];

/// A socket counts as absent if this many reads of the lists do not contain it. The kernel
/// generates a list of sockets in parts: if another socket is closed between two parts, an existing
/// socket may be missing.
const LOOKS: usize = 3;

/// Returns the user of the socket at `peer` that is connected to `ours`. Returns `None` if the peer
/// is on another machine, or has closed its socket.
///
/// # Errors
/// The kernel's error if a list cannot be read.
pub(super) fn of(peer: SocketAddr, ours: SocketAddr) -> io::Result<Option<u32>> {
    let ends = [peer, ours].map(listed);
    for _ in 0..LOOKS {
        for (list, [peer, ours]) in
            LISTS.iter().zip([ends.each_ref().map(|end| &end.0), ends.each_ref().map(|end| &end.1)])
        {
            let file = match File::open(list) {
                // A kernel without IPv6 has no list of IPv6 sockets.
                Err(error) if error.kind() == io::ErrorKind::NotFound && *list == LISTS[1] => continue,
                opened => opened?,
            };
            for line in BufReader::new(file).lines() {
                if let Some(uid) = user(&line?, peer, ours) {
                    return Ok(Some(uid));
                }
            }
        }
    }
    Ok(None)
}

/// Returns the user in a line of `/proc/net/tcp` if the socket connects `local` with `remote`.
fn user(line: &str, local: &str, remote: &str) -> Option<u32> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, from, to, _, _, _, _, uid, _, inode, ..] = fields.as_slice() else { return None };
    // A socket that its process has closed has no inode, and the list shows root as its user.
    ((*from, *to) == (local, remote) && *inode != "0").then(|| uid.parse().ok()).flatten()
}

/// Formats an address as in the kernel's list of IPv4 sockets, and as in its list of IPv6 sockets,
/// which contains IPv4 addresses in mapped form. The list of IPv4 sockets never contains an IPv6
/// address.
fn listed(end: SocketAddr) -> (String, String) {
    // The kernel prints the 32-bit words of an address as numbers in this machine's byte order.
    let words = |octets: &[u8]| -> String {
        let words = octets.chunks_exact(4).filter_map(|word| word.first_chunk().copied().map(u32::from_ne_bytes));
        words.map(|word| format!("{word:08X}")).collect()
    };
    let port = end.port();
    match end.ip().to_canonical() {
        IpAddr::V4(address) => {
            let mapped = address.to_ipv6_mapped().octets();
            (format!("{}:{port:04X}", words(&address.octets())), format!("{}:{port:04X}", words(&mapped)))
        }
        IpAddr::V6(address) => (String::new(), format!("{}:{port:04X}", words(&address.octets()))),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Tests a line of /proc/net/tcp, as Linux prints it on a little-endian machine.
    #[test]
    #[cfg(target_endian = "little")]
    fn lines_of_the_kernel_are_read() {
        let (peer, ours): (SocketAddr, SocketAddr) =
            ("127.0.0.1:34002".parse().unwrap(), "127.0.0.1:57012".parse().unwrap());
        let line = "   7: 0100007F:84D2 0100007F:DEB4 01 00000000:00000000 00:00000000 00000000  1000        0 204811 1 0 20 4 30 10 -1";
        let (local, remote) = (listed(peer).0, listed(ours).0);
        assert_eq!(user(line, &local, &remote), Some(1000));
        // Three lines that must not match: the socket at this end, the same addresses without an
        // owner, and the header line.
        assert_eq!(user(line, &remote, &local), None);
        assert_eq!(user(&line.replace(" 1000        0 204811", "    0        0 0"), &local, &remote), None);
        let names = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
        assert_eq!(user(names, &local, &remote), None);
        assert_eq!(listed(peer).1, "0000000000000000FFFF00000100007F:84D2");
        assert_eq!(listed("[::ffff:127.0.0.1]:34002".parse().unwrap()), listed(peer));
        assert_eq!(listed("[2001:db8::1]:80".parse().unwrap()).1, "B80D0120000000000000000001000000:0050");
    }

    #[test]
    fn the_user_of_a_connection_is_found() {
        let us = rustix::process::geteuid().as_raw();
        for at in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else {
                steerage_fixtures::skip(&format!("this machine has no {at}"));
                continue;
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            assert_eq!(of(peer, accepted.local_addr().unwrap()).unwrap(), Some(us), "{at}");
            drop(client);
            assert_eq!(of(peer, accepted.local_addr().unwrap()).unwrap(), None, "{at}");
        }
    }
}
