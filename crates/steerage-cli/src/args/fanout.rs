//! The options of `steerage fanout`.

use clap::Args;

use super::RunArgs;

pub(super) const FANOUT_HELP: &str = "\
DEVICE is as for count. OUTPUT is pcap:FILE, a capture file to be written (pcapng; one that is
there is overwritten), fifo:PATH, a named pipe, exec:COMMAND, a program that reads a capture from
standard input, tcp-listen:ADDR, PCAP over IP for whoever connects, tap:NAME, tun:NAME, an
interface or af_xdp:IFACE: see docs/outputs.md.
Numbers in braces stand for an output each: pcap:part{0..3}.pcapng.

A flow has one output: both directions, all fragments, in order. Which one, the flow's hash says,
whose key is drawn anew for each run; --hash-key makes it the same again.

Examples:
  steerage fanout capture.pcap --to 'pcap:part{0..3}.pcapng'     a capture in four, by flow
  steerage fanout capture.pcap --to pcap:one.pcapng              several links or files in one
  steerage fanout eth1 -Q in --to 'tap:ids{0..3}'                an interface for four programs
  steerage fanout eth1 --to 'exec:tshark -n -r - >part1' --to tcp-listen:127.0.0.1:57012
  steerage fanout capture.pcap --to 'pcap:p{0..1}.pcapng' --outer --json";

#[derive(Debug, Args)]
pub(crate) struct FanoutArgs {
    /// Where packets go to: one of these for each flow
    #[arg(long, value_name = "OUTPUT", required = true, action = clap::ArgAction::Append)]
    pub(crate) to: Vec<String>,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}
