// Counts what comes by INTERFACE, by a bare TPACKET_V3 loop on each of THREADS threads that share it by PACKET_FANOUT_HASH,
// until nothing has come for a second. It reads each frame's first bytes, as counting flows would.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BLOCK = 512 << 10, BLOCKS = 64, TIMEOUT_MS = 10 };

static const char *interface;
static int threads;
static struct counted {
    unsigned long frames, bytes, read, drops;
} counted[64];

static int listen_to(int group) {
    int fd = socket(AF_PACKET, SOCK_RAW, 0), version = TPACKET_V3;
    struct tpacket_req3 ring = {.tp_block_size = BLOCK,
                                .tp_block_nr = BLOCKS,
                                .tp_frame_size = 2048,
                                .tp_frame_nr = BLOCK / 2048 * BLOCKS,
                                .tp_retire_blk_tov = TIMEOUT_MS};
    struct sockaddr_ll at = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = if_nametoindex(interface)};
    int fanout = group | PACKET_FANOUT_HASH << 16;
    if (fd < 0 || setsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) ||
        setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring) || bind(fd, (void *)&at, sizeof at) ||
        (threads > 1 && setsockopt(fd, SOL_PACKET, PACKET_FANOUT, &fanout, sizeof fanout))) {
        perror(interface);
        exit(1);
    }
    return fd;
}

static void *count(void *arg) {
    struct counted *mine = arg;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(mine - counted, &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
    int fd = listen_to(getpid() & 0xffff);
    char *ring = mmap(0, (size_t)BLOCK * BLOCKS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (unsigned block = 0;; block = (block + 1) % BLOCKS) {
        struct tpacket_block_desc *desc = (void *)(ring + (size_t)block * BLOCK);
        while (!(__atomic_load_n(&desc->hdr.bh1.block_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER)) {
            struct pollfd wait = {fd, POLLIN, 0};
            if (poll(&wait, 1, mine->frames ? 1000 : 10000) == 0) {
                struct tpacket_stats_v3 stats;
                socklen_t len = sizeof stats;
                getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &stats, &len);
                mine->drops = stats.tp_drops;
                return 0;
            }
        }
        struct tpacket3_hdr *frame = (void *)((char *)desc + desc->hdr.bh1.offset_to_first_pkt);
        for (unsigned n = desc->hdr.bh1.num_pkts; n; n--) {
            mine->frames++;
            mine->bytes += frame->tp_len;
            mine->read += *(unsigned *)((char *)frame + frame->tp_mac + 28);
            frame = (void *)((char *)frame + frame->tp_next_offset);
        }
        __atomic_store_n(&desc->hdr.bh1.block_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: %s INTERFACE THREADS\n", argv[0]);
        return 2;
    }
    interface = argv[1], threads = atoi(argv[2]);
    pthread_t all[64];
    for (int i = 0; i < threads; i++)
        pthread_create(&all[i], 0, count, &counted[i]);
    unsigned long frames = 0, drops = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(all[i], 0);
        frames += counted[i].frames, drops += counted[i].drops;
        printf("thread %d: %lu\n", i, counted[i].frames);
    }
    printf("counted %lu, dropped %lu\n", frames, drops);
}
