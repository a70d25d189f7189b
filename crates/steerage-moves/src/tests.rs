//! Tests the state machine alone, with a model in place of the code that surrounds the state
//! machine.
//!
//! The module `world` models the code around the state machine: queues with rings and parking lots,
//! CPUs with handlers and gates, and the state of handlers. A world has only a few packets, buckets
//! and CPUs. `search` visits every state that such a world can reach. In each state, `search`
//! checks that no packet is reordered, lost or counted twice, and that the move can still end.
//! `random` runs random sequences of events in larger worlds. `known` tests the functions that read
//! the state of the state machine. Each test of `phases` and `groups` checks one rule.

mod groups;
mod known;
mod phases;
mod random;
mod search;
mod world;
