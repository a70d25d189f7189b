//! Opens the files of a capture on a separate thread. The CPUs that read the files handle packets,
//! and should not have the right to open files.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use nix::fcntl::OFlag;

/// The path that stands for standard input.
pub(super) const STANDARD_INPUT: &str = "-";

/// Sends requests to open a file to the thread and receives the results, one at a time.
#[derive(Debug)]
pub(super) struct Opener {
    paths: Sender<PathBuf>,
    opened: Receiver<io::Result<File>>,
}

impl Opener {
    /// Starts the thread. The thread has the rights of the calling thread, and ends when this value
    /// is dropped.
    pub(super) fn start() -> io::Result<Self> {
        let (paths, asked) = mpsc::channel::<PathBuf>();
        let (to, opened) = mpsc::channel();
        let serve = move || {
            for path in asked {
                if to.send(open(&path)).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("open".to_owned()).spawn(serve)?;
        Ok(Self { paths, opened })
    }

    /// Opens a file. This takes as long as opening it directly, plus two switches between threads.
    pub(super) fn open(&self, path: &Path) -> io::Result<File> {
        let gone = || io::Error::other("the thread that opens files is gone");
        self.paths.send(path.to_owned()).map_err(|_| gone())?;
        self.opened.recv().map_err(|_| gone())?
    }
}

pub(super) fn open(path: &Path) -> io::Result<File> {
    if path.as_os_str() == STANDARD_INPUT {
        return io::stdin().as_fd().try_clone_to_owned().map(File::from);
    }
    // Opening a FIFO waits for a writer unless this flag is set. Regular files ignore the flag.
    OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)
}
