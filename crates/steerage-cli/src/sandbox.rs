//! The sandbox of each command: the permissions that it keeps once it is set up. docs/privileges.md
//! has the table.

use std::cell::Cell;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;

use rustix::time::{ClockId, clock_gettime};
use steerage::{CpuId, Handler};
use steerage_guard::capabilities::{self, Kept, Needed};
use steerage_guard::sandbox::{Group, InForce, Sandbox, ThreadFilter};

use crate::args::SandboxArgs;
use crate::error::Error;

/// The files and directories that a run may read to learn about the machine: CPUs that come and go,
/// interfaces, memory, random numbers.
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

/// A command, to look up its permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confined {
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
    Doctor,
    Check,
    Help,
    Man,
    Completions,
}

impl Confined {
    #[cfg(test)]
    const ALL: [Self; 15] = [
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
        Self::Doctor,
        Self::Check,
        Self::Help,
        Self::Man,
        Self::Completions,
    ];

    #[cfg(test)]
    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// The system calls that the process's threads may make.
    pub(crate) fn groups(self) -> &'static [Group] {
        use Group::{Clients, Files, Jobs, Netlink, OpenSockets, Terminal, Threads, UnixClient};
        match self {
            Self::Count | Self::Meter | Self::Explain | Self::Send => &[OpenSockets, Threads, Files, Clients],
            Self::Forward => &[OpenSockets, Threads, Files, Clients, Netlink],
            Self::Fanout | Self::Parallel => &[OpenSockets, Threads, Files, Clients, Jobs],
            Self::Get | Self::Set => &[OpenSockets],
            Self::Top => &[OpenSockets, Threads, Files, UnixClient, Terminal],
            Self::Man => &[Files],
            Self::Doctor | Self::Help | Self::Completions => &[],
            Self::Check => &[OpenSockets, Files, UnixClient],
        }
    }

    /// The system calls that packet threads may make, or `None` if the command has no packet
    /// threads.
    pub(crate) fn packet_groups(self) -> Option<&'static [Group]> {
        match self {
            Self::Count | Self::Meter | Self::Explain | Self::Send => Some(&[Group::OpenSockets]),
            Self::Forward | Self::Fanout | Self::Parallel => Some(&[Group::OpenSockets]),
            _ => None,
        }
    }
}

/// The permissions that a command still needs once it is set up.
#[derive(Clone, Debug)]
pub(crate) struct Needs<'a> {
    command: Confined,
    written: Vec<&'a Path>,
    takes: bool,
    sandbox: Sandbox,
}

impl<'a> Needs<'a> {
    pub(crate) fn of(command: Confined) -> Self {
        let needs =
            Self { command, written: Vec::new(), takes: false, sandbox: Sandbox::new().calls(command.groups()) };
        if command.packet_groups().is_some() { needs.reads_machine() } else { needs }
    }

    /// Allows the command to create files during the run. Their names may contain parts for the
    /// time (`%H`).
    pub(crate) fn written_files(self, names: &[&'a Path]) -> Self {
        Self { written: names.to_vec(), ..self }
    }

    /// The names of the files that the command creates.
    pub(crate) fn written(&self) -> &[&'a Path] {
        &self.written
    }

    /// Allows connections to other hosts if `connects` is true.
    pub(crate) fn connects(self, connects: bool) -> Self {
        let sandbox = if connects { self.sandbox.calls(&[Group::Internet]) } else { self.sandbox };
        Self { sandbox, ..self }
    }

    /// Allows reading about the machine: its CPUs, its interfaces and its memory.
    pub(crate) fn reads_machine(self) -> Self {
        MACHINE.iter().fold(self, Self::reads)
    }

    /// Allows reading a file or a directory.
    pub(crate) fn reads(self, path: impl AsRef<Path>) -> Self {
        Self { sandbox: self.sandbox.reads(path), ..self }
    }

    /// Allows removing a file at the end.
    pub(crate) fn removes(self, path: impl AsRef<Path>) -> Self {
        Self { sandbox: self.sandbox.removes(path), ..self }
    }

    /// Allows temporary files in a directory, and removing the directory at the end.
    pub(crate) fn empties(self, directory: impl AsRef<Path>) -> Self {
        Self { sandbox: self.sandbox.empties(directory), ..self }
    }

    /// Allows reading the size and the keys of the terminal.
    pub(crate) fn uses_terminal(self) -> Self {
        Self { sandbox: self.sandbox.uses_device("/dev/tty"), ..self }
    }

    /// Allows restoring the modes of the terminal at the end, if `restores` is true.
    pub(crate) fn restores_terminal(self, restores: bool) -> Self {
        let sandbox = if restores { self.sandbox.calls(&[Group::Terminal]) } else { self.sandbox };
        Self { sandbox, ..self }
    }

    /// Allows AF_XDP to take packets from an interface, if `takes` is true.
    pub(crate) fn takes(self, takes: bool) -> Self {
        let sandbox = if takes { self.sandbox.calls(&[Group::XdpMaps]) } else { self.sandbox };
        Self { takes, sandbox, ..self }
    }

    /// Allows waiting for a program that was started before.
    pub(crate) fn waits_for_a_program(self) -> Self {
        Self { sandbox: self.sandbox.calls(&[Group::Jobs]), ..self }
    }
}

thread_local! {
    /// Whether this thread handles packets and has entered its filter.
    static ENTERED: Cell<bool> = const { Cell::new(false) };
}

/// The sandbox of a command, which is entered in two steps.
#[derive(Debug)]
pub(crate) struct Confinement {
    /// The system calls that packet threads may make.
    packet_groups: Vec<Group>,
    /// The sandbox, or `None` with `--no-sandbox`.
    sandbox: Option<Sandbox>,
}

impl Confinement {
    /// Restricts the files. Call this while there is one thread, and after everything that needs
    /// more permissions is open.
    pub(crate) fn of_files(needs: Needs<'_>, args: &SandboxArgs) -> Result<Self, Error> {
        let mut packet_groups = needs.command.packet_groups().unwrap_or_default().to_vec();
        packet_groups.extend(needs.takes.then_some(Group::XdpMaps));
        if args.no_sandbox {
            tracing::warn!("--no-sandbox: neither files nor system calls are restricted");
            return Ok(Self { packet_groups, sandbox: None });
        }
        // rustix asks the kernel for its clock function before the first use of the clock. It keeps
        // the answer, so this call makes it ask now.
        let _ = clock_gettime(ClockId::Monotonic);
        let written = needs.written.iter().map(|name| existing_directory(name));
        let sandbox = written.fold(needs.sandbox, Sandbox::writes);
        sandbox.restrict_files()?;
        Ok(Self { packet_groups, sandbox: Some(sandbox) })
    }

