/* The rival: an aggregator in user space that does the same work, by recvmmsg and sendmmsg, on one thread. */
#include "load.h"

enum { SLOTS = SW_MAX_SLOTS };

static struct sw_slot *slots;
static struct sockaddr_in peers[SW_MAX_WORKERS];
static int known[SW_MAX_WORKERS], workers, broadcast;
static uint16_t spread[256];
static uint8_t in[BATCH][PACKET], replies[BATCH][PACKET];
static struct mmsghdr sending[BATCH * SW_MAX_WORKERS];
static struct iovec parts[BATCH * SW_MAX_WORKERS];
static struct sockaddr_in everyone;

static void introduce(int sock, const struct sw_header *asked, const struct sockaddr_in *from) {
  uint8_t packet[1024];
  struct sw_header header = *asked;
  char *text = (char *)packet + SW_HEADER;
  int at = 0;
  peers[asked->worker] = *from;
  known[asked->worker] = 1;
  if (asked->kind == SW_TABLE) {
    at = sprintf(text, "{\"table\":0}");
  } else {
    at = sprintf(text, "{\"session\":1,\"joined\":[");
    for (int w = 0, first = 1; w < workers; w++)
      if (known[w]) at += sprintf(text + at, "%s%d", first ? "" : ",", w), first = 0;
    at += sprintf(text + at, "]}");
  }
  header.kind = SW_WELCOME;
  header.session = 1;
  header.length = at;
  memcpy(packet, &header, SW_HEADER);
  sendto(sock, packet, SW_HEADER + at, 0, (const struct sockaddr *)from, sizeof(*from));
}

/* Whether the chunk has a reply now: to all (2), to the sender (1), or none. */
static int merge(const struct sw_header *h, const uint8_t *body) {
  struct sw_slot *s = &slots[h->chunk % SLOTS];
  uint64_t bit = 1ULL << h->worker;
  if (!s->begun || (int32_t)(h->chunk - s->chunk) > 0) {
    memset(s->sum, 0, h->result);
    s->begun = 1;
    s->chunk = h->chunk;
    s->tag = h->tag;
    s->members = 0;
    s->count = s->complete = 0;
  }
  if (h->chunk != s->chunk || h->tag != s->tag) return 0;
  if (s->complete) return 1;
  if (s->members & bit) return 0;
  uint64_t *sum = s->sum;
  for (int i = 0; i < h->result / 8; i++, body += 4)
    sum[i] += spread[body[0]] | (uint64_t)spread[body[1]] << 16 | (uint64_t)spread[body[2]] << 32 |
              (uint64_t)spread[body[3]] << 48;
  s->members |= bit;
  s->count += h->count;
  if (s->count < workers) return 0;
  s->complete = 1;
  return 2;
}

static void add_reply(int *n, uint8_t *packet, int size, struct sockaddr_in *to) {
  parts[*n] = (struct iovec){packet, size};
  sending[*n].msg_hdr =
      (struct msghdr){.msg_name = to, .msg_namelen = sizeof(*to), .msg_iov = &parts[*n], .msg_iovlen = 1};
  ++*n;
}

static int answer(uint8_t *packet, struct sw_header h, int to, int *n) {
  const struct sw_slot *s = &slots[h.chunk % SLOTS];
  int worker = h.worker;
  h.kind = SW_RESULT;
  h.length = h.result;
  h.members = s->members;
  h.count = s->count;
  memcpy(packet, &h, SW_HEADER);
  memcpy(packet + SW_HEADER, s->sum, h.result);
  if (to == 1)
    add_reply(n, packet, SW_HEADER + h.result, &peers[worker]);
  else if (broadcast)
    add_reply(n, packet, SW_HEADER + h.result, &everyone);
  else
    for (int w = 0; w < workers; w++) add_reply(n, packet, SW_HEADER + h.result, &peers[w]);
  return 1;
}

/* server ADDRESS WORKERS BROADCAST_ADDRESS: until it is ended; the third may be "-". */
int server_main(int argc, char **argv) {
  struct mmsghdr messages[BATCH] = {0};
  struct iovec received[BATCH];
  struct sockaddr_in from[BATCH];
  int on = 1;
  if (argc != 4) return 2;
  int sock = datagrams(argv[1], SW_PORT);
  workers = atoi(argv[2]);
  broadcast = strcmp(argv[3], "-") != 0;
  setsockopt(sock, SOL_SOCKET, SO_BROADCAST, &on, sizeof(on));
  everyone = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(SW_PORT)};
  if (broadcast) inet_pton(AF_INET, argv[3], &everyone.sin_addr);
  slots = calloc(SLOTS, sizeof(*slots));
  for (int b = 0; b < 256; b++) spread[b] = lattice_value(b & 15, workers) | lattice_value(b >> 4, workers) << 8;
  for (;;) {
    for (int k = 0; k < BATCH; k++) {
      received[k] = (struct iovec){in[k], PACKET};
      messages[k].msg_hdr = (struct msghdr){
          .msg_name = &from[k], .msg_namelen = sizeof(from[k]), .msg_iov = &received[k], .msg_iovlen = 1};
    }
    int got = recvmmsg(sock, messages, BATCH, MSG_WAITFORONE, NULL), n = 0, used = 0;
    for (int k = 0; k < got; k++) {
      struct sw_header h;
      if (messages[k].msg_len < SW_HEADER) continue;
      memcpy(&h, in[k], SW_HEADER);
      if (h.magic != SW_MAGIC || h.worker >= workers) continue;
      if (h.kind != SW_MERGE) {
        introduce(sock, &h, &from[k]);
        continue;
      }
      if (h.result > SW_BODY_9000 || messages[k].msg_len < SW_HEADER + (unsigned)h.length || h.length * 2 != h.result)
        continue;
      int to = merge(&h, in[k] + SW_HEADER);
      if (to) used += answer(replies[used], h, to, &n);
    }
    for (int done = 0; done < n;) {
      int sent = sendmmsg(sock, sending + done, n - done, 0);
      if (sent < 0) fail("sendmmsg");
      done += sent;
    }
  }
}
