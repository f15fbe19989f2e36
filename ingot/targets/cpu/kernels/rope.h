// Rotary position embedding. D: head size; Half: pairs that are rotated, 2 * Half <= D.
#pragma once

#include "math.h"
#include "norm.h"
#include "team.h"

namespace ingot {

// table[n] = cos(position * frequency) * scale for Half frequencies, then the sines. The product is
// first rounded to float32, as in the reference. A temperature multiplies both by
// 1 + temperature * ln(1 + position / length).
template <int Half>
[[gnu::noinline, gnu::noipa]]
void rope_table(Slice slice, const int* positions, const float* frequencies,
                float factor, Rows<float> table, float temperature = 0, int length = 1) {
  for (int row = slice.rows.begin; row < slice.rows.end; ++row) {
    const auto position = static_cast<float>(positions[row]);
    float scale = factor;
    if (temperature != 0) scale *= 1 + temperature * natural_log(1 + positions[row] / length);
    for (int i = 0; i < Half; ++i) {
      const Angle turn = angle(position * frequencies[i]);
      table[row][i] = turn.cosine * scale;
      table[row][Half + i] = turn.sine * scale;
    }
  }
}

// Pairs (i, i + Half), in place.
template <int Half>
inline void rotate_halves(float* head, const float* table) {
  for_columns<Half>([&](int i, auto part) {
    const vf cosine = load(table + i, part), sine = load(table + Half + i, part);
    const vf a = load(head + i, part), b = load(head + Half + i, part);
    store(head + i, a * cosine - b * sine, part);
    store(head + Half + i, b * cosine + a * sine, part);
  });
}

// Pairs (2i, 2i + 1), in place.
template <int Half>
inline void rotate_neighbours(float* head, const float* table) {
  for (int i = 0; i < Half; ++i) {
    const float cosine = table[i], sine = table[Half + i];
    const float a = head[2 * i], b = head[2 * i + 1];
    head[2 * i] = a * cosine - b * sine;
    head[2 * i + 1] = b * cosine + a * sine;
  }
}

template <int Half, bool Interleaved>
inline void rotate(float* head, const float* table) {
  if constexpr (Interleaved)
    rotate_neighbours<Half>(head, table);
  else
    rotate_halves<Half>(head, table);
}

// One head through an optional norm and the rotation, in float32.
template <int D, int Half, bool Interleaved, class T>
inline void turn_head(const T* from, const float* norm, float eps, float offset,
                      const float* table, float* head) {
  if (norm != nullptr)
    rms_norm_row<D>(from, norm, eps, offset, head);
  else
    for_columns<D>([&](int c, auto part) { store(head + c, load(from + c, part), part); });
  rotate<Half, Interleaved>(head, table);
}

// Threads divide the heads, so that rows of one page of keys stay with one thread.
template <int Heads, int D, int Half, bool Interleaved, class T, class Out>
[[gnu::noinline, gnu::noipa]]
void rope(Slice slice, Rows<const T> x, Rows<const float> table, Rows<Out> out) {
  const Range mine = share(Heads, slice.team);
  auto& head = slice.team.workspace<float[D]>();
  for (int row = slice.rows.begin; row < slice.rows.end; ++row)
    for (int h = mine.begin; h < mine.end; ++h) {
      turn_head<D, Half, Interleaved>(x[row] + h * D, nullptr, 0, 0, table[row], head);
      for_columns<D>([&](int c, auto part) {
        store(out[row] + h * D + c, load(head + c, part), part);
      });
    }
}

}  // namespace ingot
