//! Capture streams to a reader that comes later: the reader of a FIFO, or a client that connects by
//! TCP (PCAP over IP).

use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::thread;
use std::time::Duration;

use steerage::{DeviceError, Output};
use steerage_guard::file::{self, Opened, Readers};

use super::encode::StreamFormat;
use super::stream::{StreamOptions, stream};

/// The pause between two looks for a reader.
const READER_LOOK: Duration = Duration::from_millis(20);

const FORMAT: StreamFormat = StreamFormat::PcapNanos;

/// An output that writes packets to a FIFO, as pcap with nanoseconds. Creates the FIFO if it does
/// not exist.
///
/// This function waits for a reader. It calls `waits` repeatedly with the number of earlier calls,
/// and gives up when `waits` returns false.
///
/// # Errors
/// [`DeviceError`] if the FIFO cannot be created, if the path is something else, or if `waits`
/// returns false.
///
/// ```no_run
/// let output = steerage_device::capture::fifo("packets", |asked| asked < 10)?;
/// # Ok::<(), steerage::DeviceError>(())
/// ```
pub fn fifo(path: impl AsRef<Path>, mut waits: impl FnMut(u64) -> bool) -> Result<Output, DeviceError> {
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
    let mut asked = 0;
    loop {
        match file::open(path, Readers::Group) {
            Ok(Opened::File(file) | Opened::Special(file)) => {
                return stream(name, file, StreamOptions::new(FORMAT)).map(|(output, _)| output);
            }
            Err(error) if file::has_no_reader(&error) && waits(asked) => thread::sleep(READER_LOOK),
            Err(error) => return Err(failed("open", error)),
        }
        asked += 1;
    }
}

/// An output that listens at `address`, such as `127.0.0.1:57012`, and sends packets to the first
/// client, as pcap with nanoseconds. This is PCAP over IP, which Wireshark, Zeek and Arkime read.
/// The function waits like [`fifo`].
///
/// Any client that connects first reads the traffic, so use an address that only trusted clients
/// can reach.
///
/// # Errors
/// [`DeviceError`] if it cannot listen at the address, or if `waits` returns false.
///
/// ```no_run
/// let output = steerage_device::capture::listen("127.0.0.1:57012", |asked| asked < 10)?;
/// # Ok::<(), steerage::DeviceError>(())
/// ```
pub fn listen(address: &str, mut waits: impl FnMut(u64) -> bool) -> Result<Output, DeviceError> {
    let failed = |error| {
        let error = DeviceError::new(address, "listen at", error);
        error.advise("write a free address of this machine and a port, such as 127.0.0.1:57012")
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let mut asked = 0;
    loop {
        match listener.accept() {
            Ok((connection, _)) => {
                return stream(address, connection, StreamOptions::new(FORMAT)).map(|(output, _)| output);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && waits(asked) => thread::sleep(READER_LOOK),
            Err(error) => return Err(failed(error)),
        }
        asked += 1;
    }
}
