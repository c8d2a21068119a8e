/* The exported functions on sum lanes: adding, and packing for the network. */
#include <vector>

#include "lattice_planes.h"
#include "walk.h"

namespace sw {
namespace {

/* Calls work(lattice, size) for each of blocks lo..hi that is in use. */
template <class Work>
void each_block(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, uint64_t lo, uint64_t hi, Work work) {
  const Blocks blocks(size, scheme->log_block);
  for (uint64_t i = lo; i < hi; ++i) {
    const sw_lattice &lattice = scheme->lattices[classes[i - lo]];
    if (lattice.granularity) work(lattice, static_cast<size_t>(blocks[i].size()));
  }
}

/* Calls work with a zero of the lanes' type. */
template <class Work>
void with_lane(const sw_lattice &lattice, Work work) {
  switch (lane_bytes(lattice)) {
  case 1: return work(uint8_t{});
  case 2: return work(uint16_t{});
  default: return work(uint32_t{});
  }
}

template <class Lane>
void add_run(uint8_t *lanes, const uint8_t *other, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    Lane a, b;
    std::memcpy(&a, lanes + i * sizeof a, sizeof a);
    std::memcpy(&b, other + i * sizeof b, sizeof b);
    a = static_cast<Lane>(a + b);
    std::memcpy(lanes + i * sizeof a, &a, sizeof a);
  }
}

size_t words_of(const sw_lattice &lattice, size_t n) {
  return (n + lattice.lanes_per_word - 1) / lattice.lanes_per_word;
}

/* Calls work(first lane, count, shift) for each run of a block's lanes that has the same place in its words. */
template <class Work>
void each_run(const sw_lattice &lattice, size_t n, Work work) {
  const size_t words = words_of(lattice, n);
  for (size_t first = 0, shift = 0; first < n; first += words, shift += lattice.lane_bits)
    work(first, std::min(words, n - first), static_cast<int>(shift));
}

template <class Lane>
void pack_words(const sw_lattice &lattice, const uint8_t *lanes, size_t n, size_t words, uint32_t *out) {
  const Lane *from = reinterpret_cast<const Lane *>(lanes);
  std::fill_n(out, words, 0u - lattice.word_bias);
  each_run(lattice, n, [&](size_t first, size_t count, int shift) {
    for (size_t i = 0; i < count; ++i) {
      Lane lane;
      std::memcpy(&lane, from + first + i, sizeof lane);
      out[i] += static_cast<uint32_t>(lane) << shift;
    }
  });
}

template <class Lane>
void unpack_words(const sw_lattice &lattice, const uint32_t *data, size_t n, uint32_t bias, uint8_t *lanes) {
  Lane *to = reinterpret_cast<Lane *>(lanes);
  const uint32_t mask = lattice.lane_bits < 32 ? (1u << lattice.lane_bits) - 1 : ~0u;
  each_run(lattice, n, [&](size_t first, size_t count, int shift) {
    for (size_t i = 0; i < count; ++i) {
      const Lane lane = static_cast<Lane>((data[i] + bias) >> shift & mask);
      std::memcpy(to + first + i, &lane, sizeof lane);
    }
  });
}

} // namespace
} // namespace sw

using namespace sw;

void sw_add(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, uint8_t *lanes, uint64_t payloads,
            const uint8_t *const *data, const uint8_t *const *widths, int32_t fresh, uint64_t lo, uint64_t hi) {
  const Ops &best = ops();
  const Blocks blocks(size, scheme->log_block);
  std::vector<uint64_t> bits(payloads, 0);
  std::vector<const uint8_t *> at(payloads);
  std::vector<uint8_t> width(payloads);
  for (uint64_t i = lo; i < hi; ++i) {
    const Block block = blocks[i];
    const size_t n = block.size();
    const int cls = classes[i - lo], per_lane = lane_bytes(scheme->lattices[cls]);
    if (!per_lane) continue; /* no worker sends anything of this block */
    for (uint64_t p = 0; p < payloads; ++p) {
      at[p] = data[p] + bits[p] / 8;
      width[p] = widths[p][i - lo];
    }
    const AddJob job = {scheme, block.log_size, cls, lanes, payloads, at.data(), width.data(), fresh != 0};
    if (n >= 8) {
      best.add(job);
    } else {
      if (fresh) std::memset(lanes, 0, n * per_lane);
      for (uint64_t p = 0; p < payloads; ++p) {
        uint32_t run[8];
        generic::unpack_bits(data[p], bits[p], n, width[p], run);
        for (size_t k = 0; width[p] && k < n; ++k) {
          uint32_t lane = 0; /* little-endian, so that any width is a prefix */
          std::memcpy(&lane, lanes + k * per_lane, per_lane);
          lane += scheme->tables[cls][width[p]].values[run[k]];
          std::memcpy(lanes + k * per_lane, &lane, per_lane);
        }
      }
    }
    for (uint64_t p = 0; p < payloads; ++p) bits[p] += n * width[p];
    lanes += n * per_lane;
  }
}

void sw_add_lanes(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, uint8_t *lanes, const uint8_t *other,
                  uint64_t lo, uint64_t hi) {
  each_block(scheme, size, classes, lo, hi, [&](const sw_lattice &lattice, size_t n) {
    with_lane(lattice, [&](auto lane) { add_run<decltype(lane)>(lanes, other, n); });
    lanes += n * lane_bytes(lattice);
    other += n * lane_bytes(lattice);
  });
}

void sw_pack_lanes(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, const uint8_t *lanes, uint8_t *out,
                   uint64_t lo, uint64_t hi) {
  uint64_t bit = 0;
  each_block(scheme, size, classes, lo, hi, [&](const sw_lattice &lattice, size_t n) {
    const int per_lane = lane_bytes(lattice), width = lattice.lane_bits;
    if (n >= 8) {
      ops().pack(lanes, per_lane, width, n, out + bit / 8);
    } else {
      uint32_t run[8] = {};
      for (size_t k = 0; k < n; ++k) std::memcpy(run + k, lanes + k * per_lane, per_lane);
      generic::append_bits(run, n, width, out, bit);
    }
    bit += n * width;
    lanes += n * per_lane;
  });
}

void sw_unpack_lanes(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, const uint8_t *data,
                     uint8_t *lanes, uint64_t lo, uint64_t hi) {
  uint64_t bit = 0;
  each_block(scheme, size, classes, lo, hi, [&](const sw_lattice &lattice, size_t n) {
    unpack_block(lattice, data, bit, n, lanes);
    bit += n * lattice.lane_bits;
    lanes += n * lane_bytes(lattice);
  });
}

void sw_pack_words(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, const uint8_t *lanes, uint32_t *out,
                   uint64_t lo, uint64_t hi) {
  each_block(scheme, size, classes, lo, hi, [&](const sw_lattice &lattice, size_t n) {
    const size_t words = words_of(lattice, n);
    with_lane(lattice, [&](auto lane) { pack_words<decltype(lane)>(lattice, lanes, n, words, out); });
    lanes += n * lane_bytes(lattice);
    out += words;
  });
}

void sw_unpack_words(const sw_scheme *scheme, uint64_t size, const uint8_t *classes, const uint32_t *data,
                     uint32_t count, uint8_t *lanes, uint64_t lo, uint64_t hi) {
  each_block(scheme, size, classes, lo, hi, [&](const sw_lattice &lattice, size_t n) {
    const uint32_t bias = count * lattice.word_bias;
    with_lane(lattice, [&](auto lane) { unpack_words<decltype(lane)>(lattice, data, n, bias, lanes); });
    lanes += n * lane_bytes(lattice);
    data += words_of(lattice, n);
  });
}
