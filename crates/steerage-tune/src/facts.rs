//! What the machine and the interface report: load, queues, drops, hash.
