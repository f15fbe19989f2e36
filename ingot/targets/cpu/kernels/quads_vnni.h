// Products of quads by VNNI, which adds up four products of bytes at once. The level gives
// dot_quads(sums, weights, x). See quads.h for the contract.
#pragma once

#include <immintrin.h>

namespace ingot {

inline constexpr bool fast_bytes = true, unpacking_pays = true;

template <int bits>
struct QuadDot {
  using Weights = vi;
  using Sums = vi;
  static constexpr int zero_point = 1 << (bits - 1);
  static constexpr int most_steps = 8;

  static Weights weights(vi quads) { return quads; }
  static Sums open(vi acc) { return acc; }
  static vi close(vi, Sums sums) { return sums; }
  static Sums step(Sums sums, Weights w, vi x) { return dot_quads(sums, w, x); }
};

template <int n>
inline int sum_values(const std::int8_t* from) {
  constexpr int whole = n / 32 * 32;
  __m256i sums = _mm256_setzero_si256();
  for (int i = 0; i < whole; i += 32) {
    const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    sums = _mm256_dpbusd_epi32(sums, _mm256_set1_epi8(1), values);
  }
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  int sum = _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
  for (int i = whole; i < n; ++i) sum += from[i];
  return sum;
}

}  // namespace ingot
