//! `steerage get` and `steerage set`: read and change attributes of a running instance.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use steerage_control::{Client, ClientError, unmount};

use crate::args::{GetArgs, SetArgs, UnmountArgs};
use crate::error::Error;
use crate::instances;
use crate::privileges;
use crate::sandbox::{self, Confined, Needs};
use crate::stdout;
use crate::terminal::{printable, printable_lines};

/// How deep a tree may be. Ours has six levels of directories.
const DEPTH_MAX: usize = 16;

/// Prints an attribute, or the paths below a directory.
pub(crate) fn get(args: &GetArgs) -> Result<(), Error> {
    let mut client = instances::connect(args.to.to.as_deref())?;
    sandbox::enter(Needs::of(Confined::Get), &args.to.sandbox)?;
    let path = args.path.trim_matches('/');
    let failed = |error| Error::Attribute { what: "get", path: path.to_owned(), error };
    let text = match client.get(path) {
        Err(ClientError::Refused { code, .. }) if code == "EISDIR" => {
            let paths = below(&mut client, path, DEPTH_MAX).map_err(failed)?;
            if args.json {
                let paths: Vec<&str> = paths.lines().collect();
                json!({ "path": path, "paths": paths }).to_string() + "\n"
            } else {
                paths
            }
        }
        answer => {
            let value = answer.map_err(failed)?;
            if args.json { json!({ "path": path, "value": value.trim_end() }).to_string() + "\n" } else { value }
        }
    };
    // The instance may be another user's process, which could send escape sequences to our terminal.
    stdout::print(printable_lines(&text).as_bytes())
}

/// Changes an attribute.
pub(crate) fn set(args: &SetArgs) -> Result<(), Error> {
    let mut client = instances::connect(args.to.to.as_deref())?;
    sandbox::enter(Needs::of(Confined::Set), &args.to.sandbox)?;
    let path = args.path.trim_matches('/');
    match client.set(path, &args.value) {
        Ok(_in_force) => Ok(()),
        Err(error) => Err(Error::Attribute { what: "set", path: path.to_owned(), error }),
    }
}

/// The paths of all attributes below a directory, one per line. Its own attributes come before those of its
/// directories.
fn below(client: &mut Client, directory: &str, depth: usize) -> Result<String, ClientError> {
    let depth = depth.checked_sub(1).ok_or(ClientError::Nonsense)?;
    let (mut paths, mut deeper) = (String::new(), String::new());
    for (name, is_directory) in client.list(directory)? {
        let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
        if is_directory {
            deeper += &below(client, &path, depth)?;
        } else {
            // A name must not contain a line break.
            paths += &printable(&path);
            paths.push('\n');
        }
    }
    Ok(paths + &deeper)
}

/// Waits until standard input ends, which happens when the run ends in any way, and unmounts the tree.
pub(crate) fn unmount_at_end(args: &UnmountArgs) -> Result<(), Error> {
    privileges::keep_unmount_only()?;
    // A signal to the whole process group is meant for the run. This process must outlive it.
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        flag::register(signal, Arc::new(AtomicBool::new(false)))
            .map_err(|error| Error::System { operation: "listen for signals", error })?;
    }
    // The run sends nothing: only the end of the input matters.
    let _ = io::stdin().lock().read_to_end(&mut Vec::new());
    unmount(&args.directory).map_err(|error| Error::System { operation: "unmount the control tree", error })
}
