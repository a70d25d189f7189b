/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * steerage: receive packet steering in user space. The packets of an interface, of capture files or of a generator go to
 * functions of your program, one for each CPU, flow by flow and in order. https://github.com/steerage/steerage/blob/main/docs/c.md
 *
 * Functions that return `int` return 0 or a positive number, or one of the negative codes of `steerage_status`.
 * Texts are UTF-8. Times are in nanoseconds. Pointers that the library returns belong to the library. */
#ifndef STEERAGE_H
#define STEERAGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the binary interface: the number in the soname, libsteerage.so.0. */
#define STEERAGE_ABI 0

/* A run: its inputs, its CPUs and its ledger. */
typedef struct steerage steerage;

/* The packets of one call of `batch`. Valid until that call returns, on its thread. */
typedef struct steerage_batch steerage_batch;

typedef enum steerage_status {
    STEERAGE_OK = 0,
    STEERAGE_E_ARGUMENT = -1, /* an argument or the text of an option or of an input is wrong */
    STEERAGE_E_DEVICE = -2,   /* an input cannot be opened */
    STEERAGE_E_FILTER = -3,   /* the filter is wrong, or the input takes none */
    STEERAGE_E_BUILD = -4,    /* the CPUs, the memory or the threads do not suffice */
    STEERAGE_E_STATE = -5,    /* the call does not fit the state of the run, such as a second start */
    STEERAGE_E_READ = -6,     /* an input failed before its end */
    STEERAGE_E_STUCK = -7,    /* a function of the program did not return after a stop */
    STEERAGE_E_INTERNAL = -8, /* a bug in the library */
} steerage_status;

/* A packet. Later versions may add fields at the end. */
typedef struct steerage_packet {
    const uint8_t *data; /* the frame from its first header on, until `batch` returns */
    uint32_t len;        /* bytes at `data`: the first part of the frame, which has all headers */
    uint32_t total_len;  /* bytes of all parts; more than `len` for frames in several buffers */
    uint32_t wire_len;   /* bytes on the wire; more than `total_len` if a capture cut the frame */
    uint32_t link;       /* the first header, as in capture files: 1 is Ethernet, 101 is IPv4 or IPv6 */
    uint64_t time_ns;    /* when the frame was received, since 1970; 0 if the input did not record it */
} steerage_packet;

/* The flow of a packet, in the packet's direction. All bytes are defined, so flows can be compared by memcmp. */
typedef struct steerage_flow {
    uint8_t version;           /* 4 or 6 */
    uint8_t protocol;          /* as in the IP header, after all extension headers: 6 is TCP, 17 is UDP */
    uint16_t source_port;      /* in the byte order of this machine; 0 if the protocol has no ports */
    uint16_t destination_port; /* likewise */
    uint8_t source[16];        /* in network byte order; an IPv4 address has 4 bytes, and zeros follow */
    uint8_t destination[16];   /* likewise */
} steerage_flow;

/* The functions of a program. Set `size` and `batch`; each other function may be NULL.
 *
 * The library calls them on its own threads, one for each CPU. Calls with the same `cpu` pointer never overlap. No function may wait, throw
 * a C++ exception, call longjmp, or call steerage_join, steerage_run or steerage_free.
 *
 * A bucket holds the flows whose hashes begin alike. Each bucket can have a state, which the program makes at the first packet of the bucket
 * that asks for it (steerage_state). When the bucket moves to another CPU, its state moves with it. */
typedef struct steerage_functions {
    size_t size;  /* sizeof(steerage_functions) */
    void *shared; /* the first argument of each function */
    /* A CPU begins. Returns the `cpu` pointer of the other functions. */
    void *(*cpu_begins)(void *shared, uint32_t cpu_number);
    /* Up to 64 packets of one queue, in the order in which they arrived. */
    void (*batch)(void *shared, void *cpu, steerage_batch *batch);
    /* A CPU ends. The states of its buckets have been dropped. */
    void (*cpu_ends)(void *shared, void *cpu);
    /* Returns the new state of a bucket, or NULL for none. */
    void *(*state_made)(void *shared, void *cpu, uint32_t bucket);
    /* A state arrives on this CPU, before the first packet of its bucket. */
    void (*state_moved)(void *shared, void *cpu, uint32_t bucket, void *state);
    /* Adds what is in `from` to `into`. `state_dropped` follows for `from`. For queues with different masks that get the same mask. */
    void (*state_merged)(void *shared, void *cpu, void *into, void *from);
    /* Nothing uses this state any more. Called once for each state, at the latest before steerage_free returns. */
    void (*state_dropped)(void *shared, void *state);
} steerage_functions;

/* Counts of packets, unless the name says otherwise. received = delivered + dropped + in_flight. Later versions may add fields at the end. */
typedef struct steerage_ledger {
    uint64_t received;
    uint64_t received_bytes; /* on the wire */
    uint64_t delivered;      /* handled by `batch` */
    uint64_t discarded;      /* those of `delivered` that steerage_discard took */
    uint64_t in_flight;
    uint64_t dropped;               /* the sum of all reasons, which docs/report.md explains */
    uint64_t dropped_device;
    uint64_t dropped_no_page;
    uint64_t dropped_backlog_full;
    uint64_t dropped_flow_limit;
    uint64_t dropped_moving;
    uint64_t dropped_revoked;
    uint64_t dropped_handler_panicked;
    uint64_t dropped_tx_full;
    uint64_t dropped_tx_too_long;
    uint64_t dropped_tx_link_type;
    uint64_t dropped_tx_cut;
    uint64_t dropped_tx_refused;
    uint64_t dropped_tx_lost;
    uint64_t buckets_moved; /* moves of buckets between CPUs; 0 in the ledger of a queue */
} steerage_ledger;

