/* A capture to be metered: so many UDP packets over IPv4, of so many flows in a random order, a microsecond apart. All packets have
 * BYTES bytes (60), or the lengths of the simple Internet mix. Flows and lengths are those of lab/src/capture.rs.
 *
 *   generate PACKETS FLOWS [BYTES|mix] >FILE
 */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT = 60, MEDIUM = 590, LONGEST = 1514, FLOWS_MAX = 1 << 24 };

/* splitmix64, so that no cache foresees it. */
static uint64_t drawn(uint32_t nth)
{
	uint64_t mixed = (nth + 1ull) * 0x9e3779b97f4a7c15;
	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
	return mixed ^ mixed >> 31;
}

static uint32_t mixed_length(uint64_t random)
{
	uint32_t part = (random >> 32) % 12;
	return part < 7 ? SHORT : part < 11 ? MEDIUM : LONGEST;
}

int main(int argc, char **argv)
{
	uint32_t packets = argc >= 3 ? strtoul(argv[1], NULL, 10) : 0, flows = argc >= 3 ? strtoul(argv[2], NULL, 10) : 0;
	int mixes = argc == 4 && !strcmp(argv[3], "mix");
	uint32_t bytes = argc == 4 && !mixes ? strtoul(argv[3], NULL, 10) : SHORT;
	if (argc > 4 || !packets || !flows || flows > FLOWS_MAX || bytes < SHORT || bytes > LONGEST) {
		fprintf(stderr, "usage: generate PACKETS FLOWS [BYTES|mix] >FILE, at most %d flows and %d bytes\n", FLOWS_MAX, LONGEST);
		return 2;
	}
	/* Written in pieces of 1 MiB, so that the page cache has large folios. */
	static char buffer[1 << 20];
	setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
	const uint32_t head[] = {0xa1b2c3d4, 0x00040002, 0, 0, 65535, 1};
	uint8_t frame[LONGEST] = {[12] = 8, [14] = 0x45, [22] = 64, [23] = 17, [30] = 192, [31] = 168, [33] = 1, [37] = 9};
	fwrite(head, sizeof head, 1, stdout);
	for (uint32_t nth = 0; nth < packets; nth++) {
		uint64_t random = drawn(nth);
		uint32_t flow = random % flows, length = mixes ? mixed_length(random) : bytes;
		uint32_t record[] = {nth / 1000000, nth % 1000000, length, length};
		uint32_t address = htonl(0x0a000000 + flow);
		uint16_t of_ip = htons(length - 14), of_udp = htons(length - 34);
		memcpy(frame + 16, &of_ip, sizeof of_ip);
		memcpy(frame + 38, &of_udp, sizeof of_udp);
		memcpy(frame + 26, &address, sizeof address);
		frame[35] = flow;
		fwrite(record, sizeof record, 1, stdout);
		fwrite(frame, length, 1, stdout);
	}
	if (fflush(stdout)) {
		perror("generate");
		return 1;
	}
	return 0;
}
