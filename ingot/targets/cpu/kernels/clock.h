// Measures how long each kernel of a step takes on one thread, if anybody asks for it.
#pragma once

#include "signal.h"

namespace ingot {

// Without `times`, a mark is one branch that is never taken.
class Clock {
 public:
  // Until the first mark, time counts for the last entry of `times`.
  Clock(std::int64_t* times, int last) : times_(times), current_(last) {
    if (times == nullptr) return;
    for (int i = 0; i <= last; ++i) times[i] = 0;
    since_ = nanoseconds();
  }

  // From here on, time counts for this kernel, which can be marked more than once.
  void mark(int kernel) {
    if (__builtin_expect(times_ != nullptr, 0)) turn_to(kernel);
  }

 private:
  __attribute__((noinline, cold)) void turn_to(int kernel) {
    const std::int64_t now = nanoseconds();
    times_[current_] += now - since_;
    current_ = kernel;
    since_ = now;
  }

  std::int64_t* const times_;
  int current_;
  std::int64_t since_ = 0;
};

}  // namespace ingot
