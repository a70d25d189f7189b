//! Tests the machine alone, in a model of its surroundings.
//!
//! `world` models the surroundings: queues with rings and parking lots, CPUs with handlers, gates
//! and handler state. A world has only a few packets, buckets and CPUs. `search` visits every state
//! that such a world can reach. In each state, `search` checks that no packet is reordered, lost or
//! counted twice, and that the move can still end. `random` runs larger worlds on random paths.
//! `known` tests the machine's queries. Each test of `phases` and `groups` checks one rule.

mod groups;
mod known;
mod phases;
mod random;
mod search;
mod world;
