//! `steerage bench report`: merges reports and samples, and shows the result.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use steerage_bench::merge::Merger;
use steerage_bench::report::Report;
use steerage_bench::{html, table};

use crate::args::BenchReportArgs;
use crate::bench::html_page;
use crate::error::Error;
use crate::stdout;

/// The largest file. A report of all experiments has some hundred kilobytes.
const FILE_BYTES_MAX: u64 = 256 << 20;

pub(super) fn run(args: &BenchReportArgs) -> Result<(), Error> {
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

/// Writes a report: an HTML page if the user asks for one, and text or JSON.
pub(super) fn show(report: &Report, page: Option<&Path>, json: bool) -> Result<(), Error> {
    if let Some(path) = page {
        html_page::write(path, &html::page(report))?;
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
