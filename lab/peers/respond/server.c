// A server of requests by the kernel's sockets, for measuring beside `steerage respond`: one thread, one epoll, a response of
// RESP bytes for each REQ bytes. server PORT REQ RESP
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 512, FILES = 65536, MESSAGE_MAX = 1 << 16 };

static int lacks[FILES];
static char bytes[MESSAGE_MAX];

static void die(const char *what) {
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 4) return fprintf(stderr, "server PORT REQ RESP\n"), 2;
    int request = atoi(argv[2]), response = atoi(argv[3]), one = 1;
    if (request < 1 || response < 0 || request > MESSAGE_MAX || response > MESSAGE_MAX) return 2;
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){FILES, FILES});
    int listener = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0), poll = epoll_create1(0);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(atoi(argv[1]))};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, 4096)) die("listen");
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &(struct epoll_event){EPOLLIN, {.fd = listener}});
    for (struct epoll_event events[EVENTS];;) {
        int ready = epoll_wait(poll, events, EVENTS, -1);
        for (int nth = 0; nth < ready; nth++) {
            int fd = events[nth].data.fd;
            if (fd == listener) {
                int stream = accept4(listener, NULL, NULL, 0);
                if (stream < 0) continue;
                if (stream >= FILES) { close(stream); continue; }
                setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                lacks[stream] = request;
                epoll_ctl(poll, EPOLL_CTL_ADD, stream, &(struct epoll_event){EPOLLIN, {.fd = stream}});
                continue;
            }
            ssize_t got = recv(fd, bytes, lacks[fd], MSG_DONTWAIT);
            if (got <= 0) {
                if (got == 0 || errno != EAGAIN) close(fd);
                continue;
            }
            if ((lacks[fd] -= got) == 0) {
                lacks[fd] = request;
                if (send(fd, bytes, response, MSG_NOSIGNAL) < 0) close(fd);
            }
        }
    }
}
