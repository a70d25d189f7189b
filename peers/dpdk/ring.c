/* What steerage's path bench does, on DPDK by hand: CPU 0 takes buffers from a mempool, writes 64-byte UDP frames of 65,536
 * flows, hashes the flow (CRC of the tuple it knows) and enqueues to a single-producer, single-consumer rte_ring; CPU 1
 * dequeues, reads the headers and frees. The same probe before and after each run tells whether the CPUs were near or far.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include <rte_eal.h>
#include <rte_hash_crc.h>
#include <rte_mbuf.h>
#include <rte_ring.h>

#include "near.h"

enum { BURST = 64, FRAME = 64, FLOWS = 65536, RING = 1024, BUFFERS = 8191, CACHE = 256 };
static const uint64_t FRAMES = 10000000;

static struct rte_mempool *pool;
static struct rte_ring *ring;
static volatile uint64_t sink;

/* ---- the work */

static uint8_t template[FRAME];

static void *worker(void *arg)
{
	(void)arg;
	pin(1);
	struct rte_mbuf *burst[BURST];
	uint64_t sum = 0, got = 0;
	while (got < FRAMES) {
		unsigned n = rte_ring_sc_dequeue_burst(ring, (void **)burst, BURST, NULL);
		for (unsigned i = 0; i < n; i++)
			rte_prefetch0(rte_pktmbuf_mtod(burst[i], void *));
		for (unsigned i = 0; i < n; i++) {
			const uint8_t *h = rte_pktmbuf_mtod(burst[i], const uint8_t *);
			sum += h[12] + h[14] + h[23] + h[26] + h[27] + h[28] + h[29] + h[0];
		}
		if (n)
			rte_pktmbuf_free_bulk(burst, n);
		got += n;
	}
	sink = sum;
	return NULL;
}

static double receive(void)
{
	uint64_t chance = 0x9E3779B97F4A7C15ull, stalled = 0, start = nanos();
	struct rte_mbuf *burst[BURST];
	for (uint64_t sent = 0; sent < FRAMES;) {
		if (rte_pktmbuf_alloc_bulk(pool, burst, BURST))
			continue;
		for (unsigned i = 0; i < BURST; i++) {
			chance ^= chance >> 12;
			chance ^= chance << 25;
			chance ^= chance >> 27;
			uint32_t flow = (uint32_t)(chance * 0x2545F4914F6CDD1Dull >> 32) % FLOWS;
			uint32_t address = rte_cpu_to_be_32(0x0a000000 + flow);
			uint16_t port = rte_cpu_to_be_16((uint16_t)(flow * 40503));
			uint8_t *frame = rte_pktmbuf_mtod(burst[i], uint8_t *);
			memcpy(frame, template, FRAME);
			memcpy(frame + 26, &address, 4);
			memcpy(frame + 34, &port, 2);
			burst[i]->data_len = burst[i]->pkt_len = FRAME;
			burst[i]->hash.rss = rte_hash_crc_8byte((uint64_t)address << 32 | port, 0);
		}
		/* One target: the hash is computed, and leads to the one ring there is. */
		unsigned n = 0;
		uint64_t since = 0;
		while ((n += rte_ring_sp_enqueue_burst(ring, (void **)burst + n, BURST - n, NULL)) < BURST)
			since = since ? since : nanos();
		if (since)
			stalled += nanos() - since;
		sent += BURST;
	}
	return (double)(nanos() - start - stalled) / FRAMES;
}

int main(int argc, char **argv)
{
	int used = rte_eal_init(argc, argv);
	if (used < 0)
		return 1;
	int runs = argc > used + 1 ? atoi(argv[used + 1]) : 5;
	pin(0);
	pool = rte_pktmbuf_pool_create("frames", BUFFERS, CACHE, 0, RTE_PKTMBUF_HEADROOM + 2048, SOCKET_ID_ANY);
	ring = rte_ring_create("backlog", RING, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
	if (!pool || !ring)
		return 1;
	template[12] = 8, template[14] = 0x45, template[17] = 50, template[22] = 64, template[23] = 17;
	for (int run = 0; run < runs; run++) {
		double before = one_way();
		pthread_t t;
		pthread_create(&t, NULL, worker, NULL);
		double each = receive();
		pthread_join(t, NULL);
		bool was_far = is_far(before), far = is_far(one_way());
		printf("rte_ring %s receive %.2f ns a packet\n", was_far != far ? "moved" : far ? "far" : "near", each);
	}
	return 0;
}
