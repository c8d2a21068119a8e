/* Lanes and indices in plain C++: bit planes, lane packing and the table add. */
#pragma once
#include <algorithm>

#include "blocks.h"

namespace sw {
namespace generic {

/* Values of `width` bits, packed into planes from bit `bit` of out on: docs/format.md. Bits that are
 * not written must be 0 already. Only groups of fewer than 8 values may start within a byte. */
static inline void pack_bits(const uint32_t *values, size_t n, int width, uint8_t *out, uint64_t bit) {
  int shift = 0;
  for (int p = 32; p; p /= 2) {
    if (!(width & p)) continue;
    const uint32_t mask = p == 32 ? ~uint32_t{0} : (uint32_t{1} << p) - 1;
    uint8_t *to = out + bit / 8;
    if (n < 8) {
      const size_t columns = std::max<size_t>(1, n * p / 8);
      for (size_t i = 0; i < n; ++i) {
        const uint64_t field = values[i] >> shift & mask;
        const uint64_t at = bit + (p < 8 ? i % columns * 8 + i / columns * p : i * p);
        for (int k = 0; k < p; ++k) out[(at + k) / 8] |= static_cast<uint8_t>((field >> k & 1) << (at + k) % 8);
      }
    } else if (p < 8) {
      const size_t columns = n * p / 8;
      for (int k = 0; k < 8 / p; ++k)
        for (size_t c = 0; c < columns; ++c)
          to[c] |= static_cast<uint8_t>((values[k * columns + c] >> shift & mask) << (p * k));
    } else {
      for (size_t i = 0; i < n; ++i) {
        const uint32_t field = values[i] >> shift & mask;
        for (int k = 0; k < p / 8; ++k) to[i * (p / 8) + k] = static_cast<uint8_t>(field >> (8 * k));
      }
    }
    bit += n * p;
    shift += p;
  }
}

static inline void unpack_bits(const uint8_t *data, uint64_t bit, size_t n, int width, uint32_t *values) {
  std::fill_n(values, n, 0u);
  int shift = 0;
  for (int p = 32; p; p /= 2) {
    if (!(width & p)) continue;
    const uint32_t mask = p == 32 ? ~uint32_t{0} : (uint32_t{1} << p) - 1;
    const uint8_t *from = data + bit / 8;
    if (n < 8) {
      const size_t columns = std::max<size_t>(1, n * p / 8);
      for (size_t i = 0; i < n; ++i) {
        const uint64_t at = bit + (p < 8 ? i % columns * 8 + i / columns * p : i * p);
        uint32_t field = 0;
        for (int k = 0; k < p; ++k) field |= static_cast<uint32_t>(data[(at + k) / 8] >> (at + k) % 8 & 1) << k;
        values[i] |= field << shift;
      }
    } else if (p < 8) {
      const size_t columns = n * p / 8;
      for (int k = 0; k < 8 / p; ++k)
        for (size_t c = 0; c < columns; ++c) values[k * columns + c] |= (from[c] >> (p * k) & mask) << shift;
    } else {
      for (size_t i = 0; i < n; ++i) {
        uint32_t field = 0;
        for (int k = 0; k < p / 8; ++k) field |= static_cast<uint32_t>(from[i * (p / 8) + k]) << (8 * k);
        values[i] |= field << shift;
      }
    }
    bit += n * p;
    shift += p;
  }
}

/* The same for fewer than 8 values, whose bits follow each other: bytes that begin here are cleared first. */
static inline void append_bits(const uint32_t *values, size_t n, int width, uint8_t *out, uint64_t bit) {
  const uint64_t last = (bit + n * width + 7) / 8;
  for (uint64_t byte = (bit + 7) / 8; byte < last; ++byte) out[byte] = 0;
  pack_bits(values, n, width, out, bit);
}

static inline uint32_t read_lane(const uint8_t *lanes, int32_t per_lane, size_t i) {
  if (per_lane == 1) return lanes[i];
  if (per_lane == 2) {
    uint16_t v;
    std::memcpy(&v, lanes + 2 * i, 2);
    return v;
  }
  uint32_t v;
  std::memcpy(&v, lanes + 4 * i, 4);
  return v;
}

static inline void write_lane(uint8_t *lanes, int32_t per_lane, size_t i, uint32_t value) {
  if (per_lane == 1) {
    lanes[i] = static_cast<uint8_t>(value);
  } else if (per_lane == 2) {
    const uint16_t v = static_cast<uint16_t>(value);
    std::memcpy(lanes + 2 * i, &v, 2);
  } else {
    std::memcpy(lanes + 4 * i, &value, 4);
  }
}

static inline void add(const AddJob &job) {
  const size_t n = size_t{1} << job.log_size;
  const int per_lane = lane_bytes(job.scheme->lattices[job.cls]);
  const size_t group = std::min(n, kPlaneGroup);
  uint32_t run[kPlaneGroup];
  if (job.fresh) std::memset(job.lanes, 0, n * per_lane);
  for (uint64_t p = 0; p < job.payloads; ++p) {
    const int width = job.widths[p];
    if (!width) continue;
    const uint16_t *values = job.scheme->tables[job.cls][width].values;
    for (size_t at = 0; at < n; at += group) {
      unpack_bits(job.data[p], at * width, group, width, run);
      for (size_t i = 0; i < group; ++i)
        write_lane(job.lanes, per_lane, at + i, read_lane(job.lanes, per_lane, at + i) + values[run[i]]);
    }
  }
}

static inline void pack(const uint8_t *lanes, int per_lane, int width, size_t n, uint8_t *out) {
  const size_t group = std::min(n, kPlaneGroup);
  uint32_t run[kPlaneGroup];
  std::memset(out, 0, n / 8 * width);
  for (size_t at = 0; at < n; at += group) {
    for (size_t i = 0; i < group; ++i) run[i] = read_lane(lanes, per_lane, at + i);
    pack_bits(run, group, width, out, at * width);
  }
}

static inline void unpack(const uint8_t *data, int width, size_t n, int per_lane, uint8_t *lanes) {
  const size_t group = std::min(n, kPlaneGroup);
  uint32_t run[kPlaneGroup];
  for (size_t at = 0; at < n; at += group) {
    unpack_bits(data, at * width, group, width, run);
    for (size_t i = 0; i < group; ++i) write_lane(lanes, per_lane, at + i, run[i]);
  }
}

} // namespace generic

/* A block's lanes from the wire, where they begin at some bit, to memory. */
static inline void unpack_block(const sw_lattice &lattice, const uint8_t *data, uint64_t bit, size_t n,
                                uint8_t *lanes) {
  const int per_lane = lane_bytes(lattice), width = lattice.lane_bits;
  if (n >= 8) {
    ops().unpack(data + bit / 8, width, n, per_lane, lanes);
    return;
  }
  uint32_t run[8];
  generic::unpack_bits(data, bit, n, width, run);
  for (size_t k = 0; k < n; ++k) std::memcpy(lanes + k * per_lane, run + k, per_lane);
}

} // namespace sw
