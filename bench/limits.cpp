// What this machine can do at most: sequential reading, and multiply-adds in registers.
//
// Every function runs on `threads` threads at once and returns the seconds that the slowest
// needed. The arithmetic loops use the instructions that the target's kernels use.

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "quads.h"

namespace {

using namespace ingot;

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

constexpr int max_threads = 256;
volatile float sink;  // keeps the compiler from dropping a result

struct Work {
  void (*body)(const Work&);
  const char* data;
  std::size_t bytes;
  long rounds;
  std::atomic<int>* waiting;
  double seconds;
};

// Independent sums, one add a load, so that reading is all that takes time; fetched as far ahead
// as is best for the kernels, so that this is the limit of them, too.
void read_all(const Work& work) {
  vf sums[8] = {zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()};
  constexpr std::size_t chunk = 8 * lanes * sizeof(float);
  for (std::size_t at = 0; at + chunk <= work.bytes; at += chunk)
    for (int i = 0; i < 8; ++i) {
      const char* from = work.data + at + static_cast<std::size_t>(i) * lanes * sizeof(float);
      prefetch(from + 5632);
      sums[i] = sums[i] + load(reinterpret_cast<const float*>(from));
    }
  float total = 0;
  for (const vf& s : sums) total += sum(s);
  sink = total;
}

constexpr int chains = 12;  // latency times throughput of every multiply-add here, or more

void multiply_add(const Work& work) {
  vf acc[chains];
  for (int i = 0; i < chains; ++i) acc[i] = splat(static_cast<float>(i));
  const vf a = splat(0.999f), b = splat(1e-3f);
  for (long round = 0; round < work.rounds; ++round)
    for (int i = 0; i < chains; ++i) acc[i] = fma(acc[i], a, b);
  for (int i = 0; i < chains; ++i) sink = sum(acc[i]);
}

void pair_dot(const Work& work) {
  vf acc[chains];
  for (int i = 0; i < chains; ++i) acc[i] = splat(static_cast<float>(i));
  bf16 values[2 * lanes];
  for (bf16& value : values) value.bits = 0x3c00;  // 2^-7
  const pairs a = load_pairs(values);
  for (long round = 0; round < work.rounds; ++round)
    for (int i = 0; i < chains; ++i) acc[i] = dot(acc[i], a, a);
  for (int i = 0; i < chains; ++i) sink = sum(acc[i]);
}

void quad_dot(const Work& work) {
  using Int8Dot = QuadDot<8>;
  alignas(64) std::uint8_t bytes[4 * lanes];
  for (std::uint8_t& byte : bytes) byte = 129;
  const auto weights = Int8Dot::weights(load_quads(bytes));
  vi acc[chains];
  for (int i = 0; i < chains; ++i) acc[i] = splat_int(i);
  const vi x = load_quads(bytes);
  for (long round = 0; round < work.rounds; ++round)
    for (int i = 0; i < chains; ++i) acc[i] = Int8Dot::step(acc[i], weights, x);
  for (int i = 0; i < chains; ++i) sink = sum(to_float(acc[i]));
}

// The kinds of arithmetic that limits_compute measures.
struct Kind {
  void (*body)(const Work&);
  int depth;  // multiply-adds a lane and step
};
constexpr Kind kinds[] = {{multiply_add, 1}, {pair_dot, 2}, {quad_dot, 4}};

void* start(void* argument) {
  Work& work = *static_cast<Work*>(argument);
  work.waiting->fetch_sub(1);
  while (work.waiting->load() > 0) continue;
  const double begin = now();
  work.body(work);
  work.seconds = now() - begin;
  return nullptr;
}

double run(int threads, const Work& model) {
  if (threads < 1 || threads > max_threads) return -1;
  std::atomic<int> waiting{threads};
  Work works[max_threads];
  pthread_t ids[max_threads];
  const std::size_t part = model.bytes / static_cast<std::size_t>(threads) / 4096 * 4096;
  for (int t = 0; t < threads; ++t) {
    works[t] = model;
    works[t].waiting = &waiting;
    works[t].data = model.data + static_cast<std::size_t>(t) * part;
    works[t].bytes = part;
    if (t > 0 && pthread_create(&ids[t], nullptr, start, &works[t]) != 0) return -1;
  }
  start(&works[0]);
  double slowest = works[0].seconds;
  for (int t = 1; t < threads; ++t) {
    pthread_join(ids[t], nullptr);
    if (works[t].seconds > slowest) slowest = works[t].seconds;
  }
  return slowest;
}

}  // namespace

#define LIMITS_EXPORT extern "C" __attribute__((visibility("default")))

LIMITS_EXPORT double limits_read(int threads, const void* data, std::size_t bytes) {
  return run(threads, {read_all, static_cast<const char*>(data), bytes, 0, nullptr, 0});
}

// Operations of one round of one thread: 2 a multiply-add. Kinds: 0 float32, 1 bf16, 2 int8.
LIMITS_EXPORT std::int64_t limits_operations(int kind) {
  return 2LL * chains * lanes * kinds[kind].depth;
}

LIMITS_EXPORT double limits_compute(int threads, int kind, long rounds) {
  return run(threads, {kinds[kind].body, nullptr, 0, rounds, nullptr, 0});
}
