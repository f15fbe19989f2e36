// Work in small units that any thread of a team can take. A thread that loses its processor for a
// while then holds up the others by two units at most: the one that it has begun and the next one,
// which it has taken to fetch for.
#pragma once

#include <atomic>
#include <cstdint>

#include "team.h"

namespace ingot {

// The numbers 0..count, each taken by one thread. Kernels that follow one another, with a barrier
// in between, work on different memory, and so have different rounds: the first thread of a round
// begins to count anew.
class Tickets {
 public:
  Tickets(Team team, const void* work, int count)
      : counter_(team.size > 1 ? team.tickets : nullptr),
        round_(static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(work) >> 6)),
        count_(count) {
    if (counter_ == nullptr) own_ = share(count, team);
  }

  // The next number; `count` or more if none is left.
  int take() {
    if (counter_ == nullptr) return own_.begin < own_.end ? own_.begin++ : count_;
    std::uint64_t seen = counter_->load(std::memory_order_relaxed), next;
    do next = seen >> 32 == round_ ? static_cast<std::uint32_t>(seen) : 0;
    while (!counter_->compare_exchange_weak(seen, std::uint64_t{round_} << 32 | (next + 1),
                                            std::memory_order_relaxed));
    return static_cast<int>(next);
  }

 private:
  std::atomic<std::uint64_t>* counter_;
  std::uint32_t round_;
  int count_;
  Range own_{};
};

// Calls body(number, the number that the thread takes after it) for the numbers that it takes. The
// latter is `count` or more after the last.
template <class Body>
inline void deal(Team team, const void* work, int count, Body body) {
  Tickets tickets(team, work, count);
  for (int current = tickets.take(), next; current < count; current = next) {
    next = tickets.take();
    body(current, next);
  }
}

}  // namespace ingot
