//! The C library of steerage: `include/steerage.h` declares its functions, and docs/c.md shows how
//! to use them.
//!
//! | module | what it has |
//! |---|---|
//! | `ffi` | the functions of the header, the handler that calls the program, and all `unsafe` |
//! | `structs` | the structs of the header that the library fills in |
//! | `states` | the states of the buckets on a CPU |
//! | `run` | a run from the opening of its inputs to its end |
//! | `failure` | codes of errors, and the text of the last error |
#![deny(unsafe_code)]

mod failure;
#[allow(unsafe_code)]
mod ffi;
mod run;
mod states;
mod structs;
