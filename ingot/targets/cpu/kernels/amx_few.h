// A few rows of queries over a tile of the cache, in vectors that round as tiles of AMX do. Memory
// sets their pace, and AMX would fall asleep between two tiles.
#pragma once

#include <algorithm>

#include "amx_keys.h"
#include "amx_panel.h"

namespace ingot {

inline constexpr int amx_few_rows = 4;

// Two neighbouring k of 16 columns.
struct Neighbours {
  vf even, odd;
};
inline Neighbours neighbours(pairs both) {
  both = loaded(both);
  return {even(both), odd(both)};
}

inline Neighbours key_neighbours(const bf16* group, int d) {
  return neighbours(load_pairs(group + d * key_group));
}
inline Neighbours key_neighbours(const std::int8_t* group, int d) {
  return {key_values(group, d), key_values(group, d + 1)};
}

template <int D>
inline Neighbours value_neighbours(const bf16* pair, int column) {
  return neighbours(load_pairs(pair + 2 * column, D - column));
}
template <int D>
inline Neighbours value_neighbours(const std::int8_t* pair, int column) {
  return {load(pair + column, D - column), load(pair + D + column, D - column)};
}

// What a step of 32 k adds to the sums of Height rows and Width vectors of columns.
template <int Height, int Width>
class StepSums {
 public:
  StepSums() {
    for_tile<Height, Width>([&](int r, int v) { evens_[r][v] = odds_[r][v] = zero(); });
  }

  // Two neighbouring k of row r are x[r][k] and x[r][k + 1].
  [[gnu::always_inline]] void add(int v, Neighbours columns, Rows<const float> x, int k) {
#pragma GCC unroll 4
    for (int r = 0; r < Height; ++r) {
      evens_[r][v] = fma(splat(x[r][k]), columns.even, evens_[r][v]);
      odds_[r][v] = fma(splat(x[r][k + 1]), columns.odd, odds_[r][v]);
    }
  }

  vf of(int r, int v) const { return evens_[r][v] + odds_[r][v]; }

 private:
  vf evens_[Height][Width], odds_[Height][Width];
};

template <class S, int D>
class AmxFew {
 public:
  using Tile = ingot::Tile<S, amx_keys>;
  static constexpr int most_rows = amx_few_rows;

  void set_query(int r, const bf16* query) {
    for_columns<D>([&](int d, auto part) { store(queries_[r] + d, load(query + d, part), part); });
  }
  void set_weights(int r, const bf16* weights) {
    for (int key = 0; key < amx_keys; key += lanes) store(weights_[r] + key, load(weights + key));
  }

  // scores[rows][keys of the tile] = queries . keys. It fetches the keys of the next tile.
  void score(const Tile& tile, const Tile& next, int rows, Rows<float> scores) const {
    const SubnormalsAreZeros here;
    const Range groups = tile.groups();
    prefetch_rest<D>(tile, next);
    with_rows<amx_few_rows>(rows, [&](auto height) {
      constexpr int most = vectors<height.value>;
      for (int g = groups.begin; g < groups.end; g += most)
        with_rows<most>(std::min(groups.end - g, most), [&](auto width) {
          score_groups<height.value, width.value>(tile, next, g, scores);
        });
    });
  }

  // sums[rows][columns of values] += weights . values. It fetches the values of the next tile.
  void add(const Tile& tile, const Tile& next, int rows, Rows<float> sums) const {
    const SubnormalsAreZeros here;
    with_rows<amx_few_rows>(rows, [&](auto height) {
      constexpr int width = vectors<height.value>, rest = columns % width;
      for (int key = tile.begin / amx::depth * amx::depth; key < tile.end; key += amx::depth) {
        for (int c = 0; c + width <= columns; c += width)
          add_columns<height.value, width>(tile, next, key, c, sums);
        if constexpr (rest > 0)
          add_columns<height.value, rest>(tile, next, key, columns - rest, sums);
      }
    });
  }

  // totals[rows][lane] += the weights of a pair of keys of each 32.
  static void add_weights(const Tile& tile, int rows, Rows<const bf16> weights,
                          Rows<float> totals) {
    const SubnormalsAreZeros here;
    for (int r = 0; r < rows; ++r) add_row(tile, weights[r], totals[r]);
  }

 private:
  static constexpr int columns = (D + lanes - 1) / lanes;
  template <int Height>
  static constexpr int vectors = Height <= 3 ? 4 : 2;  // whose sums are in registers

  template <int Height, int Width>
  [[gnu::noinline]] void score_groups(const Tile& tile, const Tile& next, int first,
                                      Rows<float> scores) const {
    vf sums[Height][Width];
    for_tile<Height, Width>([&](int r, int v) { sums[r][v] = zero(); });
    for (int begin = 0; begin < D; begin += amx::depth) {
      StepSums<Height, Width> step;
      for (int d = begin; d < std::min(begin + amx::depth, D); d += 2) {
#pragma GCC unroll 4
        for (int v = 0; v < Width; ++v) {
          step.add(v, key_neighbours(tile.keys.at[first + v], d), {queries_[0], D}, d);
          prefetch(next.keys.at[first + v] + d * key_group);
        }
      }
      for_tile<Height, Width>([&](int r, int v) { sums[r][v] = sums[r][v] + step.of(r, v); });
    }
    for_tile<Height, Width>([&](int r, int v) {
      store(scores[r] + (first + v) * key_group, sums[r][v]);
    });
  }

  template <int Height, int Width>
  [[gnu::noinline]] void add_columns(const Tile& tile, const Tile& next, int begin, int column,
                                     Rows<float> sums) const {
    StepSums<Height, Width> step;
    for (int key = begin; key < begin + amx::depth; key += 2) {
      const int group = key / key_group, at = key % key_group * D;
      const bool first = tile.shows(key), second = tile.shows(key + 1);
      if (!first && !second) continue;
#pragma GCC unroll 4
      for (int v = 0; v < Width; ++v) {
        Neighbours values = value_neighbours<D>(tile.values.at[group] + at, (column + v) * lanes);
        if (!first) values.even = zero();
        if (!second) values.odd = zero();
        step.add(v, values, {weights_[0], amx_keys}, key);
        prefetch(next.values.at[group] + at + 2 * (column + v) * lanes);
      }
    }
    for_tile<Height, Width>([&](int r, int v) {
      float* sum = sums[r] + (column + v) * lanes;
      store(sum, load(sum) + step.of(r, v));
    });
  }

  [[gnu::noinline]] static void add_row(const Tile& tile, const bf16* weights, float* total) {
    for (int key = tile.begin / amx::depth * amx::depth; key < tile.end; key += amx::depth) {
      const Neighbours both = neighbours(load_pairs(weights + key));
      store(total, load(total) + (both.even + both.odd));
    }
  }

  alignas(64) float queries_[amx_few_rows][D];
  alignas(64) float weights_[amx_few_rows][amx_keys];
};

}  // namespace ingot
