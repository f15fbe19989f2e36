// The C interface of a compiled model. It is the same for every model, and is compiled apart.
#pragma once

#include "machine_limits.h"
#include "model.h"

#define INGOT_EXPORT extern "C" __attribute__((visibility("default")))

using namespace ingot;

INGOT_EXPORT std::int32_t ingot_abi() { return generated.abi; }

INGOT_EXPORT std::uint64_t ingot_plan() { return generated.plan; }

INGOT_EXPORT void* ingot_open(const ingot_model* model) { return Model::open(*model); }

INGOT_EXPORT std::int32_t ingot_run(void* model, const ingot_step* step) {
  return static_cast<Model*>(model)->run(*step);
}

// As ingot_run; the nanoseconds of each kernel go to `times`, those of all else to its end. Before a
// kernel runs, the watcher, if there is one, is told its number, and says whether it is to run; at
// the end of the step it is told the number of kernels. It needs a model of one thread.
INGOT_EXPORT std::int32_t ingot_run_timed(void* model, const ingot_step* step,
                                          std::int64_t* times, Watcher watcher) {
  return static_cast<Model*>(model)->run(*step, times, watcher);
}

// Begins a step beside the caller, or leaves it to `ingot_wait` on a busy host. Until that has
// returned its code, the step must not change, and no other function may be called but
// `ingot_close`, which waits for a step that runs.
INGOT_EXPORT void ingot_submit(void* model, const ingot_step* step) {
  static_cast<Model*>(model)->submit(*step);
}

INGOT_EXPORT std::int32_t ingot_wait(void* model) { return static_cast<Model*>(model)->wait(); }

INGOT_EXPORT std::int64_t ingot_sampler_bytes(std::int32_t vocabulary) {
  return SamplerMemory::bytes(vocabulary);
}

INGOT_EXPORT void ingot_sample(void* model, const ingot_sampling* sampling) {
  static_cast<Model*>(model)->sample(*sampling);
}

INGOT_EXPORT void ingot_close(void* model) { static_cast<Model*>(model)->close(); }

// A limit of this machine, per second; needs no open model.
INGOT_EXPORT double ingot_measure(std::int32_t limit, std::int32_t threads, const void* data,
                                  std::int64_t bytes) {
  return measure_limit(static_cast<Limit>(limit), threads, data, bytes);
}
