/* What the load generator and the user-space aggregator of these benchmarks share. */
#ifndef SUMWIRE_LOAD_H
#define SUMWIRE_LOAD_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../../bpf/frame.h"

enum { BATCH = 64, PACKET = SW_HEADER + SW_BODY_9000 };

/* 4-bit indices, lanes of 8 bits: the lattice of the THC paper, whose lanes hold 8 workers; finer ones do not fit 16.
 */
static inline uint8_t lattice_value(unsigned index, unsigned workers) {
  static const uint8_t published[16] = {0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30};
  return workers <= 8 ? published[index] : (uint8_t)index;
}

static inline double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

static inline void fail(const char *what) {
  fprintf(stderr, "switch-load: %s: %s\n", what, strerror(errno));
  exit(1);
}

static inline int datagrams(const char *address, int port) {
  int sock = socket(AF_INET, SOCK_DGRAM, 0), on = 1, room = 32 << 20;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
  if (sock < 0 || inet_pton(AF_INET, address, &at.sin_addr) != 1) fail("socket");
  setsockopt(sock, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
  setsockopt(sock, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room));
  setsockopt(sock, SOL_SOCKET, SO_NO_CHECK, &on, sizeof(on));
  setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(sock, (struct sockaddr *)&at, sizeof(at))) fail("bind");
  return sock;
}

int worker_main(int argc, char **argv);
int server_main(int argc, char **argv);

#endif
