//! Runs tcpdump as the compiler: a child process that prints a program.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use steerage::LinkType;

use super::{Filter, FilterError, FrameKind, SHOWN_CHARS_MAX, shown};

const TCPDUMP: &str = "tcpdump";

/// How long it may take. Compiling takes milliseconds, but a host's name in an expression is looked up first, and a
/// resolver tries for 10 s before it gives up on a server.
const TIME_MAX: Duration = Duration::from_secs(30);

/// How much it may print: the longest program that the kernel takes has 112 KiB as numbers.
const OUTPUT_BYTES_MAX: u64 = 256 << 10;

/// How much of its error is passed on, in characters: its own are shorter.
const SAID_CHARS_MAX: usize = 240;

/// The longest packet that a filter lets through whole, in bytes: tcpdump's own most, and more than any frame has.
const WHOLE: &str = "262144";
const WHOLE_BYTES: u32 = 262_144;

/// How many run at a time, where an expression is compiled for several kinds of frames.
const AT_A_TIME: usize = 8;

/// What tcpdump says before it compiles for a file.
const READING: &str = "reading from file ";

/// The only word of the language that asks for something a file's frame has in it and a live one has beside it: the kernel
/// takes tags out of frames. Compiled without the interface it finds nothing.
const NEEDS_INTERFACE: &str = "vlan";

/// Compiles an expression.
pub(super) fn compile(text: &str, interface: Option<&str>, link: LinkType) -> Result<Filter, FilterError> {
    Compiler { program: TCPDUMP.as_ref(), time_max: TIME_MAX }.compile(text, interface, link)
}

/// Compiles an expression for frames of files, for each of these kinds. Each gets what `tcpdump -r` would filter such a file with.
pub(super) fn compile_for_files(text: &str, kinds: &[FrameKind]) -> Vec<Result<Filter, FilterError>> {
    let compiler = Compiler { program: TCPDUMP.as_ref(), time_max: TIME_MAX };
    if text.contains('\0') {
        return kinds.iter().map(|_| Err(refused(text, "it has a zero byte"))).collect();
    }
    let begin = |kind: &FrameKind| compiler.begin(&["-r", "-"], text, &file_header(*kind));
    let mut compiled = Vec::with_capacity(kinds.len());
    for some in kinds.chunks(AT_A_TIME) {
        let running: Vec<_> = some.iter().map(begin).collect();
        compiled.extend(running.into_iter().map(|child| compiler.end(child?, text)));
    }
    compiled
}

/// A capture file of this kind without packets: its header.
fn file_header(kind: FrameKind) -> Vec<u8> {
    let (link, magic, version) = (u32::from(kind.link.0), 0xa1b2_c3d4_u32, [2_u16, 4]);
    let words = [magic, 0, 0, 0, WHOLE_BYTES, link];
    let bytes = |word: u32| if kind.big_endian { word.to_be_bytes() } else { word.to_le_bytes() };
    let mut header: Vec<u8> = words.into_iter().flat_map(bytes).collect();
    let halves = version.map(|half| if kind.big_endian { half.to_be_bytes() } else { half.to_le_bytes() });
    header[4..8].copy_from_slice(halves.as_flattened());
    header
}

/// What is run, and for how long.
struct Compiler<'a> {
    program: &'a OsStr,
    time_max: Duration,
}

impl Compiler<'_> {
    fn compile(&self, text: &str, interface: Option<&str>, link: LinkType) -> Result<Filter, FilterError> {
        let link = match link {
            LinkType::ETHERNET => "EN10MB",
            LinkType::RAW => "RAW",
            other => return Err(FilterError::Link(other)),
        };
        if text.contains('\0') {
            return Err(refused(text, "it has a zero byte"));
        }
        if let Some(interface) = interface {
            // Not promiscuous (-p): tcpdump opens the interface for a moment.
            let compiled = self.run(&["-p", "-i", interface, "-y", link], text);
            // Where it may not be opened or is down, all words but one mean the same without it.
            if !matches!(compiled, Err(FilterError::Expression { .. })) || has_word(text, NEEDS_INTERFACE) {
                return compiled;
            }
        }
        self.run(&["-y", link], text)
    }

    /// Runs it and reads the program that it prints.
    fn run(&self, options: &[&str], text: &str) -> Result<Filter, FilterError> {
        self.end(self.begin(options, text, &[])?, text)
    }

    /// Starts it with so much to read, less than a pipe holds.
    fn begin(&self, options: &[&str], text: &str, input: &[u8]) -> Result<Child, FilterError> {
        let mut command = Command::new(self.program);
        // -s: whole packets, whatever its default; --: what follows is no option, however it begins.
        command.args(options).args(["-s", WHOLE, "-ddd", "--", text]).env("LC_ALL", "C");
        command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|cause| match cause.kind() {
                io::ErrorKind::NotFound => FilterError::NoTcpdump,
                _ => FilterError::Tcpdump { operation: "start tcpdump", cause },
            })?;
        if let Some(mut pipe) = child.stdin.take() {
            // If it does not read this, it says why.
            let _ = pipe.write_all(input);
        }
        Ok(child)
    }

    /// Reads the program that it prints.
    fn end(&self, mut child: Child, text: &str) -> Result<Filter, FilterError> {
        let printed = output(&mut child, self.time_max);
        // It has ended, or is to: that it printed a whole program is how we know that it went well.
        let _ = child.kill();
        let _ = child.wait();
        let (out, err) = printed.map_err(|cause| FilterError::Tcpdump { operation: "run tcpdump", cause })?;
        if out.trim().is_empty() { Err(refused(text, &said(&err))) } else { out.parse() }
    }
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|other| other == word)
}

