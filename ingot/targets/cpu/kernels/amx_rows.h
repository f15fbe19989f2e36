// Rows of queries of one KV head over tiles of its keys and values, in tiles of AMX.
//
// The cache holds tiles of columns as they are: 16 keys by 32 d for scores, and 16 d by 16 keys for
// values. However many rows there are, they take the same way, so the bits of one do not depend on
// company. A tile of 16 rows goes through scores, softmax and values before the next one, so that
// the L1 cache keeps its scores.
//
// Products turn subnormal sums into zeros. Only a larger n leaves such sums, and a product with the
// row's own keys follows: so it does not matter whether others' keys came in between.
#pragma once

#include <initializer_list>

#include "amx_panel.h"
#include "softmax_rows.h"
#include "tile_reader.h"

namespace ingot {

// As many rows as a thread's scratch holds: each block reads all keys and values, from a shared
// cache or memory.
template <int D>
inline constexpr int most_amx_rows = D <= 128 ? 128 : D <= 256 ? 64 : 32;

template <int D, bool Capped>
class AmxRows : public SoftmaxRows<bf16, D, D, most_amx_rows<D>, Capped> {
 public:
  using Softmax = SoftmaxRows<bf16, D, D, most_amx_rows<D>, Capped>;
  using Softmax::count;

  // If a block has more than 16 rows, the last ones of its last tile mean nothing.
  void ready() const {
    amx::Shape shape;
    const auto height = static_cast<std::uint8_t>(count < amx::most_rows ? count : amx::most_rows);
    for (int tile : {0, 1, 2, 3, Whole::rows, Half::rows}) shape.rows[tile] = height;
    shape.row_bytes[Half::rows] = Half::depth * sizeof(bf16);
    shape.rows[Half::columns] = Half::depth / 2;
    amx::configure(shape);
  }

  void visit(const Tile<bf16>& now, const Tile<bf16>& next, Scoring scoring) {
    reader_.values(now, next, false, [&](const auto& values, const auto& fetched) {
      for (int r = 0; r < count; r += amx::most_rows) {
        const Range rows{r, count - r < amx::most_rows ? count : r + amx::most_rows};
        const Range keys = this->visible(r, rows.end - r, now.start);
        if (keys.begin >= keys.end) continue;
        score_all(r, keys, now);
        this->find_weights(rows, now.start, scoring, [](vf scores, int) { return scores; });
        add_all(r, keys, values, fetched);
      }
    });
  }

 private:
  using Softmax::padded, Softmax::queries_, Softmax::scores_, Softmax::sums_, Softmax::weights_;

  // Sums are in tiles 0 to 3; rows and columns of as many k as there are go into two others.
  static constexpr int most_sums = 4;
  struct Whole {
    static constexpr int rows = 4, columns = 5, depth = amx::depth;
  };
  struct Half {
    static constexpr int rows = 6, columns = 7, depth = key_group;
  };
  static_assert(2 * Half::depth == Whole::depth && D % Half::depth == 0, "see the shapes of tiles");

  // The first rows of a block fetch what is read next.
  template <int Lines>
  static void fetch(int r, const bf16* from) {
    for (int i = 0; i < Lines && r == 0; ++i) prefetch(from + i * (64 / sizeof(bf16)));
  }

  void score_all(int r, Range keys, const Tile<bf16>& now) {
    const int first = keys.begin / key_group;
    with_rows<groups_per_tile>((keys.end - 1) / key_group + 1 - first,
                               [&](auto groups) { score_groups<groups.value>(r, first, now); });
  }

  template <int Count>
  void score_groups(int r, int first, const Tile<bf16>& now) {
    for_constants<Count>([](auto i) { amx::zero<i>(); });
    for (int d = 0; d + Whole::depth <= D; d += Whole::depth)
      add_products<Whole, Count>(r, d, first, now);
    if constexpr (D % Whole::depth > 0) add_products<Half, Count>(r, D - Half::depth, first, now);
    for_constants<Count>([&](auto i) {
      amx::store<i>(scores_[r] + (first + i) * key_group, key_tile * sizeof(float));
    });
  }

  // Adds what `depth` columns of queries and keys make, from d on.
  template <class Tiles, int Count>
  void add_products(int r, int d, int first, const Tile<bf16>& now) {
    amx::load<Tiles::rows>(queries_[r] + d, D * sizeof(bf16));
    for_constants<Count>([&](auto i) {
      amx::load<Tiles::columns>(now.keys.at[first + i] + d * key_group, 64);
      fetch<Tiles::depth / 2>(r, now.values.at[first + i] + d * key_group);
      amx::multiply<i, Tiles::rows, Tiles::columns>();
    });
  }

  void add_all(int r, Range keys, const Groups<bf16>& values, const Groups<bf16>& fetched) {
    constexpr int width = most_sums * amx::columns, rest = D % width;
    for (int d = 0; d + width <= D; d += width) add_columns<most_sums>(r, d, keys, values, fetched);
    if constexpr (rest > 0) add_columns<rest / amx::columns>(r, D - rest, keys, values, fetched);
  }

  // Adds the values of Count tiles of columns, from d on.
  template <int Count>
  void add_columns(int r, int d, Range keys, const Groups<bf16>& values,
                   const Groups<bf16>& fetched) {
    const Rows<float> sums{sums_[r] + d, padded};
    begin_sums<Count>(sums, Start::resume);
    for (int group = keys.begin / key_group; group * key_group < keys.end; ++group) {
      amx::load<Half::rows>(weights_[r] + group * key_group, key_tile * sizeof(bf16));
      for_constants<Count>([&](auto i) {
        const int at = d + i * amx::columns;
        amx::load<Half::columns>(values.at[group] + at * 2, 2 * D * sizeof(bf16));
        fetch<Half::depth / 2>(r, fetched.at[group] + at * key_group);
        amx::multiply<i, Half::rows, Half::columns>();
      });
    }
    store_sums<Count>(sums);
  }

  TileReader<bf16, bf16, D, key_group> reader_;
};

}  // namespace ingot
