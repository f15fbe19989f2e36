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

inline std::int64_t nanoseconds(clockid_t clock = CLOCK_MONOTONIC) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

// How long to wait awake. Spinning saves the microseconds of a wake-up, but only if every thread
// has a core. If cores are oversubscribed, it keeps the awaited thread from running.
struct Patience {
  std::int64_t spin_ns;
  int yields;

  // For long waits: a thread that yields still has its turns, and others that much less.
  Patience without_yields() const { return {spin_ns, 0}; }
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

  // True of a signal that a thread no longer spins for; it sleeps, or is about to.
  bool has_sleepers() const { return sleepers_.load(std::memory_order_seq_cst) != 0; }

  void advance() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0)
      syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }

  // Returns once the value is no longer `seen`: the nanoseconds that it waited after spinning.
  std::int64_t wait_past(std::uint32_t seen, Patience patience) {
    if (value() != seen) return 0;
    const std::int64_t deadline = nanoseconds() + patience.spin_ns;
    while (patience.spin_ns > 0 && nanoseconds() < deadline)
      for (int i = 0; i < 64; ++i) {
        if (value() != seen) return 0;
        pause();
      }
    for (int i = 0; i < patience.yields && value() == seen; ++i) sched_yield();
    // The kernel sleeps only if the value is still `seen`. So no wake-up is missed: either
    // advance() sees the sleeper, or the sleeper sees the advance.
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (value() == seen)
      syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    return nanoseconds() - deadline;
  }

 private:
  alignas(64) std::atomic<std::uint32_t> value_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

// Nobody passes before all have arrived. The phase reverses each time.
class Barrier {
 public:
  explicit Barrier(Patience patience) : patience_(patience) {}

  // For so many threads from now on; nobody may be waiting.
  void resize(int size) { size_ = size; }

  void wait() {
    const int size = size_;  // once others have arrived, it may change
    if (size == 1) return;
    const std::uint32_t phase = phase_.value();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.advance();
    } else if (const std::int64_t waited = phase_.wait_past(phase, patience_)) {
      waited_.fetch_add(waited, std::memory_order_relaxed);
    }
  }

  // The nanoseconds that threads have waited after spinning, since this was last asked.
  std::int64_t take_waited() { return waited_.exchange(0, std::memory_order_relaxed); }

 private:
  Signal phase_;
  alignas(64) std::atomic<int> arrived_{0};
  std::atomic<std::int64_t> waited_{0};
  int size_ = 1;
  const Patience patience_;
};

}  // namespace ingot
