/* A worker's link: one socket, and one thread that sends, receives and keeps the time for all channels. */
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <poll.h>
#include <sys/eventfd.h>
#include <thread>

#include "packets.h"

#include "packet_socket.h"
#include "packet_transfer.h"

using namespace sumwire::packets;

namespace {

constexpr uint64_t CONTROL_PAUSE = 20 * MILLISECOND;
constexpr uint64_t PATIENCE = 4; /* deadlines that a worker without a part waits for others to begin a chunk */
constexpr uint64_t REFUSED_FOR_GOOD = 4 * LONGEST_PAUSE; /* a session that begins refuses packets for a moment only */
constexpr uint64_t PACING_BURST = 2 * MILLISECOND;       /* of sending at the given rate */

struct Control {
  const uint8_t *packet = nullptr;
  uint32_t length = 0;
  uint8_t *out = nullptr;
  uint32_t room = 0, got = 0;
  uint64_t due = 0, pause = CONTROL_PAUSE;
  int32_t error = 0; /* of the last attempt to send it */
};

} // namespace

struct sw_link {
  sw_link_options options;
  int fd, wake;
  Outbox out;
  std::unique_ptr<Inbox> in = std::make_unique<Inbox>();
  std::mutex mutex;
  std::condition_variable changed;
  Transfer transfers[SW_MAX_CHANNELS];
  Control control;
  RoundTrip round_trip;
  Allowance allowance;
  sw_link_counts counts{};
  uint64_t heard = 0;           /* when the aggregator last said anything */
  std::vector<uint8_t> refusal; /* its last answer to this worker's packets, if it does not take these ... */
  uint64_t refused_first = 0, refused_last = 0; /* ... and took none between these times */
  uint64_t paced = 0;                           /* up to when the rate is used up */
  bool stopping = false;
  std::thread thread;

  sw_link(const sw_link_options &given, int socket, int event) : options(given), fd(socket), wake(event), out(socket) {
    thread = std::thread([this] { run(); });
  }

  void run();
  void send_due(uint64_t now);
  void send(Transfer &t, Chunk &c, uint8_t kind, uint64_t now);
  void again(Transfer &t, Chunk &c, uint64_t now);
  void handle(const Inbox::Packet &p, uint64_t now);
  void answer(const sw_header &h, const Inbox::Packet &p, Transfer &t, uint64_t now);
  void give_up(uint64_t now);
  uint64_t next_due(uint64_t now);

  void wake_up() {
    const uint64_t one = 1;
    if (write(wake, &one, sizeof one) < 0) return; /* it is awake */
  }

  uint64_t pause_after(uint32_t tries) const {
    const uint64_t longest = options.deadline_ns ? std::max(options.deadline_ns / 8, MILLISECOND) : LONGEST_PAUSE;
    return std::min(round_trip.timeout() << std::min(tries, 8u), std::min(longest, LONGEST_PAUSE));
  }
};

void sw_link::send(Transfer &t, Chunk &c, uint8_t kind, uint64_t now) {
  const sw_stream &s = t.streams[c.stream];
  const uint32_t place = uint32_t(&c - t.chunks.data());
  sw_header h{};
  h.magic = SW_MAGIC, h.version = SW_VERSION, h.kind = kind, h.op = s.op, h.table = s.table;
  h.job = options.job, h.worker = options.worker, h.channel = uint8_t(&t - transfers);
  h.result = c.result, h.key = options.key, h.session = options.session;
  h.chunk = t.first + place, h.tag = t.tag_of(c), h.count = 1;
  const uint64_t at = t.body_offset(c);
  uint64_t body = 0, padding = 0;
  if (kind == SW_MERGE) {
    const uint64_t whole = t.body_bytes(c);
    h.length = uint16_t(whole);
    body = std::min<uint64_t>(whole, s.body_bytes - at);
    padding = (options.padded ? std::max<uint64_t>(whole, c.result) : whole) - body;
  } else if (options.padded) {
    padding = c.result;
  }
  out.put(h, s.body + at, body, padding, address_of(options.address, options.port));
  const uint64_t bytes = SW_HEADER + body + padding;
  counts.bytes_sent += bytes;
  counts.packets_sent++;
  if (options.rate) paced = std::max(paced, now - PACING_BURST) + bytes * 1000000000 / options.rate;
  c.sent = now;
  c.due = now + pause_after(c.tries);
}

