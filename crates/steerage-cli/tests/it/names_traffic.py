"""Writes a capture of conversations with names in them: python3 names_traffic.py SEED FILE.

The greetings of TLS are those of Python's OpenSSL. Messages over TCP come in several segments, some of which come twice.
"""

import random
import ssl
import struct
import sys

chance = random.Random(int(sys.argv[1]))
frames = []


def frame(six, protocol, source, destination, transport):
    if six:
        addresses = bytes(15) + bytes([source]) + bytes(15) + bytes([destination])
        header = struct.pack(">IHBB", 6 << 28, len(transport), protocol, 64) + addresses
    else:
        addresses = bytes([10, 0, 0, source, 10, 0, 0, destination])
        header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(transport), 0, 0x4000, 64, protocol, 0) + addresses
    ethernet = bytes(12) + (b"\x86\xdd" if six else b"\x08\x00")
    # As short as Ethernet has it, with padding behind the packet.
    frames.append((ethernet + header + transport).ljust(60, b"\0"))


def udp(six, source, destination, data):
    ports = struct.pack(">HHHH", source[1], destination[1], 8 + len(data), 0)
    frame(six, 17, source[0], destination[0], ports + data)


class Connection:
    def __init__(self, six, client, server):
        self.six, self.ends = six, (client, server)
        self.numbers = [chance.randrange(1 << 32), chance.randrange(1 << 32)]
        self.segment(0, 0x02)
        self.segment(1, 0x12)
        self.segment(0, 0x10)

    def segment(self, side, flags, data=b"", again=False):
        source, destination = self.ends[side], self.ends[1 - side]
        number = self.numbers[side] - (len(data) if again else 0)
        header = struct.pack(
            ">HHIIBBHHH", source[1], destination[1], number % 2**32, self.numbers[1 - side], 0x50, flags, 65535, 0, 0
        )
        frame(self.six, 6, source[0], destination[0], header + data)
        if not again:
            self.numbers[side] = (number + len(data) + (flags & 0x03 != 0)) % 2**32

    def say(self, side, data):
        cuts = sorted({chance.randrange(1, len(data)) for _ in range(chance.randrange(5))})
        for start, end in zip([0, *cuts], [*cuts, len(data)]):
            self.segment(side, 0x18, data[start:end])
            if chance.random() < 0.2:
                self.segment(side, 0x18, data[start:end], again=True)
            self.segment(1 - side, 0x10)


def name():
    return ".".join(chance.choice(["www", "mail-1", "example", "a" * 40, "xn--bcher-kva", "com"]) for _ in range(chance.randrange(1, 5)))


def labels(text):
    return b"".join(bytes([len(label)]) + label.encode() for label in text.split(".")) + b"\0"


def question(ident, text, kind):
    return struct.pack(">HHHHHH", ident, 0x0100, 1, 0, 0, 0) + labels(text) + struct.pack(">HH", kind, 1)


def answer(ident, text, kind):
    records = []
    if chance.random() < 0.5:
        records.append(b"\xc0\x0c" + struct.pack(">HHIH", 5, 1, 60, 4) + b"\x01c\xc0\x0c")
    for _ in range(chance.randrange(4)):
        size = 4 if kind == 1 else 16
        address = bytes(chance.randrange(256) for _ in range(size))
        records.append(b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 60, size) + address)
    code = 0 if records else 3
    header = struct.pack(">HHHHHH", ident, 0x8180 | code, 1, len(records), 0, 0)
    return header + labels(text) + struct.pack(">HH", kind, 1) + b"".join(records)


def greeting():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if chance.random() < 0.7:
        context.set_alpn_protocols(chance.choice([["h2", "http/1.1"], ["http/1.1"], ["acme-tls/1"]]))
    outgoing = ssl.MemoryBIO()
    host = name() if chance.random() < 0.8 else None
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=host)
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


for nth in range(400):
    six, kind = chance.random() < 0.3, chance.randrange(5)
    client, server = (1 + nth % 50, 10_000 + nth), (200, [53, 53, 443, 80, 25][kind])
    if kind < 2:
        asked, what, ident = name(), chance.choice([1, 28]), chance.randrange(1 << 16)
        messages = [question(ident, asked, what), answer(ident, asked, what)]
        if chance.random() < 0.2:
            messages.insert(1, question((ident + 1) % 65536, name(), 28))
        if chance.random() < 0.1:
            messages = messages[-1:]
        if kind == 0:
            for message in messages:
                ends = (server, client) if message[2] & 0x80 else (client, server)
                udp(six, *ends, message)
        else:
            connection = Connection(six, client, server)
            for message in [messages[0], messages[-1]][: len(messages)]:
                connection.say(int(message[2] & 0x80 != 0), struct.pack(">H", len(message)) + message)
    elif kind == 2:
        connection = Connection(six, client, server)
        connection.say(0, greeting())
        connection.say(1, bytes([22, 3, 3, 0, 4, 2, 0, 0, 0]))
    elif kind == 3:
        connection = Connection(six, client, server)
        host = f"Host: {name()}\r\n" if chance.random() < 0.9 else ""
        method = chance.choice(["GET", "POST", "HEAD", "OPTIONS"])
        connection.say(0, f"{method} /{name()} HTTP/1.1\r\nUser-Agent: test\r\n{host}Accept: */*\r\n\r\n".encode())
        connection.say(1, b"HTTP/1.1 204 No Content\r\n\r\n")
    else:
        connection = Connection(six, client, server)
        connection.say(1, b"220 mail.example ESMTP\r\n")
        connection.say(0, b"EHLO client.example\r\n")

with open(sys.argv[2], "wb") as file:
    file.write(struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
    for nth, data in enumerate(frames):
        file.write(struct.pack("<IIII", 1_700_000_000, nth, len(data), len(data)) + data)
