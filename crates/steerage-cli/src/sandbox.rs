//! The permissions that each command keeps after its start. lab/notes/system-calls.md lists the
//! system calls, and docs/privileges.md the files.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use rustix::time::{ClockId, clock_gettime};
use steerage::{CpuId, Handler};
use steerage_guard::capabilities::{self, Kept, Needed};
use steerage_guard::file;
use steerage_guard::sandbox::{Group, InForce, Sandbox, Sockets, ThreadFilter};

use crate::args::SandboxArgs;
use crate::error::Error;
use crate::terminal::{print_to_stderr, warn};

/// The files that a run may read after its start: files that describe the machine, and the source
/// of random numbers.
const MACHINE: [&str; 11] = [
    "/dev/urandom",
    "/sys/devices",
    "/sys/class/net",
    "/sys/kernel/mm",
    "/sys/kernel/btf",
    "/sys/fs/cgroup",
    "/proc/self",
    "/proc/stat",
    "/proc/interrupts",
    "/proc/irq",
    "/proc/meminfo",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SandboxProfile {
    Count,
    Meter,
    Explain,
    Send,
    Forward,
    Fanout,
    Parallel,
    Get,
    Set,
    Top,
    Dump,
    Doctor,
    Tune,
    Check,
    Help,
    Man,
    Completions,
}

impl SandboxProfile {
    #[cfg(test)]
    const ALL: [Self; 17] = [
        Self::Count,
        Self::Meter,
        Self::Explain,
        Self::Send,
        Self::Forward,
        Self::Fanout,
        Self::Parallel,
        Self::Get,
        Self::Set,
        Self::Top,
        Self::Dump,
        Self::Doctor,
        Self::Tune,
        Self::Check,
        Self::Help,
        Self::Man,
        Self::Completions,
    ];

    #[cfg(test)]
    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    pub(crate) fn groups(self) -> &'static [Group] {
        use Group::{CardRules, Clients, Files, FlowDissectors, Netlink, OpenSockets, Receive, Send, SendTo, Signal};
        use Group::{Terminal, Threads, UnixClient, Wait};
        match self {
            Self::Count | Self::Meter | Self::Explain | Self::Send => {
                &[Receive, Send, OpenSockets, Threads, Files, Clients]
            }
            Self::Forward => &[Receive, Send, SendTo, OpenSockets, Threads, Files, Clients, Netlink],
            Self::Fanout => &[Receive, Send, OpenSockets, Threads, Files, Clients, Wait],
            Self::Parallel => &[Receive, Send, OpenSockets, Threads, Files, Clients, Wait, Signal],
            Self::Get | Self::Set | Self::Dump => &[Receive, Send, OpenSockets],
            Self::Top => &[Receive, Send, OpenSockets, Threads, Files, UnixClient, Terminal],
            Self::Man => &[Files],
            Self::Doctor | Self::Help | Self::Completions => &[],
            Self::Tune => &[Receive, Send, OpenSockets, Files, FlowDissectors, CardRules, UnixClient, Netlink],
            Self::Check => &[Receive, Send, OpenSockets, Files, UnixClient, Netlink],
        }
    }

    /// Returns the system calls that packet threads may make, in addition to those [of their
    /// devices](groups_of_device), or `None` if the command has no packet threads.
    pub(crate) fn packet_groups(self) -> Option<&'static [Group]> {
        match self {
            Self::Count | Self::Meter | Self::Explain | Self::Send => Some(&[Group::Receive]),
            Self::Forward | Self::Fanout | Self::Parallel => Some(&[Group::Receive]),
            _ => None,
        }
    }
}

/// Returns the system calls that packet threads need for a device of this type. An output to a
/// file, a pipe or a TAP uses only system calls that every thread may make.
fn groups_of_device(kind: &str, direction: Direction) -> &'static [Group] {
    match (kind, direction) {
        ("af_xdp", Direction::In) => &[Group::XdpMaps],
        ("af_xdp", Direction::Out) => &[Group::XdpMaps, Group::Send],
        ("af_packet", Direction::Out) => &[Group::Send],
        // A UDP output passes the destination address with each datagram.
        ("udp", Direction::Out) => &[Group::SendTo],
        _ => &[],
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    In,
    Out,
}

