//! A report as one page of HTML that needs nothing else.

use crate::report::Report;
use crate::table;

/// The whole page.
pub fn page(report: &Report) -> String {
    let text = table::render(report).replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><title>steerage bench</title></head><body><pre>{text}</pre></body></html>\n"
    )
}
