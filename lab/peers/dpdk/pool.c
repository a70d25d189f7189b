/* What steerage's bench of the page cache does, on a DPDK mempool: buffers go round in bursts of 64, nobody touches their bytes. "across": CPU 0
 * gets them and hands them over by a single-producer, single-consumer rte_ring; CPU 1 takes them off and puts them back. "N queues":
 * each is a ring that its own CPU works off, dealt out to both CPUs, over one mempool. With mempool's cache for each CPU, and without.
 */
#define _GNU_SOURCE
#include <rte_eal.h>
#include <rte_lcore.h>
#include <rte_mempool.h>
#include <rte_ring.h>

#include "sample.h"

enum { BURST = 64, RING = 1024, BUFFERS = 8191, CACHE = 256, UNDER_WAY = 8, QUEUES_MAX = 8, BYTES = 2112 };
static uint64_t buffers = 20000000;

static struct rte_mempool *pool;
static struct rte_ring *rings[QUEUES_MAX];

/* ---- queues that share nothing but the mempool */

struct share {
	int first, last;
	double each;
};

static pthread_barrier_t start_line;

static void empty(struct rte_ring *ring)
{
	void *burst[BURST];
	unsigned n;
	while ((n = rte_ring_sc_dequeue_burst(ring, burst, BURST, NULL)))
		rte_mempool_put_bulk(pool, burst, n);
}

static void go_round(struct share *share)
{
	void *burst[BURST];
	for (int q = share->first; q < share->last; q++)
		for (int i = 1; i < UNDER_WAY; i++)
			if (rte_mempool_get_bulk(pool, burst, BURST) || !rte_ring_sp_enqueue_bulk(rings[q], burst, BURST, NULL))
				abort();
	uint64_t start = nanos(), sent = 0;
	while (sent < buffers) {
		for (int q = share->first; q < share->last; q++) {
			if (rte_mempool_get_bulk(pool, burst, BURST))
				abort();
			rte_ring_sp_enqueue_bulk(rings[q], burst, BURST, NULL);
			rte_ring_sc_dequeue_bulk(rings[q], burst, BURST, NULL);
			rte_mempool_put_bulk(pool, burst, BURST);
			sent += BURST;
		}
	}
	share->each = (double)(nanos() - start) / sent;
	for (int q = share->first; q < share->last; q++)
		empty(rings[q]);
}

/* The cache for a CPU is that of an lcore. */
static void *other(void *arg)
{
	pin(work_cpu);
	if (rte_thread_register())
		abort();
	pthread_barrier_wait(&start_line);
	go_round(arg);
	rte_mempool_cache_flush(NULL, pool);
	rte_thread_unregister();
	return NULL;
}

static double queues(int count)
{
	struct share mine = {0, (count + 1) / 2, 0}, theirs = {(count + 1) / 2, count, 0};
	if (theirs.first == theirs.last) {
		go_round(&mine);
		return mine.each;
	}
	pthread_t t;
	pthread_barrier_init(&start_line, NULL, 2);
	pthread_create(&t, NULL, other, &theirs);
	pthread_barrier_wait(&start_line);
	go_round(&mine);
	pthread_join(t, NULL);
	return mine.each > theirs.each ? mine.each : theirs.each;
}

/* ---- from one CPU to the other */

static void *worker(void *arg)
{
	(void)arg;
	pin(work_cpu);
	if (rte_thread_register())
		abort();
	pthread_barrier_wait(&start_line);
	void *burst[BURST];
	for (uint64_t got = 0; got < buffers;) {
		unsigned n = rte_ring_sc_dequeue_burst(rings[0], burst, BURST, NULL);
		if (n)
			rte_mempool_put_bulk(pool, burst, n);
		got += n;
	}
	rte_mempool_cache_flush(NULL, pool);
	rte_thread_unregister();
	return NULL;
}

static double across(void)
{
	pthread_t t;
	pthread_barrier_init(&start_line, NULL, 2);
	pthread_create(&t, NULL, worker, NULL);
	pthread_barrier_wait(&start_line);
	void *burst[BURST];
	uint64_t start = nanos();
	for (uint64_t sent = 0; sent < buffers; sent += BURST) {
		while (rte_mempool_get_bulk(pool, burst, BURST))
			;
		for (unsigned n = 0; n < BURST;)
			n += rte_ring_sp_enqueue_burst(rings[0], burst + n, BURST - n, NULL);
	}
	pthread_join(t, NULL);
	return (double)(nanos() - start) / buffers;
}

/* ---- the runs, in turn */

enum { KINDS = 4 };
static const int queue_counts[KINDS] = {1, 2, 8, 0};
/* A buffer's round takes some 2 ns. */
static const double NANOS_EACH = 2;

int main(int argc, char **argv)
{
	int used = rte_eal_init(argc, argv);
	if (used < 0)
		return 1;
	asked.experiment = "page-cache";
	read_options(argc - used, argv + used);
	if (!is_asked("page-cache"))
		usage();
	buffers = (uint64_t)(asked.seconds * 1e9 / NANOS_EACH) / BURST * BURST + BURST;
	pin(rx_cpu);
	struct rte_mempool *pools[2];
	for (int off = 0; off < 2; off++)
		pools[off] = rte_mempool_create(off ? "plain" : "cached", BUFFERS, BYTES, off ? 0 : CACHE, 0, NULL, NULL, NULL, NULL,
						SOCKET_ID_ANY, 0);
	if (!pools[0] || !pools[1]) {
		fputs("no memory for the buffers: give more by -m\n", stderr);
		return 1;
	}
	for (int q = 0; q < QUEUES_MAX; q++) {
		char name[] = {'q', (char)('0' + q), 0};
		rings[q] = rte_ring_create(name, RING, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
		if (!rings[q])
			return 1;
	}
	for (int kind = 0; kind < KINDS; kind++) {
		for (int off = 0; off < 2; off++) {
			int count = queue_counts[kind];
			char series[40];
			snprintf(series, sizeof series, "mempool%s, cache %s", count ? "" : " across", off ? "off" : "on");
			pool = pools[off];
			double before = one_way();
			struct value values[] = {{"page_ns", count ? queues(count) : across()}, {NULL, 0}};
			print_sample(series, count ? count : 1, before, one_way(), values);
		}
	}
	return 0;
}
