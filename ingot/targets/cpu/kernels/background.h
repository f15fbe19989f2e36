// A thread that does one piece of work at a time beside the one that asks for it.
#pragma once

#include <pthread.h>

#include <cstdlib>
#include <new>

#include "signal.h"

namespace ingot {

// For one caller at a time.
class Background {
 public:
  using Work = void (*)(void* context);

  // Null if memory or threads are short.
  static Background* open(Work work, void* context, Patience patience) {
    void* memory = std::aligned_alloc(alignof(Background), sizeof(Background));
    if (memory == nullptr) return nullptr;
    auto* background = new (memory) Background(work, context, patience);
    if (pthread_create(&background->thread_, nullptr, loop, background) == 0) return background;
    background->free();
    return nullptr;
  }

  // Begins the work; to be waited for before the next.
  void submit() { begun_.advance(); }

  // Returns when all work that was begun is done.
  void wait() { done_.wait_past(begun_.value() - 1, patience_); }

  void close() {
    wait();
    stopping_ = true;
    begun_.advance();
    pthread_join(thread_, nullptr);
    free();
  }

 private:
  Background(Work work, void* context, Patience patience)
      : work_(work), context_(context), patience_(patience.without_yields()) {}

  static void* loop(void* argument) {
    Background& self = *static_cast<Background*>(argument);
    for (std::uint32_t seen = 0;; ++seen) {
      self.begun_.wait_past(seen, self.patience_);
      if (self.stopping_) return nullptr;
      self.work_(self.context_);
      self.done_.advance();
    }
  }

  void free() {
    this->~Background();
    std::free(this);
  }

  const Work work_;
  void* const context_;
  const Patience patience_;
  pthread_t thread_;
  bool stopping_ = false;
  Signal begun_, done_;
};

}  // namespace ingot
