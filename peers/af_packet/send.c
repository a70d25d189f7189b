// Sends COUNT frames of 64 bytes (60 and the checksum that a wire would add) of FLOWS UDP flows by INTERFACE, BATCH to a
// system call, at RATE frames a second if one is given.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { BATCH = 64, BYTES = 60 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: %s INTERFACE COUNT FLOWS [RATE]\n", argv[0]);
        return 2;
    }
    long count = atol(argv[2]), flows = atol(argv[3]);
    double rate = argc > 4 ? atof(argv[4]) : 0;
    int fd = socket(AF_PACKET, SOCK_RAW, 0);
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = if_nametoindex(argv[1])};
    if (fd < 0 || bind(fd, (struct sockaddr *)&to, sizeof to) < 0) {
        perror(argv[1]);
        return 1;
    }
    static unsigned char frames[BATCH][BYTES];
    struct mmsghdr messages[BATCH] = {0};
    struct iovec at[BATCH];
    for (int i = 0; i < BATCH; i++) {
        unsigned char *f = frames[i];
        memcpy(f, "\2\0\0\0\0\1\2\0\0\0\0\2\x08\0\x45\0\0\x2e\0\0\0\0\x40\x11\0\0\x0a\xd1\0\2\x0a\xd1\0\1", 34);
        f[36] = 0, f[37] = 9, f[39] = 26;
        at[i] = (struct iovec){f, BYTES};
        messages[i].msg_hdr.msg_iov = &at[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    double start = now();
    unsigned flow = 0;
    for (long sent = 0; sent < count;) {
        int batch = count - sent < BATCH ? count - sent : BATCH;
        for (int i = 0; i < batch; i++, flow = flow + 1 == flows ? 0 : flow + 1) {
            // The source's lower bytes and its port.
            unsigned mixed = flow * 2654435761u;
            memcpy(&frames[i][28], &mixed, 2);
            memcpy(&frames[i][34], (char *)&mixed + 2, 2);
        }
        int done = sendmmsg(fd, messages, batch, 0);
        if (done > 0)
            sent += done;
        while (rate > 0 && sent > (now() - start) * rate) {
            struct timespec pause = {0, 50000};
            nanosleep(&pause, 0);
        }
    }
    printf("sent %ld in %.3f s: %.3f Mpps\n", count, now() - start, count / (now() - start) / 1e6);
}
