/* Datagrams as a tunnel sends and receives them.
     udp send ADDRESS PORT plain|offload SECONDS BYTES     64 datagrams in a call: by sendmmsg, or merged by UDP_SEGMENT
     udp receive PORT plain|offload                        until 1 s is over without one: by recvmmsg, or merged by UDP_GRO
   The receiver says "ready", and at the end how many datagrams and bytes came in how many seconds. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

enum { BATCH = 64, LONGEST = 65536 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static int fail(const char *what) {
    perror(what);
    return 1;
}

static int send_all(char **argv) {
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[3])) };
    int fd = socket(AF_INET, SOCK_DGRAM, 0), offload = !strcmp(argv[4], "offload"), bytes = atoi(argv[6]);
    if (fd < 0 || inet_pton(AF_INET, argv[2], &to.sin_addr) != 1 || connect(fd, (void *)&to, sizeof to)) return fail("socket");
    static char payload[LONGEST];
    int merged = LONGEST / bytes < BATCH ? LONGEST / bytes - 1 : BATCH - 1;
    if (offload && setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &bytes, sizeof bytes)) return fail("UDP_SEGMENT");
    struct iovec io = { payload, offload ? bytes * merged : bytes };
    struct mmsghdr messages[BATCH] = { 0 };
    for (int nth = 0; nth < BATCH; nth++) messages[nth].msg_hdr = (struct msghdr){ .msg_iov = &io, .msg_iovlen = 1 };
    uint64_t sent = 0;
    double start = now(), seconds = atof(argv[5]);
    while (now() - start < seconds) {
        int count = sendmmsg(fd, messages, offload ? 1 : BATCH, 0);
        if (count > 0) sent += (uint64_t)count * (offload ? merged : 1);
        else if (errno != EAGAIN && errno != ENOBUFS && errno != ECONNREFUSED) return fail("sendmmsg");
    }
    double took = now() - start;
    printf("sent %lu datagrams in %.3f s: %.2f Gbit/s\n", sent, took, sent * bytes * 8 / took / 1e9);
    return 0;
}

static int receive_all(char **argv) {
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[2])) };
    int fd = socket(AF_INET, SOCK_DGRAM, 0), one = 1, offload = !strcmp(argv[3], "offload"), room = 32 << 20;
    if (fd < 0 || bind(fd, (void *)&at, sizeof at)) return fail("socket");
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    if (offload && setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof one)) return fail("UDP_GRO");
    struct timeval quiet = { 1, 0 };
    static char room_for[BATCH][LONGEST], control[BATCH][64];
    struct iovec io[BATCH];
    struct mmsghdr messages[BATCH];
    puts("ready");
    fflush(stdout);
    uint64_t received = 0, bytes = 0;
    double start = 0, end = 0;
    for (;;) {
        for (int nth = 0; nth < BATCH; nth++) {
            io[nth] = (struct iovec){ room_for[nth], LONGEST };
            messages[nth].msg_hdr = (struct msghdr){ .msg_iov = &io[nth], .msg_iovlen = 1, .msg_control = control[nth],
                                                     .msg_controllen = sizeof control[nth] };
        }
        int count = recvmmsg(fd, messages, BATCH, MSG_WAITFORONE, 0);
        if (count < 0) break;
        end = now();
        if (!start) {
            start = end;
            if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &quiet, sizeof quiet)) return fail("SO_RCVTIMEO");
        }
        for (int nth = 0; nth < count; nth++) {
            int segment = messages[nth].msg_len;
            struct msghdr *told = &messages[nth].msg_hdr;
            for (struct cmsghdr *one = CMSG_FIRSTHDR(told); one; one = CMSG_NXTHDR(told, one))
                if (one->cmsg_level == IPPROTO_UDP && one->cmsg_type == UDP_GRO) memcpy(&segment, CMSG_DATA(one), sizeof segment);
            received += segment ? (messages[nth].msg_len + segment - 1) / segment : 1;
            bytes += messages[nth].msg_len;
        }
    }
    double took = end - start;
    printf("received %lu datagrams, %lu bytes in %.3f s: %.2f Gbit/s\n", received, bytes, took, took > 0 ? bytes * 8 / took / 1e9 : 0);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 7 && !strcmp(argv[1], "send")) return send_all(argv);
    if (argc == 4 && !strcmp(argv[1], "receive")) return receive_all(argv);
    return fputs("usage: udp send ADDRESS PORT plain|offload SECONDS BYTES, or udp receive PORT plain|offload\n", stderr), 2;
}
