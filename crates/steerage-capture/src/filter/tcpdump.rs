use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use steerage::LinkType;
use steerage_guard::program;

use super::{Filter, FilterError, FrameKind, SHOWN_CHARS_MAX, shown};

const TCPDUMP: &str = "tcpdump";

/// Compiling a filter takes milliseconds, but tcpdump first resolves the host names in the
/// expression. A DNS resolver tries each name server for 10 s.
const TIME_MAX: Duration = Duration::from_secs(30);

/// The longest filter program that the kernel accepts has 112 KiB when written as numbers.
const OUTPUT_BYTES_MAX: u64 = 256 << 10;

/// All error messages of tcpdump itself are shorter than this limit.
const SAID_CHARS_MAX: usize = 240;

/// tcpdump's maximum packet length in bytes, which is also the maximum in capture files.
const WHOLE: &str = "262144";
const WHOLE_BYTES: u32 = 262_144;

/// The number of tcpdump processes that run at the same time, one for each kind of frames.
const AT_A_TIME: usize = 8;

const READING: &str = "reading from file ";

/// The only filter keyword that tcpdump compiles differently for files and for interfaces, because
/// the kernel removes VLAN tags from live frames. If tcpdump compiles `vlan` without an interface
/// (`-i`), the filter matches no live frame.
const NEEDS_INTERFACE: &str = "vlan";

pub(super) fn compile(text: &str, interface: Option<&str>, link: LinkType) -> Result<Filter, FilterError> {
    Compiler { program: TCPDUMP.as_ref(), time_max: TIME_MAX }.compile(text, interface, link)
}

/// Compiles an expression once for each kind of frames, as `tcpdump -r` would for a file.
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

fn file_header(kind: FrameKind) -> Vec<u8> {
    let FrameKind { link, big_endian } = kind;
    // Version 2.4: two numbers of 16 bits.
    let version = if big_endian { 2 << 16 | 4 } else { 4 << 16 | 2 };
    let words = [0xa1b2_c3d4_u32, version, 0, 0, WHOLE_BYTES, link.0.into()];
    words.iter().flat_map(|word| if big_endian { word.to_be_bytes() } else { word.to_le_bytes() }).collect()
}

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
            // -p: do not make the interface promiscuous.
            let compiled = self.run(&["-p", "-i", interface, "-y", link], text);
            // If tcpdump compiles an expression without the interface, only the keyword `vlan`
            // changes its meaning.
            if !matches!(compiled, Err(FilterError::Expression { .. })) || has_word(text, NEEDS_INTERFACE) {
                return compiled;
            }
        }
        self.run(&["-y", link], text)
    }

    fn run(&self, options: &[&str], text: &str) -> Result<Filter, FilterError> {
        self.end(self.begin(options, text, &[])?, text)
    }

    /// `input` is for tcpdump's standard input, and must fit into a pipe.
    fn begin(&self, options: &[&str], text: &str, input: &[u8]) -> Result<Child, FilterError> {
        let mut command = Command::new(self.program);
        // -s: do not cut packets. --: an expression may begin with a hyphen.
        command.args(options).args(["-s", WHOLE, "-ddd", "--", text]).env("LC_ALL", "C");
        command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = program::start(&mut command).map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound => FilterError::NoTcpdump,
            _ => FilterError::Tcpdump { operation: "start tcpdump", cause },
        })?;
        if let Some(mut pipe) = child.stdin.take() {
            // If tcpdump ends without reading `input`, tcpdump's error message says why.
            let _ = pipe.write_all(input);
        }
        Ok(child)
    }

    fn end(&self, mut child: Child, text: &str) -> Result<Filter, FilterError> {
        let printed = output(&mut child, self.time_max);
        // tcpdump has closed its output, or has reached a limit of this module and must end.
        let _ = child.kill();
        let _ = child.wait();
        let (out, err) = printed.map_err(|cause| FilterError::Tcpdump { operation: "run tcpdump", cause })?;
        if out.trim().is_empty() { Err(refused(text, &said(&err))) } else { out.parse() }
    }
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|other| other == word)
}

fn output(child: &mut Child, time_max: Duration) -> io::Result<(String, String)> {
    let deadline = Instant::now() + time_max;
    // A separate thread reads each output pipe of tcpdump, so that tcpdump never blocks on a full
    // pipe.
    let out = read_aside(child.stdout.take())?;
    let err = read_aside(child.stderr.take())?;
    let wait = |printed: mpsc::Receiver<io::Result<String>>| {
        let left = deadline.saturating_duration_since(Instant::now());
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {time_max:?}"));
        printed.recv_timeout(left).map_err(late)?
    };
    Ok((wait(out)?, wait(err)?))
}

/// Reads the pipe in a thread, which ends when the child process ends.
fn read_aside(pipe: Option<impl Read + Send + 'static>) -> io::Result<mpsc::Receiver<io::Result<String>>> {
    let pipe = pipe.ok_or_else(|| io::Error::other("it has no pipe"))?;
    let (to, from) = mpsc::channel();
    thread::Builder::new().name("tcpdump".to_owned()).spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        // Sending fails if the caller has stopped waiting for tcpdump.
        let _ = to.send(read.map(|_| String::from_utf8_lossy(&bytes).into_owned()));
    })?;
    Ok(from)
}

/// Returns tcpdump's error message in one line, without the program's name and without warnings.
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
    use steerage_fixtures::scratch::Scratch;

    use super::*;

    struct Script(Scratch);

    impl Script {
        fn new(body: &str) -> Self {
            let scratch = Scratch::with_files(&[("text", &format!("#!/bin/sh\n{body}"))]);
            scratch.install("program", scratch.join("text"));
            Self(scratch)
        }

        fn compile(&self, text: &str) -> Result<Filter, FilterError> {
            self.compile_within(text, TIME_MAX)
        }

        fn compile_within(&self, text: &str, time_max: Duration) -> Result<Filter, FilterError> {
            let program = self.0.join("program");
            Compiler { program: program.as_ref(), time_max }.compile(text, Some("lo"), LinkType::ETHERNET)
        }
    }

    #[test]
    fn what_it_prints_is_bounded() {
        let endless = Script::new("while :; do echo 1 6 0 0 0; done");
        let error = endless.compile("ip").unwrap_err().to_string();
        assert!(error.contains("more behind the 1 instructions"), "{error}");
        let endless = Script::new("while :; do echo tcpdump: no >&2; done");
        let error = endless.compile("ip").unwrap_err().to_string();
        assert!(error.contains("no no no") && error.len() < 500, "{error}");
    }

    #[test]
    fn one_that_never_ends_is_ended() {
        let hangs = Script::new("exec sleep 100000");
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

    #[test]
    fn the_expression_is_one_argument() {
        let shows = Script::new(r#"for a; do printf '<%s>' "$a" >&2; done"#);
        let error = shows.compile("-w $(id) ; x").unwrap_err().to_string();
        assert!(error.contains("<-ddd><--><-w $(id) ; x>;"), "{error}");
        assert!(shows.compile("a\0b").unwrap_err().to_string().contains("zero byte"));
    }

    #[test]
    fn only_vlan_needs_the_interface() {
        let closed = Script::new("[ \"$2\" = -i ] && { echo tcpdump: no >&2; exit 1; }; echo 1; echo 6 0 0 0");
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
