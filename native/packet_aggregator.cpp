/* An aggregator that is a process on UDP. It decides as bpf/parse.h and bpf/slot.h do; workers cannot tell which of the
 * two they talk to. One thread calls it, so slots need no locks. */
#include <map>
#include <memory>
#include <poll.h>
#include <vector>

#include "packets.h"

#include "packet_merge.h"
#include "packet_socket.h"

using namespace sumwire::packets;

namespace {

struct Peer {
  uint32_t address = 0;
  uint16_t port = 0; /* host order; 0 before HELLO */
};

struct Job {
  sw_job options{};
  std::vector<sw_slot> slots;
  std::unique_ptr<sw_table> tables[SW_MAX_TABLES];
  Peer peers[SW_MAX_WORKERS];
  uint64_t counters[SW_MAX_WORKERS][SW_COUNTERS] = {};
};

} // namespace

struct sw_aggregator {
  int fd;
  Outbox out;
  std::unique_ptr<Inbox> in = std::make_unique<Inbox>();
  std::map<uint16_t, Job> jobs;
  uint64_t refusals[SW_REFUSALS] = {};
  int received = 0, handled = 0;
  bool unsent_results = false; /* the outbox refers to slots, which must not change before it is empty */

  explicit sw_aggregator(int descriptor) : fd(descriptor), out(descriptor) {}

  void flush() {
    out.flush();
    unsent_results = false;
  }

  /* Whether the caller answers it: a control packet, or one of a worker that is not merged. */
  bool take(const Inbox::Packet &p);
  void apply(Job &job, const sw_header &h, const uint8_t *body, const sw_table *table);
  void reply(Job &job, sw_header answer, uint8_t kind, const sw_slot *slot, bool everyone);

  bool refuse(sw_refusal reason) {
    refusals[reason]++;
    return false;
  }

  /* A worker of the job is told, as by BPF, where such packets pass on to whoever answers control packets. */
  bool refuse_worker(sw_refusal reason) {
    refusals[reason]++;
    return true;
  }
};

bool sw_aggregator::take(const Inbox::Packet &p) {
  if (p.length < SW_HEADER || p.header->magic != SW_MAGIC) return refuse(SW_FOREIGN);
  const sw_header &h = *p.header;
  if (h.version != SW_VERSION) return refuse(SW_WRONG_VERSION);
  auto found = jobs.find(h.job);
  if (found == jobs.end() || !found->second.options.session) return refuse(SW_UNKNOWN_JOB);
  Job &job = found->second;
  const sw_job &options = job.options;
  if (h.key != options.key) return refuse(SW_WRONG_KEY);
  if (h.worker >= options.workers) return refuse(SW_WRONG_PEER);
  Peer &peer = job.peers[h.worker];
  if (peer.address != p.from.sin_addr.s_addr) return refuse(SW_WRONG_PEER);
  if (p.length < SW_HEADER + uint32_t(h.length)) return refuse(SW_MALFORMED);
  if (h.kind == SW_HELLO || h.kind == SW_TABLE) {
    if (h.kind == SW_HELLO) peer.port = ntohs(p.from.sin_port);
    refusals[SW_CONTROL]++;
    return true;
  }
  if (peer.port != ntohs(p.from.sin_port)) return refuse_worker(SW_WRONG_PEER);
  bool known = h.kind == SW_MERGE || h.kind == SW_POLL;
  if (!known || h.channel >= options.channels || h.reserved || !h.count || h.members)
    return refuse_worker(SW_MALFORMED);
  if (h.count > options.headroom) return refuse_worker(SW_OVERFLOWS);
  uint64_t *counters = job.counters[h.worker];
  if (h.session != options.session) {
    sw_header answer = h;
    answer.session = options.session;
    counters[SW_STALES]++;
    reply(job, answer, SW_STALE, nullptr, false);
    return false;
  }
  const sw_table *table = nullptr;
  uint32_t bytes = 8, words = 1;
  if (h.op == SW_LOOKUP) {
    if (h.table >= SW_MAX_TABLES || !(table = job.tables[h.table].get())) return refuse_worker(SW_MALFORMED);
    bytes = table->bytes, words = table->words;
  } else if (h.op < SW_ADD8 || h.op > SW_OR) {
    return refuse_worker(SW_MALFORMED);
  }
  const bool fits = h.kind == SW_POLL ? !h.length : h.result / 8u * bytes == h.length * words;
  if (!fits || !h.result || h.result % SW_GRAIN) return refuse_worker(SW_MALFORMED);
  if (h.result > options.body) return refuse_worker(SW_OVERSIZED);
  counters[SW_BYTES_IN] += p.length;
  if (h.kind == SW_POLL) counters[SW_POLLS]++;
  apply(job, h, p.body, table);
  return false;
}

