// Rows of queries of one KV head over tiles of its keys and values, in tiles of AMX. A reader says
// where these lie; see amx_keys.h and amx_latent.h.
//
// Keys pass under all rows, and then values. What a product has summed leaves its tiles while the
// next one runs. A few rows take vectors that round as tiles do, so the bits of one do not depend
// on company.
//
// Products turn subnormal sums into zeros. Only a larger n leaves such sums, and a product with the
// row's own keys follows: so it does not matter whether others' keys came in between.
#pragma once

#include <algorithm>

#include "amx_few.h"
#include "amx_keys.h"
#include "amx_panel.h"
#include "quantize.h"
#include "softmax_rows.h"
#include "turn.h"

namespace ingot {

// 2^x for x <= 127, relative error 3e-6, since bfloat16 rounds it. Exactly 1 at 0.
inline vf rough_exp2(vf x) {
  constexpr float terms[] = {1.0f, 0.693044841f, 0.241280213f, 0.0522424728f, 0.0134266857f};
  const vf fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  return _mm512_scalef_ps(polynomial(fraction, terms), x);  // 2^floor(x) times that
}

template <class Reader, bool Capped>
using AmxSoftmax = SoftmaxRows<bf16, Reader::key_size, Reader::value_size, Reader::most_rows,
                               Capped, Reader::depth>;

template <class Reader, bool Capped>
class AmxRows : public AmxSoftmax<Reader, Capped> {
 public:
  using Softmax = AmxSoftmax<Reader, Capped>;
  using Tile = typename Reader::Tile;
  using Softmax::count;
  static constexpr int keys_at_once = amx_keys, tiles_ahead = 1;

  void begin() {
    height_ = 0;
    unstored_ = nullptr;
    reader_.begin();
  }

  // If a block has more than 16 rows, the last ones of its last tile mean nothing.
  void ready() {
    if constexpr (scales_scores)
      for (int r = 0; r < count; ++r) round_query(r);
    if constexpr (has_few)
      if (is_few()) {
        for (int r = 0; r < count; ++r) few_.set_query(r, queries_[r]);
        return;
      }
    if constexpr (keys_are_rows)
      for (int r = 0; r < count; r += amx::most_rows)
        for (int d = 0; d < Reader::depth; d += amx::depth)
          turn(queries_[r] + d, sizeof queries_[0], &query_columns_[r / amx::most_rows][d / 2],
               sizeof(AmxLine));
    const int height = keys_are_rows ? amx::most_rows : std::min(count, amx::most_rows);
    if (height == height_) return;
    amx::Shape shape;
    for (int tile = 0; tile < columns_tile; ++tile)
      shape.rows[tile] = static_cast<std::uint8_t>(height);
    amx::configure(shape);
    height_ = height;
  }

  void visit(const Tile& now, const Tile& next, Scoring scoring) {
    if constexpr (scales_scores) scales_.read(now);
    if constexpr (has_few)
      if (is_few()) return visit_few(now, next, scoring);
    visit_many(now, next, scoring);
  }

 private:
  using Softmax::queries_, Softmax::sums_, Softmax::sums_stride;
  static constexpr bool scales_scores = Reader::scales_scores;
  static constexpr bool keys_are_rows = Reader::keys_are_rows;

  // Tiles: sums from 0 on, then rows, and columns in the last one.
  static constexpr int query_tile = 4, weights_tile = 3, columns_tile = 7;
  static constexpr int groups = 4, span = groups * key_group;  // whose scores are in tiles
  static constexpr int spans = amx_keys / span;
  static constexpr int products_of_span = groups * Reader::depth / amx::depth;
  static constexpr int adding = 3;  // columns of sums in tiles
  static constexpr std::ptrdiff_t row_bytes = sums_stride * sizeof(float);

  // To int8, as keys are.
  void round_query(int r) {
    std::int8_t rounded[Reader::key_size];
    query_scales_[r] = quantize_group<Reader::key_size>(queries_[r], rounded);
    for_columns<Reader::key_size>([&](int d, auto part) {
      store(queries_[r] + d, load(rounded + d, part), part);
    });
  }

  static constexpr bool has_few = Reader::Few::most_rows > 0;
  bool is_few() const { return count <= Reader::Few::most_rows; }

  void visit_few(const Tile& now, const Tile& next, Scoring scoring) {
    const Rows<float> scores{scores_[0], amx_keys};
    few_.score(now, next, count, scores);
    for (int s = now.begin / span; s * span < now.end; ++s)
      weigh(0, s, now.start, scoring, {scores[0] + s * span, scores.stride});
    const bf16* weights = value_weights(0);
    for (int r = 0; r < count; ++r) few_.set_weights(r, weights + r * amx_keys);
    few_.add(now, next, count, {sums_[0], sums_stride});
    few_.add_weights(now, count, {weights_[0], amx_keys}, {this->total(0), sums_stride});
  }

