use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::FileType;
use rustix::process::geteuid;

use super::{DIRECTORY_MODE, FilePattern, Readers, parent_of, probe};
use crate::path::{Directory, PathError};

/// The maximum number of files with the same time in their names. At 1 MiB per file, 100,000 files
/// contain more than 97 GiB.
const SAME_NAME_MAX: u32 = 100_000;

/// Returns the start of the period that contains the time `nanos`. Each period has `period`
/// nanoseconds, at least 1, and the first period begins in 1970.
pub fn start_of_period(nanos: u64, period: u64) -> u64 {
    nanos - nanos % period
}

/// A series of files: files that are written one after another. An existing file is never replaced:
/// if the name of a new file is taken, a number is added to the name (`NAME-2.pcapng`).
///
/// ```no_run
/// use std::num::NonZero;
/// use std::time::SystemTime;
///
/// use steerage_guard::file::{FilePattern, FileSeries};
///
/// let mut series = FileSeries::new(FilePattern::parse("kept/%Y%m%d-%H.pcapng")?, NonZero::new(48))?;
/// let file = series.create(SystemTime::now())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct FileSeries {
    name: FilePattern,
    keep: Option<NonZero<usize>>,
    /// The existing files of the series, oldest first. Empty if the series never removes files.
    files: VecDeque<Written>,
    /// The name of the last created file without its number, and this number.
    last: (PathBuf, u32),
}

/// `id` has the file's device and inode number, to detect that the path now names another file.
#[derive(Debug)]
struct Written {
    path: PathBuf,
    id: (u64, u64),
}

impl FileSeries {
    /// Prepares the series, and checks that files can be created. If `keep` is a number, the series
    /// has at most this number of files: it removes the oldest file before it creates the next
    /// file. Existing files of this user whose names match the pattern belong to the series, unless
    /// a directory name in the pattern contains a time.
    ///
    /// # Errors
    /// Returns an error if files cannot be created.
    pub fn new(name: FilePattern, keep: Option<NonZero<usize>>) -> io::Result<Self> {
        let path = Path::new(name.as_str());
        probe(path)?;
        let in_one_directory = !parent_of(path).as_os_str().as_encoded_bytes().contains(&b'%');
        let files =
            if keep.is_some() && in_one_directory { earlier_files(path).unwrap_or_default() } else { VecDeque::new() };
        Ok(Self { name, keep, files, last: (PathBuf::new(), 0) })
    }

