/* A worker that sends chunks of 4-bit indices as fast as the window allows, and checks every lane of every result. */
#include "load.h"

enum { PHASES = 13, LEAST_BATCH = 32, MAX_WINDOW = SW_MAX_SLOTS / 2, MAX_CHUNKS_AHEAD = 4096 };

static struct {
  int sock, rank, workers, window, result, padded;
  long chunks, straggle;
  uint64_t key;
  struct sockaddr_in to;
  uint32_t session;
  uint8_t table;
} own;

static struct {
  long sent, resent, results, wrong, late, expired, waiting, other;
} count;

/* By chunk modulo MAX_CHUNKS_AHEAD. */
static struct {
  double sent;
  int attempts;
  char done;
} chunks[MAX_CHUNKS_AHEAD];

static uint8_t *indices; /* [PHASES][result / 2] of this worker */
static uint8_t *lanes;   /* [workers][PHASES][result] */
static uint8_t out[BATCH][PACKET], in[BATCH][PACKET];

static uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352d;
  x = (x ^ (x >> 15)) * 0x846ca68b;
  return x ^ (x >> 16);
}

static void prepare(void) {
  int body = own.result / 2;
  indices = malloc((size_t)PHASES * body);
  lanes = malloc((size_t)own.workers * PHASES * own.result);
  for (int w = 0; w < own.workers; w++)
    for (int p = 0; p < PHASES; p++)
      for (int i = 0; i < body; i++) {
        uint8_t byte = mixed(mixed(w * PHASES + p) + i);
        uint8_t *lane = lanes + ((size_t)(w * PHASES + p) * own.result + 2 * i);
        lane[0] = lattice_value(byte & 15, own.workers);
        lane[1] = lattice_value(byte >> 4, own.workers);
        if (w == own.rank) indices[(size_t)p * body + i] = byte;
      }
}

/* The first 4 bytes of every body name its chunk, so that no two chunks have the same sums. */
static int is_right(uint32_t chunk, uint64_t members, const uint8_t *found) {
  static uint8_t want[SW_BODY_9000];
  uint32_t stamp = mixed(chunk);
  memset(want, 0, own.result);
  for (int w = 0; w < own.workers; w++) {
    if (!(members >> w & 1)) continue;
    const uint8_t *lane = lanes + (size_t)(w * PHASES + chunk % PHASES) * own.result;
    for (int i = 0; i < own.result; i++) want[i] += lane[i];
  }
  int there = __builtin_popcountll(members);
  for (int i = 0; i < 8; i++) want[i] = there * lattice_value(stamp >> (4 * i) & 15, own.workers);
  return memcmp(want, found, own.result) == 0;
}

static int write_chunk(uint8_t *packet, uint32_t chunk) {
  int body = own.result / 2;
  struct sw_header header = {.magic = SW_MAGIC, .version = SW_VERSION, .kind = SW_MERGE, .op = SW_LOOKUP};
  header.table = own.table;
  header.job = 1;
  header.worker = own.rank;
  header.length = body;
  header.result = own.result;
  header.key = own.key;
  header.session = own.session;
  header.chunk = chunk;
  header.tag = mixed(chunk ^ 0x5eed);
  header.count = 1;
  uint32_t stamp = mixed(chunk);
  memcpy(packet, &header, SW_HEADER);
  memcpy(packet + SW_HEADER, indices + (size_t)(chunk % PHASES) * body, body);
  memcpy(packet + SW_HEADER, &stamp, sizeof(stamp));
  return SW_HEADER + (own.padded ? own.result : body);
}

static void send_chunks(const uint32_t *which, int n) {
  struct mmsghdr messages[BATCH] = {0};
  struct iovec parts[BATCH];
  for (int k = 0; k < n; k++) {
    parts[k] = (struct iovec){out[k], write_chunk(out[k], which[k])};
    messages[k].msg_hdr =
        (struct msghdr){.msg_name = &own.to, .msg_namelen = sizeof(own.to), .msg_iov = &parts[k], .msg_iovlen = 1};
  }
  double now = seconds();
  for (int done = 0; done < n;) {
    int sent = sendmmsg(own.sock, messages + done, n - done, 0);
    if (sent < 0) fail("sendmmsg");
    done += sent;
  }
  for (int k = 0; k < n; k++) chunks[which[k] % MAX_CHUNKS_AHEAD].sent = now;
}

