// The threads of a model. They live as long as it does and sleep between steps.
#pragma once

#include <pthread.h>

#include <cstdlib>
#include <new>

#include "placement.h"
#include "signal.h"
#include "team.h"

namespace ingot {

class Pool {
 public:
  using Body = void (*)(const void* context, Team team, Barrier& barrier);

  // Null if memory or threads are short.
  static Pool* open(int size, Body body) {
    void* memory = std::aligned_alloc(alignof(Pool), sizeof(Pool));
    if (memory == nullptr) return nullptr;
    Pool* pool = new (memory) Pool(size, body);
    if (pool->start()) return pool;
    pool->close();
    return nullptr;
  }

  void close() {
    stopping_ = true;
    for (int i = 0; i < started_; ++i) workers_[i].start.advance();
    for (int i = 0; i < started_; ++i) pthread_join(workers_[i].thread, nullptr);
    std::free(shared_);
    std::free(scratch_);
    std::free(workers_);
    this->~Pool();
    std::free(this);
  }

  int size() const { return size_; }

  // Runs the body on so many threads, the caller's included, and returns when all are done: the
  // nanoseconds that threads were held up by others, summed.
  std::int64_t run(const void* context, int threads) {
    context_ = context;
    threads_ = threads;
    barrier_.resize(threads);
    for (int i = 0; i < threads - 1; ++i) workers_[i].wake();
    body_(context, team(0), barrier_);
    barrier_.wait();
    return barrier_.take_waited();
  }

 private:
  struct Worker {
    Pool* pool;
    int rank;
    pthread_t thread{};
    Signal start{};
    Placement placement{};

    void wake() {
      if (start.has_sleepers()) placement.keep_off(thread);
      start.advance();
    }
  };

  Pool(int size, Body body)
      : size_(size), body_(body), patience_(patience(size, 50'000)), barrier_(patience_) {}

  bool start() {
    const auto threads = static_cast<std::size_t>(size_);
    workers_ = static_cast<Worker*>(std::aligned_alloc(alignof(Worker), sizeof(Worker) * threads));
    scratch_ = static_cast<char*>(std::aligned_alloc(64, all_scratch_bytes * threads));
    shared_ = static_cast<Shared*>(std::aligned_alloc(alignof(Shared), sizeof(Shared)));
    if (workers_ == nullptr || scratch_ == nullptr || shared_ == nullptr) return false;
    for (auto& counter : shared_->counters) new (&counter) std::atomic<int>(0);
    for (; started_ < size_ - 1; ++started_) {
      auto* worker = new (&workers_[started_]) Worker{this, started_ + 1};
      if (pthread_create(&worker->thread, nullptr, work, worker) != 0) return false;
    }
    return true;
  }

  static void* work(void* argument) {
    Worker& worker = *static_cast<Worker*>(argument);
    Pool& pool = *worker.pool;
    for (std::uint32_t seen = 0;; ++seen) {
      worker.start.wait_past(seen, pool.patience_.without_yields());
      if (pool.stopping_) return nullptr;
      worker.placement.restore();
      pool.body_(pool.context_, pool.team(worker.rank), pool.barrier_);
      pool.barrier_.wait();
    }
  }

  Team team(int rank) {
    char* scratch = scratch_ + static_cast<std::size_t>(rank) * all_scratch_bytes;
    return {rank, threads_, scratch, &tickets_, shared_};
  }

  const int size_;
  const Body body_;
  const Patience patience_;
  Worker* workers_ = nullptr;
  char* scratch_ = nullptr;
  Shared* shared_ = nullptr;
  int started_ = 0;
  const void* context_ = nullptr;
  int threads_ = 1;  // of the body that runs
  bool stopping_ = false;
  Barrier barrier_;
  alignas(64) std::atomic<std::uint64_t> tickets_{0};
};

}  // namespace ingot
