//! Tests the state machine alone. A model replaces the code that surrounds the state machine.
//!
//! The module `world` models the code around the state machine: queues with rings and parking lots,
//! CPUs with handlers and gates, and the state of handlers. A world (the model of a small instance)
//! has only a few packets, buckets and CPUs. `search` visits every state that such a world can
//! reach. In each state, `search` checks that no packet is reordered, lost or counted twice, and
//! that the move can still be completed. `random` runs random sequences of events in larger worlds.
//! `known` tests the functions that read the state of the state machine. Each test in the modules
//! `phases` and `groups` checks one rule.

mod groups;
mod known;
mod phases;
mod random;
mod search;
mod world;
