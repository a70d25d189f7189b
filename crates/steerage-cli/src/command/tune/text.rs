use steerage_text::plural;
use steerage_tune::{Restored, Setting};

pub(super) fn list(restored: &Restored) -> String {
    let count = restored.restored.0.len() as u64;
    let mut text = format!("restored {count} {}\n", plural(count, "value"));
    text += &commands_of(&restored.restored);
    text + &notes(&restored.left)
}

pub(super) fn notes<'a>(notes: impl IntoIterator<Item = &'a String>) -> String {
    notes.into_iter().map(|note| format!("note: {note}\n")).collect()
}

/// Returns commands with which a person can set the values of a setting.
pub(super) fn commands_of(setting: &Setting) -> String {
    setting.0.iter().map(|(knob, value)| format!("  {}\n", knob.command(value))).collect()
}
