// AVX-512 (x86-64-v4), with AVX512_BF16 where the target has it. See simd.h for the contract.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "bf16.h"
#include "x86.h"

namespace ingot {

inline constexpr int lanes = 16;
using vf = __m512;

inline vf zero() { return _mm512_setzero_ps(); }
inline vf splat(float x) { return _mm512_set1_ps(x); }

// Lanes [0, n); n may lie outside 0..16.
inline __mmask16 first_lanes(int n) {
  return n >= lanes ? 0xffff : n <= 0 ? 0 : static_cast<__mmask16>((1u << n) - 1);
}

inline vf widen(__m256i half) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

inline vf load(const float* from) { return _mm512_loadu_ps(from); }
inline vf load(const float* from, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), from); }
inline vf load(const bf16* from) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline vf load(const bf16* from, int n) {
  return widen(_mm256_maskz_loadu_epi16(first_lanes(n), from));
}

#ifdef __AVX512BF16__
inline __m256i narrow(vf v) {
  const __m256bh rounded = _mm512_cvtneps_pbh(v);
  __m256i bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  return bits;
}
#else
inline __m256i narrow(vf v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_add_epi32(bits, bias);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
  const __m512i chosen = _mm512_mask_mov_epi32(rounded, is_nan, quiet);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16));
}
#endif

inline vf load(const std::int8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
inline vf load(const std::int8_t* from, int n) {
  const __m128i bytes = _mm_maskz_loadu_epi8(first_lanes(n), from);
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

inline void store(float* to, vf v) { _mm512_storeu_ps(to, v); }
inline void store(float* to, vf v, int n) { _mm512_mask_storeu_ps(to, first_lanes(n), v); }
inline void store(bf16* to, vf v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow(v));
}
inline void store(bf16* to, vf v, int n) {
  _mm256_mask_storeu_epi16(to, first_lanes(n), narrow(v));
}

inline void store_alternate(bf16* to, const bf16* from, int odd, int n) {
  const auto shift = static_cast<unsigned>(16 * odd);
  for (int i = 0; i < n; i += lanes) {
    const __m256i values = _mm256_maskz_loadu_epi16(first_lanes(n - i), from + i);
    const __mmask32 places = _mm512_kunpackw(first_lanes(2 * (n - i) - lanes),
                                             first_lanes(2 * (n - i))) & 0x55555555u << odd;
    const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(values), shift);
    _mm512_mask_storeu_epi16(to + 2 * i, places, wide);
  }
}

inline vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
inline vf min(vf a, vf b) { return _mm512_min_ps(a, b); }
inline vf max(vf a, vf b) { return _mm512_max_ps(a, b); }
inline vf sqrt(vf v) { return _mm512_sqrt_ps(v); }
inline vf round_even(vf v) {
  return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline vf scale2(vf a, vf n) { return _mm512_scalef_ps(a, n); }
inline vf zero_below(vf v, vf x, float limit) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, splat(limit), _CMP_NLT_UQ), v);
}
inline vf keep(vf v, int begin, int end, vf other) {
  const auto mask = static_cast<__mmask16>(first_lanes(end) & ~first_lanes(begin));
  return _mm512_mask_mov_ps(other, mask, v);
}

// Written out, because the compiler may choose the order of its own reductions.
inline vf fold(vf v, vf (*op)(vf, vf)) {
  v = op(v, _mm512_shuffle_f32x4(v, v, 0x4e));
  v = op(v, _mm512_shuffle_f32x4(v, v, 0xb1));
  v = op(v, _mm512_permute_ps(v, 0x4e));
  return op(v, _mm512_permute_ps(v, 0xb1));
}
inline float first(vf v) { return _mm512_cvtss_f32(v); }
inline float sum(vf v) {
  return first(fold(v, [](vf a, vf b) { return _mm512_add_ps(a, b); }));
}
inline float maximum(vf v) { return first(fold(v, max)); }
inline vf larger_magnitude(vf top, vf v) {
  const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
  return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(top), magnitude));
}
inline float largest_magnitude(vf v) { return first(fold(v, larger_magnitude)); }
inline bool any_above(vf v, float limit) {
  return _mm512_cmp_ps_mask(v, splat(limit), _CMP_GT_OQ) != 0;
}

