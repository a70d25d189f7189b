//! `steerage bench report`: merges reports and samples, and shows the result.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use steerage_lab::merge::Merger;
use steerage_lab::report::Report;
use steerage_lab::{html, table};
use steerage_guard::capabilities::Needed;

use crate::args::BenchReportArgs;
use crate::bench::html_page;
use crate::error::Error;
use crate::sandbox::{self, Confined, Needs};
use crate::stdout;
use crate::terminal::printable;

/// The largest file. A report of all experiments has a few hundred kilobytes.
const FILE_BYTES_MAX: u64 = 256 << 20;

pub(super) fn run(args: &BenchReportArgs) -> Result<(), Error> {
    // The program keeps the capability that reads files of other users until all files are read.
    let files = args.files.iter().filter(|file| *file != Path::new("-"));
    let needs = files.clone().fold(Needs::of(Confined::BenchReport), Needs::reads);
    let page: Vec<&Path> = args.html.as_deref().into_iter().collect();
    let needed = files.map(PathBuf::as_path).fold(Needed::default(), Needed::read_file);
    let needed = page.iter().copied().fold(needed, Needed::written_files);
    let _kept = sandbox::enter_keeping(needs.written_files(&page), &needed, &args.sandbox)?;
    let mut merger = Merger::new();
    for path in &args.files {
        let name = path.display().to_string();
        let text = read(path).map_err(|cause| {
            Error::Bench(format!(
                "{name}: cannot read it: {cause}; give files of reports and samples, or - for standard input"
            ))
        })?;
        merger.read(&name, &text).map_err(|error| Error::Bench(error.to_string()))?;
    }
    let report = merger.finish().map_err(|error| Error::Bench(error.to_string()))?;
    show(&report, args.html.as_deref(), args.json)
}

/// Writes a report as an HTML page, as JSON, or as text by default. If there is a page, only its
/// name is printed.
pub(super) fn show(report: &Report, page: Option<&Path>, json: bool) -> Result<(), Error> {
    if let Some(path) = page {
        html_page::write(path, &html::page(report))?;
        if !json {
            return stdout::print(format!("wrote {}\n", printable(&path.to_string_lossy())).as_bytes());
        }
    }
    let text = if json {
        // This cannot fail, since all keys are text.
        serde_json::to_string(report).map(|text| text + "\n").map_err(|error| Error::Report(error.into()))?
    } else {
        table::render(report)
    };
    stdout::print(text.as_bytes())
}

fn read(path: &Path) -> io::Result<String> {
    let source: Box<dyn Read> =
        if path == Path::new("-") { Box::new(io::stdin().lock()) } else { Box::new(File::open(path)?) };
    let mut text = String::new();
    source.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    Ok(text)
}
