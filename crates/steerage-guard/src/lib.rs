//! Limits the damage that a program that handles packets can do to a machine, and protects the
//! files of the program from other users.
//!
//! | module | purpose |
//! |---|---|
//! | [`file`](mod@file) | creates files that no other user can redirect |
//! | [`path`] | walks a path to the directory in which something is written |
//! | [`mounts`] | finds the mount of an open file |
//! | [`program`] | finds and starts programs, and lets signals end this process meanwhile |
//! | [`capabilities`] | drops the capabilities of a process once its devices are open |
//! | [`sandbox`] | restricts files and system calls with Landlock and seccomp |
//!
//! Architecture invariant: this crate has no code about packets, devices or commands. The crate
//! only removes rights, and never adds any.
#![deny(unsafe_code)]

pub mod capabilities;
pub mod file;
pub mod mounts;
pub mod path;
pub mod program;
pub mod sandbox;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
