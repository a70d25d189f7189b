//! `steerage get` and `steerage set`: what a running instance shows, and changes.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use steerage_control::{Client, ClientError, unmount};

use super::print;
use crate::args::{GetArgs, SetArgs, UnmountArgs};
use crate::control;
use crate::error::Error;
use crate::privileges;
use crate::report::units::{printable, printable_lines};

/// How deep a tree may be: ours has six levels of directories.
const DEPTH_MAX: usize = 16;

/// Prints an attribute, or the paths below a directory.
pub(crate) fn get(args: &GetArgs) -> Result<(), Error> {
    let mut client = control::connect(args.to.to.as_deref())?;
    let path = args.path.trim_matches('/');
    let failed = |error| Error::Attribute { what: "get", path: path.to_owned(), error };
    let text = match client.get(path) {
        Err(ClientError::Refused { code, .. }) if code == "EISDIR" => {
            below(&mut client, path, DEPTH_MAX).map_err(failed)?
        }
        answer => answer.map_err(failed)?,
    };
    // Another user's process may have written it, for our terminal.
    print(printable_lines(&text).as_bytes())
}

/// Changes one.
pub(crate) fn set(args: &SetArgs) -> Result<(), Error> {
    let mut client = control::connect(args.to.to.as_deref())?;
    let path = args.path.trim_matches('/');
    match client.set(path, &args.value) {
        Ok(_in_force) => Ok(()),
        Err(error) => Err(Error::Attribute { what: "set", path: path.to_owned(), error }),
    }
}

/// The paths of all attributes below a directory, one a line, a directory's own before those of the directories in it.
fn below(client: &mut Client, directory: &str, depth: usize) -> Result<String, ClientError> {
    let depth = depth.checked_sub(1).ok_or(ClientError::Nonsense)?;
    let (mut paths, mut deeper) = (String::new(), String::new());
    for (name, is_directory) in client.list(directory)? {
        let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
        if is_directory {
            deeper += &below(client, &path, depth)?;
        } else {
            // A name is part of a line, and cannot end it.
            paths += &printable(&path);
            paths.push('\n');
        }
    }
    Ok(paths + &deeper)
}

/// Waits until standard input ends, however the run that holds its other end does, and unmounts.
pub(crate) fn unmount_at_end(args: &UnmountArgs) -> Result<(), Error> {
    privileges::keep_to_unmount()?;
    // Whoever ends the run by a signal to all of its processes means the run; we are to outlive it.
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        flag::register(signal, Arc::new(AtomicBool::new(false)))
            .map_err(|error| Error::System { operation: "listen for signals", error })?;
    }
    // Nothing is sent.
    let _ = io::stdin().lock().read_to_end(&mut Vec::new());
    unmount(&args.directory).map_err(|error| Error::System { operation: "unmount the control tree", error })
}
