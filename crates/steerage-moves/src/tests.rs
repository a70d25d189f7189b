//! The machine alone, in a model of its surroundings.
//!
//! `world` models what is around the machine: queues with rings and parking lots, CPUs with handlers, gates and handler state. Its
//! packets, buckets and CPUs are few. `search` visits every state that such a world can reach, and checks in each of them that
//! nothing is reordered, lost or counted twice, and that the move can still end. `random` runs larger worlds along random paths. `known`
//! asks the machine what it knows, `phases` and `groups` check one rule each.

mod groups;
mod known;
mod phases;
mod random;
mod search;
mod world;
