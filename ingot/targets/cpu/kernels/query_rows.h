// Rows of queries of one KV head over tiles of its keys and values.
#pragma once

#include "query_quads.h"
#include "softmax_rows.h"
#include "tile_reader.h"

namespace ingot {

// Rounded: what queries and weights are rounded to; S: what the cache stores; Block: the most rows.
// 48 of these take 100 KiB with D = 128 and two bytes an element. Products are added to what
// scores_ has, if they are to resume.
template <class Rounded, class S, int D, bool Capped, int Block = D <= 256 ? 48 : 24,
          Start start = Start::zero>
class QueryRows : public WeightedRows<Wide<Rounded>, D, D, Block, Capped, Rounded> {
 public:
  using T = Wide<Rounded>;  // what queries, keys and values are multiplied in, but see Key
  using Weighted = WeightedRows<T, D, D, Block, Capped, Rounded>;
  using Weighted::count;
  // One would not do: a short last tile leaves no time to fetch the first one of the next unit.
  static constexpr int tiles_ahead = 2;

  // Follows the last row.
  void ready() {
    if constexpr (is_scaled<S>)
      for (int r = 0; r < count; ++r) quads_.set(r, queries_[r]);
  }

  void visit(const Tile<S>& now, const Tile<S>& next, Scoring scoring) {
    if (count <= stream_once_rows()) {
      prefetch_rest<D>(now, next);
      visit<stream_once_rows()>(now, scoring, reader_.keys(now), keys_of<D>(next),
                                values_of<D>(next), [&] { return reader_.values(now); });
    } else {
      auto tile = fetch_tile<D>(next);
      tile.spread(fetching_steps());
      const FetchInSteps<decltype(tile)> fetch{&tile};
      visit<tile_rows>(now, scoring, reader_.wide_keys(now), fetch, fetch,
                       [&] { return reader_.wide_values(now); });
    }
  }

 protected:
  using Weighted::scores_;

 private:
  using Weighted::padded, Weighted::sums_stride;
  using Weighted::queries_, Weighted::sums_, Weighted::weights_;
  using Key = std::conditional_t<is_scaled<S>, S, T>;  // as which keys are multiplied
  using Quads = QueryQuads<is_scaled<S> ? Weighted::most_rows : 1, D>;
  static constexpr int tile_rows = max_tile_rows<T>;

  // Rows of a tile of scores where one of values has so many.
  template <int rows>
  static constexpr int score_rows = is_scaled<S> ? Quads::most_height : rows;

  // So few rows that the sums of a whole head fit in registers: then values are read line by line.
  static constexpr int stream_once_rows() {
    for (int rows = tile_rows; rows >= 3; --rows)
      if (tile_vectors(rows) * lanes >= D) return rows;
    return tile_rows;
  }

  // Steps of all rows in which they fetch.
  int fetching_steps() const {
    constexpr int wide = FetchInSteps<void>::columns;
    constexpr int adding = key_tile * ((padded + wide - 1) / wide);
    return num_row_tiles<score_rows<tile_rows>>(count) * D / Dot<Key>::depth +
           num_row_tiles<tile_rows>(count) * adding / Dot<T>::depth;
  }

  // Each product runs for all rows before the next, so that the L1 cache keeps what rows share.
  // values() says where values are, when keys are no longer needed.
  template <int Most, class Element, class Fetch, class Values>
  void visit(const Tile<S>& now, Scoring scoring, const Groups<Element>& keys,
             const Fetch& fetch_keys, const Fetch& fetch_values, Values values) {
    for_row_tiles<score_rows<Most>>(count, [&](auto height, int r, int) {
      score<height.value>(r, now, KeySource<Key, Element, Fetch>{keys, fetch_keys, 0});
    });
    this->find_weights({0, count}, now.start, scoring,
                       [&](vf scores, int v) { return reader_.scale_scores(scores, v); });
    const auto columns = values();
    if constexpr (is_scaled<S>) scale_weights();
    for_row_tiles<Most>(count, [&](auto height, int r, int) {
      add_values<height.value>(r, now, source_of(columns, fetch_values));
    });
  }

  template <int Height, class Source>
  void score(int r, const Tile<S>& now, Source source) {
    const Range keys = this->visible(r, Height, now.start);
    if (keys.begin >= keys.end) return;
    source.first = keys.begin / key_group;
    const int groups = (keys.end - 1) / key_group + 1 - source.first;
    with_rows<groups_per_tile>(groups, [&](auto width) {
      constexpr int vectors = width.value * key_group / lanes;
      float* scores = scores_[r] + source.first * key_group;
      if constexpr (is_scaled<S>)
        quads_.template score<Height, vectors>(r, source, {scores, key_tile});
      else
        tile<T, Height, vectors>(queries_[r], D, source, 0, D / Dot<T>::depth, scores, key_tile,
                                 start);
    });
  }

  template <int Height, class Source>
  void add_values(int r, const Tile<S>& now, const Source& source) {
    constexpr int depth = Dot<T>::depth;
    const Range keys = this->visible(r, Height, now.start);
    if (keys.begin >= keys.end) return;
    tile<T, Height, padded / lanes>(weights_[r], key_tile, source, keys.begin / depth,
                                    (keys.end + depth - 1) / depth, sums_[r], sums_stride,
                                    Start::resume);
  }

  void scale_weights() {
    for (int r = 0; r < count; ++r)
      for (int v = 0; v < key_tile / lanes; ++v) {
        T* weights = weights_[r] + v * lanes;
        store(weights, Weighted::weight(reader_.scale_weights(load(weights), v)));
      }
  }

  template <class Element, class Fetch>
  static ValueSource<T, Element, D, Fetch> source_of(const Groups<Element>& values,
                                                     const Fetch& fetch) {
    return {values, fetch};
  }

  TileReader<T, S, D> reader_;
  Quads quads_;
};

}  // namespace ingot
