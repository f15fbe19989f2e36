// What products read for a tile of the cache: the cache itself, or a copy in the element type T in
// which they multiply.
#pragma once

#include <cstring>

#include "key_tiles.h"

namespace ingot {

// A reader of a cache in the element type S. For a tile and a later one, it calls
//   keys, values   use(where products read them, what they fetch meanwhile); one replaces the other
// and it scales vector v of a row's scores or weights by the scales of what was used last. `once`
// says that all rows go through one product, so that a copy does not pay.
template <class T, class S, int D>
class TileReader;

// A value that is added up together with one that is seen is multiplied by a weight of 0. If no row
// of the block sees it, it may be anything, even NaN. Such a group is read from a copy with zeros.
template <class T, int D>
class TileReader<T, T, D> {
 public:
  template <class Use>
  void keys(const Tile<T>& tile, const Tile<T>& next, bool, Use use) {
    use(tile.keys, keys_of<D>(next));
  }

  template <class Use>
  void values(const Tile<T>& tile, const Tile<T>& next, bool, Use use) {
    Groups<T> found = tile.values;
    if constexpr (depth > 1) {
      if (tile.begin % depth > 0) hide(tile.begin - 1, tile, found, copies_[0]);
      if (tile.end % depth > 0) hide(tile.end, tile, found, copies_[1]);
    }
    use(found, values_of<D>(next));
  }

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

// int8 is widened by the product or before it. Scales are applied to scores and to weights.
template <class T, int D>
class TileReader<T, std::int8_t, D> {
 public:
  using S = std::int8_t;

  template <class Use>
  void keys(const Tile<S>& tile, const Tile<S>& next, bool once, Use use) {
    take_scales(tile, tile.key_scales);
    if (once) return use(tile.keys, keys_of<D>(next));
    use(widened<key_group>(tile, tile.keys, keys_of<D>(next)), Fetched<T>{});
  }

  template <class Use>
  void values(const Tile<S>& tile, const Tile<S>& next, bool once, Use use) {
    take_scales(tile, tile.value_scales);
    if (once) return use(tile.values, values_of<D>(next));
    use(widened<D>(tile, tile.values, values_of<D>(next)), Fetched<T>{});
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
  Groups<T> widened(const Tile<S>& tile, const Groups<S>& from, const Fetched<S>& fetched) {
    Groups<T> found;
    for (int g = 0; g < groups_per_tile; ++g) {
      T* copy = copies_ + g * key_group * D;
      found.at[g] = copy;
      if (tile.sees(g)) widen_group<Columns>(from.at[g], fetched, g, copy);
    }
    return found;
  }

  // Rows of so many columns; `depth` of them become one. The next row overwrites the part of a
  // vector that exceeds its row.
  template <int Columns>
  static void widen_group(const S* from, const Fetched<S>& fetched, int group, T* to) {
    for (int at = 0; at < key_group * D; at += depth * Columns) {
      for (int line = 0; line < depth * Columns; line += 64) fetched(group, at + line);
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
