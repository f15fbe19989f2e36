// The kernels' sampler for the fake model, on the caller's thread.
#include "sampler.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT std::int64_t ingot_sampler_bytes(std::int32_t vocabulary) {
  return ingot::SamplerMemory::bytes(vocabulary);
}

EXPORT void ingot_sample(void*, const ingot_sampling* sampling) {
  ingot::sample_rows(*sampling, {0, 1, nullptr}, {});
}
