/* A loop that passes packets between two interfaces, each in a namespace of its own, one thread for each direction: read, write. That is
   the least that a tunnel does.
     bridge tun|packet plain|offload NAMESPACE INTERFACE NAMESPACE INTERFACE
   `tun` makes both interfaces, `packet` takes two that are there. With `offload` each packet has a virtio header, and the kernel leaves
   merged packets whole. It says "ready", runs until SIGTERM, and then says what passed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef TUN_F_USO4
#define TUN_F_USO4 0x20
#define TUN_F_USO6 0x40
#endif

enum { PACKET = 1 << 17 };

static int interfaces[2];
static struct { unsigned long packets, bytes, refused; } passed[2];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void enter(const char *namespace) {
    char path[256];
    snprintf(path, sizeof path, "/run/netns/%s", namespace);
    int fd = open(path, O_RDONLY);
    if (fd < 0 || setns(fd, CLONE_NEWNET)) fail(path);
    close(fd);
}

static int open_packet(const char *name, int offload) {
    int fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL)), one = 1, bytes = 32 << 20;
    if (fd < 0) fail("AF_PACKET");
    if (offload && setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one)) fail("PACKET_VNET_HDR");
    if (setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one)) fail("PACKET_IGNORE_OUTGOING");
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
    struct sockaddr_ll at = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = if_nametoindex(name) };
    struct packet_mreq all = { .mr_ifindex = at.sll_ifindex, .mr_type = PACKET_MR_PROMISC };
    if (bind(fd, (void *)&at, sizeof at) || setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all)) fail(name);
    return fd;
}

static int open_tun(const char *name, int offload) {
    int fd = open("/dev/net/tun", O_RDWR), header = 10;
    struct ifreq request = { .ifr_flags = IFF_TUN | IFF_NO_PI | (offload ? IFF_VNET_HDR : 0) };
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request)) fail(name);
    unsigned tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
    if (offload && ioctl(fd, TUNSETVNETHDRSZ, &header)) fail("TUNSETVNETHDRSZ");
    if (offload && ioctl(fd, TUNSETOFFLOAD, tcp | TUN_F_USO4 | TUN_F_USO6) && ioctl(fd, TUNSETOFFLOAD, tcp)) fail("TUNSETOFFLOAD");
    return fd;
}

static void *pass(void *which) {
    long way = (long)which;
    char *packet = malloc(PACKET);
    if (!packet) fail("memory");
    for (;;) {
        ssize_t bytes = read(interfaces[way], packet, PACKET);
        /* An interface that is not up yet. */
        if (bytes < 0) continue;
        passed[way].packets++;
        passed[way].bytes += bytes;
        if (write(interfaces[!way], packet, bytes) != bytes) passed[way].refused++;
    }
    return 0;
}

static void say(int signal) {
    (void)signal;
    for (int way = 0; way < 2; way++) {
        char line[128];
        int length = snprintf(line, sizeof line, "passed %lu packets, %lu bytes, %lu refused\n", passed[way].packets,
                              passed[way].bytes, passed[way].refused);
        if (write(1, line, length) != length) _exit(1);
    }
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc != 7) return fputs("usage: bridge tun|packet plain|offload NAMESPACE INTERFACE NAMESPACE INTERFACE\n", stderr), 2;
    int offload = !strcmp(argv[2], "offload");
    for (int way = 0; way < 2; way++) {
        enter(argv[3 + 2 * way]);
        interfaces[way] = (strcmp(argv[1], "tun") ? open_packet : open_tun)(argv[4 + 2 * way], offload);
    }
    signal(SIGTERM, say);
    puts("ready");
    fflush(stdout);
    pthread_t threads[2];
    for (long way = 0; way < 2; way++)
        if (pthread_create(&threads[way], 0, pass, (void *)way)) fail("a thread");
    for (;;) pause();
}