/* Counts of packets of one CPU. Later versions may add fields at the end. */
typedef struct steerage_cpu_ledger {
    uint64_t cpu;       /* the number of the CPU */
    uint64_t polled;    /* received by this CPU */
    uint64_t handed_in; /* taken from other CPUs */
    uint64_t processed; /* passed to `batch` */
    uint64_t dropped;   /* because this CPU did not keep up */
    uint64_t backlog;   /* waiting now */
    uint64_t busy_ns;   /* the time of rounds with work */
} steerage_cpu_ledger;

/* The version of the library's binary interface. It is STEERAGE_ABI if the header and the library fit. */
uint32_t steerage_abi_version(void);
/* The version of the library, such as "0.1.0". */
const char *steerage_version(void);
/* The meaning of a status, such as "an input cannot be opened". Never NULL. */
const char *steerage_strerror(int status);
/* One line about the last call on this thread that failed: what was tried, on what, and what to do. Valid until the next failure on this
 * thread. "" if no call has failed. */
const char *steerage_last_error(void);

/* Opens `count` inputs, which are written as for the program: the name of an interface, af_packet:NAME,option=value, af_xdp:NAME, tap:NAME,
 * udp:ADDR:PORT, synthetic:option=value, or the path of a capture. Capture files are one input. `filter` is a filter in tcpdump's language, or
 * NULL. The run is stored in `*run`. */
int steerage_open(steerage **run, const char *const *inputs, size_t count, const char *filter);
/* Hints about the inputs, a line each. "" if there are none. */
const char *steerage_notes(const steerage *run);
/* Sets an option before the start, as the program's option of that name: "cpus", "rps-cpus", "rps-cpus-list", "policy", "virtual-cpus",
 * "backlog", "packets", and "outer" with the value "yes". */
int steerage_set(steerage *run, const char *option, const char *value);
/* Starts the run. The functions are copied. */
int steerage_start(steerage *run, const steerage_functions *functions);
/* Waits until all inputs have ended and all packets are handled, for at most `timeout_ms` milliseconds, or without a limit if it is negative.
 * Returns 1 if so, and else 0. */
int steerage_wait(steerage *run, int64_t timeout_ms);
/* Waits for the end of the run and of its threads. */
int steerage_join(steerage *run);
/* steerage_start and steerage_join. */
int steerage_run(steerage *run, const steerage_functions *functions);
/* Ends receiving. Packets in flight are still handled, for at most 2 s. Before the start, it lets the run end as soon as it starts. From any
 * thread, from `batch`, and from a signal handler. */
void steerage_stop(steerage *run);
/* Stops the run, waits for its end and releases it. `run` may be NULL. */
void steerage_free(steerage *run);

/* Spreads the packets of all queues over these CPUs from now on, a list such as "0-3,8". No packet is reordered. With "", each packet stays on
 * the CPU that receives it. From any thread while the run is on. */
int steerage_set_rps_cpus(steerage *run, const char *list);
/* The same for one queue. Queues are numbered from 0 over all inputs. */
int steerage_set_queue_rps_cpus(steerage *run, uint32_t queue, const char *list);
/* Waits until no bucket is moving, for at most `timeout_ms` milliseconds. Returns 1 if so, and else 0. */
int steerage_wait_settled(steerage *run, int64_t timeout_ms);

/* The number of receive queues and of CPUs. 0 before the start. */
uint32_t steerage_queues(const steerage *run);
uint32_t steerage_cpus(const steerage *run);
/* Reads the ledger, from any thread, during the run and after it. `size` is sizeof(*ledger). Fields that the library does not have are 0. */
int steerage_read_ledger(const steerage *run, steerage_ledger *ledger, size_t size);
/* The ledger of one queue. */
int steerage_read_queue(const steerage *run, uint32_t queue, steerage_ledger *ledger, size_t size);
/* The ledger of one CPU. `nth` counts the CPUs of the run from 0. */
int steerage_read_cpu(const steerage *run, uint32_t nth, steerage_cpu_ledger *ledger, size_t size);

/* The number of packets in the batch. */
uint32_t steerage_batch_len(const steerage_batch *batch);
/* The receive queue of the batch. */
uint32_t steerage_batch_queue(const steerage_batch *batch);
/* The next packet, which becomes the current one. NULL after the last packet. Valid until the next call. */
const steerage_packet *steerage_next(steerage_batch *batch);
/* The flow of the current packet: the innermost one, if the packet is in a tunnel. NULL if the packet has no IP flow. Valid until the next call
 * of steerage_next. */
const steerage_flow *steerage_flow_of(steerage_batch *batch);
/* The bucket of the current packet. Both directions of a flow have the same one. */
uint32_t steerage_bucket(steerage_batch *batch);
/* The state of the current packet's bucket. `state_made` makes it if there is none. */
void *steerage_state(steerage_batch *batch);
/* Copies up to `len` bytes of the current packet to `to`, from byte `offset` of all its parts on. Returns the number of bytes. */
size_t steerage_copy(steerage_batch *batch, size_t offset, void *to, size_t len);
/* Drops the current packet on purpose, which does not count as a loss. There is no current packet until the next call of steerage_next. */
void steerage_discard(steerage_batch *batch);

#ifdef __cplusplus
}
#endif

#endif