#[derive(Clone, Debug)]
pub(crate) struct Needs<'a> {
    command: SandboxProfile,
    written: Vec<&'a Path>,
    devices: Vec<Group>,
    sandbox: Sandbox,
}

impl<'a> Needs<'a> {
    pub(crate) fn of(command: SandboxProfile) -> Self {
        let needs =
            Self { command, written: Vec::new(), devices: Vec::new(), sandbox: Sandbox::new().calls(command.groups()) };
        if command.packet_groups().is_some() { needs.reads_machine() } else { needs }
    }

    /// Allows the process to create these files. The names of the files may contain placeholders
    /// for the time (`%H`).
    pub(crate) fn written_files(self, names: &[&'a Path]) -> Self {
        Self { written: names.to_vec(), ..self }
    }

    pub(crate) fn written(&self) -> &[&'a Path] {
        &self.written
    }

    pub(crate) fn connects(self, connects: bool) -> Self {
        self.calls_if(connects, &[Group::Internet, Group::SendTo])
    }

    /// Allows a thread to serve clients at an address that was bound before.
    pub(crate) fn serves_clients(self, serves: bool) -> Self {
        self.calls_if(serves, &[Group::Clients])
    }

    pub(crate) fn reads_machine(self) -> Self {
        MACHINE.iter().fold(self, Self::reads)
    }

    pub(crate) fn reads(self, path: impl AsRef<Path>) -> Self {
        Self { sandbox: self.sandbox.reads(path), ..self }
    }

    /// Allows the process to write to `opened`: a file, or a directory whose files may all be
    /// written.
    pub(crate) fn writes(self, opened: OwnedFd) -> Self {
        Self { sandbox: self.sandbox.writes(opened), ..self }
    }

    pub(crate) fn removes_in(self, directory: OwnedFd) -> Self {
        Self { sandbox: self.sandbox.removes_in(directory), ..self }
    }

    pub(crate) fn uses_terminal(self) -> Self {
        Self { sandbox: self.sandbox.uses_device("/dev/tty"), ..self }
    }

    pub(crate) fn restores_terminal(self, restores: bool) -> Self {
        self.calls_if(restores, &[Group::Terminal])
    }

    /// Allows a thread that handles no packets to open the queues of new ports of a bond.
    pub(crate) fn follows_bonds(self, follows: bool) -> Self {
        self.calls_if(follows, &[Group::BindSockets])
    }

    pub(crate) fn device(mut self, kind: &str, direction: Direction) -> Self {
        let groups = groups_of_device(kind, direction);
        self.devices.extend(groups);
        self.calls_if(true, groups)
    }

    fn calls_if(self, needed: bool, groups: &[Group]) -> Self {
        if needed { Self { sandbox: self.sandbox.calls(groups), ..self } } else { self }
    }
}

thread_local! {
    /// True if this thread handles packets and has installed its seccomp filter.
    static ENTERED: Cell<bool> = const { Cell::new(false) };
}

/// The sandbox of a command. The process enters the sandbox by `of_files` and then `of_calls`.
#[derive(Debug)]
pub(crate) struct Confinement {
    packet_groups: Vec<Group>,
    sandbox: Option<Sandbox>,
}

impl Confinement {
    /// Restricts the files of the process. Call `of_files` after all files and devices that need
    /// more permissions are open, while the process still has only one thread.
    pub(crate) fn of_files(needs: Needs<'_>, args: &SandboxArgs) -> Result<Self, Error> {
        let mut packet_groups = needs.command.packet_groups().unwrap_or_default().to_vec();
        packet_groups.extend(&needs.devices);
        if args.no_sandbox {
            tracing::warn!("--no-sandbox: neither files nor system calls are restricted");
            return Ok(Self { packet_groups, sandbox: None });
        }
        // At its first use, rustix looks up the kernel's clock function, which the sandbox would
        // not allow.
        let _ = clock_gettime(ClockId::Monotonic);
        // If a directory cannot be used, the error is reported when a file is created in it.
        let written = needs.written.iter().filter_map(|name| file::directory_of(name).ok());
        let sandbox = written.fold(needs.sandbox, Sandbox::writes);
        sandbox.restrict_files()?;
        Ok(Self { packet_groups, sandbox: Some(sandbox) })
    }

