//! Restricts a process to the operations that it needs after its start.
//!
//! | file | purpose |
//! |---|---|
//! | `calls` | system calls, in groups by purpose |
//! | `children` | finds the children of this process |
//! | `files` | restricts access to files with Landlock |
//! | `sockets` | finds the sockets by which this process could send |
//! | `filter` | compiles groups of system calls to seccomp programs |
//! | `sys` | the handler that reports a violation |
//!
//! If the process makes a system call that the filter does not allow, the kernel ends the process
//! with SIGSYS, and one line on standard error names the thread and the system call. Opening a file
//! that Landlock does not allow fails with "permission denied".
//!
//! [`InForce`] reports whether the kernel lacks Landlock, or seccomp on this architecture. If one
//! of Landlock and seccomp is missing, the kernel still enforces the other.
mod calls;
mod children;
mod files;
mod filter;
mod sockets;
#[allow(unsafe_code)]
mod sys;

use std::cell::Cell;
use std::error;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use seccompiler::{BpfProgram, BpfProgramRef, apply_filter, apply_filter_all_threads};

pub use calls::{Group, call_name};
use files::{Enforced, How, Object, Reach};
pub use sockets::Sockets;

/// The operations that a process needs after its start. [`restrict_files`](Self::restrict_files)
/// and [`restrict_calls`](Self::restrict_calls) forbid all other operations.
///
/// ```no_run
/// use std::path::Path;
///
/// use steerage_guard::sandbox::{Group, Sandbox};
///
/// let sandbox = Sandbox::new().reads(Path::new("/sys/devices/system")).calls(&[Group::Threads, Group::Files]);
/// sandbox.restrict_files()?;
/// let in_force = sandbox.restrict_calls()?;
/// eprintln!("in force: {in_force}");
/// # Ok::<(), steerage_guard::sandbox::SandboxError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Sandbox {
    groups: Vec<Group>,
    rules: Vec<(Object, How)>,
    enforced: Cell<Option<Enforced>>,
}

impl Sandbox {
    /// Allows a process only to compute and to use open files ([`Group::Run`]).
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows the system calls of the groups `groups`, in addition to [`Group::Run`].
    #[must_use]
    pub fn calls(mut self, groups: &[Group]) -> Self {
        self.groups.extend(groups);
        self
    }

    /// Allows the process to read a file, or all files below a directory.
    #[must_use]
    pub fn reads(self, path: impl AsRef<Path>) -> Self {
        self.path(path.as_ref().to_owned(), How::Read)
    }

    /// Allows the process to create, write, rename and remove files below the open directory. The
    /// directory is given by its descriptor, because its path could meanwhile lead to another
    /// directory.
    #[must_use]
    pub fn writes(self, directory: impl Into<OwnedFd>) -> Self {
        // The module `path` reads these two files to find the user of a FUSE mount.
        let sandbox = self.reads("/proc/self/fdinfo").reads("/proc/self/mountinfo");
        sandbox.open(directory.into(), How::Write)
    }

    /// Allows the process to remove a file, such as a socket, from the directory when it ends.
    /// Landlock has no rules for single names, so the process can remove any file in the directory.
    #[must_use]
    pub fn removes_in(self, directory: impl Into<OwnedFd>) -> Self {
        self.open(directory.into(), How::RemoveFile)
    }

    /// Allows the process to open and control a device, such as a terminal.
    #[must_use]
    pub fn uses_device(self, path: impl AsRef<Path>) -> Self {
        self.path(path.as_ref().to_owned(), How::Device)
    }

    fn path(mut self, path: PathBuf, how: How) -> Self {
        self.rules.push((Object::Path(path), how));
        self
    }

    fn open(mut self, directory: OwnedFd, how: How) -> Self {
        self.rules.push((Object::Open(Arc::new(directory)), how));
        self
    }

    /// Restricts the files that this thread, and threads and programs that it starts later, can
    /// access. Call `restrict_files` while the process has one thread, and after all files and
    /// devices are open.
    ///
    /// # Errors
    /// Returns an error if the kernel supports Landlock but refuses the rules.
    pub fn restrict_files(&self) -> Result<(), SandboxError> {
        let has = |group| self.groups.contains(&group);
        let reach = Reach { tcp: has(Group::Internet), signals: has(Group::Signal) };
        self.enforced.set(Some(files::restrict(&self.rules, reach)?));
        Ok(())
    }