/* A chunk that so many later ones have overtaken is taken for lost after so many seconds. */
enum { OVERTAKEN = 24 };
static const double SOONEST = 0.002;
static uint32_t latest; /* chunk with a result */

/* Smoothed, of chunks that were sent once; a timeout is four times it. */
static double round_trip = 0.005;

static double timeout(void) {
  double four = 4 * round_trip;
  return four < 0.004 ? 0.004 : four > 0.02 ? 0.02 : four;
}

static void take(const uint8_t *packet, int size, uint32_t base, uint32_t next, double now) {
  struct sw_header header;
  if (size < SW_HEADER) return;
  memcpy(&header, packet, SW_HEADER);
  if (header.session != own.session || header.chunk - base >= next - base) return;
  if (header.kind == SW_WAITING) count.waiting++;
  if (header.kind == SW_STALE || header.kind == SW_MISMATCH) count.other++;
  if (header.kind != SW_RESULT && header.kind != SW_EXPIRED) return;
  char *done = &chunks[header.chunk % MAX_CHUNKS_AHEAD].done;
  if (*done) return;
  *done = 1;
  if ((int32_t)(header.chunk - latest) > 0) latest = header.chunk;
  int at = header.chunk % MAX_CHUNKS_AHEAD;
  if (!chunks[at].attempts) round_trip += (now - chunks[at].sent - round_trip) / 8;
  if (header.kind == SW_EXPIRED) {
    count.expired++;
    return;
  }
  count.results++;
  if (!(header.members >> own.rank & 1)) count.late++;
  if (size != SW_HEADER + own.result || header.tag != mixed(header.chunk ^ 0x5eed) ||
      header.count != __builtin_popcountll(header.members) ||
      !is_right(header.chunk, header.members, packet + SW_HEADER))
    count.wrong++;
}

static void receive(uint32_t base, uint32_t next) {
  struct mmsghdr messages[BATCH] = {0};
  struct iovec parts[BATCH];
  for (int k = 0; k < BATCH; k++) {
    parts[k] = (struct iovec){in[k], PACKET};
    messages[k].msg_hdr = (struct msghdr){.msg_iov = &parts[k], .msg_iovlen = 1};
  }
  int got = recvmmsg(own.sock, messages, BATCH, MSG_WAITFORONE, NULL);
  double now = seconds();
  for (int k = 0; k < got; k++) take(in[k], messages[k].msg_len, base, next, now);
}

static void exchange(void) {
  uint32_t base = 0, next = 0, which[BATCH];
  while (base < own.chunks) {
    int n = 0;
    double now = seconds();
    /* In batches, so that a worker is not woken for every packet. */
    int free = own.window - (int)(next - base);
    for (; free >= LEAST_BATCH && n < BATCH && next < own.chunks && next - base < (uint32_t)own.window; next++, n++) {
      chunks[next % MAX_CHUNKS_AHEAD].done = 0;
      chunks[next % MAX_CHUNKS_AHEAD].attempts = 0;
      which[n] = next;
    }
    count.sent += n;
    if (n) {
      if (own.straggle) usleep(own.straggle);
      send_chunks(which, n);
    }
    receive(base, next);
    n = 0;
    for (uint32_t c = base; c < next && n < BATCH; c++) {
      int at = c % MAX_CHUNKS_AHEAD, back_off = chunks[at].attempts < 4 ? chunks[at].attempts : 4;
      double waited = now - chunks[at].sent;
      int overtaken = (int32_t)(latest - c) > OVERTAKEN && waited > SOONEST;
      if (chunks[at].done || (!overtaken && waited < timeout() * (1 << back_off))) continue;
      chunks[at].attempts++;
      which[n++] = c;
    }
    count.resent += n;
    if (n) send_chunks(which, n);
    while (base < next && chunks[base % MAX_CHUNKS_AHEAD].done) base++;
  }
}

