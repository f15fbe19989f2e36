// Draws from rows of many sizes and kinds with every buffer in an allocation of its own, so that a
// sanitizer sees each read or write beyond one. The argument takes so many elements from all.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "sampler.h"

using namespace ingot;

namespace {

template <class T>
T* exactly(int count) {
  return static_cast<T*>(std::malloc(static_cast<std::size_t>(count) * sizeof(T)));
}

struct Buffers {
  explicit Buffers(int size, int less)
      : block(static_cast<std::size_t>(SamplerMemory::bytes(size))), memory(block.data(), size) {
    const int room = size + lanes - less;
    for (float** each : {&memory.values, &memory.upper, &memory.lower, &memory.raw})
      *each = exactly<float>(room);
    memory.ids = exactly<std::int32_t>(room);
    memory.maxima = exactly<float>(num_blocks(size));
    memory.masses = exactly<std::uint64_t>(num_blocks(size));
  }
  ~Buffers() {
    for (float* each : {memory.values, memory.upper, memory.lower, memory.raw, memory.maxima})
      std::free(each);
    std::free(memory.ids);
    std::free(memory.masses);
  }

  std::vector<char> block;
  SamplerMemory memory;
};

void check(int size, float spread, std::mt19937& random, int less) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(size)), some{0, size - 1};
  std::vector<double> logprobs(static_cast<std::size_t>(size));
  const float bias[] = {1.0f, -1.0f};
  const std::int32_t times[] = {0, 3};
  Buffers buffers(size, less);
  for (int kind = 0; kind < 48; ++kind) {
    float* logits = exactly<float>(size);
    for (int i = 0; i < size; ++i) logits[i] = kind % 5 == 4 ? 1.0f : normal(random);
    if (kind % 7 == 3) std::fill(logits, logits + size / 2, -HUGE_VALF);
    ingot_draw row{};
    row.logits = logits;
    row.position = static_cast<std::uint64_t>(kind);
    row.top_p = kind % 2 == 0 ? 1.0 : 0.9;
    row.min_p = kind % 6 == 5 ? 0.01f : 0.0f;
    row.scale = kind % 11 == 10 ? 0.0f : kind % 8 == 7 ? 1e-30f : 1.44f;
    row.top_k = (kind % 4) * (kind % 4) * size / 12;
    row.num_allowed = kind % 9 == 8 ? 2 : -1;
    row.num_biased = row.num_seen = kind % 3 == 2 ? 2 : 0;
    row.num_banned = kind % 10 == 9 ? 1 : 0;
    row.allowed = row.biased = row.seen = row.banned = some.data();
    row.times = times;
    row.bias = bias;
    row.repetition = 1.1f;
    row.given = kind % 13 == 12 ? size - 1 : -1;
    row.num_logprobs = kind % 4 == 3 ? size : kind % 4 == 1 ? 1 : -1;
    row.top_ids = ids.data();
    row.top_logprobs = logprobs.data();
    Row(row, size, buffers.memory, nullptr).run();
    if (row.status == 0 && (row.token < 0 || row.token >= size)) std::abort();
    std::free(logits);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::mt19937 random(7);
  if (argc > 1) check(4099, 0.01f, random, std::atoi(argv[1]));
  for (const int size : {1, 2, 15, 16, 17, 64, 255, 256, 257, 1000, 4099})
    for (const float spread : {0.01f, 2.0f, 30.0f}) check(size, spread, random, 0);
  std::puts("done");
}
