// AVX-512, with AVX512_VNNI where the target has it. See quads.h for the contract.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "simd_avx512.h"

namespace ingot {

using vi = __m512i;

inline vi load_quads(const std::uint8_t* from) { return _mm512_loadu_si512(from); }
inline void store_quads(std::uint8_t* to, vi v) { _mm512_storeu_si512(to, v); }
inline vi splat_int(int x) { return _mm512_set1_epi32(x); }
inline vi splat_quad(const std::int8_t* from) {
  int quad;
  std::memcpy(&quad, from, sizeof quad);
  return _mm512_set1_epi32(quad);
}
inline vf to_float(vi v) { return _mm512_cvtepi32_ps(v); }
inline vi add(vi a, vi b) { return _mm512_add_epi32(a, b); }
inline vi multiply(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
inline vi shift_left(vi v, int bits) { return _mm512_sll_epi32(v, _mm_cvtsi32_si128(bits)); }
inline vi shift_right(vi v, int bits) { return _mm512_sra_epi32(v, _mm_cvtsi32_si128(bits)); }

inline vi load_words(const std::uint16_t* from) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline vi load_words(const std::uint8_t* from) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

inline vi low_nibbles(vi v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
inline vi high_nibbles(vi v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }

inline vf load_halves(const std::uint16_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

inline void store_int8(std::int8_t* to, vf v, int n) {
  const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v));
  if (n >= lanes)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
  else
    _mm_mask_storeu_epi8(to, first_lanes(n), bytes);
}

#ifdef __AVX512VNNI__
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
#else
template <int n>
inline int sum_values(const std::int8_t* from) {
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += from[i];
  return sum;
}
#endif

template <int bits>
struct QuadDot;

#ifdef __AVX512VNNI__
inline constexpr bool fast_bytes = true;

template <int bits>
struct QuadDot {
  using Weights = vi;
  using Sums = vi;
  static constexpr int zero_point = 1 << (bits - 1);
  static constexpr int most_steps = 8;

  static Weights weights(vi quads) { return quads; }
  static Sums open(vi acc) { return acc; }
  static vi close(vi, Sums sums) { return sums; }
  static Sums step(Sums sums, Weights w, vi x) { return _mm512_dpbusd_epi32(sums, w, x); }
};
#else
inline constexpr bool fast_bytes = false;

// Magnitudes times signed x: 2 * 127 * 127 fits into 16 bits, 2 * 255 * 127 would not.
template <>
struct QuadDot<8> {
  struct Weights {
    vi magnitude;
    __mmask64 negative;
  };
  using Sums = vi;
  static constexpr int zero_point = 0;
  static constexpr int most_steps = 8;

  static Weights weights(vi quads) {
    const vi value = _mm512_xor_si512(quads, _mm512_set1_epi8(-128));
    return {_mm512_abs_epi8(value), _mm512_movepi8_mask(value)};
  }
  static Sums open(vi acc) { return acc; }
  static vi close(vi, Sums sums) { return sums; }
  static Sums step(Sums sums, Weights w, vi x) {
    const vi turned = _mm512_mask_sub_epi8(x, w.negative, _mm512_setzero_si512(), x);
    const vi products = _mm512_maddubs_epi16(w.magnitude, turned);
    return added_up(_mm512_add_epi32(sums, _mm512_madd_epi16(products, _mm512_set1_epi16(1))));
  }
};

// Sums of 16 bits: eight steps reach 8 * 2 * 15 * 127 = 30,480 at most.
template <>
struct QuadDot<4> {
  using Weights = vi;
  using Sums = vi;
  static constexpr int zero_point = 8;
  static constexpr int most_steps = 8;

  static Weights weights(vi quads) { return quads; }
  static Sums open(vi) { return _mm512_setzero_si512(); }
  static vi close(vi acc, Sums sums) {
    return _mm512_add_epi32(acc, _mm512_madd_epi16(sums, _mm512_set1_epi16(1)));
  }
  static Sums step(Sums sums, Weights w, vi x) {
    return added_up(_mm512_add_epi16(sums, _mm512_maddubs_epi16(w, x)));
  }
};
#endif

}  // namespace ingot
