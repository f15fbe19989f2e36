// What a product of AMX computes, in vector registers: the same sums, bit for bit.
//
// With a call for every panel, tiles read a sixth less a second than vectors. So a few rows, for
// which memory sets the pace anyway, take this way.
#pragma once

#include <immintrin.h>

#include "amx.h"
#include "panel.h"

namespace ingot {

inline constexpr int amx_vector_rows = 3;  // for more, these operations take longer than memory

#if defined(__AVX512BF16__)
inline vf even(pairs both) { return _mm512_castsi512_ps(_mm512_slli_epi32(both, 16)); }
inline vf odd(pairs both) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm512_castsi512_ps(_mm512_and_si512(both, upper));
}
#else
inline vf even(pairs both) { return both.even; }
inline vf odd(pairs both) { return both.odd; }
#endif

// Subnormal numbers are zeros while it lives, as they are for tiles.
class SubnormalsAreZeros {
 public:
  SubnormalsAreZeros() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }  // FTZ, DAZ
  ~SubnormalsAreZeros() { _mm_setcsr(before_); }
  SubnormalsAreZeros(const SubnormalsAreZeros&) = delete;
  SubnormalsAreZeros& operator=(const SubnormalsAreZeros&) = delete;

 private:
  unsigned before_;
};

// Adds a step of k to the sums of vectors First .. First + Count - 1, and fetches as much from
// `next`.
template <int Height, int Width, int First, int Count>
inline void add_step(Rows<const bf16> x, const bf16* panel, const bf16* next, Rows<float> sums) {
  vf evens[Height][Count], odds[Height][Count];
  for_tile<Height, Count>([&](int r, int v) { evens[r][v] = odds[r][v] = zero(); });
  for (int k = 0; k < amx::depth / 2; ++k) {
    pairs row[Height];
    for (int r = 0; r < Height; ++r) row[r] = splat_pair(read_pair(x[r] + 2 * k));
#pragma GCC unroll 4
    for (int v = 0; v < Count; ++v) {
      const std::ptrdiff_t at = (k * Width + (First + v) * lanes) * 2;
      const pairs column = load_pairs(panel + at);
      prefetch(next + at);
#pragma GCC unroll 4
      for (int r = 0; r < Height; ++r) {
        evens[r][v] = fma(even(row[r]), even(column), evens[r][v]);
        odds[r][v] = fma(odd(row[r]), odd(column), odds[r][v]);
      }
    }
  }
  for_tile<Height, Count>([&](int r, int v) {
    float* sum = sums[r] + (First + v) * lanes;
    store(sum, load(sum) + (evens[r][v] + odds[r][v]));
  });
}

// Adds steps of k to sums[Height] of a panel. A step fetches the one after it, the last one the
// start of the next panel. It is not inlined, so that nothing is computed before subnormal numbers
// are zeros, or after that.
template <int Height, int Width>
[[gnu::noinline]] void add_steps(Rows<const bf16> x, int steps, PanelPlace<bf16> place,
                                 Rows<float> sums) {
  constexpr int vectors = Width / lanes, first = Height <= 2 ? vectors : (vectors + 1) / 2;
  for (int step = 0; step < steps; ++step) {
    const bf16* panel = place.panel + step * amx::depth * Width;
    const bf16* next = step + 1 < steps ? panel + amx::depth * Width : place.next;
    const Rows<const bf16> part{x.data + step * amx::depth, x.stride};
    add_step<Height, Width, 0, first>(part, panel, next, sums);
    if constexpr (first < vectors)
      add_step<Height, Width, first, vectors - first>(part, panel, next, sums);
  }
}

template <int Width>
inline void amx_vectors(Rows<const bf16> x, int rows, int steps, PanelPlace<bf16> place,
                        Rows<float> sums, Start start) {
  const SubnormalsAreZeros here;
  with_rows<amx_vector_rows>(rows, [&](auto height) {
    if (start == Start::zero)
      for_tile<height.value, Width / lanes>(
          [&](int r, int v) { store(sums[r] + v * lanes, zero()); });
    add_steps<height.value, Width>(x, steps, place, sums);
  });
}

}  // namespace ingot
