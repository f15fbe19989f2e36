// The limits of this machine: reading in sequence, and multiply-adds in registers, with the
// instructions and the threads of the kernels. Every figure stands beside these.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "amx.h"
#include "pool.h"
#include "simd.h"
#include "tuning.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace ingot {

enum class Limit : std::int32_t { read, float32, bfloat16, int8 };

struct LimitWork {
  Limit limit;
  const char* data;
  std::int64_t bytes, rounds;
};

inline volatile float limit_sink;  // keeps the compiler from dropping a result

// Independent sums, with one add for each load, so that only reading takes time. It fetches as far
// ahead as is best for pages of either size, and no less far than any kernel.
inline void read_blocks(const char* data, std::int64_t bytes) {
  constexpr int streams = 8, vector_bytes = lanes * sizeof(float);
  constexpr int ahead = tuned::int8_ahead > 4096 ? tuned::int8_ahead : 4096;
  vf sums[streams] = {zero(), zero(), zero(), zero(), zero(), zero(), zero(), zero()};
  for (std::int64_t at = 0; at + streams * vector_bytes <= bytes; at += streams * vector_bytes)
    for (int i = 0; i < streams; ++i) {
      const char* from = data + at + i * vector_bytes;
      prefetch_stream(from + ahead);
      sums[i] = sums[i] + load(reinterpret_cast<const float*>(from));
    }
  for (const vf& s : sums) limit_sink = sum(s);
}

// More than the latency times the throughput of any multiply-add here.
inline constexpr int limit_chains = 12;

template <class Vector, class Step>
inline void run_chains(std::int64_t rounds, Vector start, Step step) {
  Vector sums[limit_chains];
  for (Vector& s : sums) s = start;
  for (std::int64_t round = 0; round < rounds; ++round)
    for (Vector& s : sums) s = step(s);
  for (const Vector& s : sums) {
    float first;
    std::memcpy(&first, &s, sizeof first);
    limit_sink = first;
  }
}

// Multiply-adds of bytes into int32: the instructions of the level, and how many a vector does.
#if defined(__AVX512VNNI__)
inline constexpr int byte_products = 64;
inline void run_byte_chains(std::int64_t rounds) {
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
  run_chains(rounds, a, [=](__m512i s) { return _mm512_dpbusd_epi32(s, a, b); });
}
#elif defined(__AVXVNNI__)
inline constexpr int byte_products = 32;
inline void run_byte_chains(std::int64_t rounds) {
  const __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
  run_chains(rounds, a, [=](__m256i s) { return _mm256_dpbusd_epi32(s, a, b); });
}
#elif defined(__AVX2__)
inline constexpr int byte_products = 32;
inline void run_byte_chains(std::int64_t rounds) {
  const __m256i a = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1);
  run_chains(rounds, a, [=](__m256i s) {  // the sum is an operand, or all but the add is hoisted
    return _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(a, s), ones));
  });
}
#else  // no instructions for bytes: they are widened
inline constexpr int byte_products = lanes;
inline void run_byte_chains(std::int64_t rounds) {
  const vf a = splat(0.999f), b = splat(1e-3f);
  run_chains(rounds, b, [=](vf s) { return fma(s, a, b); });
}
#endif

// Whether tiles multiply-add such numbers, and the k that they add up at once.
inline bool in_tiles(Limit limit) {
  return (limit == Limit::bfloat16 && amx::available) || (limit == Limit::int8 && amx::has_bytes);
}
inline int tile_depth(Limit limit) { return limit == Limit::int8 ? amx::byte_depth : amx::depth; }

template <class Number, int sums, int rows, int columns>
inline void multiply_tiles() {
  if constexpr (std::is_same_v<Number, std::int8_t>)
    amx::multiply_bytes<sums, rows, columns>();
  else
    amx::multiply<sums, rows, columns>();
}

template <class Number>
inline void run_tiles(std::int64_t rounds) {
  amx::configure({});
  for (std::int64_t round = 0; round < rounds; ++round) {
    multiply_tiles<Number, 0, 4, 6>();
    multiply_tiles<Number, 1, 4, 7>();
    multiply_tiles<Number, 2, 5, 6>();
    multiply_tiles<Number, 3, 5, 7>();
  }
  amx::release();
}

inline void run_pairs(std::int64_t rounds) {
  if constexpr (amx::available) return run_tiles<bf16>(rounds);
  const pairs a = splat_pair(0x3c003c00);  // 2^-7, twice
  run_chains(rounds, zero(), [=](vf s) { return dot(s, a, a); });
}

inline void run_bytes(std::int64_t rounds) {
  if constexpr (amx::has_bytes) return run_tiles<std::int8_t>(rounds);
  run_byte_chains(rounds);
}

// Multiply-adds of one round of one thread.
inline std::int64_t limit_products(Limit limit) {
  if (in_tiles(limit)) return 4 * amx::most_rows * amx::columns * tile_depth(limit);
  const int wide = limit == Limit::int8 ? byte_products
                                        : limit == Limit::bfloat16 ? 2 * lanes : lanes;
  return std::int64_t{limit_chains} * wide;
}

inline void run_limit(const void* argument, Team team, Barrier&) {
  const auto& work = *static_cast<const LimitWork*>(argument);
  if (work.limit == Limit::read) {
    const std::int64_t part = work.bytes / team.size / 4096 * 4096;
    for (std::int64_t round = 0; round < work.rounds; ++round)
      read_blocks(work.data + team.rank * part, part);
  } else if (work.limit == Limit::float32) {
    const vf a = splat(0.999f), b = splat(1e-3f);
    run_chains(work.rounds, b, [=](vf s) { return fma(s, a, b); });
  } else if (work.limit == Limit::bfloat16) {
    run_pairs(work.rounds);
  } else {
    run_bytes(work.rounds);
  }
}

// Bytes read, or operations (two for a multiply-add), per second on that many threads; 0 if threads
// cannot be started. Reads the `bytes` at `data` repeatedly: bytes that fit a cache come from it.
inline double measure_limit(Limit limit, int threads, const void* data, std::int64_t bytes) {
  constexpr std::int64_t read_bytes = 64 << 20, rounds = 200'000;  // about a millisecond
  const bool reads = limit == Limit::read;
  if (threads < 1 || (reads && bytes < 4096 * threads) || !amx::allowed()) return 0;
  Pool* pool = Pool::open(threads, run_limit);
  if (pool == nullptr) return 0;
  const LimitWork work{limit, static_cast<const char*>(data), bytes,
                       !reads ? rounds : bytes < read_bytes ? read_bytes / bytes : 1};
  pool->run(&work, threads);  // wakes the threads, and fills what cache there is
  const std::int64_t begin = nanoseconds();
  pool->run(&work, threads);
  const double seconds = 1e-9 * static_cast<double>(nanoseconds() - begin);
  pool->close();
  const double amount = reads ? static_cast<double>(bytes / threads / 4096 * 4096 * threads)
                              : 2.0 * threads * static_cast<double>(limit_products(limit));
  return amount * static_cast<double>(work.rounds) / seconds;
}

}  // namespace ingot
