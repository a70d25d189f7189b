/* Checks the library from a C program: errors, states that move, order, the ledger. tests/c.rs builds and runs it. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <steerage.h>

#define CHECK(condition)                                                                                  \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #condition, steerage_last_error());           \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

enum { FLOWS = 500, MOVES = 300, STOP_AFTER = 20000, PAYLOAD = 42 };

struct program {
    _Atomic uint64_t began, ended, made, moved, dropped, packets, discarded;
    _Atomic uint64_t next[FLOWS]; /* the number that each flow's next packet has */
    steerage *run;
    uint64_t stop_after;
};

struct state {
    uint64_t packets;
    void *cpu; /* on which it is */
};

static uint64_t number_at(const uint8_t *data, int bytes) {
    uint64_t number = 0;
    for (int nth = 0; nth < bytes; nth++) number = number << 8 | data[nth];
    return number;
}

static void *begins(void *shared, uint32_t cpu) {
    uint32_t *number = malloc(sizeof *number);
    *number = cpu;
    ((struct program *)shared)->began++;
    return number;
}

static void ends(void *shared, void *cpu) {
    free(cpu);
    ((struct program *)shared)->ended++;
}

static void *made(void *shared, void *cpu, uint32_t bucket) {
    (void)bucket;
    struct state *state = calloc(1, sizeof *state);
    state->cpu = cpu;
    ((struct program *)shared)->made++;
    return state;
}

static void moved(void *shared, void *cpu, uint32_t bucket, void *state) {
    (void)bucket;
    ((struct state *)state)->cpu = cpu;
    ((struct program *)shared)->moved++;
}

static void merged(void *shared, void *cpu, void *into, void *from) {
    (void)shared, (void)cpu;
    ((struct state *)into)->packets += ((struct state *)from)->packets;
    ((struct state *)from)->packets = 0;
}

static void dropped(void *shared, void *state) {
    struct program *program = shared;
    program->packets += ((struct state *)state)->packets;
    program->dropped++;
    free(state);
}

static void batch(void *shared, void *cpu, steerage_batch *batch) {
    struct program *program = shared;
    const steerage_packet *packet;
    uint32_t seen = 0;
    CHECK(steerage_batch_len(batch) >= 1 && steerage_batch_len(batch) <= 64 && steerage_batch_queue(batch) < 2);
    while ((packet = steerage_next(batch))) {
        uint8_t copy[128];
        seen++;
        CHECK(packet->len == 64 && packet->total_len == 64 && packet->wire_len == 64 && packet->link == 1);
        CHECK(memcmp(packet->data + PAYLOAD, "STRG", 4) == 0);
        CHECK(steerage_copy(batch, 60, copy, sizeof copy) == 4 && memcmp(copy, packet->data + 60, 4) == 0);
        CHECK(steerage_copy(batch, 0, copy, 10) == 10 && memcmp(copy, packet->data, 10) == 0);
        CHECK(steerage_copy(batch, 100, copy, 10) == 0);
        const steerage_flow *flow = steerage_flow_of(batch);
        CHECK(flow && flow->version == 4 && flow->protocol == 17 && flow->destination_port == 9);
        CHECK(flow->source[0] == 10 && memcmp(flow->destination, "\306\022\0\1\0\0\0\0\0\0\0\0\0\0\0\0", 16) == 0);
        uint64_t number = number_at(packet->data + PAYLOAD + 8, 8);
        uint64_t expected = program->next[number_at(packet->data + PAYLOAD + 4, 4)]++;
        CHECK(number == expected);
        struct state *state = steerage_state(batch);
        CHECK(state && state->cpu == cpu && state == steerage_state(batch));
        state->packets++;
        if (number % 10 == 0) {
            uint32_t bucket = steerage_bucket(batch);
            CHECK((bucket & 0xffff) < 4096);
            steerage_discard(batch);
            program->discarded++;
            CHECK(!steerage_flow_of(batch) && !steerage_state(batch) && steerage_copy(batch, 0, copy, 1) == 0);
        }
        if (program->stop_after && state->packets && number >= program->stop_after / FLOWS) steerage_stop(program->run);
    }
    CHECK(seen == steerage_batch_len(batch) && !steerage_next(batch));
}

