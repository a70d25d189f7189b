/* What steerage's pages bench does, on a DPDK mempool: buffers go round in bursts of 64, nobody touches their bytes. "across": CPU 0
 * gets them and hands them over by a single-producer, single-consumer rte_ring; CPU 1 takes them off and puts them back. "N queues":
 * each is a ring that its own CPU works off, dealt out to both CPUs, over one mempool. With mempool's cache for each CPU, and without.
 */
#define _GNU_SOURCE
#include <stdio.h>

#include <rte_eal.h>
#include <rte_lcore.h>
#include <rte_mempool.h>
#include <rte_ring.h>

#include "near.h"

enum { BURST = 64, RING = 1024, BUFFERS = 8191, CACHE = 256, UNDER_WAY = 8, QUEUES_MAX = 8, BYTES = 2112 };
static const uint64_t PAGES = 20000000;

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
	while (sent < PAGES) {
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
	pin(1);
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
	pin(1);
	if (rte_thread_register())
		abort();
	pthread_barrier_wait(&start_line);
	void *burst[BURST];
	for (uint64_t got = 0; got < PAGES;) {
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
	for (uint64_t sent = 0; sent < PAGES; sent += BURST) {
		while (rte_mempool_get_bulk(pool, burst, BURST))
			;
		for (unsigned n = 0; n < BURST;)
			n += rte_ring_sp_enqueue_burst(rings[0], burst + n, BURST - n, NULL);
	}
	pthread_join(t, NULL);
	return (double)(nanos() - start) / PAGES;
}

/* ---- the runs, in turn */

enum { KINDS = 8, RUNS_MAX = 1000 };
static const char *names[KINDS / 2] = {"1 queue", "2 queues", "8 queues", "across CPUs"};
static const int counts[KINDS / 2] = {1, 2, 8, 0};

/* By kind and placement: ns a buffer. */
static double seen[KINDS][2][RUNS_MAX];
static int seen_count[KINDS][2];

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void report(int kind, int far)
{
	int n = seen_count[kind][far];
	double *each = seen[kind][far];
	if (!n)
		return;
	qsort(each, n, sizeof *each, by_size);
	printf("mempool %-12s cache %-4s %-5s %3d runs  %.2f [%.2f..%.2f] ns a buffer\n", names[kind / 2], kind % 2 ? "off" : "on",
	       far ? "far" : "near", n, each[n / 2], each[0], each[n - 1]);
}

int main(int argc, char **argv)
{
	int used = rte_eal_init(argc, argv);
	if (used < 0)
		return 1;
	int runs = argc > used + 1 ? atoi(argv[used + 1]) : 5;
	if (runs > RUNS_MAX)
		runs = RUNS_MAX;
	pin(0);
	struct rte_mempool *pools[2];
	for (int off = 0; off < 2; off++)
		pools[off] = rte_mempool_create(off ? "plain" : "cached", BUFFERS, BYTES, off ? 0 : CACHE, 0, NULL, NULL, NULL, NULL,
						SOCKET_ID_ANY, 0);
	if (!pools[0] || !pools[1])
		return 1;
	for (int q = 0; q < QUEUES_MAX; q++) {
		char name[] = {'q', (char)('0' + q), 0};
		rings[q] = rte_ring_create(name, RING, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
		if (!rings[q])
			return 1;
	}
	for (int run = 0; run < runs; run++) {
		for (int kind = 0; kind < KINDS; kind++) {
			int count = counts[kind / 2];
			pool = pools[kind % 2];
			bool was_far = is_far(one_way());
			double each = count ? queues(count) : across();
			/* Where they moved meanwhile, it is of no use. */
			if (is_far(one_way()) == was_far)
				seen[kind][was_far][seen_count[kind][was_far]++] = each;
		}
	}
	for (int kind = 0; kind < KINDS; kind++)
		for (int far = 0; far < 2; far++)
			report(kind, far);
	return 0;
}
