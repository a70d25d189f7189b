//! The options of `steerage bench report`.

use std::path::PathBuf;

use clap::Args;

use super::SandboxArgs;

pub(super) const REPORT_HELP: &str = "\
A FILE has reports that `steerage bench ... --json` printed, and JSON lines that other programs printed (steerage help \
bench-report). The measurements of one file were taken in turn, and are compared round by round. Several files are pooled, and not \
compared with each other.

Examples:
  steerage bench report run.json                     a run, as text
  steerage bench report run.json --html report.html  as a page with charts
  steerage bench report a.json b.json --json > c.json
                                                     two runs as one
  peers/run --json - | steerage bench report -       from standard input";

#[derive(Clone, Debug, Args)]
pub(crate) struct BenchReportArgs {
    /// Files with reports and samples; - is standard input
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// Write a page with charts to FILE, and print only its name
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Print one report in JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}
