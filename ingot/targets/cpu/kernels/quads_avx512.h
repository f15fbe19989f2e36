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
inline vi shift_left(vi v, int bits) { return _mm512_slli_epi32(v, bits); }
inline vi shift_right(vi v, int bits) { return _mm512_srai_epi32(v, bits); }

inline vi add_in_words(vi a, vi b) { return _mm512_add_epi16(a, b); }
inline vi multiply_in_words(vi a, vi b) { return _mm512_mullo_epi16(a, b); }
inline vi add_products(vi acc, vi a, vi b) { return add(acc, _mm512_madd_epi16(a, b)); }
inline vi both_words(vi v) {
  return add(shift_left(v, 16), _mm512_and_si512(v, splat_int(0xffff)));
}

inline vi load_words(const std::uint16_t* from) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline vi load_words(const std::uint8_t* from) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

inline vi low_nibbles(vi v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
inline vi high_nibbles(vi v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
inline vi kept_bits(vi v, int mask) { return _mm512_and_si512(v, _mm512_set1_epi8(mask)); }
inline vi either(vi a, vi b) { return _mm512_or_si512(a, b); }
inline vi masked(vi v, int mask) { return _mm512_and_si512(v, splat_int(mask)); }
inline vi look_up(const std::uint8_t (&table)[16], vi v) {
  const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), v);
}
inline vi less_128(vi v) { return _mm512_xor_si512(v, _mm512_set1_epi8(-128)); }

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
// In assembly, because GCC 12 copies the sums of a tile to other registers between intrinsics.
inline vi dot_quads(vi sums, vi w, vi x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(w), "v"(x));
  return sums;
}
#else
struct SignedBytes {
  vi magnitude;
  __mmask64 negative;
};
inline SignedBytes signed_bytes(vi quads) {
  const vi value = _mm512_xor_si512(quads, _mm512_set1_epi8(-128));
  return {_mm512_abs_epi8(value), _mm512_movepi8_mask(value)};
}
inline vi turned(vi x, SignedBytes w) {
  return _mm512_mask_sub_epi8(x, w.negative, _mm512_setzero_si512(), x);
}
inline vi multiply_bytes(vi u, vi x) { return _mm512_maddubs_epi16(u, x); }
inline vi add_words(vi acc, vi words) {
  return _mm512_add_epi32(acc, _mm512_madd_epi16(words, _mm512_set1_epi16(1)));
}
#endif

}  // namespace ingot

#ifdef __AVX512VNNI__
#include "quads_vnni.h"
#else
#include "quads_maddubs.h"
#endif
