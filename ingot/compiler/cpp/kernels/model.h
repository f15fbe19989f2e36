// An open model: its buffers and its threads, behind the C interface.
#pragma once

#include <cstdlib>

#include "abi.h"
#include "pool.h"
#include "sampler.h"

namespace ingot {

inline constexpr std::int32_t abi_version = 2;
inline constexpr std::int32_t invalid_step = -1;

// What a step reads and writes. The generated code names buffers by number and offset.
struct Memory {
  const void* const* weights;
  void* const* caches;
  char* arena;

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
                              Barrier& barrier);

template <StepFunction run_step, int num_weights, int num_caches>
class Model {
 public:
  // Copies the tables of pointers, so that the caller may free them.
  static Model* open(const ingot_model& buffers) {
    if (buffers.num_threads < 1) return nullptr;
    auto* model = static_cast<Model*>(std::calloc(1, sizeof(Model)));
    if (model == nullptr) return nullptr;
    for (int i = 0; i < num_weights; ++i) model->weights_[i] = buffers.weights[i];
    for (int i = 0; i < num_caches; ++i) model->caches_[i] = buffers.caches[i];
    model->memory_ = {model->weights_, model->caches_, static_cast<char*>(buffers.arena)};
    model->pool_ = Pool::open(buffers.num_threads, run_on_thread);
    if (model->pool_ != nullptr) return model;
    std::free(model);
    return nullptr;
  }

  std::int32_t run(const ingot_step& step) {
    if (step.num_tokens < 0 || step.num_seqs < 0 || step.num_rows < 0) return invalid_step;
    const Context context{&memory_, &step, nullptr};
    pool_->run(&context);
    return 0;
  }

  // Draws from rows of logits. Waking the threads takes longer than a few rows do.
  void sample(const ingot_sampling& sampling) {
    constexpr int few_rows = 4;
    if (sampling.num_rows < few_rows) return sample_rows(sampling, {0, 1, nullptr});
    const Context context{&memory_, nullptr, &sampling};
    pool_->run(&context);
  }

  void close() {
    pool_->close();
    std::free(this);
  }

 private:
  struct Context {
    const Memory* memory;
    const ingot_step* step;
    const ingot_sampling* sampling;
  };

  static void run_on_thread(const void* argument, Team team, Barrier& barrier) {
    const auto& context = *static_cast<const Context*>(argument);
    if (context.sampling != nullptr) return sample_rows(*context.sampling, team);
    run_step(*context.memory, *context.step, team, barrier);
  }

  const void* weights_[num_weights > 0 ? num_weights : 1];
  void* caches_[num_caches > 0 ? num_caches : 1];
  Memory memory_;
  Pool* pool_;
};

}  // namespace ingot
