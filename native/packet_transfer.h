/* One exchange on a channel: which chunks are due to be sent, asked for or sent again. No sockets and no clock. */
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "packets.h"

namespace sumwire::packets {

constexpr uint64_t MILLISECOND = 1000000;
constexpr uint64_t LONGEST_PAUSE = 500 * MILLISECOND;
/* A worker or switch that waits for its core answers late. Asking too early costs a slow link a second result, and so
 * delays all that follow; most losses are found sooner, by what overtakes them. */
constexpr uint64_t SHORTEST_PAUSE = 20 * MILLISECOND;
/* Later chunks that are complete, before an earlier one is asked for without waiting for its time. */
constexpr uint32_t OVERTAKEN = 4;

/* Smoothed round-trip time, as TCP has it; of chunks that were sent once. It includes waiting for other workers. */
struct RoundTrip {
  uint64_t smooth = 20 * MILLISECOND, deviation = 0;
  bool known = false;

  void add(uint64_t sample) {
    if (!known) {
      smooth = sample, deviation = sample / 2, known = true;
      return;
    }
    const uint64_t error = sample > smooth ? sample - smooth : smooth - sample;
    deviation = (3 * deviation + error) / 4;
    smooth = (7 * smooth + sample) / 8;
  }

  /* Several round trips at least: one of all workers that loses its core for a moment delays the others' chunks, too.
   */
  uint64_t timeout() const {
    return std::clamp(smooth + std::max(4 * deviation, 3 * smooth), SHORTEST_PAUSE, LONGEST_PAUSE / 2);
  }
};

/* Chunks that may be in flight, beside what the window allows: fewer after a loss, one more per round trip without. */
struct Allowance {
  double chunks = 32;
  uint64_t reduced = 0;

  void arrived(uint32_t window) { chunks = std::min<double>(window, chunks + 1 / chunks); }

  void lost(uint64_t now, uint64_t round_trip) {
    if (now - reduced < round_trip) return; /* losses of one burst count once */
    chunks = std::max(4.0, chunks / 2);
    reduced = now;
  }
};

enum class State : uint8_t { WAITING_TO_BE_SENT, SENT, MERGED, DONE };

struct Chunk {
  uint64_t offset; /* of its result in its stream */
  uint64_t sent = 0;
  uint64_t due = 0; /* when to ask for it or send it again */
  uint64_t others = 0;
  uint32_t stream;
  uint16_t result; /* bytes, padded */
  uint16_t tries = 0;
  State state = State::WAITING_TO_BE_SENT;
  bool asked_early = false;

  Chunk(uint32_t stream_, uint64_t offset_, uint16_t result_) : offset(offset_), stream(stream_), result(result_) {}
};

struct Transfer {
  std::vector<sw_stream> streams;
  std::vector<Chunk> chunks;
  uint32_t first = 0;   /* number of the first chunk on its channel */
  uint32_t base = 0;    /* the first chunk without a result */
  uint32_t unsent = 0;  /* the first chunk that was never sent */
  uint32_t highest = 0; /* one after the last chunk with a result */
  uint32_t in_flight = 0;
  uint64_t *members = nullptr;
  uint16_t *counts = nullptr;
  uint64_t progress = 0; /* when something was last heard that brings it nearer to its end */
  int32_t status = SW_LINK_DONE;
  sw_link_outcome outcome{};

  void begin(uint32_t number, const sw_stream *given, uint32_t count, uint64_t *members_, uint16_t *counts_) {
    streams.assign(given, given + count);
    chunks.clear();
    for (uint32_t k = 0; k < count; k++) {
      const sw_stream &s = streams[k];
      for (uint64_t at = 0; at < s.result_bytes; at += s.chunk_bytes) {
        const uint64_t rest = std::min<uint64_t>(s.chunk_bytes, s.result_bytes - at);
        chunks.emplace_back(k, at, uint16_t((rest + SW_GRAIN - 1) / SW_GRAIN * SW_GRAIN));
      }
    }
    first = number, base = unsent = highest = in_flight = 0;
    members = members_, counts = counts_;
    outcome = {};
    status = chunks.empty() ? SW_LINK_DONE : SW_LINK_BUSY;
  }

  /* A tag for each chunk: what all workers must agree on, and its place. */
  uint32_t tag_of(const Chunk &c) const {
    uint64_t mixed = (streams[c.stream].tag ^ c.offset) * 0x9E3779B97F4A7C15 + c.stream;
    return uint32_t((mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 >> 32);
  }

  uint64_t body_offset(const Chunk &c) const {
    const sw_stream &s = streams[c.stream];
    return c.offset / 8 * s.bytes / s.words;
  }

  uint64_t body_bytes(const Chunk &c) const {
    const sw_stream &s = streams[c.stream];
    return uint64_t{c.result} / 8 * s.bytes / s.words;
  }

  /* The chunk that a reply is about; null if it is none of this transfer's, or has its result. */
  Chunk *of(const sw_header &h) {
    const uint32_t place = h.chunk - first;
    if (status != SW_LINK_BUSY || place >= unsent || chunks[place].state == State::DONE) return nullptr;
    return &chunks[place];
  }

  void finish(Chunk &c, uint64_t who, uint16_t count) {
    const uint32_t place = uint32_t(&c - chunks.data());
    c.state = State::DONE;
    in_flight--;
    members[place] = who;
    counts[place] = count;
    highest = std::max(highest, place + 1);
    while (base < chunks.size() && chunks[base].state == State::DONE) base++;
    if (base == chunks.size()) status = SW_LINK_DONE;
  }

  /* There will be no result. */
  void finish_without(Chunk &c, uint64_t who) {
    const sw_stream &s = streams[c.stream];
    std::memset(s.result + c.offset, 0, std::min<uint64_t>(c.result, s.result_bytes - c.offset));
    finish(c, who, 0);
  }

  void fail(int32_t why, const sw_link_outcome &how) {
    status = why;
    outcome = how;
  }
};

} // namespace sumwire::packets