// Adds the halves of two vectors so that one vector is left, step by step down to one of all.
inline vf sums(const vf (&v)[lanes]) {
  vf two[8], four[4], halves[2];
  for (int i = 0; i < 8; ++i)
    two[i] = _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]) +
             _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]);
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(two[2 * i]), b = _mm512_castps_pd(two[2 * i + 1]);
    four[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) +
              _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
  }
  for (int i = 0; i < 2; ++i)
    halves[i] = _mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], 0x88) +
                _mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], 0xdd);
  return _mm512_shuffle_f32x4(halves[0], halves[1], 0x88) +
         _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd);
}

inline std::uint32_t read_pair(const bf16* from) {
  std::uint32_t pair;
  std::memcpy(&pair, from, sizeof pair);
  return pair;
}

inline vf split_pairs(__m512i both, int odd) {
  return _mm512_castsi512_ps(odd != 0 ? _mm512_and_si512(both, _mm512_set1_epi32(-0x10000))
                                      : _mm512_slli_epi32(both, 16));
}
inline vf split_pairs(const bf16* from, int odd) {
  return split_pairs(_mm512_loadu_si512(from), odd);
}
inline vf split_pairs(const bf16* from, int odd, int n) {
  return split_pairs(_mm512_maskz_loadu_epi32(first_lanes(n), from), odd);
}

// Pairs of values that are exact in bfloat16, in the order of memory.
inline __m512i interleave(vf even, vf odd) {
  const __m512i upper = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
  return _mm512_or_si512(_mm512_castps_si512(odd), upper);
}

#ifdef __AVX512BF16__
inline constexpr bool multiplies_pairs = true;
using pairs = __m512i;

inline pairs join_pairs(vf even, vf odd) { return interleave(even, odd); }
inline pairs zip_halves(__m512i both) {
  const __m512i order =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, both);
}
inline pairs zip_pairs(__m256i even, __m256i odd) {
  return zip_halves(_mm512_inserti64x4(_mm512_castsi256_si512(even), odd, 1));
}
inline pairs zip_pairs(const bf16* even, const bf16* odd) {
  return zip_pairs(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(even)),
                   _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd)));
}
inline pairs zip_pairs(const bf16* even, const bf16* odd, int n) {
  return zip_pairs(_mm256_maskz_loadu_epi16(first_lanes(n), even),
                   _mm256_maskz_loadu_epi16(first_lanes(n), odd));
}
inline pairs load_pairs(const bf16* from) { return _mm512_loadu_si512(from); }
inline void store_pairs(bf16* to, pairs both) { _mm512_storeu_si512(to, both); }
inline pairs load_pairs(const bf16* from, int n) {
  return _mm512_maskz_loadu_epi32(first_lanes(n), from);
}
inline pairs splat_pair(std::uint32_t pair) {
  return _mm512_set1_epi32(static_cast<int>(pair));
}
inline vf dot(vf acc, pairs w, pairs x) {
  __m512bh weights, row;
  std::memcpy(&weights, &w, sizeof w);
  std::memcpy(&row, &x, sizeof x);
  return _mm512_dpbf16_ps(acc, weights, row);
}
#else
inline constexpr bool multiplies_pairs = false;
struct pairs {
  vf even, odd;
};

inline pairs join_pairs(vf even, vf odd) { return {even, odd}; }
inline pairs zip_pairs(const bf16* even, const bf16* odd) { return {load(even), load(odd)}; }
inline pairs zip_pairs(const bf16* even, const bf16* odd, int n) {
  return {load(even, n), load(odd, n)};
}
inline pairs split(__m512i both) { return {split_pairs(both, 0), split_pairs(both, 1)}; }
inline void store_pairs(bf16* to, pairs both) {
  _mm512_storeu_si512(to, interleave(both.even, both.odd));
}
inline pairs load_pairs(const bf16* from) { return split(_mm512_loadu_si512(from)); }
inline pairs load_pairs(const bf16* from, int n) {
  return split(_mm512_maskz_loadu_epi32(first_lanes(n), from));
}
inline pairs splat_pair(std::uint32_t pair) {
  return split(_mm512_set1_epi32(static_cast<int>(pair)));
}
inline vf dot(vf acc, pairs w, pairs x) { return fma(w.odd, x.odd, fma(w.even, x.even, acc)); }
#endif

}  // namespace ingot
