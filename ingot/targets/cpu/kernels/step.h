// What a generated step consists of: a function that every thread runs, and the kernels it calls.
#pragma once

#include <cstdint>

#include "abi.h"
#include "clock.h"
#include "memory.h"
#include "sequences.h"
#include "signal.h"
#include "team.h"

namespace ingot {

// An input and an output of a step, by its place in the spec of the program.
template <class T>
const T* input(const ingot_step& step, int place) {
  return static_cast<const T*>(step.inputs[place]);
}
template <class T>
T* output(const ingot_step& step, int place) {
  return static_cast<T*>(step.outputs[place]);
}

// What every kernel of a step can read. `own` is `memory`, with the thread's own arena in a step of
// few rows.
struct Frame {
  const Memory& memory;
  const Memory& own;
  const ingot_step& step;
  Sequences sequences;
};

// Where the operands of a kernel lie: offsets in the arena in bytes, numbers of weights and caches.
using Places = const std::int64_t*;

// A constant for each list of places, so that a call passes one address. The 0 at its end is for a
// kernel without operands of that kind. Static: a library of shared constants is never unloaded.
template <std::int64_t... at>
static constexpr std::int64_t places[] = {at..., 0};

using StepFunction = void (*)(const Memory& memory, const ingot_step& step, Team team,
                              Barrier& barrier, Clock& clock);

// The step of a model, and what a model needs to know of it. Every generated step defines one.
struct Step {
  StepFunction run;
  int num_kernels, num_weights, num_caches;
  std::int64_t arena_bytes;
  int vocabulary;  // of the logits that the step ends with, its first output; 0 for none
  std::int32_t abi;
  std::uint64_t plan;  // the beginning of the SHA-256 of the plan that it was generated from
};

extern const Step generated;

}  // namespace ingot