static const steerage_functions FUNCTIONS = {
    .size = sizeof FUNCTIONS, .cpu_begins = begins, .batch = batch, .cpu_ends = ends, .state_made = made,
    .state_moved = moved, .state_merged = merged, .state_dropped = dropped,
};

static steerage *opened(const char *input) {
    steerage *run = NULL;
    CHECK(steerage_open(&run, &input, 1, NULL) == 0 && run);
    return run;
}

static void check_ledger(const steerage *run, const struct program *program) {
    steerage_ledger all, parts = {0};
    CHECK(steerage_read_ledger(run, &all, sizeof all) == 0);
    CHECK(all.received == all.delivered + all.dropped + all.in_flight && all.in_flight == 0 && all.dropped == 0);
    CHECK(all.received_bytes == all.received * 64 && all.discarded == program->discarded);
    uint64_t processed = 0;
    for (uint32_t queue = 0; queue < steerage_queues(run); queue++) {
        steerage_ledger one;
        CHECK(steerage_read_queue(run, queue, &one, sizeof one) == 0 && one.buckets_moved == 0);
        parts.received += one.received;
    }
    for (uint32_t nth = 0; nth < steerage_cpus(run); nth++) {
        steerage_cpu_ledger one;
        CHECK(steerage_read_cpu(run, nth, &one, sizeof one) == 0 && one.cpu == nth);
        processed += one.processed;
    }
    CHECK(parts.received == all.received && processed == all.delivered);
    CHECK(steerage_read_queue(run, 2, &all, sizeof all) == STEERAGE_E_ARGUMENT);
    CHECK(steerage_read_cpu(run, 4, (steerage_cpu_ledger *)&all, sizeof(steerage_cpu_ledger)) == STEERAGE_E_ARGUMENT);
}

/* Masks change while packets flow, until MOVES states have moved. */
static void states_move(void) {
    struct program program = {0};
    steerage_functions functions = FUNCTIONS;
    functions.shared = &program;
    char input[100];
    snprintf(input, sizeof input, "synthetic:flows=%d,queues=2", FLOWS);
    steerage *run = program.run = opened(input);
    CHECK(steerage_set(run, "virtual-cpus", "4") == 0 && steerage_set(run, "policy", "hash") == 0);
    CHECK(steerage_set(run, "rps-cpus", "3") == 0);
    CHECK(steerage_start(run, &functions) == 0 && steerage_start(run, &functions) == STEERAGE_E_STATE);
    CHECK(steerage_set(run, "policy", "hash") == STEERAGE_E_STATE);
    CHECK(steerage_set_rps_cpus(run, "7") == STEERAGE_E_ARGUMENT && strstr(steerage_last_error(), "CPU 7"));
    CHECK(steerage_set_queue_rps_cpus(run, 2, "0") == STEERAGE_E_ARGUMENT);
    static const char *const MASKS[] = {"2-3\n", "0", "1-3", "", "0-3"};
    for (unsigned nth = 0; program.moved < MOVES; nth++) {
        CHECK(steerage_wait(run, 0) == 0 && steerage_set_rps_cpus(run, MASKS[nth % 5]) == 0);
        if (nth % 3 == 0) CHECK(steerage_set_queue_rps_cpus(run, nth % 2, "2") == 0);
        CHECK(steerage_wait_settled(run, -1) == 1);
    }
    steerage_stop(run);
    CHECK(steerage_join(run) == 0 && steerage_join(run) == 0 && steerage_wait(run, -1) == 1);
    check_ledger(run, &program);
    steerage_ledger ledger;
    CHECK(steerage_read_ledger(run, &ledger, sizeof ledger) == 0 && ledger.buckets_moved >= MOVES);
    CHECK(program.began == 4 && program.ended == 4);
    steerage_free(run);
    CHECK(program.made == program.dropped && program.packets == ledger.received);
    printf("%lu states made, %lu moved\n", program.made, program.moved);
}

