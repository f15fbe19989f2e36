// Tiles of keys and values: where they lie in the cache, and how products read them.
#pragma once

#include "cache.h"
#include "softmax_rows.h"

namespace ingot {

inline constexpr int groups_per_tile = key_tile / key_group;

// Where something of each key group of a tile lies.
template <class S, int Keys = key_tile>
struct Groups {
  const S* at[Keys / key_group];
};

// Where a tile starts, where its keys lie, and which of them some row of a block sees.
template <class S, int Keys = key_tile>
struct Tile {
  int start, begin, end;
  Groups<S, Keys> keys, values;
  Groups<float, Keys> key_scales, value_scales;  // where S is scaled

  bool shows(int key) const { return key >= begin && key < end; }
  bool sees(int group) const { return begin < (group + 1) * key_group && end > group * key_group; }
  // The groups of which some key is seen.
  Range groups() const { return {begin / key_group, (end - 1) / key_group + 1}; }
  // The number of values of a group before the end, with the neighbours that share their lines.
  int values_before_end(int group, int neighbours) const {
    const int left = (end + neighbours - 1) / neighbours * neighbours - group * key_group;
    return left < 0 ? 0 : left < key_group ? left : key_group;
  }
};

// The tile at `start` of a sequence whose keys [begin, end) are seen. Only pages with such keys may
// be read, so groups outside get the place of the nearest group inside.
template <int Keys, class S, int KvHeads, int PageSize, int D>
inline Tile<S, Keys> locate(const Cache<S, KvHeads, PageSize, D>& cache, const int* pages, int head,
                            int start, int begin, int end) {
  const int lowest = begin / key_group, highest = (end - 1) / key_group;
  Tile<S, Keys> found{};
  found.start = start;
  found.begin = begin > start ? begin - start : 0;
  found.end = end - start < Keys ? end - start : Keys;
  for (int g = 0; g < Keys / key_group; ++g) {
    const int wanted = start / key_group + g;
    const int readable = wanted < lowest ? lowest : wanted > highest ? highest : wanted;
    const int page = pages[readable * key_group / PageSize];
    const int slot = readable * key_group % PageSize;
    found.keys.at[g] = cache.key_columns(page, head, slot);
    found.values.at[g] = cache.value_columns(page, head, slot);
    if constexpr (is_scaled<S>) {
      const std::ptrdiff_t token = cache.token(page, head, slot);
      found.key_scales.at[g] = cache.key_scales + token;
      found.value_scales.at[g] = cache.value_scales + token;
      prefetch(found.key_scales.at[g]);
      prefetch(found.value_scales.at[g]);
    }
  }
  return found;
}

// What is fetched of a tile while another is read: the elements of each group up to an end.
template <class S, int Keys = key_tile>
struct Fetched {
  Groups<S, Keys> groups;
  int ends[Keys / key_group];

  [[gnu::always_inline]] void operator()(int group, int at) const {
    if (at < ends[group]) prefetch(groups.at[group] + at);
  }
  // From an element on, without a reader that sets the pace.
  void rest(int group, int from) const {
    for (int at = from; at < ends[group]; at += 64 / sizeof(S)) prefetch(groups.at[group] + at);
  }
};

// A line of keys has a part of each key of its group.
template <int D, class S, int Keys>
inline Fetched<S, Keys> keys_of(const Tile<S, Keys>& tile) {
  Fetched<S, Keys> found{tile.keys, {}};
  for (int g = 0; g < Keys / key_group; ++g) found.ends[g] = tile.sees(g) ? key_group * D : 0;
  return found;
}
// Values are fetched up to the last one that is seen.
template <int D, class S, int Keys>
inline Fetched<S, Keys> values_of(const Tile<S, Keys>& tile) {
  Fetched<S, Keys> found{tile.values, {}};
  for (int g = 0; g < Keys / key_group; ++g)
    found.ends[g] = tile.sees(g) ? tile.values_before_end(g, cache_depth<S>) * D : 0;
  return found;
}

// Fetches what the next tile sees where this one sees nothing: no product sets its pace.
template <int D, class S, int Keys>
inline void prefetch_rest(const Tile<S, Keys>& tile, const Tile<S, Keys>& next) {
  const auto keys = keys_of<D>(next), values = values_of<D>(next);
  for (int g = 0; g < Keys / key_group; ++g) {
    keys.rest(g, tile.sees(g) ? key_group * D : 0);
    values.rest(g, tile.sees(g) ? tile.values_before_end(g, cache_depth<S>) * D : 0);
  }
}

// Both products read the groups of a tile side by side: if a group is read alone, the hardware
// fetches on behind its end, where nobody reads. Each product fetches at its own pace what the same
// product of a later tile reads, the same line of the same group. Groups lie too scattered for the
// hardware to foresee them.

// Columns of the first `rest` of `lanes` elements of `depth` rows; int8 is widened, which is exact.
template <class T, class S>
[[gnu::always_inline]] inline typename Dot<T>::Columns read_columns(const S* from, int row,
                                                                    int rest = lanes) {
  if constexpr (std::is_same_v<S, T>) {
    return rest >= lanes ? Dot<T>::columns(from) : Dot<T>::columns(from, rest);
  } else {
    vf k[Dot<T>::depth];
    for (int i = 0; i < Dot<T>::depth; ++i)
      k[i] = rest >= lanes ? load(from + i * row) : load(from + i * row, rest);
    return Dot<T>::columns(k);
  }
}

// Keys as the columns of q . K, from a group of the tile on.
template <class T, class S>
struct KeySource {
  Groups<S> groups;
  Fetched<S> fetched;
  int first;

  [[gnu::always_inline]] typename Dot<T>::Columns load(int vector, int step) const {
    const S* line = groups.at[group(vector)] + step * line_size;
    return read_columns<T>(line + key(vector) * cache_depth<S>, key_group);
  }
  [[gnu::always_inline]] void fetch(int vector, int step) const {
    if (key(vector) == 0) fetched(group(vector), step * line_size);
  }

 private:
  static constexpr int line_size = key_group * Dot<T>::depth;

  int group(int vector) const { return first + vector * lanes / key_group; }
  static int key(int vector) { return vector * lanes % key_group; }
};

// Values as the columns of weights . V.
template <class T, class S, int D>
struct ValueSource {
  static constexpr int steps = key_group / Dot<T>::depth;  // of a group
  Groups<S> groups;
  Fetched<S> fetched;

  [[gnu::always_inline]] typename Dot<T>::Columns load(int vector, int step) const {
    const int d = vector * lanes;
    return read_columns<T>(groups.at[step / steps] + row(step) + d * cache_depth<S>, D, D - d);
  }
  [[gnu::always_inline]] void fetch(int vector, int step) const {
    fetched(step / steps, row(step) + vector * lanes * Dot<T>::depth);
  }

 private:
  static int row(int step) { return step % steps * D * Dot<T>::depth; }
};

// Tiles start at absolute positions, so the order does not depend on how much of one is seen.
template <class T, class S, int D, class Body>
[[gnu::always_inline]] inline void for_steps(const ValueSource<T, S, D>& source, int begin,
                                             int end, Body body) {
  const int first = begin / source.steps, last = (end - 1) / source.steps;
  for (int i = 0; i < source.steps; ++i)
    for (int group = first; group <= last; ++group) {
      const int step = group * source.steps + i;
      if (step >= begin && step < end) body(step);
    }
}

}  // namespace ingot