void sw_aggregator::apply(Job &job, const sw_header &h, const uint8_t *body, const sw_table *table) {
  const sw_job &options = job.options;
  uint64_t *counters = job.counters[h.worker];
  sw_slot &s = job.slots[h.channel * options.slots + (h.chunk & (options.slots - 1))];
  const uint64_t bit = uint64_t{1} << h.worker, now = now_ns();
  const int32_t later = s.begun && s.session == h.session ? int32_t(h.chunk - s.chunk) : 1;
  const uint8_t lane = table ? table->lane : 0, per_word = table ? table->per_word : 0;
  sw_header answer = h;
  if (later < 0) {
    answer.tag = s.chunk;
    counters[SW_EXPIRIES]++;
    return reply(job, answer, SW_EXPIRED, nullptr, false);
  }
  if (later > 0) {
    if (h.kind == SW_POLL) return reply(job, answer, SW_WAITING, nullptr, false);
    if (unsent_results) flush();
    s.session = h.session, s.chunk = h.chunk, s.tag = h.tag, s.op = h.op, s.lane = lane, s.result = h.result;
    s.per_word = per_word;
    s.members = 0, s.count = 0, s.arrived = 0, s.complete = 0, s.begun = now;
  } else if (s.tag != h.tag || s.op != h.op || s.result != h.result || s.lane != lane || s.per_word != per_word) {
    answer.tag = s.tag, answer.op = s.op, answer.result = s.result;
    counters[SW_MISMATCHES]++;
    return reply(job, answer, SW_MISMATCH, &s, false);
  }
  if (s.complete) {
    counters[s.members & bit ? SW_DUPLICATES : SW_LATE]++;
    return reply(job, answer, SW_RESULT, &s, false);
  }
  const bool added = h.kind == SW_MERGE && !(s.members & bit);
  if (added) {
    if (uint32_t(s.count) + h.count > options.headroom) {
      refusals[SW_OVERFLOWS]++;
      return reply(job, answer, SW_MISMATCH, &s, false);
    }
    merge(s, h.op, table, body, !s.arrived);
    s.members |= bit;
    s.count = uint16_t(s.count + h.count);
    s.arrived++;
    counters[SW_MERGED]++;
    counters[SW_LANES] += s.result / 8u * per_word;
  } else if (h.kind == SW_MERGE) {
    counters[SW_DUPLICATES]++;
  }
  const bool due = options.deadline && now - s.begun >= options.deadline;
  if (s.arrived < options.quorum && !due) {
    if (!added) reply(job, answer, SW_WAITING, &s, false);
    return;
  }
  s.complete = 1;
  counters[SW_COMPLETED]++;
  if (s.arrived < options.quorum) counters[SW_DEADLINES]++;
  reply(job, answer, SW_RESULT, &s, true);
}

