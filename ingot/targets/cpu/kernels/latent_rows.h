// Rows of queries over tiles of a latent cache. All heads read the same rows, which are keys and,
// in their first columns, values.
//
// A score is a sum along a row of the cache, in one vector whose lanes are summed at the end. Four
// keys, or two, stay in the L1 cache while all rows of queries are multiplied with them; so does a
// strip of the values' columns.
#pragma once

#include "latent_cache.h"
#include "seen_keys.h"
#include "softmax_rows.h"

namespace ingot {

// Where the rows of a tile lie, in groups of 16.
template <class S, int Keys = key_tile>
struct LatentTile : SeenKeys {
  static constexpr int groups = Keys / key_group;
  const S* rows[groups];
  const float* scales[groups];  // where S is scaled
};

// The tile at `start` of a sequence whose keys [begin, end) are seen.
template <int Keys, class S, int PageSize, int D, int V, int block>
inline LatentTile<S, Keys> locate(const LatentCache<S, PageSize, D, V, block>& cache,
                                  const int* pages, int, int start, int begin, int end) {
  LatentTile<S, Keys> found{SeenKeys::of_tile(Keys, start, begin, end), {}, {}};
  for (int g = 0; g < found.groups; ++g) {
    const int at = readable_slot(g, start, begin, end);
    const std::ptrdiff_t token = cache.token(pages[at / PageSize], at % PageSize);
    found.rows[g] = cache.rows + token * D;
    if constexpr (is_scaled<S>) found.scales[g] = cache.scales + token * cache.num_scales;
  }
  return found;
}

// Rows of the cache in the element type T: the cache itself, or a copy without scales.
template <class T, class S, int D, int block>
class LatentReader {
 public:
  const T* place(int, const S* row, const float*) { return row; }
};

template <class T, int D, int block>
class LatentReader<T, std::int8_t, D, block> {
 public:
  const T* place(int key, const std::int8_t* row, const float* scales) {
    T* copy = copies_[key];
    for (int b = 0; b < D / block; ++b)
      for_columns<block>([&](int c, auto part) {
        store(copy + b * block + c, load(row + b * block + c, part) * splat(scales[b]), part);
      });
    return copy;
  }

 private:
  alignas(64) T copies_[key_tile][D];
};

// Rows of values as the columns of weights . V.
template <class T, int V>
struct LatentValues {
  const T* const* rows;
  int column;

