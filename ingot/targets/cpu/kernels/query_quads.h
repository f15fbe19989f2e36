// Queries in int8, as keys are, with a scale each. Sums of their products are exact, so levels are
// free in the order of these, and the one float32 of a score fixes its bits. (Zhang et al., 2024,
// SageAttention, arXiv:2410.02367)
#pragma once

#include <algorithm>

#include "quantize.h"
#include "tile.h"

namespace ingot {

// At most Most queries of D elements.
template <int Most, int D>
class QueryQuads {
 public:
  // Rows x vectors of a tile: as many sums as fit in registers, of which there are 32 or 16.
  static constexpr int most_height = std::min(tuned::quad_rows, tuned::float_rows);
  static constexpr int most_width = lanes == 16 ? 4 : 2;

  template <class T>
  void set(int r, const T* query) {
    scales_[r] = quantize_group<D>(query, queries_[r]);
    starts_[r] = -Dot::zero_point * sum_values<D>(queries_[r]);
  }

  // scores[row][column] of Height queries from r on and Vectors vectors of keys, which lack the
  // scales of keys.
  template <int Height, int Vectors, int First = 0, class Source>
  void score(int r, const Source& keys, Rows<float> scores) const {
    constexpr int left = Vectors - First, width = left < most_width ? left : most_width;
    score_vectors<Height, First, width>(r, keys, scores);
    if constexpr (width < left) score<Height, Vectors, First + width>(r, keys, scores);
  }

 private:
  using Dot = ingot::Dot<std::int8_t>;

  template <int Height, int First, int Width, class Source>
  void score_vectors(int r, const Source& keys, Rows<float> scores) const {
    vi acc[Height][Width];
    for_tile<Height, Width>([&](int i, int v) { acc[i][v] = splat_int(starts_[r + i]); });
    for (int step = 0; step < D / Dot::depth; ++step) {
      typename Dot::Columns columns[Width];
      for (int v = 0; v < Width; ++v) columns[v] = keys.load(First + v, step);
      for_tile<Height, Width>([&](int i, int v) {
        acc[i][v] = Dot::step(acc[i][v], columns[v], Dot::row(queries_[r + i] + step * Dot::depth));
        if (i == 0) keys.fetch(First + v, step);
      });
    }
    for_tile<Height, Width>([&](int i, int v) {
      store(scores[i] + (First + v) * lanes, to_float(acc[i][v]) * splat(scales_[r + i]));
    });
  }

  alignas(64) std::int8_t queries_[Most][D];
  int starts_[Most];
  float scales_[Most];
};

}  // namespace ingot
