//! The options of `steerage count`.

use clap::Args;

use super::RunArgs;

pub(super) const COUNT_HELP: &str = "\
DEVICE is one of:
  synthetic[:OPTION=VALUE,...]  generated packets; options: flows, size, zipf,
                                packets, rate, seed, mix (udp4+tcp6+vlan),
                                queues, buffer (steerage help devices)
  FILE                          a pcap or pcapng capture, also with gzip or zstd
  -                             a capture on standard input
  IFACE                         an interface (steerage help interfaces)
  any                           all interfaces that are up
  af_xdp:IFACE[,OPTION=VALUE]   an interface whose packets are taken from the
                                kernel with --take (steerage help af_xdp)

Several files are read one after the other, as one capture (steerage help captures).

Synthetic traffic without -c, --seconds or packets= stops after 10 s. --seconds 0 continues until Ctrl-C.

A list of CPUs is written 0-3,8 or all. A mask is written in hexadecimal, as in the kernel's rps_cpus.

Ctrl-C or SIGTERM stops the run: it finishes the packets in flight within 2 s and reports. A second Ctrl-C ends it at once. \
SIGUSR1 prints a report, and the run continues.

Examples:
  steerage count eth1                          packets of an interface
  steerage count capture.pcap --check-order    was any flow reordered?
  steerage count eth1 -f 'not port 22'         the same without port 22
  tcpdump -i eth0 -w - | steerage count -      what tcpdump captures
  steerage count part1.pcap.gz part2.pcap.gz   several files as one capture
  steerage count capture.pcap --pace 2         twice as fast as recorded
  steerage count af_xdp:eth1 --take 'udp port 53'
                                               DNS, taken from the kernel
  steerage count --rx-cpu 0 --cpus 1-3         CPU 0 receives, 1 to 3 work
  steerage count synthetic:rate=1000000 --strict
                                               fails if 1 Mpps is too much
  steerage count --seconds 0 --interval 10     a line every 10 s
  steerage count --virtual-cpus 16 -c 1000000 --json
                                               16 CPUs on any machine";

#[derive(Debug, Args)]
pub(crate) struct CountArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
}
