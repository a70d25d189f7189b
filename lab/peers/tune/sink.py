#!/usr/bin/env python3
"""Makes each packet that an interface receives cost the kernel CPU time: a socket whose filter divides N times, and then takes nothing.

The kernel runs the filter on the CPU to which it has steered the packet, as it runs firewall rules.

  sink.py IFACE DIVISIONS
"""
import ctypes
import signal
import socket
import struct
import sys

SO_ATTACH_FILTER, ETH_P_ALL = 26, 3
LOAD_HALF, DIVIDE, RETURN = 0x28, 0x34, 0x06


def main(interface, divisions):
    code = [(LOAD_HALF, 12)] + [(DIVIDE, 1)] * int(divisions) + [(RETURN, 0)]
    program = b"".join(struct.pack("HBBI", op, 0, 0, number) for op, number in code)
    instructions = ctypes.create_string_buffer(program, len(program))
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    tap.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxQ", len(code), ctypes.addressof(instructions)))
    tap.bind((interface, ETH_P_ALL))
    print("ready", flush=True)
    signal.pause()


main(*sys.argv[1:])