/* No answer in time: ask first, which is short and tells whether it was this worker's packet that got lost. */
void sw_link::again(Transfer &t, Chunk &c, uint64_t now) {
  const sw_stream &s = t.streams[c.stream];
  c.tries++;
  const bool ask = c.state == State::MERGED || s.absent || s.once || c.tries % 2 == 1;
  (ask ? counts.polls : counts.merges_again)++;
  send(t, c, ask ? SW_POLL : SW_MERGE, now);
}

void sw_link::send_due(uint64_t now) {
  for (Transfer &t : transfers) {
    if (t.status != SW_LINK_BUSY) continue;
    for (uint32_t k = t.base; k < t.unsent; k++) {
      Chunk &c = t.chunks[k];
      if (c.state == State::DONE) continue;
      const bool overtaken = !c.asked_early && t.highest > k + OVERTAKEN;
      if (c.due <= now || overtaken) {
        c.asked_early |= overtaken;
        again(t, c, now);
      }
    }
    while (t.unsent < t.chunks.size() && t.unsent < t.base + options.window && t.in_flight < allowance.chunks) {
      if (options.rate && paced > now) break;
      Chunk &c = t.chunks[t.unsent++];
      c.state = State::SENT;
      t.in_flight++;
      send(t, c, t.streams[c.stream].absent ? SW_POLL : SW_MERGE, now);
    }
  }
  if (control.packet && control.due <= now) {
    sockaddr_in to = address_of(options.address, options.port);
    const ssize_t sent = sendto(fd, control.packet, control.length, 0, reinterpret_cast<sockaddr *>(&to), sizeof to);
    control.error = sent < 0 ? errno : 0;
    control.due = now + control.pause;
    control.pause = std::min(2 * control.pause, LONGEST_PAUSE);
  }
  out.flush();
}

void sw_link::handle(const Inbox::Packet &p, uint64_t now) {
  if (p.length < SW_HEADER || p.from.sin_addr.s_addr != options.address || ntohs(p.from.sin_port) != options.port)
    return;
  const sw_header &h = *p.header;
  if (h.magic != SW_MAGIC || h.version != SW_VERSION || h.job != options.job || h.key != options.reply_key) return;
  if (p.length < SW_HEADER + uint32_t(h.length)) return;
  heard = now;
  if (h.kind == SW_WELCOME || h.kind == SW_REFUSED) {
    if (h.kind == SW_REFUSED && !h.members) {
      if (refusal.empty()) refused_first = now;
      refused_last = now;
      refusal.assign(p.body, p.body + h.length);
    }
    if (!control.packet || reinterpret_cast<const sw_header *>(control.packet)->members != h.members) return;
    control.got = std::min(p.length, control.room);
    std::memcpy(control.out, p.header, control.got);
    control.packet = nullptr;
    changed.notify_all();
    return;
  }
  if (h.worker == options.worker) refusal.clear();
  if (h.channel >= SW_MAX_CHANNELS) return;
  answer(h, p, transfers[h.channel], now);
}

