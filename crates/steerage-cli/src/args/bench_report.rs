//! The options of `steerage bench report`.

use std::path::PathBuf;

use clap::Args;

use super::SandboxArgs;

pub(super) const REPORT_HELP: &str = "\
A FILE has reports, as `steerage bench ... --json` prints them, and lines that programs beside it print,
one JSON object each: see docs/bench-report.md. What stands in one file was measured in turn and is
compared round by round; files are not compared with one another, but pooled.

Examples:
  steerage bench report run.json                       what a run came to, as text
  steerage bench report run.json --html report.html    and as a page with charts
  steerage bench report a.json b.json --json > c.json  two runs as one
  peers/run --json - | steerage bench report -         what comes by standard input";

#[derive(Clone, Debug, Args)]
pub(crate) struct BenchReportArgs {
    /// Reports and samples; - is standard input
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// Write it to FILE as a page with charts, which needs nothing else
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Print it as one report in JSON, in place of text
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}
