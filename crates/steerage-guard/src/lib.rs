//! Limits the damage that a program that handles packets can do to a machine. Also protects the
//! files of the program from other users.
//!
//! | module | purpose |
//! |---|---|
//! | [`file`](mod@file) | creates files that no other user can redirect |
//! | [`path`] | walks a path to the directory in which something is written |
//! | [`mounts`] | finds the mount of an open file |
//! | [`program`] | starts programs, and lets signals end this process meanwhile |
//! | [`capabilities`] | drops the capabilities of a process once its devices are open |
//! | [`sandbox`] | restricts files and system calls with Landlock and seccomp |
//!
//! Architecture invariant: this crate contains no code about packets, devices or commands. The
//! crate only removes rights of the process, and never adds rights.
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
