// AVX2, with AVX_VNNI where the target has it. See quads.h for the contract.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "simd_avx2.h"

namespace ingot {

using vi = __m256i;

inline vi load_quads(const std::uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
inline void store_quads(std::uint8_t* to, vi v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v);
}
inline vi splat_int(int x) { return _mm256_set1_epi32(x); }
inline vi splat_quad(const std::int8_t* from) {
  int quad;
  std::memcpy(&quad, from, sizeof quad);
  return _mm256_set1_epi32(quad);
}
inline vf to_float(vi v) { return _mm256_cvtepi32_ps(v); }
inline vi add(vi a, vi b) { return _mm256_add_epi32(a, b); }
inline vi multiply(vi a, vi b) { return _mm256_mullo_epi32(a, b); }
inline vi shift_left(vi v, int bits) { return _mm256_slli_epi32(v, bits); }
inline vi shift_right(vi v, int bits) { return _mm256_srai_epi32(v, bits); }

inline vi add_in_words(vi a, vi b) { return _mm256_add_epi16(a, b); }
inline vi multiply_in_words(vi a, vi b) { return _mm256_mullo_epi16(a, b); }
inline vi add_products(vi acc, vi a, vi b) { return add(acc, _mm256_madd_epi16(a, b)); }
inline vi both_words(vi v) {
  return add(shift_left(v, 16), _mm256_and_si256(v, splat_int(0xffff)));
}

inline vi load_words(const std::uint16_t* from) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline vi load_words(const std::uint8_t* from) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}

inline vi low_nibbles(vi v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
inline vi high_nibbles(vi v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }
inline vi kept_bits(vi v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi8(mask)); }
inline vi either(vi a, vi b) { return _mm256_or_si256(a, b); }
inline vi masked(vi v, int mask) { return _mm256_and_si256(v, splat_int(mask)); }
inline vi look_up(const std::uint8_t (&table)[16], vi v) {
  const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), v);
}
inline vi less_128(vi v) { return _mm256_xor_si256(v, _mm256_set1_epi8(-128)); }

inline vf load_halves(const std::uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

inline void store_int8(std::int8_t* to, vf v, int n) {
  const __m256i integers = _mm256_cvtps_epi32(v);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(integers),
                                        _mm256_extracti128_si256(integers, 1));
  std::int8_t bytes[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), _mm_packs_epi16(words, words));
  std::memcpy(to, bytes, static_cast<std::size_t>(n < lanes ? n : lanes));
}

// AVX-512 has its own encoding of the instruction; tests run this level in that encoding.
#if defined(__AVXVNNI__) || defined(__AVX512VNNI__)
inline vi dot_quads(vi sums, vi w, vi x) { return _mm256_dpbusd_epi32(sums, w, x); }
#else
struct SignedBytes {
  vi magnitude, value;
};
inline SignedBytes signed_bytes(vi quads) {
  const vi value = _mm256_xor_si256(quads, _mm256_set1_epi8(-128));
  return {_mm256_abs_epi8(value), value};
}
inline vi turned(vi x, SignedBytes w) { return _mm256_sign_epi8(x, w.value); }
inline vi multiply_bytes(vi u, vi x) { return _mm256_maddubs_epi16(u, x); }
inline vi add_words(vi acc, vi words) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
}
#endif

}  // namespace ingot

#if defined(__AVXVNNI__) || defined(__AVX512VNNI__)
#include "quads_vnni.h"
#else
#include "quads_maddubs.h"
#endif
