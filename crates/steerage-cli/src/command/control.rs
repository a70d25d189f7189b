use serde_json::json;
use steerage_control::{Client, ClientError, instances};
use steerage_text::{printable, printable_lines};

use crate::args::{GetArgs, SetArgs};
use crate::error::{Error, SearchError};
use crate::sandbox::{self, Needs, SandboxProfile};
use crate::stdout;

/// The maximum number of directory levels that are read. The control tree of an instance has six
/// levels.
const DEPTH_MAX: usize = 16;

pub(crate) fn get(args: &GetArgs) -> Result<(), Error> {
    let mut client = instances::connect(args.to.to.as_deref())?;
    sandbox::enter(Needs::of(SandboxProfile::Get), &args.to.sandbox)?;
    let path = args.path.trim_matches('/');
    let failed = |error| SearchError::Attribute { what: "get", path: path.to_owned(), error };
    let text = match client.get(path) {
        Err(ClientError::Refused { code, .. }) if code == "EISDIR" => {
            let paths = paths(&mut client, path).map_err(failed)?;
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
    // The instance may be a process of another user, and may send escape sequences for this
    // terminal.
    stdout::print(printable_lines(&text))
}

pub(crate) fn set(args: &SetArgs) -> Result<(), Error> {
    let mut client = instances::connect(args.to.to.as_deref())?;
    sandbox::enter(Needs::of(SandboxProfile::Set), &args.to.sandbox)?;
    let path = args.path.trim_matches('/');
    match client.set(path, &args.value) {
        Ok(_in_force) => Ok(()),
        Err(error) => Err(SearchError::Attribute { what: "set", path: path.to_owned(), error }.into()),
    }
}

/// Returns the paths of the attributes below a directory, one per line. The directory's own
/// attributes come before those of its subdirectories.
pub(super) fn paths(client: &mut Client, directory: &str) -> Result<String, ClientError> {
    below(client, directory, DEPTH_MAX)
}

fn below(client: &mut Client, directory: &str, depth: usize) -> Result<String, ClientError> {
    let depth = depth.checked_sub(1).ok_or(ClientError::Nonsense)?;
    let (mut paths, mut deeper) = (String::new(), String::new());
    for (name, is_directory) in client.list(directory)? {
        let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
        if is_directory {
            deeper += &below(client, &path, depth)?;
        } else {
            // A line break in the name of an attribute must not start a new line of output.
            paths += &printable(&path);
            paths.push('\n');
        }
    }
    Ok(paths + &deeper)
}