static void a_callback_stops_the_run(void) {
    struct program program = {.stop_after = STOP_AFTER};
    steerage_functions functions = FUNCTIONS;
    functions.shared = &program;
    char input[100];
    snprintf(input, sizeof input, "synthetic:flows=%d,queues=2", FLOWS);
    steerage *run = program.run = opened(input);
    CHECK(steerage_set(run, "virtual-cpus", "4") == 0);
    CHECK(steerage_run(run, &functions) == 0);
    check_ledger(run, &program);
    steerage_free(run);
    CHECK(program.made == program.dropped && program.packets >= STOP_AFTER / FLOWS);
}

/* A run that nobody joins: steerage_free ends it. */
static void free_ends_a_run(void) {
    struct program program = {0};
    steerage_functions functions = FUNCTIONS;
    functions.shared = &program;
    steerage *run = opened("synthetic:flows=500");
    CHECK(steerage_set(run, "virtual-cpus", "2") == 0 && steerage_start(run, &functions) == 0);
    CHECK(steerage_wait(run, 1) == 0);
    steerage_free(run);
    CHECK(program.began == program.ended && program.made == program.dropped);
    steerage_free(opened("synthetic"));
    steerage_free(NULL);
}

/* Programs of an older and of a newer header. */
static void structs_may_grow(void) {
    struct {
        steerage_functions known;
        void (*unknown)(void);
    } newer = {.known = FUNCTIONS};
    struct program program = {0};
    newer.known.shared = &program;
    newer.known.size = sizeof newer;
    newer.unknown = free_ends_a_run;
    steerage *run = opened("synthetic:packets=100,flows=500");
    CHECK(steerage_set(run, "virtual-cpus", "1") == 0);
    CHECK(steerage_start(run, &newer.known) == STEERAGE_E_ARGUMENT);
    newer.unknown = NULL;
    CHECK(steerage_run(run, &newer.known) == 0 && program.packets == 100);
    struct {
        steerage_ledger known;
        uint64_t unknown;
    } ledger = {.unknown = 1};
    CHECK(steerage_read_ledger(run, &ledger.known, sizeof ledger) == 0 && ledger.known.received == 100 && ledger.unknown == 0);
    uint64_t two[3] = {7, 7, 7};
    CHECK(steerage_read_ledger(run, (steerage_ledger *)two, 2 * sizeof *two) == 0);
    CHECK(two[0] == 100 && two[1] == 6400 && two[2] == 7);
    steerage_free(run);
    /* An older program: `batch` is the last field that it has. */
    run = opened("synthetic:packets=100,flows=500");
    steerage_functions older = FUNCTIONS;
    older.size = offsetof(steerage_functions, batch);
    CHECK(steerage_set(run, "virtual-cpus", "1") == 0 && steerage_start(run, &older) == STEERAGE_E_ARGUMENT);
    steerage_free(run);
}

