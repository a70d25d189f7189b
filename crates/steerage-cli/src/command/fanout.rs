//! `steerage fanout` distributes flows to several outputs.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use steerage::Output;
use steerage_apps::Fanout;
use steerage_capture::{self as capture, FilePattern, Rotate, StreamFormat, StreamOptions, Waiting};
use steerage_device::output::{self, OutputError};
use steerage_guard::program;
use steerage_text::printable;

use crate::args::FanoutArgs;
use crate::error::{CommandLineError, EndingError, Error, NEEDS_TIME};
use crate::instance::{self, OpenedInputs, SendOptions};
use crate::run::{self, RunOptions};
use crate::sandbox::{Needs, SandboxProfile};
use crate::terminal::print_to_stderr;

const EXEC: &str = "exec:";
const PCAP: &str = "pcap:";

pub(crate) fn run(args: &FanoutArgs, verbose: bool) -> Result<(), Error> {
    let outputs = outputs(args)?;
    let fanout = Fanout::over(outputs.len());
    let cpus = instance::count_cpus(&args.run.cpus)?;
    let mut programs = Programs::default();
    let open = |_: &OpenedInputs| {
        let open = |spec: &String| match (spec.strip_prefix(EXEC), pattern_of(spec, args)?) {
            (Some(command), _) => programs.start(command),
            (None, Some((name, rotate))) => {
                let output = capture::create_rotating(name, rotate, args.keep);
                output.map_err(|error| Error::Output(OutputError::Device(error)))
            }
            (None, None) => open_output(spec, cpus),
        };
        outputs.iter().map(open).collect()
    };
    // An output that rotates its files creates new files during the run.
    let files = outputs.iter().filter(|_| args.rotate.is_some()).filter_map(|spec| spec.strip_prefix(PCAP));
    let files: Vec<&Path> = files.map(Path::new).collect();
    let needs = Needs::of(SandboxProfile::Fanout).written_files(&files);
    let sending = SendOptions { listens: false, rate: None, coalesce: false, outputs: open, input_end: None };
    let (instance, services) = instance::sending(&args.run, needs, sending, |_| Ok(move |_cpu| fanout))?;
    let options = RunOptions::new(&args.run, verbose, services);
    let ended = run::to_end(instance, &options)?;
    let finished = ended.report.finish(options.printer, args.run.report.strict);
    options.services.signals.end_now();
    finished.and(ended.report.all_sent(options.services.can_wait)).and(programs.wait())
}

#[derive(Debug, Default)]
struct Programs(Vec<(String, Child)>);

impl Programs {
    /// Starts the program of an output in a shell. The program reads the packets as a capture from
    /// its standard input.
    fn start(&mut self, command: &str) -> Result<Output, Error> {
        let failed = |error| Error::System { operation: "start the program of an output", error };
        let (reader, writer) = io::pipe().map_err(failed)?;
        let spec = format!("{EXEC}{command}");
        let options = StreamOptions::new(StreamFormat::PcapNanos);
        let (output, _) =
            capture::stream(spec.clone(), writer, options).map_err(|error| EndingError::Device(error.to_string()))?;
        // In a separate process group, the program gets no signal from Ctrl-C, and ends when its
        // input ends.
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(command).stdin(reader).process_group(0);
        self.0.push((spec, program::start(&mut shell).map_err(failed)?));
        Ok(output)
    }

