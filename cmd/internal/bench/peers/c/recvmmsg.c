// The peer in C: recvmmsg(2), 64 at a time, with the kernel's stamp, drop count
// and the sender's address of each datagram.
//
//   recvmmsg GROUP PORT BUFFER
//
// Joins GROUP on the loopback interface and prints "ready". For each line on
// stdin it reads up to a datagram that begins with 'E', and prints: received,
// CPU seconds.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

enum { BATCH = 64, SIZE = 2048 };

static void die(const char *what) {
	perror(what);
	exit(1);
}

static double cpu(void) {
	struct rusage r;
	getrusage(RUSAGE_SELF, &r);
	return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
}

static char buf[BATCH][SIZE];
static _Alignas(8) char ctl[BATCH][128];
static struct mmsghdr msg[BATCH];
static struct iovec iov[BATCH];
static struct sockaddr_in name[BATCH];

int main(int argc, char **argv) {
	if (argc != 4) return 2;
	int fd = socket(AF_INET, SOCK_DGRAM, 0), on = 1, want = atoi(argv[3]);
	if (fd < 0) die("socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &want, sizeof want)) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &want, sizeof want);
	if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on)) die("SO_TIMESTAMPNS");
	if (setsockopt(fd, SOL_SOCKET, SO_RXQ_OVFL, &on, sizeof on)) die("SO_RXQ_OVFL");
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
	inet_pton(AF_INET, argv[1], &at.sin_addr);
	if (bind(fd, (struct sockaddr *)&at, sizeof at)) die("bind");
	struct ip_mreq m = {.imr_multiaddr = at.sin_addr, .imr_interface.s_addr = htonl(INADDR_LOOPBACK)};
	if (setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &m, sizeof m)) die("join");
	puts("ready");
	fflush(stdout);
	unsigned long bytes = 0, drops = 0;
	while (getchar() != EOF) {
		unsigned long got = 0;
		double began = cpu();
		for (int end = 0; !end;) {
			for (int i = 0; i < BATCH; i++) {
				iov[i] = (struct iovec){buf[i], SIZE};
				msg[i].msg_hdr = (struct msghdr){.msg_name = &name[i], .msg_namelen = sizeof name[i], .msg_iov = &iov[i], .msg_iovlen = 1, .msg_control = ctl[i], .msg_controllen = sizeof ctl[i]};
			}
			int n = recvmmsg(fd, msg, BATCH, MSG_WAITFORONE, NULL);
			if (n < 0) die("recvmmsg");
			got += n;
			for (int i = 0; i < n; i++) {
				struct timespec stamp = {0};
				for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg[i].msg_hdr); c; c = CMSG_NXTHDR(&msg[i].msg_hdr, c)) {
					if (c->cmsg_level != SOL_SOCKET) continue;
					if (c->cmsg_type == SCM_TIMESTAMPNS) memcpy(&stamp, CMSG_DATA(c), sizeof stamp);
					if (c->cmsg_type == SO_RXQ_OVFL) memcpy(&drops, CMSG_DATA(c), 4);
				}
				bytes += msg[i].msg_len + (stamp.tv_nsec & 1);
				end |= buf[i][0] == 'E';
			}
		}
		printf("%lu %.6f\n", got, cpu() - began);
		fflush(stdout);
	}
	return bytes == 0;
}