    /// Creates the next file, with `time` in its name, and each missing directory of its path.
    ///
    /// # Errors
    /// Returns an error if the file or its directory cannot be created.
    pub fn create(&mut self, time: SystemTime) -> io::Result<File> {
        while self.keep.is_some_and(|keep| self.files.len() >= keep.get()) {
            self.files.pop_front().iter().for_each(Written::remove);
        }
        let path = PathBuf::from(self.name.at(time));
        self.create_at(&path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    fn create_at(&mut self, path: &Path) -> io::Result<File> {
        let (directory, name) = Directory::holding_created(path, DIRECTORY_MODE)?;
        let name = name.to_str().ok_or(io::ErrorKind::InvalidInput)?;
        let first = if self.last.0 == path { self.last.1 + 1 } else { 1 };
        for number in first..=SAME_NAME_MAX {
            let numbered = numbered(name, number);
            match directory.create_new_file(OsStr::new(&numbered), Readers::Group.mode(&directory)?) {
                Err(PathError::System(error)) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => {
                    let file = created?;
                    self.add(path.with_file_name(numbered), &file)?;
                    self.last = (path.to_owned(), number);
                    return Ok(file);
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "too many files have this time: put more of it into the name"))
    }

    fn add(&mut self, path: PathBuf, file: &File) -> io::Result<()> {
        if self.keep.is_some() {
            let metadata = file.metadata()?;
            self.files.push_back(Written { path, id: (metadata.dev(), metadata.ino()) });
        }
        Ok(())
    }
}

impl Written {
    fn remove(&self) {
        let removed = Directory::holding(&self.path).and_then(|(directory, name)| {
            let there = directory.stat(&name)?;
            if (there.st_dev, there.st_ino) == self.id { directory.remove_file(&name) } else { Ok(()) }
        });
        match removed {
            Err(PathError::System(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!("cannot remove {}: {error}", self.path.display()),
            Ok(()) => {}
        }
    }
}

/// Returns the files of this user whose names match the pattern, oldest first.
fn earlier_files(path: &Path) -> Result<VecDeque<Written>, PathError> {
    let (directory, name) = Directory::holding(path)?;
    let Some(pattern) = name.to_str().and_then(|name| FilePattern::parse(name).ok()) else {
        return Ok(VecDeque::new());
    };
    let us = geteuid().as_raw();
    let mut files = Vec::new();
    for (name, _) in directory.entries()? {
        let Some(text) = name.to_str() else { continue };
        if !pattern.matches(text) && !without_number(text).is_some_and(|text| pattern.matches(&text)) {
            continue;
        }
        let Ok(stat) = directory.stat(&name) else { continue };
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_uid == us {
            let file = Written { path: path.with_file_name(&name), id: (stat.st_dev, stat.st_ino) };
            files.push(((stat.st_mtime, stat.st_mtime_nsec, name), file));
        }
    }
    files.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(files.into_iter().map(|(_, file)| file).collect())
}

/// Inserts a number before the extension of a file name. The first file with a name gets no number.
fn numbered(name: &str, number: u32) -> String {
    match name.rsplit_once('.') {
        _ if number == 1 => name.to_owned(),
        Some((stem, end)) => format!("{stem}-{number}.{end}"),
        None => format!("{name}-{number}"),
    }
}

fn without_number(name: &str) -> Option<String> {
    let (stem, end) = name.rsplit_once('.').map_or((name, None), |(stem, end)| (stem, Some(end)));
    let (stem, number) = stem.rsplit_once('-')?;
    let is_number = number.parse::<u32>().is_ok_and(|parsed| parsed > 1 && parsed.to_string() == number);
    is_number.then(|| end.map_or_else(|| stem.to_owned(), |end| format!("{stem}.{end}")))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::Duration;

    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("steerage-series-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn series(directory: &Path, name: &str, keep: usize) -> FileSeries {
        let name = format!("{}/{name}", directory.display());
        FileSeries::new(FilePattern::parse(&name).unwrap(), NonZero::new(keep)).unwrap()
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn names(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn no_file_is_replaced_and_the_oldest_are_removed() {
        let directory = directory("kept");
        // Links, and files whose names do not match, do not belong to the series.
        fs::write(directory.join("other.pcap"), "").unwrap();
        symlink("other.pcap", directory.join("a-05.pcap")).unwrap();
        let mut first = series(&directory, "a-%S.pcap", 3);
        for seconds in [1, 1, 1, 1, 2] {
            first.create(at(seconds)).unwrap().write_all(b"first").unwrap();
        }
        assert_eq!(names(&directory), ["a-01-3.pcap", "a-01-4.pcap", "a-02.pcap", "a-05.pcap", "other.pcap"]);
        // A later run removes the files of an earlier run, but not a file that has replaced one of
        // these files.
        fs::rename(directory.join("a-02.pcap"), directory.join("a-02.moved")).unwrap();
        let mut second = series(&directory, "a-%S.pcap", 2);
        fs::write(directory.join("another"), "another").unwrap();
        fs::rename(directory.join("another"), directory.join("a-01-4.pcap")).unwrap();
        second.create(at(2)).unwrap();
        second.create(at(3)).unwrap();
        let left = names(&directory);
        assert_eq!(left, ["a-01-4.pcap", "a-02.moved", "a-02.pcap", "a-03.pcap", "a-05.pcap", "other.pcap"]);
        assert_eq!(fs::read(directory.join("a-01-4.pcap")).unwrap(), b"another");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn directories_with_a_time_are_created() {
        let directory = directory("dated");
        let mut series = series(&directory, "%F/%H.pcap", 1);
        series.create(at(0)).unwrap();
        series.create(at(86_400)).unwrap();
        assert_eq!(names(&directory.join("1970-01-01")), [""; 0]);
        assert_eq!(names(&directory.join("1970-01-02")), ["00.pcap"]);
        fs::remove_dir_all(&directory).unwrap();
        assert!(FileSeries::new(FilePattern::parse("/nowhere/%F.pcap").unwrap(), None).is_err());
    }
}
