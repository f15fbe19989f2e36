// What products read for a tile of the cache: the cache itself, or a copy in the element type T in
// which they multiply.
#pragma once

#include <cstring>

#include "key_tiles.h"

namespace ingot {

// A reader of a cache in the element type S. It says where products find a tile:
//   keys, values            for few rows, which read the cache itself
//   wide_keys, wide_values  for many rows, in T; one replaces the other
// and it scales vector v of a row's scores or weights by the scales of what was read last.
//
// This one widens S to T in products of few rows, and before those of many; keys in int8 stay as
// they are. Scales of int8 are applied to scores and to weights.
template <class T, class S, int D>
class TileReader {
 public:
  Groups<S> keys(const Tile<S>& tile) {
    take_scales(tile, tile.key_scales);
    return tile.keys;
  }
  Groups<S> values(const Tile<S>& tile) {
    take_scales(tile, tile.value_scales);
    return tile.values;
  }
  auto wide_keys(const Tile<S>& tile) {
    if constexpr (is_scaled<S>)
      return keys(tile);
    else
      return widened<key_group>(tile, keys(tile));
  }
  Groups<T> wide_values(const Tile<S>& tile) { return widened<D>(tile, values(tile)); }

  vf scale_scores(vf scores, int v) const { return scaled(scores, v); }
  vf scale_weights(vf weights, int v) const { return scaled(weights, v); }

 private:
  static constexpr int depth = Dot<T>::depth;

  // Keys that no row sees may have any scale, even NaN.
  void take_scales(const Tile<S>& tile, const Groups<float>& from) {
    if constexpr (is_scaled<S>)
      for (int key = 0; key < key_tile; key += lanes) {
        const vf scales = load(from.at[key / key_group] + key % key_group);
        store(scales_ + key, keep(scales, tile.begin - key, tile.end - key, zero()));
      }
  }
  vf scaled(vf x, int v) const {
    if constexpr (is_scaled<S>) return x * load(scales_ + v * lanes);
    return x;
  }

  template <int Columns>
  Groups<T> widened(const Tile<S>& tile, const Groups<S>& from) {
    Groups<T> found;
    for (int g = 0; g < groups_per_tile; ++g) {
      T* copy = copies_ + g * key_group * D;
      found.at[g] = copy;
      if (tile.sees(g)) widen_group<Columns>(from.at[g], copy);
    }
    return found;
  }

  // Rows of so many columns, of which the next one overwrites what exceeds a row.
  template <int Columns>
  static void widen_group(const S* from, T* to) {
    for (int step = 0; step < key_group * D / (depth * Columns); ++step)
      for (int c = 0; c < Columns; c += lanes)
        Dot<T>::store_columns(to + (step * Columns + c) * depth,
                              read_columns<T, Columns>(from, step, c, Columns - c));
  }

  alignas(64) T copies_[key_tile * D + depth * lanes];
  alignas(64) float scales_[is_scaled<S> ? key_tile : 1];
};

// A value that is added up together with one that is seen is multiplied by a weight of 0. If no row
// of the block sees it, it may be anything, even NaN. Such a group is read from a copy with zeros.
template <class T, int D>
class TileReader<T, T, D> {
 public:
  Groups<T> keys(const Tile<T>& tile) { return tile.keys; }
  Groups<T> values(const Tile<T>& tile) {
    Groups<T> found = tile.values;
    if constexpr (depth > 1) {
      if (tile.begin % depth > 0) hide(tile.begin - 1, tile, found, copies_[0]);
      if (tile.end % depth > 0) hide(tile.end, tile, found, copies_[1]);
    }
    return found;
  }
  Groups<T> wide_keys(const Tile<T>& tile) { return keys(tile); }
  Groups<T> wide_values(const Tile<T>& tile) { return values(tile); }

  static vf scale_scores(vf scores, int) { return scores; }
  static vf scale_weights(vf weights, int) { return weights; }

 private:
  static constexpr int depth = Dot<T>::depth;

  // Has the group of a key that is not seen read from a copy, in which the key's values are zeros.
  // The copy ends where fetching does.
  static void hide(int key, const Tile<T>& tile, Groups<T>& groups, T* copy) {
    const int group = key / key_group, inside = key % key_group;
    const T* from = groups.at[group];
    const int seen = tile.values_before_end(group, depth) * D;
    std::memcpy(copy, from, static_cast<std::size_t>(seen) * sizeof(T));
    const std::uint32_t other = inside % depth == 0 ? 0xffff0000u : 0xffffu;
    for (int d = inside / depth * depth * D, end = d + depth * D; d < end; d += depth) {
      const std::uint32_t pair = read_pair(from + d) & other;
      std::memcpy(copy + d, &pair, sizeof pair);
    }
    groups.at[group] = copy;
  }

  alignas(64) T copies_[2][key_group * D];
};

}  // namespace ingot
