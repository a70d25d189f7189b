//! Texts of `steerage tune` about values that it set or restored.

use steerage_text::plural;
use steerage_tune::{Restored, Setting};

/// Returns lines that list the values that were restored, and notes about the values that were not
/// changed.
pub(super) fn list(restored: &Restored) -> String {
    let count = restored.restored.0.len() as u64;
    let mut text = format!("restored {count} {}\n", plural(count, "value"));
    text += &commands_of(&restored.restored);
    text + &notes(&restored.left)
}

pub(super) fn notes<'a>(notes: impl IntoIterator<Item = &'a String>) -> String {
    notes.into_iter().map(|note| format!("note: {note}\n")).collect()
}

/// Returns the commands that set the values of a setting.
pub(super) fn commands_of(setting: &Setting) -> String {
    setting.0.iter().map(|(knob, value)| format!("  {}\n", knob.command(value))).collect()
}
