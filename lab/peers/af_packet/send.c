/* Sends so many UDP frames of so many flows by an interface, as fast as it goes or at a rate, and tells how long it took.
 *
 *   send IFACE PACKETS [FLOWS [BYTES [PACKETS_A_SECOND]]]
 *
 * The frames are addressed to a machine that isn't there, so that no kernel answers.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { BURST = 64, BYTES_MIN = 60, BYTES_MAX = 9000, FLOWS_MAX = 1 << 24 };

static const uint8_t HEADERS[42] = {
	0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0x08, 0x00, /* Ethernet: to, from, IPv4 */
	0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 0, 198, 18, 0, 1, /* IPv4, UDP */
	0, 0, 0x12, 0x34, 0, 0, 0, 0, /* UDP without a checksum */
};

static void fail(const char *what)
{
	fprintf(stderr, "send: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void put16(uint8_t *at, unsigned value)
{
	at[0] = value >> 8;
	at[1] = value;
}

/* The frame's flow: its address and its source port. */
static void set_flow(uint8_t *frame, uint32_t flow)
{
	uint32_t sum = 0;

	put16(frame + 28, flow >> 8);
	put16(frame + 34, 1024 + (flow & 0xff));
	put16(frame + 24, 0);
	for (int i = 14; i < 34; i += 2)
		sum += frame[i] << 8 | frame[i + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	put16(frame + 24, ~(sum + (sum >> 16)));
}

int main(int argc, char **argv)
{
	static uint8_t frames[BURST][BYTES_MAX];
	struct iovec parts[BURST];
	struct mmsghdr messages[BURST] = { 0 };
	unsigned long long packets = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
	uint32_t flows = argc > 3 ? strtoul(argv[3], NULL, 10) : 1000;
	unsigned bytes = argc > 4 ? strtoul(argv[4], NULL, 10) : BYTES_MIN;
	double rate = argc > 5 ? atof(argv[5]) : 0;
	int on = 1;

	if (!packets || !flows || flows > FLOWS_MAX || bytes < BYTES_MIN || bytes > BYTES_MAX || rate < 0) {
		fprintf(stderr, "usage: send IFACE PACKETS [FLOWS, to %d [BYTES, %d to %d [PACKETS_A_SECOND]]]\n", FLOWS_MAX,
			BYTES_MIN, BYTES_MAX);
		return 2;
	}
	struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_ifindex = if_nametoindex(argv[1]) };
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	if (!address.sll_ifindex || fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address))
		fail(argv[1]);
	if (setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on))
		fail("PACKET_QDISC_BYPASS");
	for (int i = 0; i < BURST; i++) {
		memcpy(frames[i], HEADERS, sizeof HEADERS);
		put16(frames[i] + 16, bytes - 14);
		put16(frames[i] + 38, bytes - 34);
		parts[i] = (struct iovec){ frames[i], bytes };
		messages[i].msg_hdr.msg_iov = &parts[i];
		messages[i].msg_hdr.msg_iovlen = 1;
	}

	double start = seconds();
	unsigned long long sent = 0;
	while (sent < packets) {
		unsigned burst = packets - sent < BURST ? packets - sent : BURST;

		/* At a rate, what is due by now; at most a burst. */
		while (rate > 0) {
			double due = (seconds() - start) * rate - sent;
			if (due >= 1) {
				burst = due < burst ? (unsigned)due : burst;
				break;
			}
			struct timespec nap = { .tv_nsec = 200000 };
			nanosleep(&nap, NULL);
		}
		for (unsigned i = 0; i < burst; i++)
			set_flow(frames[i], (sent + i) % flows);
		int done = sendmmsg(fd, messages, burst, 0);
		if (done < 0 && errno != ENOBUFS && errno != EAGAIN)
			fail("sendmmsg");
		sent += done > 0 ? done : 0;
	}
	double took = seconds() - start;
	printf("sent %llu seconds %.6f Mpps %.3f\n", sent, took, sent / took / 1e6);
	return 0;
}
