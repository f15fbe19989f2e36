// Rounds activations to int8, with a scale for every group of a row.
#pragma once

#include "quads.h"
#include "team.h"

namespace ingot {

inline constexpr float largest_int8 = 127.0f;
inline constexpr float smallest_group = 0x1p-100f;  // below it a group counts as zero

// values = x * (127 / m), rounded to nearest even, and scale = m / 127, where m is the largest
// magnitude. If x is not finite, neither is the scale.
template <int group, class T>
inline float quantize_group(const T* x, std::int8_t* values) {
  vf top = zero(), odd = zero();  // a maximum forgets NaN; 0 * v is 0, or NaN
  for_columns<group>([&](int c, auto part) {
    const vf v = load(x + c, part);
    top = max(top, max(v, zero() - v));
    odd = fma(v, zero(), odd);
  });
  const float largest = maximum(top);
  const bool counts = largest >= smallest_group;
  const vf inverse = splat(counts ? largest_int8 / largest : 0.0f);
  for_columns<group>([&](int c, auto part) {
    const vf v = load(x + c, part) * inverse;
    const vf inside = min(splat(largest_int8), max(v, splat(-largest_int8)));
    store_int8(values + c, round_even(inside), group - c);
  });
  return (counts ? largest / largest_int8 : 0.0f) + sum(odd);
}

// The last group has the columns that are left.
template <int Columns, int group, class T>
inline void quantize_row(const T* x, std::int8_t* values, float* scales) {
  constexpr int whole = Columns / group, left = Columns % group;
  for (int g = 0; g < whole; ++g)
    scales[g] = quantize_group<group>(x + g * group, values + g * group);
  if constexpr (left > 0)
    scales[whole] = quantize_group<left>(x + whole * group, values + whole * group);
}

// Rows of so many parts, each of which begins with a group.
template <int Columns, int group, int Parts = 1, class T>
[[gnu::noinline, gnu::noipa]]
void quantize(Slice slice, Rows<const T> x, Rows<std::int8_t> values,
              Rows<float> scales) {
  constexpr int groups = (Columns + group - 1) / group;
  for (int row = slice.rows.begin; row < slice.rows.end; ++row)
    for (int part = 0; part < Parts; ++part)
      quantize_row<Columns, group>(x[row] + part * Columns, values[row] + part * Columns,
                                   scales[row] + part * groups);
}

}  // namespace ingot