  // The next tile is fetched evenly, since many lines at once hold up loads. With one tile of rows,
  // most of the time goes to copying values.
  void visit_many(const Tile& now, const Tile& next, Scoring scoring) {
    auto fetch = Reader::fetch(next);
    const int row_tiles = (count + amx::most_rows - 1) / amx::most_rows;
    const bool one = row_tiles == 1;
    reader_.read_keys(now);
    const int scored = fetch.lines(row_tiles * spans * products_of_span, one ? 3 : 2);
    weigh_all(now, scoring, [&] { fetch(scored); });
    const int copied = one ? fetch.lines(amx_keys / 2, 2) : 0;
    reader_.read_values(now, [&] {
      fetch(copied);
      stay_awake();
    });
    const int added = fetch.lines(row_tiles * (Reader::columns + 1) * amx_quarters, 1);
    add_all(now, [&] { fetch(added); });
  }

  // Tiles that have had nothing to do for half a microsecond take 0.3 to begin again.
  static void stay_awake() { amx::multiply<0, query_tile, columns_tile>(); }

  // Calls body(first row, the keys from `start` on that one of 16 rows sees).
  template <class Body>
  void for_row_tiles(int start, int keys, Body body) {
    for (int r = 0; r < count; r += amx::most_rows) {
      const Range seen = this->visible(r, std::min(count - r, amx::most_rows), start, keys);
      if (seen.begin < seen.end) body(r, seen);
    }
  }

  // One span after the other passes under all rows, so that its keys stay in the L1 cache. Scores
  // of 16 rows become weights while tiles multiply the next 16.
  template <class Meanwhile>
  void weigh_all(const Tile& now, Scoring scoring, Meanwhile meanwhile) {
    for (int s = now.begin / span; s * span < now.end; ++s) {
      int before = -1;
      for_row_tiles(now.start + s * span, span, [&](int r, Range) {
        score(r, s, meanwhile);
        if (before >= 0) weigh(before, s, now.start, scoring, turned_scores(before));
        before = r;
      });
      store_scores();
      if (before >= 0) weigh(before, s, now.start, scoring, turned_scores(before));
    }
  }

  // Scores of 16 rows and a span of keys. They stay in tiles. Each product calls meanwhile().
  template <class Meanwhile>
  void score(int r, int s, Meanwhile meanwhile) {
    float* last = unstored_;
    for (int d = 0; d < Reader::depth; d += amx::depth) {
      if constexpr (keys_are_rows)
        amx::load<columns_tile>(&query_columns_[r / amx::most_rows][d / 2], sizeof(AmxLine));
      else
        amx::load<query_tile>(queries_[r] + d, Reader::depth * sizeof(bf16));
      for_constants<groups>([&](auto g) {
        if constexpr (keys_are_rows)
          amx::load<query_tile>(reader_.keys(s * groups + g, d), Reader::key_stride);
        else
          amx::load<columns_tile>(reader_.keys(s * groups + g, d), sizeof(AmxLine));
        if (d == 0) {
          if (last != nullptr) store_score<g>(last);
          amx::zero<g>();
        }
        amx::multiply<g, query_tile, columns_tile>();
        meanwhile();
      });
    }
    unstored_ = scores_of(r);
  }
  float* scores_of(int r) { return scores_[r % (2 * amx::most_rows)]; }

  // Of rows and keys in tiles, or the other way round.
  template <int group>
  static void store_score(float* to) {
    if constexpr (keys_are_rows)
      amx::store<group>(to + group * key_group * amx::most_rows, sizeof(AmxLine));
    else
      amx::store<group>(to + group * key_group, span * sizeof(float));
  }
  Rows<const float> turned_scores(int r) {
    float* scores = scores_of(r);
    if constexpr (keys_are_rows) {
      for (int g = 0; g < groups; ++g)
        turn(scores + g * key_group * amx::most_rows, sizeof(AmxLine), turned_[0] + g * key_group,
             sizeof turned_[0]);
      return {turned_[0], span};
    }
    return {scores, span};
  }
  void store_scores() {
    if (unstored_ != nullptr) for_constants<groups>([&](auto g) { store_score<g>(unstored_); });
    unstored_ = nullptr;
  }

  // Turns scores of a span of keys, one row for each of up to 16, into weights.
  void weigh(int first, int s, int start, Scoring scoring, Rows<const float> scores) {
    const int height = std::min(count - first, amx::most_rows);
    if (this->all_see(first, height, start + s * span, span))
      weigh_rows<false>({first, first + height}, s, start, scoring, scores);
    else
      weigh_rows<true>({first, first + height}, s, start, scoring, scores);
  }

