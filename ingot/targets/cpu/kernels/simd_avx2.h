// AVX2 with FMA and F16C (x86-64-v3). See simd.h for the contract.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "bf16.h"
#include "x86.h"

namespace ingot {

inline constexpr int lanes = 8;
using vf = __m256;

inline vf zero() { return _mm256_setzero_ps(); }
inline vf splat(float x) { return _mm256_set1_ps(x); }

// All bits set in lanes [0, n); n may lie outside 0..8.
inline __m256i first_lanes(int n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
}

inline vf widen(__m128i half) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline __m128i narrow(vf v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  const __m256i packed = _mm256_packus_epi32(upper, upper);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}

inline vf load(const float* from) { return _mm256_loadu_ps(from); }
inline vf load(const float* from, int n) { return _mm256_maskload_ps(from, first_lanes(n)); }
inline vf load(const bf16* from) {
  return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline vf load(const bf16* from, int n) {
  bf16 padded[lanes] = {};
  std::memcpy(padded, from, static_cast<std::size_t>(n) * sizeof(bf16));
  return load(padded);
}

inline vf load(const std::int8_t* from) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
inline vf load(const std::int8_t* from, int n) {
  std::int8_t padded[lanes] = {};
  std::memcpy(padded, from, static_cast<std::size_t>(n));
  return load(padded);
}

inline void store(float* to, vf v) { _mm256_storeu_ps(to, v); }
inline void store(float* to, vf v, int n) { _mm256_maskstore_ps(to, first_lanes(n), v); }
inline void store(bf16* to, vf v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), narrow(v));
}
inline void store(bf16* to, vf v, int n) {
  bf16 padded[lanes];
  store(padded, v);
  std::memcpy(to, padded, static_cast<std::size_t>(n) * sizeof(bf16));
}

inline vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
inline vf min(vf a, vf b) { return _mm256_min_ps(a, b); }
inline vf max(vf a, vf b) { return _mm256_max_ps(a, b); }
inline vf sqrt(vf v) { return _mm256_sqrt_ps(v); }
inline vf round_even(vf v) {
  return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline vf scale2(vf a, vf n) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), exponent));
}
inline vf zero_below(vf v, vf x, float limit) {
  return _mm256_and_ps(v, _mm256_cmp_ps(x, splat(limit), _CMP_NLT_UQ));
}
inline vf keep(vf v, int begin, int end, vf other) {
  const __m256i inside = _mm256_andnot_si256(first_lanes(begin), first_lanes(end));
  return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(inside));
}

inline vf fold(vf v, vf (*op)(vf, vf)) {
  v = op(v, _mm256_permute2f128_ps(v, v, 0x01));
  v = op(v, _mm256_permute_ps(v, 0x4e));
  return op(v, _mm256_permute_ps(v, 0xb1));
}
inline float first(vf v) { return _mm256_cvtss_f32(v); }
inline float sum(vf v) {
  return first(fold(v, [](vf a, vf b) { return _mm256_add_ps(a, b); }));
}
inline float maximum(vf v) { return first(fold(v, max)); }
inline vf larger_magnitude(vf top, vf v) {
  const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
  return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(top), magnitude));
}
inline float largest_magnitude(vf v) { return first(fold(v, larger_magnitude)); }
inline bool any_above(vf v, float limit) {
  return _mm256_movemask_ps(_mm256_cmp_ps(v, splat(limit), _CMP_GT_OQ)) != 0;
}

// Adds the halves of two vectors so that one vector is left, step by step down to one of all.
inline vf sums(const vf (&v)[lanes]) {
  vf two[4], four[2];
  for (int i = 0; i < 4; ++i)
    two[i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]) +
             _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
  for (int i = 0; i < 2; ++i) {
    const __m256d a = _mm256_castps_pd(two[2 * i]), b = _mm256_castps_pd(two[2 * i + 1]);
    four[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)) +
              _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
  }
  return _mm256_permute2f128_ps(four[0], four[1], 0x20) +
         _mm256_permute2f128_ps(four[0], four[1], 0x31);
}

inline std::uint32_t read_pair(const bf16* from) {
  std::uint32_t pair;
  std::memcpy(&pair, from, sizeof pair);
  return pair;
}

inline constexpr bool multiplies_pairs = false;
struct pairs {
  vf even, odd;
};

inline pairs join_pairs(vf even, vf odd) { return {even, odd}; }
inline pairs zip_pairs(const bf16* even, const bf16* odd) { return {load(even), load(odd)}; }
inline pairs zip_pairs(const bf16* even, const bf16* odd, int n) {
  return {load(even, n), load(odd, n)};
}
inline __m256i load_both(const bf16* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
inline __m256i load_both(const bf16* from, int n) {
  return _mm256_maskload_epi32(reinterpret_cast<const int*>(from), first_lanes(n));
}
inline vf split_pairs(__m256i both, int odd) {
  return _mm256_castsi256_ps(odd != 0 ? _mm256_and_si256(both, _mm256_set1_epi32(-0x10000))
                                      : _mm256_slli_epi32(both, 16));
}
inline vf split_pairs(const bf16* from, int odd) { return split_pairs(load_both(from), odd); }
inline vf split_pairs(const bf16* from, int odd, int n) {
  return split_pairs(load_both(from, n), odd);
}
inline pairs split(__m256i both) { return {split_pairs(both, 0), split_pairs(both, 1)}; }
inline pairs load_pairs(const bf16* from) { return split(load_both(from)); }
inline pairs load_pairs(const bf16* from, int n) { return split(load_both(from, n)); }
inline pairs splat_pair(std::uint32_t pair) {
  return split(_mm256_set1_epi32(static_cast<int>(pair)));
}
inline vf dot(vf acc, pairs w, pairs x) { return fma(w.odd, x.odd, fma(w.even, x.even, acc)); }

inline void store_alternate(bf16* to, const bf16* from, int odd, int n) {
  for (int i = 0; i < n; ++i) to[2 * i + odd] = from[i];
}
inline void store_pairs(bf16* to, pairs both) {
  const __m256i upper = _mm256_srli_epi32(_mm256_castps_si256(both.even), 16);
  const __m256i bits = _mm256_or_si256(_mm256_castps_si256(both.odd), upper);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
}

}  // namespace ingot
