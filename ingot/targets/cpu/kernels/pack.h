// Vectors that keep only some lanes, and exact sums: choosing among many values needs these beyond
// simd.h. Each level gives the same names and the same bits:
//   Lanes                  a set of lanes
//   at_least(v, limit)     the lanes where v >= limit
//   others(set, n)         those of the first n lanes that are not in the set
//   count(set)             how many they are
//   pack(to, v, set)       stores those lanes side by side, but writes a whole vector
//   pack(to, from, set)    the same for integers in memory
//   pack_ids(to, id, set)  the same for id + lane
//   Mass                   a sum of v * 2^40 rounded to even, 0 <= v <= 1: whole numbers, so that
//                          their order does not matter
#pragma once

#include "simd.h"

namespace ingot {

inline constexpr int mass_bits = 40;
inline constexpr std::uint64_t shift_bits = 0x40b0000000000000;  // those of 4096.0

// v * 2^40, rounded to even. Doubles in [2^12, 2^13) are 2^-40 apart, so that adding 2^12 rounds
// and leaves the number in the low bits.
inline std::uint64_t mass_of(float v) {
  const double shifted = static_cast<double>(v) + 4096.0;
  std::uint64_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  return bits - shift_bits;
}

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

using Lanes = __mmask16;

inline Lanes at_least(vf v, float limit) {
  return _mm512_cmp_ps_mask(v, splat(limit), _CMP_GE_OQ);
}
inline Lanes others(Lanes set, int n) { return static_cast<Lanes>(first_lanes(n) & ~set); }
inline int count(Lanes set) { return __builtin_popcount(set); }

// Compresses in a register first: on some processors, compressing stores are microcode.
inline void pack(float* to, vf v, Lanes set) { store(to, _mm512_maskz_compress_ps(set, v)); }
inline void pack(std::int32_t* to, __m512i v, Lanes set) {
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(set, v));
}
inline void pack(std::int32_t* to, const std::int32_t* from, Lanes set) {
  pack(to, _mm512_loadu_si512(from), set);
}
inline void pack_ids(std::int32_t* to, int id, Lanes set) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  pack(to, _mm512_add_epi32(_mm512_set1_epi32(id), lane), set);
}

class Mass {
 public:
  void add(vf v) {
    const vf scaled = v * splat(static_cast<float>(1ull << mass_bits));
    low_ = _mm512_add_epi64(low_, _mm512_cvtps_epi64(_mm512_castps512_ps256(scaled)));
    high_ = _mm512_add_epi64(high_, _mm512_cvtps_epi64(_mm512_extractf32x8_ps(scaled, 1)));
  }
  std::uint64_t total() const {
    return static_cast<std::uint64_t>(_mm512_reduce_add_epi64(_mm512_add_epi64(low_, high_)));
  }

 private:
  __m512i low_ = _mm512_setzero_si512(), high_ = _mm512_setzero_si512();
};

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

using Lanes = unsigned;

inline Lanes at_least(vf v, float limit) {
  return static_cast<Lanes>(_mm256_movemask_ps(_mm256_cmp_ps(v, splat(limit), _CMP_GE_OQ)));
}
inline Lanes others(Lanes set, int n) { return ((1u << n) - 1) & ~set; }
inline int count(Lanes set) { return __builtin_popcount(set); }

// The numbers of the lanes in the set, side by side.
inline __m256i sources(Lanes set) {
  const std::uint64_t bytes = _pdep_u64(set, 0x0101010101010101) * 0xff;
  const std::uint64_t packed = _pext_u64(0x0706050403020100, bytes);
  return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(packed)));
}
inline void pack(float* to, vf v, Lanes set) {
  store(to, _mm256_permutevar8x32_ps(v, sources(set)));
}
inline void pack(std::int32_t* to, __m256i v, Lanes set) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_permutevar8x32_epi32(v, sources(set)));
}
inline void pack(std::int32_t* to, const std::int32_t* from, Lanes set) {
  pack(to, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), set);
}
inline void pack_ids(std::int32_t* to, int id, Lanes set) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  pack(to, _mm256_add_epi32(_mm256_set1_epi32(id), lane), set);
}

class Mass {
 public:
  void add(vf v) {
    low_ = _mm256_add_epi64(low_, shifted(_mm256_castps256_ps128(v)));
    high_ = _mm256_add_epi64(high_, shifted(_mm256_extractf128_ps(v, 1)));
    count_ += lanes;
  }
  std::uint64_t total() const {
    std::uint64_t parts[4];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(parts), _mm256_add_epi64(low_, high_));
    return parts[0] + parts[1] + parts[2] + parts[3] - count_ * shift_bits;
  }

 private:
  static __m256i shifted(__m128 v) {  // as mass_of, but for the last step
    return _mm256_castpd_si256(_mm256_add_pd(_mm256_cvtps_pd(v), _mm256_set1_pd(4096.0)));
  }

  __m256i low_ = _mm256_setzero_si256(), high_ = _mm256_setzero_si256();
  std::uint64_t count_ = 0;
};

#else

using Lanes = unsigned;

inline Lanes at_least(vf v, float limit) {
  Lanes set = 0;
  for (int i = 0; i < lanes; ++i) set |= static_cast<Lanes>(v[i] >= limit) << i;
  return set;
}
inline Lanes others(Lanes set, int n) { return ((1u << n) - 1) & ~set; }
inline int count(Lanes set) { return __builtin_popcount(set); }

inline void pack(float* to, vf v, Lanes set) {
  for (int i = 0; i < lanes; to += set >> i & 1, ++i) *to = v[i];
}
inline void pack(std::int32_t* to, const std::int32_t* from, Lanes set) {
  for (int i = 0; i < lanes; to += set >> i & 1, ++i) *to = from[i];
}
inline void pack_ids(std::int32_t* to, int id, Lanes set) {
  for (int i = 0; i < lanes; to += set >> i & 1, ++i) *to = id + i;
}

class Mass {
 public:
  void add(vf v) {
    for (int i = 0; i < lanes; ++i) sums_[i] += mass_of(v[i]);
  }
  std::uint64_t total() const { return sums_[0] + sums_[1] + sums_[2] + sums_[3]; }

 private:
  std::uint64_t sums_[lanes] = {};
};

#endif

}  // namespace ingot
