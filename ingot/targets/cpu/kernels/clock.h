// Measures how long each kernel of a step takes on one thread, and asks which are to run, if anybody
// wants to know.
#pragma once

#include "signal.h"

namespace ingot {

// Is told of every kernel before it runs; a kernel whose answer is 0 does not run.
using Watcher = std::int32_t (*)(std::int32_t kernel);

// Without `times`, each kernel costs one branch that is never taken.
class Clock {
 public:
  // Until the first mark, time counts for the last entry of `times`. A watcher needs `times`.
  Clock(std::int64_t* times, int last, Watcher watcher = nullptr)
      : times_(times), watcher_(watcher), current_(last) {
    if (times == nullptr) return;
    for (int i = 0; i <= last; ++i) times[i] = 0;
    since_ = nanoseconds();
  }

  // From here on, time counts for this kernel, which can be marked more than once. Returns whether
  // it is to run.
  bool mark(int kernel) { return __builtin_expect(times_ == nullptr, 1) || turn_to(kernel); }

 private:
  __attribute__((noinline, cold)) bool turn_to(int kernel) {
    times_[current_] += nanoseconds() - since_;
    current_ = kernel;
    const bool runs = watcher_ == nullptr || watcher_(kernel) != 0;
    since_ = nanoseconds();
    return runs;
  }

  std::int64_t* const times_;
  const Watcher watcher_;
  int current_;
  std::int64_t since_ = 0;
};

}  // namespace ingot