/// All that it prints on standard output and standard error.
fn output(child: &mut Child, time_max: Duration) -> io::Result<(String, String)> {
    let deadline = Instant::now() + time_max;
    // One reader each: whichever pipe it fills, it goes on.
    let out = read_aside(child.stdout.take())?;
    let err = read_aside(child.stderr.take())?;
    let wait = |printed: mpsc::Receiver<io::Result<String>>| {
        let left = deadline.saturating_duration_since(Instant::now());
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {time_max:?}"));
        printed.recv_timeout(left).map_err(late)?
    };
    Ok((wait(out)?, wait(err)?))
}

/// Reads a pipe on a thread of its own, up to what it may print. The thread ends with the child.
fn read_aside(pipe: Option<impl Read + Send + 'static>) -> io::Result<mpsc::Receiver<io::Result<String>>> {
    let pipe = pipe.ok_or_else(|| io::Error::other("it has no pipe"))?;
    let (to, from) = mpsc::channel();
    thread::Builder::new().name("tcpdump".to_owned()).spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        // Nobody listens any more if it came too late.
        let _ = to.send(read.map(|_| String::from_utf8_lossy(&bytes).into_owned()));
    })?;
    Ok(from)
}

/// Its error in one line, without its name and its warnings.
fn said(err: &str) -> String {
    let lines = err.lines().map(|line| line.strip_prefix("tcpdump: ").unwrap_or(line).trim());
    let is_error = |line: &&str| !line.is_empty() && !line.starts_with("Warning:") && !line.starts_with(READING);
    let told: Vec<&str> = lines.filter(is_error).collect();
    if told.is_empty() { "it printed nothing".to_owned() } else { shown(&told.join(" "), SAID_CHARS_MAX) }
}

fn refused(text: &str, said: &str) -> FilterError {
    FilterError::Expression { text: shown(text, SHOWN_CHARS_MAX), said: said.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;

    /// Something else by the name of tcpdump.
    struct Script(PathBuf);

    impl Script {
        fn new(name: &str, body: &str) -> Self {
            let path = std::env::temp_dir().join(format!("steerage-{}-{name}", std::process::id()));
            fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
            Self(path)
        }

        fn compile(&self, text: &str) -> Result<Filter, FilterError> {
            self.compile_within(text, TIME_MAX)
        }

        fn compile_within(&self, text: &str, time_max: Duration) -> Result<Filter, FilterError> {
            let program: OsString = self.0.clone().into();
            // While another test forks, the script may still be open for writing there: ETXTBSY.
            loop {
                match (Compiler { program: &program, time_max }).compile(text, Some("lo"), LinkType::ETHERNET) {
                    Err(FilterError::Tcpdump { cause, .. }) if cause.kind() == io::ErrorKind::ExecutableFileBusy => {}
                    other => return other,
                }
            }
        }
    }

    impl Drop for Script {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn what_it_prints_is_bounded() {
        let endless = Script::new("endless", "while :; do echo 1 6 0 0 0; done");
        let error = endless.compile("ip").unwrap_err().to_string();
        assert!(error.contains("more behind the 1 instructions"), "{error}");
        let endless = Script::new("endless-error", "while :; do echo tcpdump: no >&2; done");
        let error = endless.compile("ip").unwrap_err().to_string();
        assert!(error.contains("no no no") && error.len() < 500, "{error}");
    }

    #[test]
    fn one_that_never_ends_is_ended() {
        let hangs = Script::new("hangs", "exec sleep 100000");
        let error = hangs.compile_within("ip", Duration::from_millis(10)).unwrap_err();
        assert!(matches!(&error, FilterError::Tcpdump { cause, .. } if cause.kind() == io::ErrorKind::TimedOut));
        assert!(!error.is_mistake());
    }

    #[test]
    fn its_error_is_one_line() {
        let error = "Warning: something else\ntcpdump: lo: not permitted\n(socket: \u{1b}[2J)\n";
        assert_eq!(said(error), "lo: not permitted (socket:  [2J)");
        assert_eq!(said(""), "it printed nothing");
    }

    /// Whatever a filter begins with is no option, and no shell sees it.
    #[test]
    fn the_expression_is_one_argument() {
        let shows = Script::new("shows", r#"for a; do printf '<%s>' "$a" >&2; done"#);
        let error = shows.compile("-w $(id) ; x").unwrap_err().to_string();
        assert!(error.contains("<-ddd><--><-w $(id) ; x>;"), "{error}");
        assert!(shows.compile("a\0b").unwrap_err().to_string().contains("zero byte"));
    }

    #[test]
    fn only_vlan_needs_the_interface() {
        let closed =
            Script::new("closed", "[ \"$2\" = -i ] && { echo tcpdump: no >&2; exit 1; }; echo 1; echo 6 0 0 0");
        assert_eq!(closed.compile("not port 22").unwrap().instructions().len(), 1);
        assert!(closed.compile("host vlanserver").is_ok());
        let error = closed.compile("ip and(vlan 5)").unwrap_err();
        assert!(matches!(&error, FilterError::Expression { said, .. } if said == "no"), "{error}");
    }

    #[test]
    fn without_tcpdump_the_error_says_what_to_do() {
        let absent = Compiler { program: "/nowhere/tcpdump".as_ref(), time_max: TIME_MAX };
        let error = absent.compile("ip", None, LinkType::ETHERNET).unwrap_err();
        assert!(matches!(error, FilterError::NoTcpdump) && !error.is_mistake());
        assert!(error.to_string().contains("install the package tcpdump"), "{error}");
    }
}
