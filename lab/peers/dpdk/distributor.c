/* By rte_distributor with its burst interface: up to 8 packets at a time to a worker that asks for them, no flow on two workers at once.
 * One worker, which frees what it was given: it returns nothing to the distributor.
 */
#define _GNU_SOURCE
#include <rte_distributor.h>

#include "work.h"

enum { WORKER = 0, GIVEN_MAX = 8 };

static struct rte_distributor *distributor;

static void take_from_distributor(void)
{
	struct rte_mbuf *given[GIVEN_MAX];
	uint64_t sum = 0;
	for (uint64_t got = 0; got < frames;) {
		/* It waits for some, and whether it had to does not show. */
		int n = rte_distributor_get_pkt(distributor, WORKER, given, NULL, 0);
		sum += handle(given, n);
		got += n;
	}
	sink = sum;
	over = true;
}

/* The distributor itself waits, in `process`, for a worker that has enough: nobody can tell for how long, so that counts as receiving. */
static double distribute(void)
{
	struct rte_mbuf *burst[BURST];
	for (uint64_t sent = 0; sent < frames; sent += BURST) {
		while (!next_burst(burst))
			rte_distributor_process(distributor, NULL, 0);
		for (int n = 0; n < BURST;)
			n += rte_distributor_process(distributor, burst + n, BURST - n);
	}
	/* What it holds back until there are 8, or until the worker asks again. */
	while (!over)
		rte_distributor_process(distributor, NULL, 0);
	return 0;
}

int main(int argc, char **argv)
{
	static const struct way ways[] = {{"rps path", "rte_distributor", take_from_distributor, distribute}, {0}};
	begin(argc, argv);
	distributor = rte_distributor_create("distributor", rte_socket_id(), 1, RTE_DIST_ALG_BURST);
	if (!distributor)
		return 1;
	measure(ways);
	return 0;
}
