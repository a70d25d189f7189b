/* What ring, distributor and eventdev share: frames as steerage's bench writes them, the work for each, and how a run is made.
 * A program names its ways of handing over in `ways`; `measure` runs those that belong to the experiment asked for:
 *   rps      with each amount of work a packet
 *   path     without any
 *   handoff  without any, in lists of several lengths
 */
#pragma once
#include <rte_eal.h>
#include <rte_hash_crc.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>

#include "sample.h"

enum { BURST = 64, FRAME = 64, FLOWS = 65536, BUFFERS = 8191, CACHE = 256 };

static struct rte_mempool *pool;

/* ---- the frames */

static uint8_t template[FRAME];
static uint64_t chance = 0x9E3779B97F4A7C15ull;

static void set_up_frames(void)
{
	template[12] = 8, template[14] = 0x45, template[17] = 50, template[22] = 64, template[23] = 17;
	pool = rte_pktmbuf_pool_create("frames", BUFFERS, CACHE, 0, RTE_PKTMBUF_HEADROOM + 2048, SOCKET_ID_ANY);
	if (!pool) {
		fputs("no memory for the buffers: give more by -m\n", stderr);
		exit(1);
	}
}

/* A frame of some flow, and the hash of its tuple. */
static inline void write_frame(struct rte_mbuf *buffer)
{
	chance ^= chance >> 12;
	chance ^= chance << 25;
	chance ^= chance >> 27;
	uint32_t flow = (uint32_t)(chance * 0x2545F4914F6CDD1Dull >> 32) % FLOWS;
	uint32_t address = rte_cpu_to_be_32(0x0a000000 + flow);
	uint16_t port = rte_cpu_to_be_16((uint16_t)(flow * 40503));
	uint8_t *frame = rte_pktmbuf_mtod(buffer, uint8_t *);
	memcpy(frame, template, FRAME);
	memcpy(frame + 26, &address, 4);
	memcpy(frame + 34, &port, 2);
	buffer->data_len = buffer->pkt_len = FRAME;
	buffer->hash.rss = rte_hash_crc_8byte((uint64_t)address << 32 | port, 0);
}

/* Of the run: the most packets that are handed over in one go. */
static unsigned list = BURST;

/* A list of frames, or false if there are no buffers for it as yet. The other CPU had them last: they are prefetched for writing, as
 * steerage does with pages; all at once, which far away was better than a burst ahead. */
static inline bool next_burst(struct rte_mbuf **burst)
{
	if (unlikely(rte_pktmbuf_alloc_bulk(pool, burst, list)))
		return false;
	for (unsigned i = 0; i < list; i++) {
		__builtin_prefetch(burst[i], 1);
		__builtin_prefetch(rte_pktmbuf_mtod(burst[i], void *), 1);
	}
	for (unsigned i = 0; i < list; i++)
		write_frame(burst[i]);
	return true;
}

/* ---- the work */

/* So many rounds of arithmetic that nobody can shorten: those of steerage-lab, in a register as there. */
static __attribute__((noinline)) uint64_t spin(uint64_t rounds, uint64_t seed)
{
	uint64_t x = seed | 1;
	for (; rounds; rounds--) {
		x *= 6364136223846793005ull;
		x = x << 17 | x >> 47;
		__asm__ volatile("" : "+r"(x));
	}
	return x;
}

/* How many rounds of it take a nanosecond: of some tries the best, which others disturbed least. */
static double calibrated(void)
{
	enum { TRIES = 5, ROUNDS = 4000000 };
	double best = 0;
	for (int i = 0; i < TRIES; i++) {
		uint64_t start = nanos();
		uint64_t x = spin(ROUNDS, 3);
		__asm__ volatile("" : : "r"(x));
		double each = ROUNDS / (double)(nanos() - start);
		best = each > best ? each : best;
	}
	return best;
}

/* Of the run: what it takes for a packet. */
static uint64_t spins, frames;
static volatile uint64_t sink;

/* Reads the headers of a burst, works on each packet, and frees. */
static inline uint64_t handle(struct rte_mbuf **burst, unsigned n)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < n; i++)
		rte_prefetch0(rte_pktmbuf_mtod(burst[i], void *));
	for (unsigned i = 0; i < n; i++) {
		const uint8_t *h = rte_pktmbuf_mtod(burst[i], const uint8_t *);
		uint64_t fields = h[12] + h[14] + h[23] + h[26] + h[27] + h[28] + h[29] + h[0];
		/* It begins with the result of the packet before, as in steerage-lab: the CPU cannot work on several at once. */
		sum = spins ? spin(spins, sum + fields) : sum + fields;
	}
	if (n)
		rte_pktmbuf_free_bulk(burst, n);
	return sum;
}

