//! The program as its users see it: its output, its destinations, and its exit codes.
//!
//! No test waits for a time to pass. A run ends after a number of packets, or by a signal that is
//! sent once the program has reported that it listens.

mod attacks;
mod captures;
mod command_line;
mod control;
mod demo;
mod docs_examples;
mod doctor;
mod explain;
mod export;
mod export_collectors;
mod export_restarts;
mod fanout;
mod filters;
mod flow_counts;
mod forward;
mod fuse;
mod hangs;
mod how_tos;
mod intervals;
mod live;
mod lying;
mod meter;
mod metrics;
mod mistakes;
mod names;
mod offloads;
mod outputs;
mod outputs_faults;
mod outputs_streams;
mod pages;
mod parallel;
mod parallel_files;
mod parallel_results;
mod parallel_tools;
mod planted;
mod predictions;
mod privileges;
mod program;
mod readme;
mod run_files;
mod runs;
mod send;
mod signals;
mod strangers;
mod suggestions;
mod taking;
mod terminal;
mod tools;
mod top;
mod udp;
mod values;
