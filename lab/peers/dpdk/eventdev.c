/* By an eventdev, the software one (event_sw): the receiving CPU puts packets in as new events of an atomic queue and runs the scheduler as
 * well, since no third CPU is there to be its service core; the other CPU takes events out and works.
 *
 * DPDK's guide has the scheduler on a core of its own where one can be spared, and beside other work on one otherwise.
 */
#define _GNU_SOURCE
#include <rte_eventdev.h>
#include <rte_service.h>

#include "work.h"

enum { DEVICE = 0, QUEUE = 0, FROM = 0, TO = 1, EVENTS_MAX = 4096, EVENT_FLOWS = 1024, DEPTH = 128 };

static uint32_t scheduler;

static void take_events(void)
{
	struct rte_event events[BURST];
	struct rte_mbuf *burst[BURST];
	uint64_t sum = 0;
	for (uint64_t got = 0; got < frames;) {
		unsigned n = rte_event_dequeue_burst(DEVICE, TO, events, BURST, 0);
		for (unsigned i = 0; i < n; i++)
			burst[i] = events[i].mbuf;
		note_work(n);
		sum += handle(burst, n);
		got += n;
	}
	/* The last are let go of when the next are asked for. */
	rte_event_dequeue_burst(DEVICE, TO, events, BURST, 0);
	sink = sum;
	over = true;
}

static double make_events(void)
{
	struct rte_event events[BURST];
	struct rte_mbuf *burst[BURST];
	uint64_t waited = 0;
	for (uint64_t sent = 0; sent < frames; sent += BURST) {
		while (!next_burst(burst))
			rte_service_run_iter_on_app_lcore(scheduler, 0);
		for (unsigned i = 0; i < BURST; i++) {
			events[i] = (struct rte_event){
				.flow_id = burst[i]->hash.rss & 0xfffff,
				.op = RTE_EVENT_OP_NEW,
				.sched_type = RTE_SCHED_TYPE_ATOMIC,
				.queue_id = QUEUE,
				.event_type = RTE_EVENT_TYPE_CPU,
				.priority = RTE_EVENT_DEV_PRIORITY_NORMAL,
				.mbuf = burst[i],
			};
		}
		unsigned n = rte_event_enqueue_new_burst(DEVICE, FROM, events, BURST);
		rte_service_run_iter_on_app_lcore(scheduler, 0);
		if (n == BURST)
			continue;
		uint64_t since = nanos();
		while ((n += rte_event_enqueue_new_burst(DEVICE, FROM, events + n, BURST - n)) < BURST)
			rte_service_run_iter_on_app_lcore(scheduler, 0);
		waited += nanos() - since;
	}
	while (!over)
		rte_service_run_iter_on_app_lcore(scheduler, 0);
	return waited;
}

static int set_up_device(void)
{
	struct rte_event_dev_config device = {
		.nb_event_queues = 1,
		.nb_event_ports = 2,
		.nb_events_limit = EVENTS_MAX,
		.nb_event_queue_flows = EVENT_FLOWS,
		.nb_event_port_dequeue_depth = DEPTH,
		.nb_event_port_enqueue_depth = DEPTH,
	};
	struct rte_event_queue_conf queue = {
		.schedule_type = RTE_SCHED_TYPE_ATOMIC,
		.priority = RTE_EVENT_DEV_PRIORITY_NORMAL,
		.nb_atomic_flows = EVENT_FLOWS,
		.nb_atomic_order_sequences = EVENT_FLOWS,
	};
	struct rte_event_port_conf port = {
		.new_event_threshold = EVENTS_MAX,
		.dequeue_depth = DEPTH,
		.enqueue_depth = DEPTH,
	};
	uint8_t queues[] = {QUEUE};
	return rte_event_dev_configure(DEVICE, &device) || rte_event_queue_setup(DEVICE, QUEUE, &queue) ||
	       rte_event_port_setup(DEVICE, FROM, &port) || rte_event_port_setup(DEVICE, TO, &port) ||
	       rte_event_port_link(DEVICE, TO, queues, NULL, 1) != 1 || rte_event_dev_service_id_get(DEVICE, &scheduler) ||
	       rte_service_runstate_set(scheduler, 1) || rte_service_set_runstate_mapped_check(scheduler, 0) ||
	       rte_event_dev_start(DEVICE);
}

int main(int argc, char **argv)
{
	static const struct way ways[] = {{"rps path", "event_sw", take_events, make_events}, {0}};
	begin(argc, argv);
	if (!rte_event_dev_count()) {
		fputs("no event device: start with --vdev event_sw0\n", stderr);
		return 1;
	}
	if (set_up_device()) {
		fputs("event_sw0 cannot be set up\n", stderr);
		return 1;
	}
	measure(ways);
	return 0;
}
