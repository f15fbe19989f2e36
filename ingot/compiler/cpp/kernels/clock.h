// When each instruction of a step began, on one thread, if anybody asked for it.
#pragma once

#include "signal.h"

namespace ingot {

// Without `times`, a mark is one branch that is never taken.
struct Clock {
  std::int64_t* times;

  void mark(int instruction) const {
    if (__builtin_expect(times != nullptr, 0)) write(instruction);
  }

 private:
  __attribute__((noinline, cold)) void write(int instruction) const {
    times[instruction] = nanoseconds();
  }
};

}  // namespace ingot