    /// Restricts the system calls of all threads. Returns the sandbox that is in force.
    pub(crate) fn of_calls(self) -> Result<Option<InForce>, Error> {
        let Some(sandbox) = self.sandbox else { return Ok(None) };
        let in_force = sandbox.restrict_calls()?;
        without_backtraces();
        tracing::info!("the sandbox is in force: {in_force}");
        Ok(Some(in_force))
    }

    /// Wraps the function that makes each CPU's handler. Each packet thread calls it before its
    /// first packet, and enters its filter there.
    pub(crate) fn of_packet_threads<H: Handler>(
        &self,
        make: impl Fn(CpuId) -> H + Send + Sync + 'static,
    ) -> Result<impl Fn(CpuId) -> H + Send + Sync + 'static, Error> {
        let filter = self.sandbox.as_ref().map(|_| ThreadFilter::new(&self.packet_groups)).transpose()?;
        Ok(move |cpu| {
            // After a panic, the thread makes a new handler, but already has its filter.
            let enters = filter.as_ref().filter(|_| !ENTERED.replace(true));
            if let Some(Err(error)) = enters.map(ThreadFilter::enter) {
                // No packet is handled outside the sandbox. An error means that standard error is
                // closed.
                let _ = writeln!(io::stderr(), "steerage: {}", Error::Sandbox(error));
                process::exit(1);
            }
            make(cpu)
        })
    }
}

/// Drops all capabilities, and restricts files and system calls. This is for commands that handle
/// no packets.
pub(crate) fn enter(needs: Needs<'_>, args: &SandboxArgs) -> Result<Option<InForce>, Error> {
    capabilities::drop_all()?;
    Confinement::of_files(needs, args)?.of_calls()
}

/// Like [`enter`], but keeps the capabilities in `needed` that the command cannot do without.
pub(crate) fn enter_keeping(needs: Needs<'_>, needed: &Needed<'_>, args: &SandboxArgs) -> Result<Kept, Error> {
    let kept = capabilities::drop_except(needed)?;
    Confinement::of_files(needs, args)?.of_calls()?;
    Ok(kept)
}

/// Like [`enter_keeping`], for a command that writes `files`.
pub(crate) fn enter_writing<'a>(needs: Needs<'a>, files: &[&'a Path], args: &SandboxArgs) -> Result<Kept, Error> {
    let needed = files.iter().copied().fold(Needed::default(), Needed::written_files);
    enter_keeping(needs.written_files(files), &needed, args)
}

/// Makes panics report only their place. A backtrace needs the program's own file, which no thread
/// may open any more.
fn without_backtraces() {
    if std::env::var_os("RUST_BACKTRACE").is_some_and(|value| value != "0") {
        std::panic::set_hook(Box::new(|panic| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("without a name");
            // An error means that standard error is closed.
            let _ = writeln!(io::stderr(), "thread '{name}': {panic}; with --no-sandbox it has a backtrace");
        }));
    }
}

/// The existing directory in which files of this name, and their missing parent directories, are
/// created. Name parts for the time do not exist yet.
fn existing_directory(name: &Path) -> PathBuf {
    let fixed = |path: &&Path| !path.to_string_lossy().contains('%') && !path.as_os_str().is_empty();
    // The file may be a link that leads to another directory.
    let target = fs::canonicalize(name).unwrap_or_else(|_| name.to_owned());
    target.ancestors().skip(1).find(|path| fixed(path) && path.exists()).unwrap_or(Path::new(".")).to_owned()
}

#[cfg(test)]
mod tests;
