//! Text for people: numbers with units, tables, wrapped lines, and quoted words for a shell.
//!
//! | file | content |
//! |---|---|
//! | `numbers` | `12,345 flows`, `12.3 MiB`, `12.3 Mpps`, `1:02 min` |
//! | `columns` | tables whose columns shrink until they fit the terminal |
//! | `lines` | lines without control characters, and lines that wrap between words |
//! | `shell` | words that a shell reads back unchanged |
//!
//! ```
//! use steerage_text::{Column, counted, table};
//!
//! let names = ["tcp", "udp"].map(str::to_owned).to_vec();
//! let lines = table(vec![Column::words("proto", names), Column::counts("packets", "pkts", [7, 12_345].into_iter())], None);
//! assert_eq!(lines, ["proto  packets", "tcp          7", "udp      12345"]);
//! assert_eq!(counted(12_352, "packet"), "12,352 packets");
//! ```
#![forbid(unsafe_code)]

mod columns;
mod lines;
mod numbers;
mod shell;

pub use columns::{Column, table};
pub use lines::{printable, printable_lines, wrapped};
pub use numbers::{
    bit_rate, bits_a_second, counted, grouped, packets_a_second, percent, plural, rate, recorded, short, size, time,
};
pub use shell::shell_word;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