void sw_aggregator::reply(Job &job, sw_header answer, uint8_t kind, const sw_slot *slot, bool everyone) {
  const bool result = kind == SW_RESULT;
  const uint8_t sender = answer.worker;
  answer.kind = kind;
  answer.table = 0;
  answer.key = job.options.reply_key;
  answer.length = result ? slot->result : uint16_t{0};
  answer.members = slot ? slot->members : 0;
  answer.count = slot ? slot->count : uint16_t{0};
  answer.worker = everyone ? uint8_t{SW_EVERYONE} : sender;
  unsent_results |= result;
  for (uint8_t worker = everyone ? 0 : sender; worker < (everyone ? job.options.workers : sender + 1); worker++) {
    const Peer &peer = job.peers[worker];
    if (!peer.port) continue; /* it has not come yet */
    out.put(answer, slot ? slot->sum : nullptr, answer.length, 0, address_of(peer.address, peer.port));
    job.counters[worker][SW_BYTES_OUT] += SW_HEADER + uint64_t(answer.length);
  }
}

sw_aggregator *sw_aggregator_open(uint32_t address, uint16_t port) {
  int fd = open_socket(address, port);
  return fd < 0 ? nullptr : new sw_aggregator(fd);
}

void sw_aggregator_close(sw_aggregator *a) {
  close(a->fd);
  delete a;
}

int32_t sw_aggregator_port(sw_aggregator *a) {
  sockaddr_in where{};
  socklen_t size = sizeof where;
  if (getsockname(a->fd, reinterpret_cast<sockaddr *>(&where), &size)) return -errno;
  return ntohs(where.sin_port);
}

void sw_aggregator_begin(sw_aggregator *a, uint16_t number, const sw_job *options) {
  Job &job = a->jobs[number];
  job.options = *options;
  if (job.slots.empty()) job.slots.resize(size_t{options->slots} * options->channels);
  for (auto &table : job.tables) table.reset();
}

void sw_aggregator_peer(sw_aggregator *a, uint16_t number, uint32_t worker, uint32_t address) {
  a->jobs[number].peers[worker].address = address;
}

void sw_aggregator_table(sw_aggregator *a, uint16_t number, uint32_t table, const sw_table *values) {
  a->jobs[number].tables[table] = std::make_unique<sw_table>(*values);
}

int32_t sw_aggregator_serve(sw_aggregator *a, uint32_t milliseconds, uint8_t *out, uint32_t room, sw_sender *from) {
  const uint64_t end = now_ns() + uint64_t{milliseconds} * 1000000;
  for (;;) {
    while (a->handled < a->received) {
      const Inbox::Packet p = (*a->in)[a->handled++];
      if (!a->take(p) || p.length > room) continue;
      a->flush();
      std::memcpy(out, p.header, p.length);
      *from = {p.from.sin_addr.s_addr, ntohs(p.from.sin_port), 0};
      return int32_t(p.length);
    }
    a->flush();
    a->handled = 0;
    a->received = a->in->receive(a->fd);
    if (a->received < 0) {
      a->received = 0;
      return -errno;
    }
    if (a->received) continue;
    const uint64_t now = now_ns();
    if (now >= end) return 0;
    pollfd waiting{a->fd, POLLIN, 0};
    if (poll(&waiting, 1, int((end - now) / 1000000) + 1) < 0 && errno != EINTR) return -errno;
  }
}

int32_t sw_aggregator_reply(sw_aggregator *a, const uint8_t *packet, uint32_t length, const sw_sender *to) {
  sockaddr_in where = address_of(to->address, to->port);
  ssize_t sent = sendto(a->fd, packet, length, 0, reinterpret_cast<sockaddr *>(&where), sizeof where);
  return sent < 0 ? -errno : 0;
}

void sw_aggregator_counters(sw_aggregator *a, uint16_t number, uint64_t *out) {
  std::memcpy(out, a->jobs[number].counters, sizeof a->jobs[number].counters);
}

void sw_aggregator_refusals(sw_aggregator *a, uint64_t out[SW_REFUSALS]) {
  std::memcpy(out, a->refusals, sizeof a->refusals);
}