    /// Restricts the system calls of all threads.
    pub(crate) fn of_calls(self) -> Result<Option<InForce>, Error> {
        let Some(sandbox) = self.sandbox else { return Ok(None) };
        let in_force = sandbox.restrict_calls()?;
        if let Some(error) = in_force.landlock_refused() {
            warn(&format!(
                "files are not restricted, because landlock_create_ruleset failed ({error}); a container's seccomp profile may deny it"
            ));
        }
        without_backtraces();
        tracing::info!("the sandbox is in force: {in_force}");
        Ok(Some(in_force))
    }

    fn filter_of_packet_threads(&self) -> Result<ThreadFilter, Error> {
        let sockets = Sockets::open()?;
        if sockets.too_many() {
            warn("there are so many sockets that the sandbox cannot limit the sockets by which packet threads send");
        }
        Ok(ThreadFilter::new(&self.packet_groups, &sockets)?)
    }

    /// Wraps the function that creates each CPU's handler, so that each packet thread enters its
    /// seccomp filter before its first packet. Call `of_packet_threads` after all devices are open.
    pub(crate) fn of_packet_threads<H: Handler>(
        &self,
        make: impl Fn(CpuId) -> H + Send + Sync + 'static,
    ) -> Result<impl Fn(CpuId) -> H + Send + Sync + 'static, Error> {
        let filter = self.sandbox.as_ref().map(|_| self.filter_of_packet_threads()).transpose()?;
        Ok(move |cpu| {
            // After a panic, a thread that already has a seccomp filter creates another handler.
            let enters = filter.as_ref().filter(|_| !ENTERED.replace(true));
            if let Some(Err(error)) = enters.map(enter_packet_thread) {
                // No packet may be handled outside of the sandbox.
                warn(&error);
                process::exit(1);
            }
            make(cpu)
        })
    }
}

/// Enters the sandbox of a command that handles no packets, and drops all capabilities.
pub(crate) fn enter(needs: Needs<'_>, args: &SandboxArgs) -> Result<Option<InForce>, Error> {
    capabilities::drop_all()?;
    Confinement::of_files(needs, args)?.of_calls()
}

/// Like [`enter`], but keeps the capabilities in `needed` that the command requires.
pub(crate) fn enter_keeping(needs: Needs<'_>, needed: &Needed<'_>, args: &SandboxArgs) -> Result<Kept, Error> {
    let kept = capabilities::drop_except(needed)?;
    Confinement::of_files(needs, args)?.of_calls()?;
    Ok(kept)
}

/// Blocks signals in this thread, so that other threads handle them. The program's signal handler
/// makes a system call that packet threads may not make.
fn leave_signals_to_others() -> Result<(), Errno> {
    const OWN: [Signal; 7] = [
        Signal::SIGSYS,
        Signal::SIGSEGV,
        Signal::SIGBUS,
        Signal::SIGILL,
        Signal::SIGFPE,
        Signal::SIGABRT,
        Signal::SIGTRAP,
    ];
    let mut others = SigSet::all();
    OWN.into_iter().for_each(|signal| others.remove(signal));
    others.thread_block()
}

fn enter_packet_thread(filter: &ThreadFilter) -> Result<(), String> {
    leave_signals_to_others().map_err(|error| format!("cannot block signals in a packet thread: {error}"))?;
    filter.enter().map_err(|error| Error::Sandbox(error).to_string())
}

/// Makes a panic report only its location. For a backtrace, the thread would have to open the
/// program's file, which the sandbox does not allow.
fn without_backtraces() {
    if std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
        std::panic::set_hook(Box::new(|panic| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("without a name");
            print_to_stderr(format_args!("thread '{name}': {panic}; with --no-sandbox it has a backtrace"));
        }));
    }
}

#[cfg(test)]
mod tests;
