// What products read for a tile of the cache: the cache itself, or a copy in the element type T in
// which they multiply.
#pragma once

#include <cstring>

#include "key_tiles.h"

namespace ingot {

// A reader of a cache in the element type S. For a tile and the one that follows it, it calls
//   keys, values   use(where products read them, what they fetch meanwhile); one replaces the other
// and it scales vector v of a row's scores or weights by the scales of what was used last. `once`
// says that all rows go through one product, so that a copy does not pay. Products add up the
// values of `together` neighbouring keys at once.
template <class T, class S, int D, int together = Dot<T>::depth>
class TileReader;

// Fetches those keys of the next tile for which this tile has too few values to set the pace.
template <int D, class S>
inline void prefetch_rest(const Tile<S>& tile, const Tile<S>& next) {
  for (int g = 0; g < groups_per_tile; ++g)
    if (next.sees(g)) prefetch_group<D>(next.keys.at[g], tile.before_end(g));
}

// A value that is added up together with one that is seen is multiplied by a weight of 0. If no row
// of the block sees it, it may be anything, even NaN. Such a group is read from a copy with zeros.
template <class T, int D, int together>
class TileReader<T, T, D, together> {
 public:
  template <class Use>
  void keys(const Tile<T>& tile, bool, Use use) {
    use(tile.keys, tile.values);
  }

  template <class Use>
  void values(const Tile<T>& tile, const Tile<T>& next, bool, Use use) {
    prefetch_rest<D>(tile, next);
    Groups<T> found = tile.values;
    if constexpr (together > 1) {
      const int before = tile.begin % together, behind = tile.end % together;
      if (before > 0) hide(found, {tile.begin - before, tile.begin}, copies_[0]);
      if (behind > 0) hide(found, {tile.end, tile.end - behind + together}, copies_[1]);
    }
    use(found, next.keys);
  }

  static vf scale_scores(vf scores, int) { return scores; }
  static vf scale_weights(vf weights, int) { return weights; }

 private:
  // Has a group read from a copy, in which the values of some keys are zeros.
  static void hide(Groups<T>& groups, Range keys, T* copy) {
    const T*& group = groups.at[keys.begin / key_group];
    std::memcpy(copy, group, sizeof copies_[0]);
    const int first = keys.begin % key_group, end = first + keys.end - keys.begin;
    for (int key = first; key < end;) {
      T* pair = copy + key / 2 * 2 * D;
      const bool both = key % 2 == 0 && key + 1 < end;
      if (both)
        std::memset(pair, 0, 2 * D * sizeof(T));
      else
        for (int d = 0; d < D; ++d) pair[2 * d + key % 2] = T{};
      key += both ? 2 : 1;
    }
    group = copy;
  }

  alignas(64) T copies_[2][key_group * D];
};

// int8 is widened by the product or before it. Scales are applied to scores and to weights.
template <class T, int D, int together>
class TileReader<T, std::int8_t, D, together> {
 public:
  using S = std::int8_t;

  template <class Use>
  void keys(const Tile<S>& tile, bool once, Use use) {
    take_scales(tile, tile.key_scales);
    if (once) return use(tile.keys, tile.values);
    const Groups<T> copy = widened<key_group>(tile, tile.keys, tile.values);
    use(copy, copy);
  }

  template <class Use>
  void values(const Tile<S>& tile, const Tile<S>& next, bool once, Use use) {
    take_scales(tile, tile.value_scales);
    prefetch_rest<D>(tile, next);
    if (once) return use(tile.values, next.keys);
    const Groups<T> copy = widened<D>(tile, tile.values, next.keys);
    use(copy, copy);
  }

  vf scale_scores(vf scores, int v) const { return scores * load(scales_ + v * lanes); }
  vf scale_weights(vf weights, int v) const { return weights * load(scales_ + v * lanes); }

 private:
  static constexpr int depth = Dot<T>::depth;

  // Keys that no row sees may have any scale, even NaN.
  void take_scales(const Tile<S>& tile, const Groups<float>& from) {
    for (int key = 0; key < key_tile; key += lanes) {
      const vf scales = load(from.at[key / key_group] + key % key_group);
      store(scales_ + key, keep(scales, tile.begin - key, tile.end - key, zero()));
    }
  }

  template <int Columns>
  Groups<T> widened(const Tile<S>& tile, const Groups<S>& from, const Groups<S>& next) {
    Groups<T> found;
    for (int g = 0; g < groups_per_tile; ++g) {
      T* copy = copies_ + g * key_group * D;
      found.at[g] = copy;
      if (tile.sees(g)) widen_group<Columns>(from.at[g], next.at[g], copy);
    }
    return found;
  }

  // Rows of so many columns; `depth` of them become one. The next row overwrites the part of a
  // vector that exceeds its row.
  template <int Columns>
  static void widen_group(const S* from, const S* next, T* to) {
    for (int at = 0; at < key_group * D; at += depth * Columns) {
      for (int line = 0; line < depth * Columns; line += 64) prefetch(next + at + line);
      for_columns<Columns>([&](int c, auto part) {
        vf k[depth];
        for (int i = 0; i < depth; ++i) k[i] = load(from + at + i * Columns + c, part);
        Dot<T>::store_columns(to + at + c * depth, k);
      });
    }
  }

  alignas(64) T copies_[key_tile * D + depth * lanes];
  alignas(64) float scales_[key_tile];
};

}  // namespace ingot
