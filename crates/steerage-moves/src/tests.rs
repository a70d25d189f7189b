//! `world` models the code around the state machine. `search` visits every state that a small world
//! can reach, and checks in each that no packet is reordered, lost or counted twice, and that the
//! move can still be completed. `random` runs random sequences of events in larger worlds. Each
//! test in `phases` and `groups` checks one rule.

mod groups;
mod known;
mod phases;
mod random;
mod search;
mod world;
