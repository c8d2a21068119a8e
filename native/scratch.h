/* Memory that a thread keeps between calls, because fresh pages cost page faults; more than KEPT is freed. */
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace sw {
namespace {

/* The thread's scratch memory for one call, one call at a time. It holds whatever the last call left there. */
class Scratch {
public:
  static constexpr size_t KEPT = size_t{32} << 20;

  template <typename T>
  static size_t room(uint64_t n) {
    return (n * sizeof(T) + LINE - 1) / LINE * LINE;
  }
  explicit Scratch(size_t bytes) : memory_(kept()) {
    if (memory_.bytes < bytes) memory_.renew(bytes);
    next_ = memory_.data;
  }
  ~Scratch() {
    if (memory_.bytes > KEPT) memory_.renew(0);
  }
  Scratch(const Scratch &) = delete;
  Scratch &operator=(const Scratch &) = delete;
  explicit operator bool() const { return memory_.data; }
  /* Memory for n values, of the bytes that were asked for. */
  template <typename T>
  T *take(uint64_t n) {
    T *const taken = reinterpret_cast<T *>(next_);
    next_ += room<T>(n);
    return taken;
  }

private:
  static constexpr size_t LINE = 64, PAGE = size_t{1} << 21;

  struct Memory {
    char *data = nullptr;
    size_t bytes = 0;
    ~Memory() { std::free(data); }
    void renew(size_t need) {
      std::free(data);
      bytes = (need + PAGE - 1) / PAGE * PAGE;
      data = bytes ? static_cast<char *>(std::aligned_alloc(PAGE, bytes)) : nullptr;
      if (!data) bytes = 0;
#if defined(MADV_HUGEPAGE)
      /* Random access costs a page walk each otherwise. */
      if (data) madvise(data, bytes, MADV_HUGEPAGE);
#endif
    }
  };
  static Memory &kept() {
    thread_local Memory memory;
    return memory;
  }

  Memory &memory_;
  char *next_;
};

} // namespace
} // namespace sw
