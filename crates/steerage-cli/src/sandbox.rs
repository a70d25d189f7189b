//! The sandbox of each command: what it still does once it is set up. docs/privileges.md has the table.

use std::cell::Cell;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;

use rustix::time::{ClockId, clock_gettime};
use steerage::{CpuId, Handler};
use steerage_device::privileges::{self, Kept, Needed};
use steerage_sandbox::{Group, InForce, Sandbox, ThreadFilter};

use crate::args::SandboxArgs;
use crate::error::Error;

/// What a run reads of the machine while it runs: CPUs that come and go, interfaces, memory, random
/// numbers.
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

/// A command, for what it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confined {
    Count,
    Meter,
    Explain,
    Send,
    Respond,
    Forward,
    Fanout,
    Parallel,
    Get,
    Set,
    Top,
    Doctor,
    Check,
    /// Experiments on packets that the program makes up.
    Bench,
    /// A load against a server.
    BenchRr,
    BenchReport,
    Man,
    Completions,
}

impl Confined {
    #[cfg(test)]
    const ALL: [Self; 18] = [
        Self::Count,
        Self::Meter,
        Self::Explain,
        Self::Send,
        Self::Respond,
        Self::Forward,
        Self::Fanout,
        Self::Parallel,
        Self::Get,
        Self::Set,
        Self::Top,
        Self::Doctor,
        Self::Check,
        Self::Bench,
        Self::BenchRr,
        Self::BenchReport,
        Self::Man,
        Self::Completions,
    ];

    #[cfg(test)]
    fn name(self) -> String {
        match self {
            Self::BenchRr => "bench rr TARGET".to_owned(),
            Self::BenchReport => "bench report".to_owned(),
            _ => format!("{self:?}").to_lowercase(),
        }
    }

    /// What the threads of the process do.
    pub(crate) fn groups(self) -> &'static [Group] {
        use Group::{Clients, Files, Jobs, Netlink, OpenSockets, Terminal, Threads, UnixClient};
        match self {
            Self::Count | Self::Meter | Self::Explain | Self::Send | Self::Respond => {
                &[OpenSockets, Threads, Files, Clients]
            }
            Self::Forward => &[OpenSockets, Threads, Files, Clients, Netlink],
            Self::Fanout | Self::Parallel => &[OpenSockets, Threads, Files, Clients, Jobs],
            Self::Get | Self::Set => &[OpenSockets],
            Self::Top => &[OpenSockets, Threads, Files, UnixClient, Terminal],
            Self::Bench | Self::BenchRr => &[OpenSockets, Threads, Files],
            Self::BenchReport | Self::Man => &[Files],
            Self::Doctor | Self::Completions => &[],
            Self::Check => &[OpenSockets, Files, UnixClient],
        }
    }

    /// What the threads do that handle packets, if there are any.
    pub(crate) fn packet_groups(self) -> Option<&'static [Group]> {
        match self {
            Self::Count | Self::Meter | Self::Explain | Self::Send | Self::Respond => Some(&[Group::OpenSockets]),
            Self::Forward | Self::Fanout | Self::Parallel => Some(&[Group::OpenSockets]),
            _ => None,
        }
    }
}

/// What a command still needs once it is set up.
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

    /// The names of files that are made during the run. They may have parts that stand for the time (`%H`).
    pub(crate) fn written_files(self, names: &[&'a Path]) -> Self {
        Self { written: names.to_vec(), ..self }
    }

    /// The names of those files.
    pub(crate) fn written(&self) -> &[&'a Path] {
        &self.written
    }

    /// Connections to other hosts are made during the run.
    pub(crate) fn connects(self, connects: bool) -> Self {
        let sandbox = if connects { self.sandbox.calls(&[Group::Internet]) } else { self.sandbox };
        Self { sandbox, ..self }
    }

    /// What of the machine is read: its CPUs, its interfaces, its memory.
    pub(crate) fn reads_machine(self) -> Self {
        MACHINE.iter().fold(self, Self::reads)
    }

    /// A file, or a directory, that is read.
    pub(crate) fn reads(self, path: impl AsRef<Path>) -> Self {
        Self { sandbox: self.sandbox.reads(path), ..self }
    }

    /// A file that is removed at the end.
    pub(crate) fn removes(self, path: impl AsRef<Path>) -> Self {
        Self { sandbox: self.sandbox.removes(path), ..self }
    }

    /// A directory of temporary files that is removed at the end.
    pub(crate) fn empties(self, directory: impl AsRef<Path>) -> Self {
        Self { sandbox: self.sandbox.empties(directory), ..self }
    }

    /// The terminal, whose size and keys are read.
    pub(crate) fn uses_terminal(self) -> Self {
        Self { sandbox: self.sandbox.uses_device("/dev/tty"), ..self }
    }

    /// The modes of the terminal are restored at the end.
    pub(crate) fn restores_terminal(self, restores: bool) -> Self {
        let sandbox = if restores { self.sandbox.calls(&[Group::Terminal]) } else { self.sandbox };
        Self { sandbox, ..self }
    }

    /// Packets are taken from an interface by AF_XDP.
    pub(crate) fn takes(self, takes: bool) -> Self {
        let sandbox = if takes { self.sandbox.calls(&[Group::XdpMaps]) } else { self.sandbox };
        Self { takes, sandbox, ..self }
    }

    /// A program that was started before is waited for.
    pub(crate) fn waits_for_a_program(self) -> Self {
        Self { sandbox: self.sandbox.calls(&[Group::Jobs]), ..self }
    }
}