  template <bool Masked>
  [[gnu::noinline]] void weigh_rows(Range rows, int s, int start, Scoring scoring,
                                    Rows<const float> scores) {
    constexpr int vectors = span / lanes;
    for (int r = rows.begin; r < rows.end; ++r) {
      const auto scale = [&](vf products, int v) {
        if constexpr (!scales_scores) return products;
        return products * splat(query_scales_[r]) * scales_.of_keys(s * vectors + v);
      };
      if (Masked && this->blind(r, start + s * span, span)) {
        std::memset(weights_[r] + s * span, 0, span * sizeof(bf16));
        continue;
      }
      const float before = this->base(r);
      vf score[vectors];
      this->template read_scores<vectors, Masked>(r, scores[r - rows.begin], start + s * span,
                                                  scoring, scale, score);
      if (this->base(r) != before) rescale_weights(r, s * span, before);
      const vf base = splat(this->base(r));
#pragma GCC unroll 2
      for (int v = 0; v < vectors; v += 2)
        store_both(weights_[r] + s * span + v * lanes, rough_exp2(score[v] - base),
                   rough_exp2(score[v + 1] - base));
    }
  }

  // Those of the tile's first keys, after a later one has changed what they are relative to.
  [[gnu::noinline]] void rescale_weights(int r, int keys, float before) {
    if (before == -__builtin_inff()) return;  // it has seen none of them
    const vf factor = exp2(splat(before - this->base(r)));
    for (int key = 0; key < keys; key += lanes)
      store(weights_[r] + key, load(weights_[r] + key) * factor);
  }

  // What values are multiplied by, for up to 16 rows: weights, times the scales of int8.
  const bf16* value_weights(int first) {
    if constexpr (!scales_scores) return weights_[first];
    for (int r = first; r < std::min(first + amx::most_rows, count); ++r)
      for (int v = 0; v < amx_keys / lanes; ++v)
        store(scaled_weights_[r - first] + v * lanes,
              load(weights_[r] + v * lanes) * scales_.of_values(v));
    return scaled_weights_[0];
  }

  static void store_both(bf16* to, vf first, vf second) {
#ifdef __AVX512BF16__
    const __m512bh both = _mm512_cvtne2ps_pbh(second, first);
    std::memcpy(to, &both, sizeof both);
#else
    store(to, first);
    store(to + lanes, second);
#endif
  }

  // Weights take no place in the L1 cache, as it is full of values.
  template <class Meanwhile>
  void add_all(const Tile& now, Meanwhile meanwhile) {
    for_row_tiles(now.start, amx_keys, [&](int r, Range keys) {
      const Range quarters{keys.begin / amx::depth, (keys.end - 1) / amx::depth + 1};
      load_weights(value_weights(r), quarters);
      for (int c = 0; c <= Reader::columns; c += adding)
        for_constants<adding>([&](auto i) {
          if (c + i <= Reader::columns) add_column<i>(r, c + i, quarters, meanwhile);
        });
      store_last<Reader::columns % adding>();
    });
  }

  // Calls body for those that are seen, with their numbers as constants.
  template <class Body>
  static void for_quarters(Range seen, Body body) {
    for_constants<amx_quarters>([&](auto q) {
      if (q >= seen.begin && q < seen.end) body(q);
    });
  }

  static void load_weights(const bf16* weights, Range quarters) {
    for_quarters(quarters, [&](auto q) {
      amx::load_once<weights_tile + q>(weights + q * amx::depth, amx_keys * sizeof(bf16));
    });
  }

  template <int tile, class Meanwhile>
  void add_column(int r, int column, Range quarters, Meanwhile meanwhile) {
    if (scales_scores && column == Reader::columns) load_weights(weights_[r], quarters);
    float* sums = sums_[r] + column * amx::columns;
    amx::load<tile>(sums, row_bytes);
    for_quarters(quarters, [&](auto q) {
      amx::load<columns_tile>(reader_.values(q, column), sizeof(AmxLine));
      amx::multiply<tile, weights_tile + q, columns_tile>();
      meanwhile();
    });
    store_last<(tile + adding - 1) % adding>();
    unstored_ = sums;
  }
  template <int tile>
  void store_last() {
    if (unstored_ != nullptr) amx::store<tile>(unstored_, row_bytes);
    unstored_ = nullptr;
  }

  int height_;
  float* unstored_;  // where sums go that are still in tiles
  alignas(64) float scores_[2 * amx::most_rows][span];
  alignas(64) bf16 weights_[Reader::most_rows][amx_keys];
  alignas(64) float turned_[keys_are_rows ? amx::most_rows : 1][span];
  AmxLine query_columns_[keys_are_rows ? Reader::most_rows / amx::most_rows : 1]
                        [Reader::depth / 2];
  Reader reader_;
  AmxScales scales_;  // of int8, as the next two
  float query_scales_[Reader::most_rows];
  alignas(64) bf16 scaled_weights_[amx::most_rows][amx_keys];
  typename Reader::Few few_;
};

}  // namespace ingot