  [[gnu::always_inline]] typename Dot<T>::Columns load(int vector, int step) const {
    const int at = column + vector * lanes;
    return Dot<T>::columns(rows + step * Dot<T>::depth, at, V - at);
  }
  static void fetch(int, int) {}  // the product of scores has read the rows
};

// As many rows as a thread's scratch holds: an even number of times those of most models' heads.
template <class T, class S>
inline constexpr int most_latent_rows = is_scaled<S> && sizeof(T) == 4 ? 16 : 32;

template <class T, class Cache, bool Capped>
class LatentRows;

template <class T, class S, int PageSize, int D, int V, int block, bool Capped>
class LatentRows<T, LatentCache<S, PageSize, D, V, block>, Capped>
    : public WeightedRows<T, D, V, most_latent_rows<T, S>, Capped> {
 public:
  using Weighted = WeightedRows<T, D, V, most_latent_rows<T, S>, Capped>;
  using Weighted::count;
  static constexpr int tiles_ahead = 1;

  void visit(const LatentTile<S>& now, const LatentTile<S>& next, Scoring scoring) {
    place(now);
    score_all(now, next);
    this->find_weights({0, count}, now.start, scoring, [](vf scores, int) { return scores; });
    add_all(now);
  }

 private:
  using Weighted::padded, Weighted::sums_stride;
  using Weighted::queries_, Weighted::scores_, Weighted::sums_, Weighted::weights_;

  // Rows x keys of a product that fills the lanes of one vector with scores.
  static constexpr int tall = lanes >= 16 ? 4 : 2;
  static constexpr int quad = 4;  // keys that all rows of queries pass over
  static constexpr int strip = 4;  // vectors of values that all of them pass over

  // A key that no row sees may hold anything, even NaN: zeros take its place.
  void place(const LatentTile<S>& now) {
    for (int key = 0; key < key_tile; ++key) {
      const int group = key / key_group, inside = key % key_group;
      const bool seen = key >= now.begin && key < now.end;
      keys_[key] = seen ? reader_.place(key, now.rows[group] + inside * D,
                                        is_scaled<S> ? now.scales[group] + inside * (D / block)
                                                     : nullptr)
                        : zeros;
    }
  }

  void score_all(const LatentTile<S>& now, const LatentTile<S>& next) {
    for (int key = now.begin / quad * quad; key < now.end; key += quad) {
      fetch(next, key);
      int r = 0;
      for (; r + tall <= count; r += tall) score<tall>(r, key);
      for (; r < count; ++r) score<1>(r, key);
    }
  }

  // The same keys of the next tile.
  static void fetch(const LatentTile<S>& next, int key) {
    const S* from = next.rows[key / key_group] + key % key_group * D;
    for (int at = 0; at < quad * D; at += 64 / sizeof(S)) prefetch(from + at);
    if constexpr (is_scaled<S>)
      prefetch(next.scales[key / key_group] + key % key_group * (D / block));
  }

  // Scores of Height rows and a quad of keys.
  template <int Height>
  void score(int r, int key) {
    constexpr int step = lanes * Dot<T>::depth, rest = D % step / Dot<T>::depth;
    constexpr int width = lanes / Height < quad ? lanes / Height : quad;
    for (int k = key; k < key + quad; k += width) {
      vf dots[lanes];
      for (vf& dot : dots) dot = zero();
      for (int d = 0; d + step <= D; d += step) add_products<Height, width>(r, k, d, dots);
      if constexpr (rest > 0) add_products<Height, width>(r, k, D / step * step, dots, rest);
      alignas(64) float found[lanes];
      store(found, sums(dots));
      for (int i = 0; i < Height; ++i)
        std::memcpy(scores_[r + i] + k, found + i * width, width * sizeof(float));
    }
  }

  // A vector of each row times one of each key, from column d on; n columns of it if that is given.
  template <int Height, int Width, class... Rest>
  [[gnu::always_inline]] void add_products(int r, int key, int d, vf (&dots)[lanes], Rest... n) {
    typename Dot<T>::Columns row[Height];
#pragma GCC unroll 4
    for (int i = 0; i < Height; ++i) row[i] = Dot<T>::columns(queries_[r + i] + d, n...);
#pragma GCC unroll 4
    for (int j = 0; j < Width; ++j) {
      const auto column = Dot<T>::columns(keys_[key + j] + d, n...);
#pragma GCC unroll 4
      for (int i = 0; i < Height; ++i)
        dots[i * Width + j] = Dot<T>::step(dots[i * Width + j], column, row[i]);
    }
  }

  void add_all(const LatentTile<S>& now) {
    constexpr int vectors = padded / lanes, rest = vectors % strip;
    for (int v = 0; v + strip <= vectors; v += strip) add_strip<strip>(now, v * lanes);
    if constexpr (rest > 0) add_strip<rest>(now, (vectors - rest) * lanes);
  }

  template <int Vectors>
  void add_strip(const LatentTile<S>& now, int column) {
    constexpr int depth = Dot<T>::depth;
    const LatentValues<T, V> source{keys_, column};
    for_row_tiles<max_tile_rows<T>>(count, [&](auto height, int r, int) {
      const Range keys = this->visible(r, height.value, now.start);
      if (keys.begin >= keys.end) return;
      tile<T, height.value, Vectors>(weights_[r], key_tile, source, keys.begin / depth,
                                     (keys.end + depth - 1) / depth, sums_[r] + column, sums_stride,
                                     Start::resume);
    });
  }

  alignas(64) static constexpr T zeros[D] = {};
  const T* keys_[key_tile];
  LatentReader<T, S, D, block> reader_;
};

}  // namespace ingot
