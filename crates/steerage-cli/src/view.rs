//! The screen of `top`, and the table that a run redraws on its own terminal. The screen and the
//! table show the report that `top` reads from the control socket.

mod events;
mod keys;
mod live_table;
mod model;
mod names;
mod screen;
mod strip;
#[cfg(test)]
mod tests;

pub(crate) use events::or_none;
pub(crate) use keys::{Action, Ui};
pub(crate) use live_table::{LiveTable, RunEnds};
pub(crate) use model::{Bucket, Model, Seen};
pub(crate) use screen::{Colours, draw, lines};
