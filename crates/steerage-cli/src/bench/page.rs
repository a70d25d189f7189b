//! A page that is written at the end of a long run: whole, or not at all.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Writes it beside `path`, and gives it the name once it is whole. What stood there until then stays if that fails.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    let written = match fs::metadata(path) {
        // A pipe or a device is written to: another file in its place would be none.
        Ok(there) if !there.is_file() => fs::write(path, text),
        _ => whole(path, text),
    };
    written.map_err(|cause| {
        Error::Bench(format!("--html {}: cannot write it: {cause}; name another file", path.display()))
    })
}

fn whole(path: &Path, text: &str) -> io::Result<()> {
    // Through links: the file behind one is replaced, and not the link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let part = part_of(&path);
    fs::write(&part, text).and_then(|()| fs::rename(&part, &path)).inspect_err(|_| {
        // It may not have come so far.
        let _ = fs::remove_file(&part);
    })
}

fn part_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().map_or(OsString::new(), OsString::from);
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}
