/* A capture to be metered: so many UDP packets of 60 bytes over IPv4, of so many flows in an order of chance, a microsecond apart. As
 * steerage's bench makes it in memory.
 *
 *   generate PACKETS FLOWS >FILE
 */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FRAME = 60, FLOWS_MAX = 1 << 24 };

/* splitmix64, so that no cache foresees it. */
static uint32_t flow_of(uint32_t nth, uint32_t flows)
{
	uint64_t mixed = (nth + 1ull) * 0x9e3779b97f4a7c15;
	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
	return (mixed ^ mixed >> 31) % flows;
}

int main(int argc, char **argv)
{
	uint32_t packets = argc == 3 ? strtoul(argv[1], NULL, 10) : 0, flows = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
	if (!packets || !flows || flows > FLOWS_MAX) {
		fprintf(stderr, "usage: generate PACKETS FLOWS >FILE, at most %d flows\n", FLOWS_MAX);
		return 2;
	}
	const uint32_t head[] = {0xa1b2c3d4, 0x00040002, 0, 0, 65535, 1};
	uint8_t frame[FRAME] = {[12] = 8, [14] = 0x45, [17] = FRAME - 14, [22] = 64, [23] = 17, [30] = 192, [31] = 168, [33] = 1,
				[37] = 9, [39] = FRAME - 34};
	fwrite(head, sizeof head, 1, stdout);
	for (uint32_t nth = 0; nth < packets; nth++) {
		uint32_t record[] = {nth / 1000000, nth % 1000000, FRAME, FRAME}, flow = flow_of(nth, flows);
		uint32_t address = htonl(0x0a000000 + flow);
		memcpy(frame + 26, &address, sizeof address);
		frame[35] = flow;
		fwrite(record, sizeof record, 1, stdout);
		fwrite(frame, sizeof frame, 1, stdout);
	}
	if (fflush(stdout)) {
		perror("generate");
		return 1;
	}
	return 0;
}
