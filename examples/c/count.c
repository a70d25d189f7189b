/* Counts the TCP, UDP and other packets of each bucket of flows, on all CPUs. A line such as "0-1" on standard input spreads the packets over
 * other CPUs, and the counts move along. Ctrl-C ends the run.
 *
 *     cc count.c $(pkg-config --cflags --libs steerage) -o count && sudo ./count eth0 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <steerage.h>
enum { TCP, UDP, OTHER, KINDS };
struct totals { _Atomic uint64_t packets[KINDS], moves; };
struct counts { uint64_t packets[KINDS]; };
static steerage *run;

static void *made(void *shared, void *cpu, uint32_t bucket) {
    (void)shared, (void)cpu, (void)bucket;
    return calloc(1, sizeof(struct counts));
}

static void moved(void *shared, void *cpu, uint32_t bucket, void *state) {
    (void)cpu, (void)bucket, (void)state;
    atomic_fetch_add(&((struct totals *)shared)->moves, 1);
}

static void dropped(void *shared, void *state) {
    for (int kind = 0; kind < KINDS; kind++)
        atomic_fetch_add(&((struct totals *)shared)->packets[kind], ((struct counts *)state)->packets[kind]);
    free(state);
}

static void batch(void *shared, void *cpu, steerage_batch *batch) {
    (void)shared, (void)cpu;
    while (steerage_next(batch)) {
        struct counts *counts = steerage_state(batch);
        const steerage_flow *flow = steerage_flow_of(batch);
        int protocol = flow ? flow->protocol : 0;
        if (counts) counts->packets[protocol == 6 ? TCP : protocol == 17 ? UDP : OTHER]++;
    }
}

static void interrupted(int signal) { (void)signal, steerage_stop(run); }
int main(int argc, char **argv) {
    struct totals all = {0};
    steerage_functions functions = {.size = sizeof functions, .shared = &all, .batch = batch,
                                    .state_made = made, .state_moved = moved, .state_dropped = dropped};
    steerage_ledger ledger;
    char line[64];
    if (steerage_open(&run, (const char *const *)argv + 1, argc - 1, NULL) || steerage_start(run, &functions))
        return fprintf(stderr, "count: %s\n", steerage_last_error()), 1;
    sigaction(SIGINT, &(struct sigaction){.sa_handler = interrupted}, NULL);
    while (fgets(line, sizeof line, stdin))
        if (steerage_set_rps_cpus(run, line)) fprintf(stderr, "count: %s\n", steerage_last_error());
    int status = steerage_join(run);
    if (status) fprintf(stderr, "count: %s: %s\n", steerage_strerror(status), steerage_last_error());
    steerage_read_ledger(run, &ledger, sizeof ledger);
    steerage_free(run);
    printf("%lu received, %lu dropped: %lu TCP, %lu UDP, %lu other; %lu states moved\n", ledger.received, ledger.dropped,
           all.packets[TCP], all.packets[UDP], all.packets[OTHER], all.moves);
    return status != 0;
}
