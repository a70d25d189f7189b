//! The options of `steerage count`.

use clap::Args;

use super::RunArgs;

pub(super) const COUNT_HELP: &str = "\
DEVICE:
  synthetic[:OPTION=VALUE,...]   packets made up on the spot; options: flows, size, zipf,
                                 packets, rate, seed, mix (such as udp4+tcp6+vlan), queues,
                                 and profile=office for conversations: see docs/devices.md
  FILE                           a capture: pcap or pcapng, as it is or packed by gzip or zstd
  -                              a capture that comes by standard input
  IFACE                          an interface, listened to: see docs/interfaces.md
  af_xdp:IFACE[,OPTION=VALUE...] an interface, its packets taken from the kernel, which needs
                                 --take: see docs/af_xdp.md

Several files are read one after the other, as one capture; see docs/captures.md.

Synthetic traffic has no end of its own: without -c, --seconds or `packets=` it stops after 10 s.
--seconds 0 goes on until Ctrl-C.

CPU lists are written 0-3,8 or all; a MASK is the kernel's bitmap, in hex, as in rps_cpus.
Ctrl-C or SIGTERM stops, finishes what is in flight (2 s at most) and reports; a second Ctrl-C
quits at once. SIGUSR1 reports and goes on.

Examples:
  steerage count                                        synthetic traffic over all CPUs
  steerage count capture.pcap --check-order             a file, and was any flow reordered?
  steerage count part1.pcap.gz part2.pcap.gz            a capture in parts, as one
  tcpdump -i eth0 -w - | steerage count -               whatever tcpdump sees
  steerage count capture.pcap --pace 2                  twice as fast as it was recorded
  steerage count eth1                                   whatever comes and goes by eth1
  steerage count eth1 -f 'not port 22'                  the same without what tcpdump calls port 22
  steerage count af_xdp:eth1 --take 'udp port 53'       DNS by eth1, taken from the kernel
  steerage count --rx-cpu 0 --cpus 1-3                  CPU 0 only receives, 1 to 3 work
  steerage count synthetic:rate=1000000 --strict        fails unless all of 1 Mpps arrives
  steerage count --seconds 0 --interval 10              a line each 10 s, until Ctrl-C
  steerage count --virtual-cpus 16 -c 1000000 --json    16 CPUs on any machine, for scripts";

#[derive(Debug, Args)]
pub(crate) struct CountArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
}