/* ---- a run: one CPU receives, the other one works */

struct way {
	const char *experiments, *series;
	/* Takes what is handed over, until it has been `frames` less what the receiver keeps; NULL if there is no worker. */
	void (*work)(void);
	/* Writes `frames` and hands them over. Returns for how long it had to wait for room, or NAN if that cannot be told. */
	double (*receive)(void);
};

/* Of the run: how many the receiver keeps for itself, and that one side has no more to do. Cleared before both begin. */
static _Atomic uint64_t kept;
static _Atomic bool over;

static pthread_barrier_t start_line;
static uint64_t work_ended;

/* The worker's time in which there was something to do. As steerage's, the clock is read at every look that finds nothing and where that
 * changes; not between one step of work and the next. */
static struct {
	uint64_t total, since, looked;
} busy;

static inline void note_work(bool something)
{
	if (something) {
		if (!busy.since)
			busy.since = busy.looked;
		return;
	}
	busy.looked = nanos();
	if (busy.since)
		busy.total += busy.looked - busy.since;
	busy.since = 0;
}

static void *worker(void *way)
{
	pin(work_cpu);
	/* mempool's cache is an lcore's. */
	if (rte_thread_register())
		abort();
	pthread_barrier_wait(&start_line);
	note_work(false);
	((const struct way *)way)->work();
	note_work(false);
	work_ended = busy.looked;
	rte_mempool_cache_flush(NULL, pool);
	rte_thread_unregister();
	return NULL;
}

static void run(const struct way *way, double x)
{
	pthread_t thread;
	double before = one_way();
	kept = 0;
	over = false;
	busy.total = busy.since = 0;
	if (way->work) {
		pthread_barrier_init(&start_line, NULL, 2);
		if (pthread_create(&thread, NULL, worker, (void *)way))
			abort();
		pthread_barrier_wait(&start_line);
	}
	uint64_t start = nanos();
	double waited = way->receive();
	uint64_t received = nanos(), ended = received;
	if (way->work) {
		pthread_join(thread, NULL);
		pthread_barrier_destroy(&start_line);
		ended = work_ended > ended ? work_ended : ended;
	}
	/* rps asks only for what all of it comes to. */
	bool sides = !is_asked("rps");
	struct value values[] = {
		{"mpps", frames * 1e3 / (ended - start)},
		{"receive_ns", sides ? ((double)(received - start) - waited) / frames : NAN},
		{"work_ns", sides && busy.total ? (double)busy.total / frames : NAN},
		{NULL, 0},
	};
	print_sample(way->series, x, before, one_way(), values);
}

/* How many are about `seconds` of work, where a packet takes so long. */
static void set_frames(double nanos_each)
{
	frames = (uint64_t)(asked.seconds * 1e9 / nanos_each) / BURST * BURST + BURST;
}

static void run_all(const struct way *ways, double x)
{
	for (const struct way *way = ways; way->series; way++)
		if (strstr(way->experiments, asked.experiment))
			run(way, x);
}

/* Each way with each amount of work, or each length of list, in turn. */
static void measure(const struct way *ways)
{
	static const unsigned lists[] = {1, 8, 32, BURST};
	spins = 0;
	if (is_asked("rps")) {
		double each = calibrated();
		for (int i = 0; i < asked.works_count; i++) {
			spins = asked.works[i] * each;
			/* What a packet takes besides. */
			set_frames(asked.works[i] + 10);
			run_all(ways, asked.works[i]);
		}
	} else if (is_asked("path")) {
		set_frames(20);
		run_all(ways, NAN);
	} else if (is_asked("handoff")) {
		for (unsigned i = 0; i < sizeof lists / sizeof *lists; i++) {
			list = lists[i];
			set_frames(20 + 200 / list);
			run_all(ways, list);
		}
	} else {
		usage();
	}
}

/* For the EAL and for us. */
static void begin(int argc, char **argv)
{
	int used = rte_eal_init(argc, argv);
	if (used < 0)
		exit(1);
	read_options(argc - used, argv + used);
	pin(rx_cpu);
	set_up_frames();
}
