// Which processor a thread is woken on.
#pragma once

#include <pthread.h>
#include <sched.h>

namespace ingot {

// Linux likes to wake a thread on the processor of the one that wakes it, and may leave both there
// for milliseconds, which is longer than many steps take. So a sleeper is kept from that processor
// until it runs. Where the process may not say so, nothing changes.
class Placement {
 public:
  // By the waking thread.
  void keep_off(pthread_t sleeper) {
    changed_ = false;
    const int here = sched_getcpu();
    if (here < 0 || pthread_getaffinity_np(sleeper, sizeof usual_, &usual_) != 0) return;
    cpu_set_t others = usual_;
    CPU_CLR(here, &others);
    if (CPU_COUNT(&others) == 0 || CPU_EQUAL(&others, &usual_)) return;
    changed_ = pthread_setaffinity_np(sleeper, sizeof others, &others) == 0;
  }

  // By the sleeper, once it runs.
  void restore() {
    if (changed_) pthread_setaffinity_np(pthread_self(), sizeof usual_, &usual_);
    changed_ = false;
  }

 private:
  cpu_set_t usual_;
  bool changed_ = false;
};

}  // namespace ingot