static void errors(void) {
    steerage *run = (steerage *)1;
    const char *input = "./absent.pcap";
    CHECK(steerage_open(&run, &input, 1, NULL) == STEERAGE_E_DEVICE && !run && strstr(steerage_last_error(), "absent.pcap"));
    input = "synthetic:packets=many";
    CHECK(steerage_open(&run, &input, 1, NULL) == STEERAGE_E_ARGUMENT && strstr(steerage_last_error(), "many"));
    input = "synthetic:packets=10";
    CHECK(steerage_open(&run, &input, 1, "udp") == STEERAGE_E_FILTER && strstr(steerage_last_error(), "takes no filter"));
    input = "\xff";
    CHECK(steerage_open(&run, &input, 1, NULL) == STEERAGE_E_ARGUMENT);
    input = NULL;
    CHECK(steerage_open(&run, &input, 1, NULL) == STEERAGE_E_ARGUMENT && steerage_open(&run, NULL, 1, NULL) == STEERAGE_E_ARGUMENT);
    CHECK(steerage_open(NULL, &input, 1, NULL) == STEERAGE_E_ARGUMENT && strstr(steerage_last_error(), "NULL"));
    run = opened("synthetic:packets=10");
    CHECK(strcmp(steerage_notes(run), "") == 0 && steerage_queues(run) == 0 && steerage_cpus(run) == 0);
    CHECK(steerage_set(run, "speed", "1") == STEERAGE_E_ARGUMENT && strstr(steerage_last_error(), "virtual-cpus"));
    CHECK(steerage_set(run, "policy", "rss") == STEERAGE_E_ARGUMENT && steerage_set(run, NULL, "1") == STEERAGE_E_ARGUMENT);
    CHECK(steerage_set(run, "backlog", "0") == STEERAGE_E_ARGUMENT && steerage_set(run, "outer", "no") == STEERAGE_E_ARGUMENT);
    CHECK(steerage_join(run) == STEERAGE_E_STATE && steerage_wait(run, 0) == STEERAGE_E_STATE);
    steerage_ledger ledger;
    CHECK(steerage_read_ledger(run, &ledger, sizeof ledger) == STEERAGE_E_STATE);
    CHECK(steerage_set_rps_cpus(run, "0") == STEERAGE_E_STATE);
    steerage_functions functions = FUNCTIONS;
    functions.batch = NULL;
    CHECK(steerage_start(run, &functions) == STEERAGE_E_ARGUMENT && steerage_start(run, NULL) == STEERAGE_E_ARGUMENT);
    /* A run that cannot start says so again when it is joined. */
    CHECK(steerage_set(run, "virtual-cpus", "2") == 0 && steerage_set(run, "rps-cpus-list", "0-5") == 0);
    CHECK(steerage_start(run, &FUNCTIONS) == STEERAGE_E_ARGUMENT && steerage_join(run) == STEERAGE_E_ARGUMENT);
    CHECK(steerage_read_ledger(NULL, &ledger, sizeof ledger) == STEERAGE_E_ARGUMENT);
    steerage_free(run);
    CHECK(!steerage_next(NULL) && !steerage_flow_of(NULL) && !steerage_state(NULL) && steerage_batch_len(NULL) == 0);
    steerage_stop(NULL);
    for (int status = -9; status <= 1; status++)
        for (int other = -9; other < status && other < 0; other++)
            CHECK(strcmp(steerage_strerror(status), steerage_strerror(other)) != 0);
}

/* A capture that ends in the middle of a packet. */
static void a_broken_capture(const char *path) {
    steerage *run = opened(path);
    struct program program = {0};
    steerage_functions functions = {.size = sizeof functions, .shared = &program, .batch = NULL};
    functions.batch = FUNCTIONS.batch;
    functions.cpu_begins = FUNCTIONS.cpu_begins, functions.cpu_ends = FUNCTIONS.cpu_ends;
    functions.state_made = FUNCTIONS.state_made, functions.state_dropped = FUNCTIONS.state_dropped;
    CHECK(steerage_set(run, "virtual-cpus", "1") == 0);
    CHECK(steerage_run(run, &functions) == STEERAGE_E_READ && strstr(steerage_last_error(), path));
    steerage_free(run);
}

static void *silent(void *unused) {
    CHECK(strcmp(steerage_last_error(), "") == 0);
    return unused;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    CHECK(steerage_abi_version() == STEERAGE_ABI && strcmp(steerage_version(), VERSION) == 0);
    CHECK(strcmp(steerage_last_error(), "") == 0);
    errors();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, silent, NULL) == 0 && pthread_join(thread, NULL) == 0);
    structs_may_grow();
    a_broken_capture(argv[1]);
    free_ends_a_run();
    a_callback_stops_the_run();
    states_move();
    return 0;
}
