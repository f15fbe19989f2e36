// The product of some rows and one panel in vector registers.
//
// A panel holds [ceil(K / depth)][width][depth]. A few rows read every weight once and in sequence,
// at the speed of memory. More rows take the panel in blocks that stay in the L2 cache while all
// rows pass over them. Sums over k run in ascending order in one float32 for each element, and a
// block continues them where the last one stopped. So the bits depend neither on rows nor on
// threads.
#pragma once

#include "team.h"
#include "tile.h"

namespace ingot {

inline constexpr int block_bytes = tuned::core_cache / 4;  // of weights; two, and rows, fit in L2
inline constexpr int stream_rows = 4 < max_tile_rows<bf16> ? 4 : max_tile_rows<bf16>;

template <class T, int Width>
inline constexpr std::ptrdiff_t step_size = Width * Dot<T>::depth;

// Weights that are read once.
template <class T, int Width>
struct StreamedWeights {
  const T* panel;
  const T* fetched;  // at step 0

  typename Dot<T>::Columns load(int vector, int step) const {
    return Dot<T>::columns(panel + place(vector, step));
  }
  void fetch(int vector, int step) const { prefetch(fetched + place(vector, step)); }

 private:
  static std::ptrdiff_t place(int vector, int step) {
    return step * step_size<T, Width> + vector * lanes * Dot<T>::depth;
  }
};

// Weights that several tiles of rows share. Each tile fetches its part of what comes next, so that
// memory works all the time and not only during the first tile.
template <class T, int Width>
struct SharedWeights {
  const T* panel;
  const T* next;       // what this tile fetches at step 0
  std::uint32_t pace;  // steps fetched per step of the tile, in units of 2^-16

  typename Dot<T>::Columns load(int vector, int step) const {
    return Dot<T>::columns(panel + step * step_size<T, Width> + vector * lanes * Dot<T>::depth);
  }
  void fetch(int vector, int step) const {
    const std::uint32_t ahead = static_cast<std::uint32_t>(step) * pace >> 16;
    prefetch(next + ahead * step_size<T, Width> + vector * lanes * Dot<T>::depth);
  }
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
                                           StreamedWeights<T, Width>{place.panel, fetched}, begin,
                                           end, sums.data, sums.stride, start);
    };
    run(place.panel + ahead * size, 0, turn, Start::zero);
    run(place.next - turn * size, turn, steps, Start::resume);
  });
}

// The same for many rows.
template <class T, int Width, class Ahead>
void share_panel(Rows<const T> x, int rows, int steps, PanelPlace<T> place, Rows<float> sums,
                 Ahead ahead_of) {
  constexpr int most = max_tile_rows<T>;
  constexpr int block_steps = block_bytes / (step_size<T, Width> * sizeof(T));
  const int blocks = steps / block_steps + 1, tiles = num_row_tiles<most>(rows);
  for (int block = 0; block < blocks; ++block) {
    const int begin = steps * block / blocks, length = steps * (block + 1) / blocks - begin;
    const T* from = place.panel + begin * step_size<T, Width>;
    const T* following = block + 1 < blocks ? from + length * step_size<T, Width> : place.next;
    for_row_tiles<most>(rows, [&](auto height, int row, int number) {
      if (block == 0) ahead_of(row, height.value);
      const T* next = following + length * number / tiles * step_size<T, Width>;
      const SharedWeights<T, Width> weights{from, next, 65536u / tiles};
      tile<T, height.value, Width / lanes>(x[row] + begin * Dot<T>::depth, x.stride, weights, 0,
                                           length, sums[row], sums.stride,
                                           block == 0 ? Start::zero : Start::resume);
    });
  }
}

// sums[rows] = x[rows, inputs] times one panel. For many rows, calls ahead_of(row, rows) before
// each tile that starts the panel.
template <class T, int Width, class Ahead>
inline void vector_panel_product(Rows<const T> x, int rows, int inputs, PanelPlace<T> place,
                                 Rows<float> sums, Ahead ahead_of) {
  const int steps = inputs / Dot<T>::depth;
  if (rows <= stream_rows)
    stream_panel<T, Width>(x, rows, steps, place, sums);
  else
    share_panel<T, Width>(x, rows, steps, place, sums, ahead_of);
  if constexpr (Dot<T>::depth > 1) {
    if (inputs % Dot<T>::depth == 0) return;
    const StreamedWeights<T, Width> weights{place.panel, place.panel};
    for (int row = 0; row < rows; ++row)
      for (int v = 0; v < Width / lanes; ++v) {
        float* sum = sums[row] + v * lanes;
        const auto last = Dot<T>::last_row(x[row] + inputs - 1);
        store(sum, Dot<T>::step(load(sum), weights.load(v, steps), last));
      }
  }
}

}  // namespace ingot
