// Reads and writes of vectors, byte for byte as sanitizers can see them. To a compiler, masked
// intrinsics of x86 are no accesses to memory at all, and of those wider than 16 bytes GCC's
// address sanitizer looks at the first 16 alone: what kernels do at the ends of rows would pass
// unseen. Here all go through the sanitizer's own memcpy. Included before everything else.
#pragma once

#ifdef __x86_64__
#include <immintrin.h>

#include <cstring>

namespace accesses {

// Not known to the compiler, which would otherwise make a single access of a call again.
inline void* (*volatile copy)(void*, const void*, std::size_t) = std::memcpy;

template <class Vector>
inline Vector read(const void* from) {
  Vector v;
  copy(&v, from, sizeof v);
  return v;
}

template <class Vector>
inline void write(void* to, Vector v) {
  copy(to, &v, sizeof v);
}

template <class Element, class Vector>
inline Vector read_lanes(unsigned long long mask, const void* from) {
  Element all[sizeof(Vector) / sizeof(Element)] = {};
  const char* at = static_cast<const char*>(from);
  for (auto& each : all) {
    if (mask & 1) copy(&each, at, sizeof each);
    mask >>= 1;
    at += sizeof each;
  }
  return read<Vector>(all);
}

template <class Element, class Vector>
inline void write_lanes(void* to, unsigned long long mask, Vector v) {
  Element all[sizeof v / sizeof(Element)];
  write(all, v);
  char* at = static_cast<char*>(to);
  for (const auto& each : all) {
    if (mask & 1) copy(at, &each, sizeof each);
    mask >>= 1;
    at += sizeof each;
  }
}

// The highest bit of every lane.
#define INGOT_LANES(mask) static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(mask)))

}  // namespace accesses

#define _mm_loadl_epi64(from) _mm_cvtsi64_si128(accesses::read<long long>(from))
#define _mm_load_si128(from) accesses::read<__m128i>(from)
#define _mm_loadu_si128(from) accesses::read<__m128i>(from)
#define _mm256_loadu_si256(from) accesses::read<__m256i>(from)
#define _mm256_loadu_ps(from) accesses::read<__m256>(from)
#define _mm512_loadu_si512(from) accesses::read<__m512i>(from)
#define _mm512_loadu_ps(from) accesses::read<__m512>(from)

#define _mm_maskz_loadu_epi8(mask, from) accesses::read_lanes<char, __m128i>(mask, from)
#define _mm256_maskz_loadu_epi16(mask, from) accesses::read_lanes<short, __m256i>(mask, from)
#define _mm256_maskload_epi32(from, mask) \
  accesses::read_lanes<int, __m256i>(INGOT_LANES(mask), from)
#define _mm256_maskload_ps(from, mask) accesses::read_lanes<float, __m256>(INGOT_LANES(mask), from)
#define _mm512_maskz_loadu_epi32(mask, from) accesses::read_lanes<int, __m512i>(mask, from)
#define _mm512_maskz_loadu_ps(mask, from) accesses::read_lanes<float, __m512>(mask, from)

#define _mm_storeu_si128(to, v) accesses::write<__m128i>(to, v)
#define _mm256_storeu_si256(to, v) accesses::write<__m256i>(to, v)
#define _mm256_storeu_ps(to, v) accesses::write<__m256>(to, v)
#define _mm512_storeu_si512(to, v) accesses::write<__m512i>(to, v)
#define _mm512_storeu_ps(to, v) accesses::write<__m512>(to, v)

#define _mm_mask_storeu_epi8(to, mask, v) accesses::write_lanes<char>(to, mask, v)
#define _mm256_mask_storeu_epi16(to, mask, v) accesses::write_lanes<short>(to, mask, v)
#define _mm512_mask_storeu_epi16(to, mask, v) accesses::write_lanes<short>(to, mask, v)
#define _mm256_maskstore_ps(to, mask, v) accesses::write_lanes<float>(to, INGOT_LANES(mask), v)
#define _mm512_mask_storeu_ps(to, mask, v) accesses::write_lanes<float>(to, mask, v)
#endif
