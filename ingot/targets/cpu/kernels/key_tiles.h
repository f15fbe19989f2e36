// Tiles of keys and values: where they lie in the cache, and how products read them.
#pragma once

#include "seen_keys.h"
#include "softmax_rows.h"

namespace ingot {

inline constexpr int groups_per_tile = key_tile / key_group;

// Where something of each key group of a tile lies.
template <class S, int Keys = key_tile>
struct Groups {
  const S* at[Keys / key_group];
};

// Where the keys and values of a tile lie.
template <class S, int Keys = key_tile>
struct Tile : SeenKeys {
  Groups<S, Keys> keys, values;
  Groups<float, Keys> key_scales, value_scales;  // where S is scaled

  // The groups of which some key is seen.
  Range groups() const { return {begin / key_group, (end - 1) / key_group + 1}; }
  // The number of values of a group before the end, with the neighbours that share their lines.
  int values_before_end(int group, int neighbours) const {
    const int left = (end + neighbours - 1) / neighbours * neighbours - group * key_group;
    return left < 0 ? 0 : left < key_group ? left : key_group;
  }
};

// The tile at `start` of a sequence whose keys [begin, end) are seen.
template <int Keys, class S, int KvHeads, int PageSize, int D>
inline Tile<S, Keys> locate(const Cache<S, KvHeads, PageSize, D>& cache, const int* pages, int head,
                            int start, int begin, int end) {
  Tile<S, Keys> found{SeenKeys::of_tile(Keys, start, begin, end), {}, {}, {}, {}};
  for (int g = 0; g < Keys / key_group; ++g) {
    const int at = readable_slot(g, start, begin, end);
    const int page = pages[at / PageSize], slot = at % PageSize;
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
    if (at < ends[group]) prefetch_stream(groups.at[group] + at);
  }
  // From an element on, without a reader that sets the pace.
  void rest(int group, int from) const {
    for (int at = from; at < ends[group]; at += 64 / sizeof(S))
      prefetch_stream(groups.at[group] + at);
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
    found.ends[g] = tile.sees(g) ? tile.values_before_end(g, value_depth<S>) * D : 0;
  return found;
}

// Fetches what the next tile sees where this one sees nothing: no product sets its pace.
template <int D, class S, int Keys>
inline void prefetch_rest(const Tile<S, Keys>& tile, const Tile<S, Keys>& next) {
  const auto keys = keys_of<D>(next), values = values_of<D>(next);
  for (int g = 0; g < Keys / key_group; ++g) {
    keys.rest(g, tile.sees(g) ? key_group * D : 0);
    values.rest(g, tile.sees(g) ? tile.values_before_end(g, value_depth<S>) * D : 0);
  }
}

// Lines of at most Most groups, which are fetched one after the other.
template <int Most, int group_bytes>
class FetchTile {
 public:
  void add(const void* group) { groups_[count_++] = static_cast<const char*>(group); }

  // The lines for each of so many calls, if as many calls follow in each of the later stages.
  int lines(int calls, int stages) const { return (left() / stages + calls - 1) / calls; }

  void operator()(int lines) {
    for (; lines > 0 && now_ < count_; --lines) {
      prefetch(groups_[now_] + line_ * 64);
      if (++line_ == lines_of_group) ++now_, line_ = 0;
    }
  }

  // Spreads what is left over so many calls of step().
  void spread(int steps) {
    pace_ = wait_ = left() > 0 && steps > left() ? steps / left() : 1;
    each_ = lines(steps, 1);
  }
  [[gnu::always_inline]] void step() {
    if (--wait_ > 0) return;
    wait_ = pace_;
    (*this)(each_);
  }

 private:
  static constexpr int lines_of_group = group_bytes / 64;
  int left() const { return (count_ - now_) * lines_of_group - line_; }

  const char* groups_[Most];
  int count_ = 0, now_ = 0, line_ = 0, pace_ = 1, wait_ = 1, each_ = 0;
};

// The keys and values that some row sees.
template <int D, class S, int Keys>
inline auto fetch_tile(const Tile<S, Keys>& tile) {
  FetchTile<2 * Keys / key_group, key_group * D * sizeof(S)> found;
  const Range seen = tile.groups();
  for (const auto* from : {&tile.keys, &tile.values})
    for (int g = seen.begin; g < seen.end; ++g) found.add(from->at[g]);
  return found;
}

// What many rows fetch while they multiply: a part of a tile in so many steps.
template <class Tile>
struct FetchInSteps {
  static constexpr int columns = 64;  // for which a step fetches once
  Tile* tile;

  [[gnu::always_inline]] void operator()(int vector) const {
    if (vector * lanes % columns == 0) tile->step();
  }
};

// Both products read the groups of a tile side by side: if a group is read alone, the hardware
// fetches on behind its end, where nobody reads. Groups lie too scattered for the hardware to
// foresee them. Few rows fetch what the same product of a later tile reads, the same line of the
// same group, so that memory is read in the order in which it will be.

// Columns from `column` on, of which `rest` exist, for a step of products. They lie as a cache has
// them, in rows of Columns. What is not a T is widened, which is exact.
template <class T, int Columns, class S>
[[gnu::always_inline]] inline typename Dot<T>::Columns read_columns(const S* rows, int step,
                                                                    int column, int rest) {
  constexpr int depth = Dot<T>::depth;
  if constexpr (std::is_same_v<S, T>) {
    const S* from = rows + (step * Columns + column) * depth;
    return rest >= lanes ? Dot<T>::columns(from) : Dot<T>::columns(from, rest);
  } else if constexpr (value_depth<S> > depth) {
    const S* from = rows + step / 2 * 2 * Columns + 2 * column;
    return rest >= lanes ? split_pairs(from, step % 2) : split_pairs(from, step % 2, rest);
  } else {
    const S* from = rows + step * depth * Columns + column;
    vf k[depth];
    for (int i = 0; i < depth; ++i)
      k[i] = rest >= lanes ? load(from + i * Columns) : load(from + i * Columns, rest);
    return Dot<T>::columns(k);
  }
}

// Where the cache has what a step reads for so many columns, in elements from the start of a group;
// or -1 if the step before has read it.
template <class T, class S>
[[gnu::always_inline]] inline int place_read(int step, int columns) {
  constexpr int each = value_depth<S> > Dot<T>::depth ? value_depth<S> / Dot<T>::depth : 1;
  return step % each == 0 ? step * Dot<T>::depth * columns : -1;
}

// Keys as the columns of q . K, from a group of the tile on.
template <class T, class S, class Fetch>
struct KeySource {
  Groups<S> groups;
  Fetch fetched;
  int first;

  [[gnu::always_inline]] typename Dot<T>::Columns load(int vector, int step) const {
    const S* from = groups.at[group(vector)];
    if constexpr (is_scaled<S>)
      return Dot<T>::columns(from + (step * key_group + key(vector)) * Dot<T>::depth);
    else
      return read_columns<T, key_group>(from, step, key(vector), key_group);
  }
  [[gnu::always_inline]] void fetch(int vector, int step) const {
    if constexpr (std::is_same_v<Fetch, Fetched<S>>) {
      const int place = place_read<T, S>(step, key_group);
      if (key(vector) != 0 || place < 0) return;
      fetched(group(vector), place);
      if constexpr (is_scaled<S>)  // a step is so short that Zen 5 drops some of its fetches
        fetched(group(vector), step > 0 ? place - 64 : 0);
    } else {
      fetched(vector);
    }
  }

 private:
  int group(int vector) const { return first + vector * lanes / key_group; }
  static int key(int vector) { return vector * lanes % key_group; }
};

// Values as the columns of weights . V.
template <class T, class S, int D, class Fetch>
struct ValueSource {
  static constexpr int steps = key_group / Dot<T>::depth;  // of a group
  Groups<S> groups;
  Fetch fetched;

  [[gnu::always_inline]] typename Dot<T>::Columns load(int vector, int step) const {
    const int d = vector * lanes;
    return read_columns<T, D>(groups.at[step / steps], step % steps, d, D - d);
  }
  [[gnu::always_inline]] void fetch(int vector, int step) const {
    if constexpr (std::is_same_v<Fetch, Fetched<S>>) {
      constexpr int together = value_depth<S> > Dot<T>::depth ? value_depth<S> : Dot<T>::depth;
      const int place = place_read<T, S>(step % steps, D);
      if (place >= 0) fetched(step / steps, place + vector * lanes * together);
    } else {
      fetched(vector);
    }
  }
};

// Tiles start at absolute positions, so the order does not depend on how much of one is seen.
template <class T, class S, int D, class Fetch, class Body>
[[gnu::always_inline]] inline void for_steps(const ValueSource<T, S, D, Fetch>&, int begin,
                                             int end, Body body) {
  constexpr int steps = ValueSource<T, S, D, Fetch>::steps;
  for (int i = 0; i < steps; ++i)
    for (int step = (begin - i + steps - 1) / steps * steps + i; step < end; step += steps)
      body(step);
}

}  // namespace ingot