void sw_link::answer(const sw_header &h, const Inbox::Packet &p, Transfer &t, uint64_t now) {
  Chunk *found = t.of(h);
  if (!found) return;
  Chunk &c = *found;
  const sw_stream &s = t.streams[c.stream];
  const bool same = h.tag == t.tag_of(c) && h.session == options.session;
  const sw_link_outcome how = {h.members, h.chunk, h.tag, h.session, 0, h.result, h.op, 0};
  switch (h.kind) {
  case SW_RESULT:
    if (!same || h.length != c.result || h.result != c.result || h.op != s.op) return;
    std::memcpy(s.result + c.offset, p.body, std::min<uint64_t>(c.result, s.result_bytes - c.offset));
    if (!c.tries) round_trip.add(now - c.sent);
    allowance.arrived(options.window);
    counts.results++;
    t.progress = now;
    t.finish(c, h.members, h.count);
    break;
  case SW_WAITING:
    if (!same) return;
    if (h.members != c.others) t.progress = now;
    c.others = h.members;
    if (h.members >> options.worker & 1) {
      c.state = State::MERGED;
    } else if (s.absent && s.tolerant && !h.members && now - t.progress > PATIENCE * options.deadline_ns) {
      t.finish_without(c, 0); /* everyone waits for another one to begin it */
      break;
    } else if (!s.absent && (!s.once || !h.members) && c.tries && c.state == State::SENT) {
      /* What is sent only once is sent again, too, if nobody has begun the chunk: no deadline would end it. */
      allowance.lost(now, round_trip.smooth);
      counts.merges_again++;
      send(t, c, SW_MERGE, now);
    }
    return;
  case SW_EXPIRED:
    if (h.session != options.session) return;
    if (s.tolerant) {
      /* The others have gone on, so most probably with this worker's part, which must then not be sent once more. */
      t.finish_without(c, s.absent ? 0 : uint64_t{1} << options.worker);
    } else {
      t.fail(SW_LINK_EXPIRED, how);
    }
    break;
  case SW_MISMATCH:
    if (h.session != options.session) return;
    t.fail(SW_LINK_MISMATCH, how);
    break;
  case SW_STALE: t.fail(SW_LINK_STALE, how); break;
  default: return;
  }
  if (t.status != SW_LINK_BUSY) changed.notify_all();
}

void sw_link::give_up(uint64_t now) {
  for (Transfer &t : transfers) {
    if (t.status != SW_LINK_BUSY) continue;
    const Chunk &c = t.chunks[t.base];
    const sw_link_outcome how = {c.others, t.first + t.base, 0, 0, out.error, 0, 0, 0};
    if (out.error)
      t.fail(SW_LINK_ERROR, how);
    else if (!refusal.empty() && refused_last - refused_first > REFUSED_FOR_GOOD)
      t.fail(SW_LINK_REFUSED, how);
    else if (now - t.progress > options.timeout_ns) {
      const bool silent = heard <= t.progress || now - heard > std::max(options.timeout_ns / 2, 4 * LONGEST_PAUSE);
      t.fail(silent ? SW_LINK_SILENT : refusal.empty() ? SW_LINK_WAITING : SW_LINK_REFUSED, how);
    } else
      continue;
    changed.notify_all();
  }
  out.error = 0;
}

/* Nanoseconds until something is to be done without having been asked. */
uint64_t sw_link::next_due(uint64_t now) {
  uint64_t due = now + 100 * MILLISECOND;
  if (control.packet) due = std::min(due, control.due);
  for (Transfer &t : transfers) {
    if (t.status != SW_LINK_BUSY) continue;
    for (uint32_t k = t.base; k < t.unsent; k++)
      if (t.chunks[k].state != State::DONE) due = std::min(due, t.chunks[k].due);
    const bool more = t.unsent < t.chunks.size() && t.unsent < t.base + options.window;
    if (options.rate && more && t.in_flight < allowance.chunks) due = std::min(due, paced);
  }
  return due > now ? due - now : 0;
}

