// The kernels' sampler for the fake model, on the caller's thread.
#include "sampler.h"

extern "C" std::int64_t ingot_sampler_bytes(std::int32_t vocabulary) {
  return ingot::SamplerMemory::bytes(vocabulary);
}

extern "C" void ingot_sample(void*, const ingot_sampling* sampling) {
  ingot::sample_rows(*sampling, {0, 1, nullptr});
}
