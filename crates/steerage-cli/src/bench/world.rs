//! Two network namespaces without names, joined by a cable: what is in them is gone once nobody holds them, however we end.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use steerage_bench::error::BenchError;

/// Whose ends of the cable they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Client,
    Server,
}

impl End {
    /// The name of its interface.
    pub(super) fn interface(self) -> &'static str {
        match self {
            Self::Client => "c0",
            Self::Server => "s0",
        }
    }
}

/// The client's address, and the server's, which is the kernel's only while it serves.
const CLIENT: &str = "10.210.0.1/24";
const SERVER: &str = "10.210.0.2/24";

/// The server's address alone.
pub(super) const SERVER_ADDRESS: [u8; 4] = [10, 210, 0, 2];

/// Both namespaces: they live as long as this.
#[derive(Debug)]
pub(super) struct World {
    client: File,
    server: File,
}

impl World {
    /// Makes them and the cable.
    ///
    /// # Errors
    /// Where that may not be done, or there is no `ip`.
    pub(super) fn new() -> Result<Self, BenchError> {
        let made = || {
            apart(|| {
                unshare(CloneFlags::CLONE_NEWNET)?;
                File::open("/proc/thread-self/ns/net")
            })
        };
        let failed =
            |error| BenchError::set_up("network namespaces for rr, which take root (sudo steerage bench rr)", error);
        let world = Self { client: made().map_err(failed)?, server: made().map_err(failed)? };
        let other = format!("/proc/{}/fd/{}", std::process::id(), world.server.as_raw_fd());
        world.ip(End::Client, &format!("link add c0 type veth peer name s0 netns {other}"))?;
        for end in [End::Client, End::Server] {
            let interface = end.interface();
            // Nothing is said that nobody asked for.
            world.ip(end, &format!("link set dev {interface} addrgenmode none"))?;
            world.ip(end, &format!("link set dev {interface} up"))?;
        }
        world.ip(End::Client, &format!("addr add {CLIENT} dev c0"))?;
        Ok(world)
    }

    /// Moves the calling thread into one; threads and processes that it starts are there as well.
    pub(super) fn enter(&self, end: End) -> io::Result<()> {
        let namespace = if end == End::Client { &self.client } else { &self.server };
        Ok(setns(namespace, CloneFlags::CLONE_NEWNET)?)
    }

    /// What `body` returns when it is run in one of them, on a thread of its own.
    pub(super) fn within<R: Send>(&self, end: End, body: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
        apart(|| self.enter(end).and_then(|()| body()))
    }

    /// Gives the server's kernel its address, or takes it away.
    pub(super) fn serve_by_kernel(&self, yes: bool) -> Result<(), BenchError> {
        let what = if yes { "add" } else { "del" };
        self.ip(End::Server, &format!("addr {what} {SERVER} dev s0"))
    }

    /// Has the client find out anew where the server is.
    pub(super) fn forget(&self) -> Result<(), BenchError> {
        self.ip(End::Client, "neigh flush dev c0")
    }

    /// Sets rps_cpus at both ends.
    pub(super) fn set_rps_cpus(&self, mask: &str) -> Result<(), BenchError> {
        for end in [End::Client, End::Server] {
            let set = || {
                // /sys shows the namespace of whoever mounted it: one of our own, which nobody else sees.
                unshare(CloneFlags::CLONE_NEWNS)?;
                mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
                mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None::<&str>)?;
                fs::write(format!("/sys/class/net/{}/queues/rx-0/rps_cpus", end.interface()), mask)
            };
            self.within(end, set).map_err(|error| BenchError::set_up("rps_cpus in the namespaces", error))?;
        }
        Ok(())
    }

    fn ip(&self, end: End, args: &str) -> Result<(), BenchError> {
        let run = || Command::new("ip").args(args.split_whitespace()).stdin(Stdio::null()).output();
        let output =
            self.within(end, run).map_err(|error| BenchError::set_up("`ip`, of the package iproute2", error))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(BenchError::set_up("a cable between namespaces", format!("ip {args}: {}", said.trim())))
    }
}

/// On a thread of its own, which is gone with all that it did to itself.
fn apart<R: Send>(body: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
    thread::scope(|scope| scope.spawn(body).join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
}
