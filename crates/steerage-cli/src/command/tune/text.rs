//! What `steerage tune` prints about values that it set or restored.

use steerage_tune::{Restored, Undo};

use crate::units::plural;

/// What was restored, and what was left alone, as lines.
pub(super) fn list(restored: &Restored) -> String {
    let count = restored.restored.0.len() as u64;
    let mut text = format!("restored {count} {}\n", plural(count, "value"));
    restored.restored.0.iter().for_each(|(knob, value)| text += &format!("  {}\n", knob.command(value)));
    text + &notes(&restored.left)
}

pub(super) fn notes<'a>(notes: impl IntoIterator<Item = &'a String>) -> String {
    notes.into_iter().map(|note| format!("note: {note}\n")).collect()
}

/// The commands of what was kept.
pub(super) fn commands(undo: &Undo) -> String {
    let kept = undo.kept().into_iter().flat_map(|kept| &kept.0);
    kept.map(|(knob, value)| format!("  {}\n", knob.command(value))).collect()
}