void sw_link::run() {
  pollfd waiting[2] = {{fd, POLLIN, 0}, {wake, POLLIN, 0}};
  for (;;) {
    uint64_t pause;
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (stopping) return;
      for (int rounds = 0; rounds < 16; rounds++) { /* then let callers have the lock */
        const int got = in->receive(fd);
        const uint64_t now = now_ns();
        for (int k = 0; k < got; k++) handle((*in)[k], now);
        send_due(now);
        if (got <= 0) break;
      }
      const uint64_t now = now_ns();
      give_up(now);
      pause = next_due(now);
    }
    const timespec time = {time_t(pause / 1000000000), long(pause % 1000000000)};
    if (ppoll(waiting, 2, &time, nullptr) > 0 && waiting[1].revents) {
      uint64_t ignored;
      if (read(wake, &ignored, sizeof ignored) < 0) continue; /* woken up for something that was done already */
    }
  }
}

sw_link *sw_link_open(const sw_link_options *options) {
  const int fd = open_socket(INADDR_ANY, 0);
  if (fd < 0) return nullptr;
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) {
    close(fd);
    return nullptr;
  }
  return new sw_link(*options, fd, wake);
}

void sw_link_welcome(sw_link *link, const sw_link_options *options) {
  std::lock_guard<std::mutex> lock(link->mutex);
  link->options = *options;
}

void sw_link_stop(sw_link *link) {
  {
    std::lock_guard<std::mutex> lock(link->mutex);
    link->stopping = true;
    for (Transfer &t : link->transfers)
      if (t.status == SW_LINK_BUSY) t.fail(SW_LINK_CLOSED, {});
    link->control.packet = nullptr;
    link->changed.notify_all();
  }
  link->wake_up();
  if (link->thread.joinable()) link->thread.join();
}

void sw_link_close(sw_link *link) {
  sw_link_stop(link);
  close(link->fd);
  close(link->wake);
  delete link;
}

void sw_link_read_counts(sw_link *link, sw_link_counts *out) {
  std::lock_guard<std::mutex> lock(link->mutex);
  *out = link->counts;
  out->round_trip_ns = link->round_trip.smooth;
}

uint32_t sw_link_read_refusal(sw_link *link, uint8_t *out, uint32_t room) {
  std::lock_guard<std::mutex> lock(link->mutex);
  const uint32_t length = std::min<uint32_t>(room, uint32_t(link->refusal.size()));
  std::copy_n(link->refusal.begin(), length, out);
  return length;
}

int32_t sw_link_control(sw_link *link, const uint8_t *packet, uint32_t length, uint8_t *out, uint32_t room,
                        uint32_t milliseconds) {
  std::unique_lock<std::mutex> lock(link->mutex);
  link->control = Control{};
  link->control.packet = packet, link->control.length = length, link->control.out = out, link->control.room = room;
  link->wake_up();
  if (link->stopping) link->control.packet = nullptr;
  link->changed.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return !link->control.packet; });
  link->control.packet = nullptr;
  return link->control.got ? int32_t(link->control.got) : -link->control.error;
}

void sw_link_start(sw_link *link, uint32_t channel, uint32_t first, const sw_stream *streams, uint32_t count,
                   uint64_t *members, uint16_t *counts) {
  std::lock_guard<std::mutex> lock(link->mutex);
  Transfer &t = link->transfers[channel];
  t.begin(first, streams, count, members, counts);
  t.progress = link->heard = now_ns();
  link->refusal.clear();
  if (link->stopping) t.fail(SW_LINK_CLOSED, {});
  link->wake_up();
}

int32_t sw_link_wait(sw_link *link, uint32_t channel, uint32_t milliseconds, sw_link_outcome *out) {
  std::unique_lock<std::mutex> lock(link->mutex);
  Transfer &t = link->transfers[channel];
  link->changed.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return t.status != SW_LINK_BUSY; });
  *out = t.outcome;
  return t.status;
}

void sw_link_abort(sw_link *link, uint32_t channel) {
  std::lock_guard<std::mutex> lock(link->mutex);
  Transfer &t = link->transfers[channel];
  if (t.status == SW_LINK_BUSY) t.fail(SW_LINK_CLOSED, {});
}
