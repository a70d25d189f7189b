/* The least that receives by TPACKET_V3: one thread and one ring, or several that share the interface by PACKET_FANOUT_HASH.
 * It reads each frame's headers, counts, and gives the block back. On SIGTERM it takes what is left and tells what it got.
 *
 *   receive IFACE [THREADS]
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* As steerage's own: 64 blocks of 512 KiB, held back for 10 ms at most. */
enum { BLOCK = 512 << 10, BLOCKS = 64, TIMEOUT_MS = 10, THREADS_MAX = 16, LAST_LOOK_MS = 100 };

static volatile sig_atomic_t stopping;

struct queue {
	int fd;
	uint8_t *ring;
	pthread_t thread;
	uint64_t received, bytes, sum;
};

static void stop(int signal)
{
	(void)signal;
	stopping = 1;
}

static void fail(const char *what)
{
	fprintf(stderr, "receive: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void listen_to(struct queue *queue, int interface, int threads)
{
	int version = TPACKET_V3;
	struct tpacket_req3 ring = {
		.tp_block_size = BLOCK,
		.tp_block_nr = BLOCKS,
		.tp_frame_size = 2048,
		.tp_frame_nr = (unsigned)BLOCK / 2048 * BLOCKS,
		.tp_retire_blk_tov = TIMEOUT_MS,
	};
	struct sockaddr_ll address = {
		.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = interface,
	};
	struct packet_mreq all = { .mr_ifindex = interface, .mr_type = PACKET_MR_PROMISC };
	int group = (getpid() & 0xffff) | PACKET_FANOUT_HASH << 16;

	queue->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	if (queue->fd < 0)
		fail("socket: it takes CAP_NET_RAW");
	if (setsockopt(queue->fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) ||
	    setsockopt(queue->fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring))
		fail("PACKET_RX_RING");
	queue->ring = mmap(NULL, (size_t)BLOCK * BLOCKS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, queue->fd, 0);
	if (queue->ring == MAP_FAILED)
		fail("mmap");
	if (bind(queue->fd, (struct sockaddr *)&address, sizeof address))
		fail("bind");
	if (setsockopt(queue->fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all))
		fail("PACKET_ADD_MEMBERSHIP");
	if (threads > 1 && setsockopt(queue->fd, SOL_PACKET, PACKET_FANOUT, &group, sizeof group))
		fail("PACKET_FANOUT");
}

static void take(struct queue *queue, struct tpacket_block_desc *block)
{
	struct tpacket3_hdr *frame = (void *)((uint8_t *)block + block->hdr.bh1.offset_to_first_pkt);

	for (uint32_t left = block->hdr.bh1.num_pkts; left; left--) {
		const uint8_t *data = (uint8_t *)frame + frame->tp_mac;
		uint64_t type, addresses;

		/* What a flow is read from: the type, the protocol, the addresses. */
		memcpy(&type, data + 12, 8);
		memcpy(&addresses, data + 26, 8);
		queue->sum += type ^ addresses;
		queue->bytes += frame->tp_len;
		queue->received++;
		frame = (void *)((uint8_t *)frame + frame->tp_next_offset);
	}
	__atomic_store_n(&block->hdr.bh1.block_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
}

static void *run(void *argument)
{
	struct queue *queue = argument;
	struct pollfd wait = { .fd = queue->fd, .events = POLLIN };

	for (unsigned at = 0;; at = (at + 1) % BLOCKS) {
		struct tpacket_block_desc *block = (void *)(queue->ring + (size_t)at * BLOCK);

		while (!(__atomic_load_n(&block->hdr.bh1.block_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER)) {
			/* Once it is to stop, nothing for so long means that all has been seen. */
			if (!poll(&wait, 1, LAST_LOOK_MS) && stopping)
				return NULL;
		}
		take(queue, block);
	}
}

int main(int argc, char **argv)
{
	static struct queue queues[THREADS_MAX];
	int threads = argc > 2 ? atoi(argv[2]) : 1;
	uint64_t received = 0, dropped = 0, bytes = 0;
	struct sigaction action = { .sa_handler = stop };

	if (argc < 2 || threads < 1 || threads > THREADS_MAX) {
		fprintf(stderr, "usage: receive IFACE [THREADS, 1 to %d]\n", THREADS_MAX);
		return 2;
	}
	int interface = if_nametoindex(argv[1]);
	if (!interface)
		fail(argv[1]);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	for (int i = 0; i < threads; i++)
		listen_to(&queues[i], interface, threads);
	for (int i = 0; i < threads; i++)
		if (pthread_create(&queues[i].thread, NULL, run, &queues[i]))
			fail("pthread_create");
	puts("ready");
	fflush(stdout);
	for (int i = 0; i < threads; i++) {
		struct tpacket_stats_v3 statistics;
		socklen_t length = sizeof statistics;

		pthread_join(queues[i].thread, NULL);
		if (getsockopt(queues[i].fd, SOL_PACKET, PACKET_STATISTICS, &statistics, &length))
			fail("PACKET_STATISTICS");
		received += queues[i].received;
		bytes += queues[i].bytes;
		dropped += statistics.tp_drops;
	}
	printf("received %llu dropped %llu bytes %llu\n", (unsigned long long)received, (unsigned long long)dropped,
	       (unsigned long long)bytes);
	return 0;
}
