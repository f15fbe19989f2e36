// The product of some rows and one panel in vector registers.
//
// A panel holds [ceil(K / depth)][width][depth]. A few rows read every weight once and in sequence,
// at the speed of memory. More rows take the panel in blocks that stay in the L2 cache while all
// rows pass over them. Sums over k run in ascending order in one float32 for each element, and a
// block continues them where the last one stopped. So the bits depend neither on rows nor on
// threads.
#pragma once

#include "panel_weights.h"
#include "team.h"

namespace ingot {

inline constexpr int block_bytes = tuned::core_cache / 4;  // of weights; two, and rows, fit in L2
inline constexpr int most_split_tiles = 3;                 // of rows, for which no copy is made
inline constexpr int spread_tiles = lanes >= 16 ? 8 : 1;   // from which each line is fetched once
inline constexpr int stream_rows = 4 < max_tile_rows<bf16> ? 4 : max_tile_rows<bf16>;

// Steps of a block: what is widened stays in the L1 cache.
template <class T, int Width>
inline constexpr int most_block_steps =
    widens<T> ? widened_depth / Dot<T>::depth : block_bytes / (step_size<T, Width> * sizeof(T));

// Rows that a panel is multiplied with. `wide` are the same as tiles of many rows read them, where
// that was worth to be made once for several panels; null elsewhere.
template <class T>
struct PanelRows {
  Rows<const T> x;
  Rows<const Wide<T>> wide{};
};

// A panel, and the one that its thread reads after it.
template <class T>
struct PanelPlace {
  const T* panel;
  const T* next;
};

// sums[rows] of a few rows, in steps of k from 0. The last steps fetch the start of the next panel.
template <class T, int Width>
void stream_panel(Rows<const T> x, int rows, int steps, PanelPlace<T> place, Rows<float> sums) {
  constexpr std::ptrdiff_t size = step_size<T, Width>;
  constexpr int ahead = tuned::float_ahead / (size * sizeof(T));
  const int turn = steps > ahead ? steps - ahead : 0;
  with_rows<stream_rows>(rows, [&](auto height) {
    const auto run = [&](const T* fetched, int begin, int end, Start start) {
      tile<T, height.value, Width / lanes>(x.data, x.stride,
                                           StreamedWeights<T, Width>{{place.panel}, fetched}, begin,
                                           end, sums.data, sums.stride, start);
    };
    run(place.panel + ahead * size, 0, turn, Start::zero);
    run(place.next - turn * size, turn, steps, Start::resume);
  });
}

// The same for many rows.
template <class T, int Width, class Before>
void share_panel(Team team, const PanelRows<T>& of, int rows, int steps, PanelPlace<T> place,
                 Rows<float> sums, Widened<T>& widened, Before before) {
  using Element = Wide<T>;
  constexpr int most = max_tile_rows<Element>, ratio = Dot<T>::depth / Dot<Element>::depth;
  constexpr std::ptrdiff_t size = step_size<T, Width>;
  const int blocks = (steps - 1) / most_block_steps<T, Width> + 1;
  const int tiles = num_row_tiles<most>(rows);
  const int vectors = tile_vectors(rows / tiles), passes = (Width / lanes + vectors - 1) / vectors;
  for (int block = 0; block < blocks; ++block) {
    const int begin = steps * block / blocks, length = steps * (block + 1) / blocks - begin;
    const T* from = place.panel + begin * size;
    const T* following = block + 1 < blocks ? from + length * size : place.next;
    SpreadFetch spread(following, length * size * sizeof(T), tiles * passes,
                       next_attention(team, tiles, 8 * sizeof(T)));
    const bool splits = tiles <= most_split_tiles;
    if constexpr (widens<T>)
      if (!splits) widened.template widen_weights<Width>(from, length);
    for_row_tiles<most>(rows, [&](auto height, int row, int number) {
      if (block == 0) before(row, height.value);
      const int k = begin * Dot<T>::depth;
      const Rows<const T> given{of.x[row] + k, of.x.stride};
      const auto multiply = [&](Rows<const Element> tile_rows, const auto& weights) {
        tile<Element, height.value, Width / lanes>(tile_rows.data, tile_rows.stride, weights, 0,
                                                   length * ratio, sums[row], sums.stride,
                                                   block == 0 ? Start::zero : Start::resume);
      };
      if constexpr (widens<T>) {
        const Rows<const float> wide =
            of.wide.data != nullptr
                ? Rows<const float>{of.wide[row] + k, of.wide.stride}
                : widened.widen_rows(given, height.value, length * ratio);
        if (splits)
          multiply(wide, SplitWeights<Width>{from, spread});
        else
          multiply(wide, BlockWeights<float, Width>{{widened.weights}, spread});
      } else if (tiles < spread_tiles) {
        const T* next = following + length * number / tiles * size;
        multiply(given, SharedWeights<T, Width>{{from}, next, 65536u / tiles});
      } else {
        multiply(given, BlockWeights<T, Width>{{from}, spread});
      }
    });
  }
}

// sums[rows] = x[rows, inputs] times one panel. For many rows, calls before(row, rows) for each
// tile that starts the panel.
template <class T, int Width, class Before>
inline void vector_panel_product(Team team, const PanelRows<T>& of, int rows, int inputs,
                                 PanelPlace<T> place, Rows<float> sums, Widened<T>& widened,
                                 Before before) {
  const int steps = inputs / Dot<T>::depth;
  const Rows<const T> x = of.x;
  if (rows <= stream_rows)
    stream_panel<T, Width>(x, rows, steps, place, sums);
  else
    share_panel<T, Width>(team, of, rows, steps, place, sums, widened, before);
  if constexpr (Dot<T>::depth > 1) {
    if (inputs % Dot<T>::depth == 0) return;
    const StreamedWeights<T, Width> weights{{place.panel}, place.panel};
    for (int row = 0; row < rows; ++row)
      for (int v = 0; v < Width / lanes; ++v) {
        float* sum = sums[row] + v * lanes;
        const auto last = Dot<T>::last_row(x[row] + inputs - 1);
        store(sum, Dot<T>::step(load(sum), weights.load(v, steps), last));
      }
  }
}

}  // namespace ingot
