/* By hand: a single-producer, single-consumer rte_ring to the CPU that works; with all of the work on it, or with the receiving CPU
 * doing its share, flow by flow; and no ring at all, one CPU that does everything.
 */
#define _GNU_SOURCE
#include <rte_ring.h>

#include "work.h"

enum { RING = 1024 };

/* The receiver's share of the flows, of 100: it has receiving to do as well. */
enum { SHARE = 45 };
static const uint32_t SHARE_BELOW = (uint32_t)(0x100000000ull * SHARE / 100);

static struct rte_ring *ring;

static void take_from_ring(void)
{
	struct rte_mbuf *burst[BURST];
	uint64_t sum = 0, got = 0;
	while (!over || got + kept < frames) {
		unsigned n = rte_ring_sc_dequeue_burst(ring, (void **)burst, BURST, NULL);
		note_work(n);
		sum += handle(burst, n);
		got += n;
	}
	sink = sum;
}

/* Returns how long the ring was full. */
static inline uint64_t hand_over(struct rte_mbuf **burst, unsigned count)
{
	unsigned n = rte_ring_sp_enqueue_burst(ring, (void **)burst, count, NULL);
	if (likely(n == count))
		return 0;
	uint64_t since = nanos();
	while ((n += rte_ring_sp_enqueue_burst(ring, (void **)burst + n, count - n, NULL)) < count)
		rte_pause();
	return nanos() - since;
}

/* One target: the hash is computed, and leads to the one ring there is. */
static double send_all(void)
{
	struct rte_mbuf *burst[BURST];
	uint64_t waited = 0;
	for (uint64_t sent = 0; sent < frames; sent += list) {
		while (!next_burst(burst))
			;
		waited += hand_over(burst, list);
	}
	over = true;
	return waited;
}

static double share(void)
{
	struct rte_mbuf *burst[BURST], *here[BURST], *there[BURST];
	uint64_t sum = 0, mine = 0;
	for (uint64_t sent = 0; sent < frames; sent += list) {
		unsigned here_count = 0, there_count = 0;
		while (!next_burst(burst))
			;
		for (unsigned i = 0; i < list; i++) {
			bool is_mine = burst[i]->hash.rss < SHARE_BELOW;
			here[here_count] = there[there_count] = burst[i];
			here_count += is_mine, there_count += !is_mine;
		}
		hand_over(there, there_count);
		sum += handle(here, here_count);
		mine += here_count;
	}
	kept = mine;
	over = true;
	sink = sum;
	return NAN;
}

static double alone(void)
{
	struct rte_mbuf *burst[BURST];
	uint64_t sum = 0;
	for (uint64_t sent = 0; sent < frames; sent += list) {
		while (!next_burst(burst))
			;
		sum += handle(burst, list);
	}
	sink = sum;
	return NAN;
}

int main(int argc, char **argv)
{
	static const struct way ways[] = {
		{"rps", "DPDK, one CPU", NULL, alone},
		{"rps path", "rte_ring", take_from_ring, send_all},
		{"rps", "rte_ring, 45 % here", take_from_ring, share},
		{"handoff", "headers only, rte_ring", take_from_ring, send_all},
		{0},
	};
	begin(argc, argv);
	ring = rte_ring_create("backlog", RING, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
	if (!ring)
		return 1;
	measure(ways);
	return 0;
}
