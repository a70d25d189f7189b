//! Two network namespaces without names, connected by a veth pair. The kernel removes the
//! namespaces when the process that created them ends, even after a crash.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::thread;

use crate::error::LabError;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Client,
    Server,
}

impl End {
    pub(super) fn interface(self) -> &'static str {
        match self {
            Self::Client => "c0",
            Self::Server => "s0",
        }
    }
}

/// The interface has the server's address only while the kernel's stack is the server.
const CLIENT: &str = "10.210.0.1/24";
const SERVER: &str = "10.210.0.2/24";

pub(super) const SERVER_ADDRESS: [u8; 4] = [10, 210, 0, 2];

#[derive(Debug)]
pub(super) struct NamespacePair {
    client: File,
    server: File,
}

impl NamespacePair {
    /// Creates both namespaces. Fails without the rights for namespaces, or without the program
    /// `ip`.
    pub(super) fn new() -> Result<Self, LabError> {
        let made = || {
            on_own_thread(|| {
                unshare(CloneFlags::CLONE_NEWNET)?;
                File::open("/proc/thread-self/ns/net")
            })
        };
        let failed =
            |error| LabError::set_up("network namespaces for rr, which take root (sudo steerage-lab rr)", error);
        let namespaces = Self { client: made().map_err(failed)?, server: made().map_err(failed)? };
        let other = format!("/proc/{}/fd/{}", std::process::id(), namespaces.server.as_raw_fd());
        namespaces.ip(End::Client, &format!("link add c0 type veth peer name s0 netns {other}"))?;
        for end in [End::Client, End::Server] {
            let interface = end.interface();
            // Without `addrgenmode none`, the kernel sends packets of its own, such as router
            // solicitations.
            namespaces.ip(end, &format!("link set dev {interface} addrgenmode none"))?;
            namespaces.ip(end, &format!("link set dev {interface} up"))?;
        }
        namespaces.ip(End::Client, &format!("addr add {CLIENT} dev c0"))?;
        Ok(namespaces)
    }

    /// Moves the calling thread, and threads and processes that it starts later, into a namespace.
    pub(super) fn enter(&self, end: End) -> io::Result<()> {
        let namespace = if end == End::Client { &self.client } else { &self.server };
        Ok(setns(namespace, CloneFlags::CLONE_NEWNET)?)
    }

    pub(super) fn within<R: Send>(&self, end: End, body: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
        on_own_thread(|| self.enter(end).and_then(|()| body()))
    }

    pub(super) fn serve_by_kernel(&self, yes: bool) -> Result<(), LabError> {
        let what = if yes { "add" } else { "del" };
        self.ip(End::Server, &format!("addr {what} {SERVER} dev s0"))
    }

    pub(super) fn forget(&self) -> Result<(), LabError> {
        self.ip(End::Client, "neigh flush dev c0")
    }

    pub(super) fn set_rps_cpus(&self, mask: &str) -> Result<(), LabError> {
        for end in [End::Client, End::Server] {
            let set = || {
                // /sys shows the network namespace in which it was mounted.
                unshare(CloneFlags::CLONE_NEWNS)?;
                mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
                mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None::<&str>)?;
                fs::write(format!("/sys/class/net/{}/queues/rx-0/rps_cpus", end.interface()), mask)
            };
            self.within(end, set).map_err(|error| LabError::set_up("rps_cpus in the namespaces", error))?;
        }
        Ok(())
    }

    fn ip(&self, end: End, args: &str) -> Result<(), LabError> {
        let run = || Command::new("ip").args(args.split_whitespace()).stdin(Stdio::null()).output();
        let output = self.within(end, run).map_err(|error| LabError::set_up("`ip`, of the package iproute2", error))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(LabError::set_up("a cable between namespaces", format!("ip {args}: {}", said.trim())))
    }
}

/// Runs `body` on a new thread, so that the calling thread keeps its namespaces.
fn on_own_thread<R: Send>(body: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
    thread::scope(|scope| scope.spawn(body).join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
}
