use std::ffi::OsStr;
use std::fs::File;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::random_name;
use crate::path::{Directory, PathError};

/// The mode of an unnamed file: only this user may open the file again, and only through a
/// descriptor (`/proc/PID/fd`).
const PRIVATE: Mode = Mode::from_raw_mode(0o600);

const HOW: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC);

/// Creates a file without a name on the file system of `directory`, open for reading and writing.
/// The kernel removes the file when its last descriptor is closed, no matter how the process ends.
///
/// # Errors
/// Returns an error if a file cannot be created in the directory.
pub fn unnamed(directory: &Directory) -> Result<File, PathError> {
    directory.may_hold_files()?;
    // With `O_EXCL`, no process can give the unnamed file a name later.
    match rustix::fs::openat(directory, ".", HOW | OFlags::TMPFILE | OFlags::EXCL, PRIVATE) {
        Ok(file) => Ok(file.into()),
        // The file system does not support files without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => created_and_removed(directory),
        Err(error) => Err(error.into()),
    }
}

fn created_and_removed(directory: &Directory) -> Result<File, PathError> {
    let name = random_name(OsStr::new(".steerage"));
    let file = directory.create_new_file(&name, PRIVATE.as_raw_mode())?;
    directory.remove_file(&name)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Seek, Write};
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_file_without_a_name_is_in_no_directory() {
        let directory = std::env::temp_dir().join(format!("steerage-unnamed-{}", std::process::id()));
        // A test process that was killed leaves its directory, and process IDs return.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        let opened = Directory::open(&directory).unwrap();
        for mut file in [unnamed(&opened).unwrap(), created_and_removed(&opened).unwrap()] {
            file.write_all(b"packets").unwrap();
            file.rewind().unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            let metadata = file.metadata().unwrap();
            assert_eq!((text.as_str(), metadata.nlink(), metadata.mode() & 0o7777), ("packets", 0, 0o600));
            assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        }
        fs::remove_dir(&directory).unwrap();
        assert!(unnamed(&opened).is_err());
    }
}
