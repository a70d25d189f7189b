//! `steerage bench report`: puts together what was measured, and shows it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use steerage_bench::fold::Fold;
use steerage_bench::report::Report;
use steerage_bench::{html, table};

use crate::args::BenchReportArgs;
use crate::bench::page;
use crate::error::Error;

/// The largest file: a run of all experiments has some hundred kilobytes.
const FILE_BYTES_MAX: u64 = 256 << 20;

pub(super) fn run(args: &BenchReportArgs) -> Result<(), Error> {
    let mut fold = Fold::new();
    for path in &args.files {
        let name = path.display().to_string();
        let text = read(path).map_err(|cause| {
            Error::Bench(format!(
                "{name}: cannot read it: {cause}; give files of reports and samples, or - for standard input"
            ))
        })?;
        fold.read(&name, &text).map_err(|error| Error::Bench(error.to_string()))?;
    }
    let report = fold.finish().map_err(|error| Error::Bench(error.to_string()))?;
    show(&report, args.html.as_deref(), args.json)
}

/// What every bench does with a report at its end: a page if one is asked for, and text or JSON.
pub(super) fn show(report: &Report, page: Option<&Path>, json: bool) -> Result<(), Error> {
    if let Some(path) = page {
        page::write(path, &html::page(report))?;
    }
    let text = if json {
        // Nothing in it can fail to be written down: keys are text.
        serde_json::to_string(report).map(|text| text + "\n").map_err(|error| Error::Report(error.into()))?
    } else {
        table::render(report)
    };
    super::print(text.as_bytes())
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