    /// Permanently restricts the system calls of all threads. A forbidden system call ends the
    /// process.
    ///
    /// # Errors
    /// Returns an error if the kernel supports seccomp but refuses the filter.
    pub fn restrict_calls(&self) -> Result<InForce, SandboxError> {
        let arch = filter::arch().filter(|_| sys::has_seccomp());
        if let Some(arch) = arch {
            sys::name_violations().map_err(SandboxError::handler)?;
            // After the filter is installed, the process cannot start programs, so the list of its
            // child processes stays complete.
            let signals = self.groups.contains(&Group::Signal);
            let children = signals.then(children::running).flatten();
            if signals && children.is_none() {
                tracing::warn!("the children of this process are not known, so the sandbox does not limit its signals");
            }
            let allow = filter::allow(&self.groups, &Sockets::default(), children.as_deref(), arch)?;
            let filters = [filter::do_without(arch)?, allow];
            filters.iter().try_for_each(|filter| apply_filter_all_threads(filter)).map_err(SandboxError::filter)?;
        }
        Ok(InForce { landlock: self.enforced.get().unwrap_or(Enforced::Nothing), seccomp: arch.is_some() })
    }
}

/// A filter for a thread that needs fewer system calls than its process. The filter is compiled in
/// advance, so that the thread can install it without delay.
#[derive(Clone, Debug)]
pub struct ThreadFilter(Option<Programs>);

#[derive(Clone, Debug)]
struct Programs {
    allow: BpfProgram,
    keep_open: BpfProgram,
}

impl ThreadFilter {
    /// Compiles a filter that allows the system calls of `groups`. The thread cannot send through
    /// packet sockets that listen, and cannot send to an address through any packet socket. The
    /// thread can send messages only through UDP sockets. If the thread closes a packet or UDP
    /// socket that is in `sockets`, the socket stays open.
    ///
    /// # Errors
    /// Returns an error if the filter cannot be compiled.
    pub fn new(groups: &[Group], sockets: &Sockets) -> Result<Self, SandboxError> {
        let arch = filter::arch().filter(|_| sys::has_seccomp());
        let programs = |arch| -> Result<Programs, SandboxError> {
            let keep_open = filter::keep_open(sockets, arch)?;
            Ok(Programs { allow: filter::allow(groups, sockets, None, arch)?, keep_open })
        };
        arch.map(programs).transpose().map(Self)
    }

    /// Returns the filter's seccomp program, or `None` if this kernel has no seccomp.
    #[doc(hidden)]
    pub fn program(&self) -> Option<BpfProgramRef<'_>> {
        self.0.as_ref().map(|programs| programs.allow.as_slice())
    }

    /// Permanently restricts the calling thread to the system calls of the filter.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses the filter.
    pub fn enter(&self) -> Result<(), SandboxError> {
        let Some(programs) = &self.0 else { return Ok(()) };
        // The program `allow` is installed last, because it forbids the installation of seccomp
        // programs.
        let programs = [&programs.keep_open, &programs.allow];
        programs.into_iter().try_for_each(|program| apply_filter(program)).map_err(SandboxError::filter)
    }
}

/// The restrictions that the kernel enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InForce {
    landlock: Enforced,
    seccomp: bool,
}

impl InForce {
    /// Returns true if the kernel restricts the system calls of this process.
    pub fn seccomp(&self) -> bool {
        self.seccomp
    }

    /// Returns the kernel's error if the kernel supports Landlock but refused to apply it. In a
    /// container, the cause may be the container's seccomp profile, which the user can change.
    pub fn landlock_refused(&self) -> Option<io::Error> {
        match self.landlock {
            Enforced::Refused(error) => Some(io::Error::from_raw_os_error(error)),
            _ => None,
        }
    }

    /// Returns how much of the Landlock rules the kernel enforces: `full`, `part` or `none`.
    pub fn landlock(&self) -> &'static str {
        match self.landlock {
            Enforced::All => "full",
            Enforced::Part(_) => "part",
            Enforced::Nothing | Enforced::Refused(_) => "none",
        }
    }
}

impl fmt::Display for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.seccomp { "seccomp, " } else { "no seccomp here, " })?;
        match self.landlock {
            Enforced::All => f.write_str("Landlock"),
            Enforced::Part(version) => write!(f, "Landlock in part (version {version} of this kernel)"),
            Enforced::Nothing => f.write_str("no Landlock here"),
            Enforced::Refused(_) => f.write_str("Landlock refused"),
        }
    }
}

/// The reason why the process could not enter the sandbox. The error message has one line.
#[derive(Debug, thiserror::Error)]
#[error("cannot enter the sandbox: the attempt to {what} failed: {cause}")]
pub struct SandboxError {
    what: &'static str,
    #[source]
    cause: Box<dyn error::Error + Send + Sync>,
}

impl SandboxError {
    fn filter(cause: impl error::Error + Send + Sync + 'static) -> Self {
        Self { what: "restrict system calls", cause: Box::new(cause) }
    }

    fn landlock(cause: impl error::Error + Send + Sync + 'static) -> Self {
        Self { what: "restrict files", cause: Box::new(cause) }
    }

    fn sockets(cause: io::Error) -> Self {
        Self { what: "list open sockets in /proc/self/fd", cause: Box::new(cause) }
    }

    fn handler(cause: io::Error) -> Self {
        Self { what: "name violations", cause: Box::new(cause) }
    }
}
