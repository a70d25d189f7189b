//! The options of `steerage fanout`.

use clap::Args;

use super::RunArgs;

pub(super) const FANOUT_HELP: &str = "\
DEVICE is as for count. OUTPUT is one of:
  pcap:FILE           a capture file: pcapng, or pcap if it ends in .pcap
  fifo:PATH           a named pipe
  exec:COMMAND        a program that reads a capture from standard input
  tcp-listen:ADDR     PCAP over IP, for a program that connects
  tap:NAME, tun:NAME  an interface of its own
  udp:ADDR:PORT       the peers to which the packets are addressed
  IFACE, af_xdp:IFACE an interface

Numbers in braces stand for several outputs: pcap:part{0..3}.pcapng. An existing file is replaced. `steerage help outputs` says more.

A flow goes to one output, with both directions and all fragments, in order. The hash of the flow chooses the output. The key of \
the hash is random in each run, unless --hash-key is given.

Examples:
  steerage fanout capture.pcap --to 'pcap:part{0..3}.pcapng'
                                               four files, by flow
  steerage fanout eth1 --to pcap:eth1.pcapng   a capture of an interface
  steerage fanout eth1 -Q in --to 'tap:ids{0..3}'
                                               an interface for four programs
  steerage fanout eth1 --to 'exec:tshark -n -r -' --to tcp-listen:127.0.0.1:57012";

#[derive(Debug, Args)]
pub(crate) struct FanoutArgs {
    /// Output, such as pcap:FILE; each flow goes to one of the outputs
    #[arg(long, value_name = "OUTPUT", required = true, action = clap::ArgAction::Append)]
    pub(crate) to: Vec<String>,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}
