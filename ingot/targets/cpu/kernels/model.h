// An open model: its buffers and its threads, behind the C interface.
#pragma once

#include <cstdlib>

#include "abi.h"
#include "background.h"
#include "clock.h"
#include "pool.h"
#include "sampler.h"

namespace ingot {

inline constexpr std::int32_t invalid_step = -1;

// How long a caller waits awake for a step beside it, and the step's thread for the next one. A
// step of a small model is over in that time. In a longer one a wake-up no longer counts.
inline constexpr std::int64_t awake_ns = 300'000;

// What a step reads and writes. The generated code names buffers by number and offset.
struct Memory {
  const void* const* weights;
  void* const* caches;
  char* arena;
  char* others;  // an arena of its own for every thread but the first
  std::ptrdiff_t arena_bytes;
  float* head_maxima;

  // The same with the thread's own arena. That of the first thread is the shared one.
  Memory of(Team team) const {
    Memory own = *this;
    if (team.rank > 0) own.arena = others + (team.rank - 1) * arena_bytes;
    return own;
  }

  template <class T>
  const T* weight(int index) const {
    return static_cast<const T*>(weights[index]);
  }
  template <class T>
  T* cache(int index) const {
    return static_cast<T*>(caches[index]);
  }
  // Rows of a temporary; the offset is in bytes, the stride in elements.
  template <class T>
  Rows<T> rows(std::ptrdiff_t offset, std::ptrdiff_t stride) const {
    return {reinterpret_cast<T*>(arena + offset), stride};
  }
};

using StepFunction = void (*)(const Memory& memory, const ingot_step& step, Team team,
                              Barrier& barrier, Clock& clock);

template <StepFunction run_step, int num_kernels, int num_weights, int num_caches,
          std::int64_t arena_bytes, int vocabulary>
class Model {
 public:
  // Copies the tables of pointers, so that the caller may free them.
  static Model* open(const ingot_model& buffers) {
    if (buffers.num_threads < 1) return nullptr;
    auto* model = static_cast<Model*>(std::calloc(1, sizeof(Model)));
    if (model == nullptr) return nullptr;
    for (int i = 0; i < num_weights; ++i) model->weights_[i] = buffers.weights[i];
    for (int i = 0; i < num_caches; ++i) model->caches_[i] = buffers.caches[i];
    // Pages that no step of few rows touches take no memory.
    const std::int64_t others = (buffers.num_threads - 1) * arena_bytes;
    model->others_ = static_cast<char*>(std::aligned_alloc(64, static_cast<std::size_t>(others)));
    model->memory_ = {model->weights_, model->caches_, static_cast<char*>(buffers.arena),
                      model->others_, arena_bytes, model->head_maxima_};
    if (model->others_ != nullptr || others == 0)
      model->pool_ = Pool::open(buffers.num_threads, run_on_thread);
    if (model->pool_ != nullptr)
      model->background_ = Background::open(run_submitted, model,
                                            patience(buffers.num_threads + 1, awake_ns));
    if (model->background_ != nullptr) return model;
    model->close();
    return nullptr;
  }

  // If `times` is given, it gets the nanoseconds that each kernel took on the first thread, and, in
  // its last entry, those of all else: waking the threads and waiting for them at the end.
  std::int32_t run(const ingot_step& step, std::int64_t* times = nullptr) {
    if (step.num_tokens < 0 || step.num_seqs < 0 || step.num_rows < 0) return invalid_step;
    Clock clock(times, num_kernels);
    const Context context{&memory_, &step, &clock, nullptr, {}};
    known_.rows = 0;
    pool_->run(&context);
    clock.mark(num_kernels);
    if (step.num_rows <= known_rows)
      known_ = {step.logits, vocabulary > 0 ? step.num_rows : 0, vocabulary, head_maxima_};
    return 0;
  }

  // Begins a step in a thread beside the caller's, which is the first of the team. The step must
  // live, and nothing else may run, until `wait` has returned.
  void submit(const ingot_step& step) {
    submitted_ = &step;
    background_->submit();
  }

  // Waits for that step, and returns what `run` would.
  std::int32_t wait() {
    background_->wait();
    return code_;
  }

  // Draws from rows of logits. For a few rows, waking the threads would take longer than drawing.
  void sample(const ingot_sampling& sampling) {
    const KnownRows known = known_;
    known_.rows = 0;  // edits change them
    if (sampling.num_rows <= known_rows) return sample_rows(sampling, {0, 1, nullptr}, known);
    const Context context{&memory_, nullptr, nullptr, &sampling, known};
    pool_->run(&context);
  }

  // Waits for a step that was begun.
  void close() {
    if (background_ != nullptr) background_->close();
    if (pool_ != nullptr) pool_->close();
    std::free(others_);
    std::free(this);
  }

 private:
  struct Context {
    const Memory* memory;
    const ingot_step* step;
    Clock* clock;
    const ingot_sampling* sampling;
    KnownRows known;
  };

  static void run_submitted(void* model) {
    auto& self = *static_cast<Model*>(model);
    self.code_ = self.run(*self.submitted_);
  }

  static void run_on_thread(const void* argument, Team team, Barrier& barrier) {
    const auto& context = *static_cast<const Context*>(argument);
    if (context.sampling != nullptr) return sample_rows(*context.sampling, team, context.known);
    Clock off(nullptr, num_kernels);
    run_step(*context.memory, *context.step, team, barrier, team.rank == 0 ? *context.clock : off);
  }

  const void* weights_[num_weights > 0 ? num_weights : 1];
  void* caches_[num_caches > 0 ? num_caches : 1];
  float head_maxima_[known_rows * (num_blocks(vocabulary) + 1)];
  KnownRows known_;
  char* others_;
  Memory memory_;
  Pool* pool_;
  Background* background_;
  const ingot_step* submitted_;
  std::int32_t code_;
};

}  // namespace ingot
