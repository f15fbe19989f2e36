// Rounds activations to int8 or int16, with a scale for every group of a row.
//
// An int16 is 255 * high + low, with both in -127 .. 127. A row in int16 is the high bytes of all its
// columns, and then the low ones: two rows in int8, as products read them.
#pragma once

#include "quads.h"
#include "team.h"

namespace ingot {

inline constexpr float high_unit = 255.0f;
template <class V>
inline constexpr float largest_integer = sizeof(V) == 1 ? 127.0f : 127.0f * (high_unit + 1);
inline constexpr float smallest_group = 0x1p-100f;  // below it a group counts as zero

// Where the integers of a row go, from a column on: the high bytes, or those of int8, and the low
// ones so many bytes further.
template <class V>
struct IntegerRow {
  std::int8_t* high;
  std::ptrdiff_t low;

  IntegerRow from(int column) const { return {high + column, low}; }

  void fetch(int columns) const {
    for (std::size_t plane = 0; plane < sizeof(V); ++plane)
      for (int c = 0; c < columns; c += 64) prefetch(high + plane * low + c);
  }

  // Stores the first `count` of integral values.
  void put(int column, vf value, int count) const {
    if constexpr (sizeof(V) == 1) {
      store_int8(high + column, value, count);
    } else {
      const vf unit = round_even(value * splat(1 / high_unit));  // halves do not occur
      store_int8(high + column, unit, count);
      store_int8(high + low + column, fma(unit, splat(-high_unit), value), count);
    }
  }
};

template <class V>
inline IntegerRow<V> integer_row(Rows<V> rows, int row) {
  return {reinterpret_cast<std::int8_t*>(rows[row]), rows.stride};
}

// values = x * (l / m), rounded to nearest even, and scale = m / l, where m is the largest magnitude
// of x and l that of the integers. If x is not finite, neither is the scale.
template <int group, class T, class V>
inline float quantize_group(const T* x, IntegerRow<V> values) {
  vf top = zero();
  for_columns<group>(
      [&](int c, auto part) { top = larger_magnitude(top, load(x + c, part)); });
  const float largest = largest_magnitude(top);
  const bool vanishes = largest < smallest_group;
  const vf inverse = splat(vanishes ? 0.0f : largest_integer<V> / largest);
  for_columns<group>([&](int c, auto part) {
    const vf v = load(x + c, part) * inverse;
    const vf inside = min(splat(largest_integer<V>), max(v, splat(-largest_integer<V>)));
    values.put(c, round_even(inside), group - c);
  });
  return vanishes ? 0.0f : largest / largest_integer<V>;
}

template <int group, class T>
inline float quantize_group(const T* x, std::int8_t* values) {
  return quantize_group<group>(x, IntegerRow<std::int8_t>{values, 0});
}

// The last group has the columns that are left.
template <int Columns, int group, class T, class V>
inline void quantize_row(const T* x, IntegerRow<V> values, float* scales) {
  constexpr int whole = Columns / group, left = Columns % group;
  for (int g = 0; g < whole; ++g)
    scales[g] = quantize_group<group>(x + g * group, values.from(g * group));
  if constexpr (left > 0)
    scales[whole] = quantize_group<left>(x + whole * group, values.from(whole * group));
}

// Rows of so many parts, each of which begins with a group.
template <int Columns, int group, int Parts = 1, class T, class V>
[[gnu::noinline, gnu::noipa]]
void quantize(Slice slice, Rows<const T> x, Rows<V> values, Rows<float> scales) {
  constexpr int groups = (Columns + group - 1) / group;
  for (int row = slice.rows.begin; row < slice.rows.end; ++row)
    for (int part = 0; part < Parts; ++part)
      quantize_row<Columns, group>(x[row] + part * Columns,
                                   integer_row(Rows<V>{values[row], Columns}, part),
                                   scales[row] + part * groups);
}

}  // namespace ingot