/* HELLO until all have joined, then the table: JSON, of which two numbers matter. */
static char *ask(int kind, const char *text, const char *wanted) {
  static char answer[4096];
  uint8_t packet[2048];
  int length = strlen(text);
  struct sw_header header = {.magic = SW_MAGIC, .version = SW_VERSION, .kind = kind, .job = 1};
  header.worker = own.rank;
  header.length = length;
  header.key = own.key;
  header.session = own.session;
  header.members = kind;
  memcpy(packet, &header, SW_HEADER);
  memcpy(packet + SW_HEADER, text, length);
  for (double began = seconds(); seconds() - began < 60;) {
    sendto(own.sock, packet, SW_HEADER + length, 0, (struct sockaddr *)&own.to, sizeof(own.to));
    int got = recv(own.sock, answer, sizeof(answer) - 1, 0);
    if (got <= SW_HEADER) continue;
    memcpy(&header, answer, SW_HEADER);
    answer[got] = 0;
    if (header.kind == SW_WELCOME && header.members == (uint64_t)kind && strstr(answer + SW_HEADER, wanted))
      return strstr(answer + SW_HEADER, wanted);
    if (header.kind == SW_REFUSED && header.members == (uint64_t)kind) {
      fprintf(stderr, "switch-load: %s\n", answer + SW_HEADER);
      exit(1);
    }
    usleep(5000);
  }
  errno = ETIMEDOUT;
  fail("no answer to HELLO");
  return NULL;
}

static void introduce(void) {
  char text[1024], all[64];
  snprintf(text, sizeof(text), "{\"nonce\":%d}", getpid());
  snprintf(all, sizeof(all), "%d],\"workers\":%d", own.workers - 1, own.workers);
  char *session = ask(SW_HELLO, text, "\"session\":");
  own.session = strtoul(session + 10, NULL, 10);
  for (int w = 0; w < own.workers; w++) {
    char joined[32];
    snprintf(joined, sizeof(joined), "%s%d%s", w ? "," : "[", w, w == own.workers - 1 ? "]" : ",");
    ask(SW_HELLO, text, joined);
  }
  int at = snprintf(text, sizeof(text), "{\"name\":\"load\",\"bits\":4,\"lane\":8,\"values\":[");
  for (int i = 0; i < 16; i++)
    at += snprintf(text + at, sizeof(text) - at, "%d%s", lattice_value(i, own.workers), i < 15 ? "," : "]}");
  own.table = strtoul(ask(SW_TABLE, text, "\"table\":") + 8, NULL, 10);
}

/* worker ADDRESS RANK WORKERS CHUNKS WINDOW RESULT PADDED KEY STRAGGLE: results as a line of JSON. */
int worker_main(int argc, char **argv) {
  if (argc != 10) return 2;
  struct timeval patience = {.tv_usec = 2000};
  own.sock = datagrams("0.0.0.0", SW_PORT);
  own.to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(SW_PORT)};
  inet_pton(AF_INET, argv[1], &own.to.sin_addr);
  own.rank = atoi(argv[2]);
  own.workers = atoi(argv[3]);
  own.chunks = atol(argv[4]);
  own.window = atoi(argv[5]);
  own.result = atoi(argv[6]);
  own.padded = atoi(argv[7]);
  own.key = strtoull(argv[8], NULL, 10);
  own.straggle = atol(argv[9]);
  setsockopt(own.sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  prepare();
  introduce();
  double began = seconds();
  exchange();
  printf("{\"seconds\":%.6f,\"chunks\":%ld,\"sent\":%ld,\"resent\":%ld,\"results\":%ld,\"wrong\":%ld,\"late\":%ld,"
         "\"expired\":%ld,\"waiting\":%ld,\"other\":%ld}\n",
         seconds() - began, own.chunks, count.sent, count.resent, count.results, count.wrong, count.late, count.expired,
         count.waiting, count.other);
  return 0;
}
