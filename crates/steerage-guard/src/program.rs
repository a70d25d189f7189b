//! Finds and starts other programs. While a program starts, signals can still end this process.
//!
//! When a thread starts a program, the C library blocks all signals of this thread until the
//! program's file is loaded. If the file, or a directory in PATH, is on a file system that does not
//! respond, only SIGKILL could end the process. Therefore a separate thread starts the program, and
//! the calling thread, whose signals are not blocked, waits for the separate thread.
//!
//! Architecture invariant: steerage starts every program with the function `start`.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;

use rustix::fs::{Access, AtFlags, CWD, accessat};

/// Starts a program in a child process.
///
/// ```
/// use std::process::Command;
///
/// let status = steerage_guard::program::start(&mut Command::new("true"))?.wait()?;
/// assert!(status.success());
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the program cannot be started, or if no thread can be started.
pub fn start(command: &mut Command) -> io::Result<Child> {
    thread::scope(|scope| {
        let starting = thread::Builder::new().name("start".to_owned()).spawn_scoped(scope, || command.spawn())?;
        starting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Returns the path of a program in `PATH` that this process may start, if there is one.
///
/// ```
/// assert!(steerage_guard::program::find("true").is_some());
/// assert_eq!(steerage_guard::program::find("no-such-program"), None);
/// ```
pub fn find(name: &str) -> Option<PathBuf> {
    let may_start = |path: &Path| path.is_file() && accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok();
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(name)).find(|path| may_start(path))
}