thread_local! {
    /// Whether this thread handles packets and has its filter.
    static ENTERED: Cell<bool> = const { Cell::new(false) };
}

/// The sandbox of a command, which is entered in two steps.
#[derive(Debug)]
pub(crate) struct Confinement {
    /// What the threads do that handle packets.
    packet_groups: Vec<Group>,
    /// `None` with `--no-sandbox`.
    sandbox: Option<Sandbox>,
}

impl Confinement {
    /// Restricts the files. Call this while there is one thread, and once everything is open that needs more.
    pub(crate) fn of_files(needs: Needs<'_>, args: &SandboxArgs) -> Result<Self, Error> {
        let mut packet_groups = needs.command.packet_groups().unwrap_or_default().to_vec();
        packet_groups.extend(needs.takes.then_some(Group::XdpMaps));
        if args.no_sandbox {
            tracing::warn!("--no-sandbox: neither files nor system calls are restricted");
            return Ok(Self { packet_groups, sandbox: None });
        }
        // Before its first look at the clock, rustix asks the kernel where the clock is. The answer stays.
        let _ = clock_gettime(ClockId::Monotonic);
        let written = needs.written.iter().map(|name| existing_directory(name));
        let sandbox = written.fold(needs.sandbox, Sandbox::writes);
        sandbox.restrict_files()?;
        Ok(Self { packet_groups, sandbox: Some(sandbox) })
    }

    /// Restricts the system calls of all threads. Returns what is in force.
    pub(crate) fn of_calls(self) -> Result<Option<InForce>, Error> {
        let Some(sandbox) = self.sandbox else { return Ok(None) };
        let in_force = sandbox.restrict_calls()?;
        without_backtraces();
        tracing::info!("the sandbox is in force: {in_force}");
        Ok(Some(in_force))
    }

    /// Restricts what makes the handler of each CPU, and so the thread of this CPU, which makes its handler before its first packet.
    pub(crate) fn of_packet_threads<H: Handler>(
        &self,
        make: impl Fn(CpuId) -> H + Send + Sync + 'static,
    ) -> Result<impl Fn(CpuId) -> H + Send + Sync + 'static, Error> {
        let filter = self.sandbox.as_ref().map(|_| ThreadFilter::new(&self.packet_groups)).transpose()?;
        Ok(move |cpu| {
            // After a panic, the thread makes another handler.
            let enters = filter.as_ref().filter(|_| !ENTERED.replace(true));
            if let Some(Err(error)) = enters.map(ThreadFilter::enter) {
                // No packet is handled outside of the sandbox. An error means that standard error is closed.
                let _ = writeln!(io::stderr(), "steerage: {}", Error::Sandbox(error));
                process::exit(1);
            }
            make(cpu)
        })
    }
}

/// Drops all capabilities, and restricts files and system calls, of a command that handles no packets.
pub(crate) fn enter(needs: Needs<'_>, args: &SandboxArgs) -> Result<Option<InForce>, Error> {
    privileges::drop_all()?;
    Confinement::of_files(needs, args)?.of_calls()
}

/// Like [`enter`], but keeps the capabilities that `needed` takes, if the command cannot do without them.
pub(crate) fn enter_keeping(needs: Needs<'_>, needed: &Needed<'_>, args: &SandboxArgs) -> Result<Kept, Error> {
    let kept = privileges::drop_except(needed)?;
    Confinement::of_files(needs, args)?.of_calls()?;
    Ok(kept)
}

/// Like [`enter_keeping`], for a command that writes these files.
pub(crate) fn enter_writing<'a>(needs: Needs<'a>, files: &[&'a Path], args: &SandboxArgs) -> Result<Kept, Error> {
    let needed = files.iter().copied().fold(Needed::default(), Needed::written_files);
    enter_keeping(needs.written_files(files), &needed, args)
}

/// A backtrace takes the program's own file, which no thread may open any more. So a panic says where it is, and no more.
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

/// The existing directory in which files of this name, and the directories above them, are made. Parts that stand for the time do not
/// exist yet.
fn existing_directory(name: &Path) -> PathBuf {
    let fixed = |path: &&Path| !path.to_string_lossy().contains('%') && !path.as_os_str().is_empty();
    // A link in the directory may lead to another one.
    let target = fs::canonicalize(name).unwrap_or_else(|_| name.to_owned());
    target.ancestors().skip(1).find(|path| fixed(path) && path.exists()).unwrap_or(Path::new(".")).to_owned()
}

#[cfg(test)]
mod tests;
