//! Starts other programs. Signals can end this process while it starts a program.
//!
//! While the C library starts a program, it blocks all signals in its thread until the file of the
//! program is loaded. The file of the program, or a directory of PATH, may be on a file system that
//! does not answer. While the C library waits for such a file system, only SIGKILL can end the
//! process. Therefore a separate thread starts the program. The caller waits for that thread and
//! does not block signals.
//!
//! Architecture invariant: this function starts every program that steerage runs.

use std::io;
use std::process::{Child, Command};
use std::thread;

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
