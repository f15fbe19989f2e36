// A word that threads watch, spinning at first and sleeping later, and a barrier made of it.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace ingot {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

inline std::int64_t nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

// How long to wait awake. Spinning saves the microseconds of a wake-up, but only if every thread
// has a core. If cores are oversubscribed, it keeps the awaited thread from running.
struct Patience {
  std::int64_t spin_ns;
  int yields;
};

// For so many threads that are awake at once.
inline Patience patience(int threads, std::int64_t spin_ns) {
  cpu_set_t cpus;
  const bool known = sched_getaffinity(0, sizeof cpus, &cpus) == 0;
  const bool roomy = known && CPU_COUNT(&cpus) >= threads;
  return roomy ? Patience{spin_ns, 100} : Patience{0, 1};
}

// A counter that only moves forward.
class Signal {
 public:
  std::uint32_t value() const { return value_.load(std::memory_order_acquire); }

  void advance() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0)
      syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }

  // Returns once the value is no longer `seen`.
  void wait_past(std::uint32_t seen, Patience patience) {
    if (patience.spin_ns > 0) {
      const std::int64_t deadline = nanoseconds() + patience.spin_ns;
      do {
        for (int i = 0; i < 64; ++i) {
          if (value() != seen) return;
          pause();
        }
      } while (nanoseconds() < deadline);
    }
    for (int i = 0; i < patience.yields; ++i) {
      if (value() != seen) return;
      sched_yield();
    }
    // The kernel sleeps only if the value is still `seen`. So no wake-up is missed: either
    // advance() sees the sleeper, or the sleeper sees the advance.
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (value() == seen)
      syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  alignas(64) std::atomic<std::uint32_t> value_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

// Nobody passes before all have arrived. The phase reverses each time.
class Barrier {
 public:
  Barrier(int size, Patience patience) : size_(size), patience_(patience) {}

  void wait() {
    if (size_ == 1) return;
    const std::uint32_t phase = phase_.value();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.advance();
    } else {
      phase_.wait_past(phase, patience_);
    }
  }

 private:
  Signal phase_;
  alignas(64) std::atomic<int> arrived_{0};
  const int size_;
  const Patience patience_;
};

}  // namespace ingot