    /// Waits for the end of the programs. Call `wait` after the programs' input has ended.
    fn wait(self) -> Result<(), Error> {
        let mut wrong = Vec::new();
        for (spec, mut child) in self.0 {
            match child.wait() {
                Ok(status) if status.success() => {}
                Ok(status) => wrong.push(format!("{spec}: {status}")),
                Err(error) => wrong.push(format!("{spec}: {error}")),
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(EndingError::Device(wrong.join("; ")).into()) }
    }
}

/// Opens an output. Prints a line if the output waits for a reader, or if anybody can connect to
/// the output and get packets. A stop signal ends the wait for a reader.
pub(super) fn open_output(spec: &str, cpus: usize) -> Result<Output, Error> {
    let waits = |path: &str, waiting: Waiting| {
        if let Some(line) = line_of(spec, path, waiting) {
            print_to_stderr(printable(&line));
        }
        true
    };
    output::open_when_read(spec, cpus, waits).map_err(Error::Output)
}

fn line_of(spec: &str, path: &str, waiting: Waiting) -> Option<String> {
    match waiting {
        Waiting::Looked { before: 0 } if spec.starts_with("tcp-listen:") => {
            Some(format!("waiting for a connection to {path}"))
        }
        Waiting::Looked { before: 0 } => Some(format!("waiting for a reader of {path} (FIFO)")),
        Waiting::OpenToOthers(at) => Some(format!(
            "warning: whoever connects to {at} first gets the packets; listen at 127.0.0.1 if only this machine should"
        )),
        // A refused client may connect again and again, so only the 1st, 2nd, 4th, 8th refusal and
        // so on is printed.
        Waiting::Refused { client, uid, count } if count.is_power_of_two() => {
            let of = uid.map_or("has closed its connection".to_owned(), |uid| format!("belongs to user {uid}"));
            let only = match rustix::process::geteuid().as_raw() {
                0 => "root".to_owned(),
                us => format!("root and user {us}"),
            };
            Some(format!(
                "refused a client of {path} ({count} so far): {client} {of}; only {only} may read the packets"
            ))
        }
        _ => None,
    }
}

/// Returns the pattern of the output's file names, or `None` if the output does not rotate its
/// files.
fn pattern_of(spec: &str, args: &FanoutArgs) -> Result<Option<(FilePattern, Rotate)>, Error> {
    let (Some(rotate), Some(name)) = (args.rotate, spec.strip_prefix(PCAP)) else { return Ok(None) };
    let wrong = |what: String| CommandLineError::FileName { option: "--to", name: spec.to_owned(), what };
    let pattern = FilePattern::parse(name).map_err(|error| wrong(error.to_string()))?;
    if !pattern.has_time() {
        return Err(wrong(NEEDS_TIME.to_owned()).into());
    }
    Ok(Some((pattern, rotate)))
}

/// Returns the outputs. No output may be an input, and no two outputs may be the same file.
fn outputs(args: &FanoutArgs) -> Result<Vec<String>, Error> {
    let mut specs: Vec<String> = Vec::new();
    for spec in &args.to {
        match spec.strip_prefix(EXEC) {
            // In a command, the shell expands braces, so they are not expanded here.
            Some(command) if !command.trim().is_empty() => specs.push(spec.clone()),
            _ => specs.extend(output::expand(spec).map_err(Error::Output)?),
        }
    }
    for spec in &specs {
        pattern_of(spec, args)?;
    }
    if args.rotate.is_some() && !specs.iter().any(|spec| spec.starts_with(PCAP)) {
        let what = "only a capture file rotates: leave --rotate out, or write pcap:FILE".to_owned();
        return Err(CommandLineError::FileName { option: "--to", name: args.to.join(" "), what }.into());
    }
    for (nth, spec) in specs.iter().enumerate().filter(|(_, spec)| !spec.starts_with(EXEC)) {
        not_an_input(spec, &args.run.devices)?;
        let this = file_of(spec);
        if specs[..nth].iter().any(|other| other == spec || (this.is_some() && file_of(other) == this)) {
            return Err(CommandLineError::SameFile { spec: spec.clone(), what: "an output already" }.into());
        }
    }
    Ok(specs)
}

pub(super) fn not_an_input(spec: &str, devices: &[String]) -> Result<(), Error> {
    let this = file_of(spec);
    if this.is_some() && devices.iter().any(|device| identity(device) == this) {
        return Err(CommandLineError::SameFile { spec: spec.to_owned(), what: "an input" }.into());
    }
    Ok(())
}

fn file_of(spec: &str) -> Option<(u64, u64)> {
    spec.split_once(':').and_then(|(_, path)| identity(path))
}

fn identity(path: &str) -> Option<(u64, u64)> {
    let file = fs::metadata(path).ok()?;
    file.is_file().then(|| (file.dev(), file.ino()))
}
