//! Opens the files of a capture on a separate thread. The CPUs that read the files handle packets,
//! and should not have the right to open files.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use super::files;

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
        let open = move || {
            for path in asked {
                if to.send(files::open(&path)).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("open".to_owned()).spawn(open)?;
        Ok(Self { paths, opened })
    }

    /// Opens a file. This takes as long as opening it directly, plus two switches between threads.
    pub(super) fn open(&self, path: &Path) -> io::Result<File> {
        let gone = || io::Error::other("the thread that opens files is gone");
        self.paths.send(path.to_owned()).map_err(|_| gone())?;
        self.opened.recv().map_err(|_| gone())?
    }
}
