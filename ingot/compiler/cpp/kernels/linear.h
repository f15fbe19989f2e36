// out[N, O] = x[N, K] W^T + bias, W packed in panels of 64 columns.
//
// A panel holds [ceil(K / depth)][width][depth]: width is 64, in the last panel the multiple of
// 16 that covers the columns left. A thread owns (panel, rows) units, panel by panel. A few rows
// read every weight once and in sequence, at the speed of the memory. More rows take the panel in
// blocks that stay in the L2 cache while all rows pass over them. Sums over k run in ascending
// order in one float32 per element, and a block continues them where the last one stopped, so
// the bits depend neither on rows nor on threads.
#pragma once

#include "simd.h"
#include "team.h"
#include "tile.h"

namespace ingot {

inline constexpr int panel_columns = 64;
inline constexpr int block_rows = 96;          // 24 KiB of sums; a multiple of the tiles
inline constexpr int block_bytes = 256 << 10;  // of weights; twice that, and rows, fit in L2
inline constexpr int stream_rows = 4 < max_tile_rows<bf16> ? 4 : max_tile_rows<bf16>;
// How far ahead a single stream is fetched, in bytes, into L2. Measured on Zen 4, in pages of 4 KiB
// and of 2 MiB: 5,632 bytes cost int8 a fifth where memory is fast, 1 KiB costs bfloat16 5 % in
// small pages.
inline constexpr int stream_distance = 4096;

constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

template <class T, int Width>
inline constexpr std::ptrdiff_t step_size = Width * Dot<T>::depth;

// Weights that are read once.
template <class T, int Width>
struct StreamedWeights {
  const T* panel;

  typename Dot<T>::Columns load(int vector, int step) const {
    const T* at = panel + step * step_size<T, Width> + vector * lanes * Dot<T>::depth;
    prefetch(reinterpret_cast<const char*>(at) + stream_distance);
    return Dot<T>::columns(at);
  }
};

// Weights that several tiles of rows share. Each tile fetches its part of what comes next, so
// that the memory works all the time, not only while the first tile passes.
template <class T, int Width>
struct SharedWeights {
  const T* panel;
  const T* next;       // what this tile fetches at step 0
  std::uint32_t pace;  // steps fetched per step of the tile, in units of 2^-16

  typename Dot<T>::Columns load(int vector, int step) const {
    const int column = vector * lanes * Dot<T>::depth;
    const std::uint32_t ahead = static_cast<std::uint32_t>(step) * pace >> 16;
    prefetch(next + ahead * step_size<T, Width> + column);
    return Dot<T>::columns(panel + step * step_size<T, Width> + column);
  }
};

// sums[rows][64] of a few rows, steps of k from 0.
template <class T, int Width>
void stream_panel(Rows<const T> x, int rows, int steps, const T* panel, float* sums) {
  with_rows<stream_rows>(rows, [&](auto height) {
    tile<T, height.value, Width / lanes>(x.data, x.stride, StreamedWeights<T, Width>{panel}, 0,
                                         steps, sums, panel_columns, Start::zero);
  });
}

// The same of many rows.
template <class T, int Width>
void share_panel(Rows<const T> x, int rows, int steps, const T* panel, float* sums) {
  constexpr int most = max_tile_rows<T>;
  constexpr int block_steps = block_bytes / (step_size<T, Width> * sizeof(T));
  const int blocks = steps / block_steps + 1, tiles = num_row_tiles<most>(rows);
  for (int block = 0; block < blocks; ++block) {
    const int begin = steps * block / blocks, length = steps * (block + 1) / blocks - begin;
    const T* from = panel + begin * step_size<T, Width>;
    for_row_tiles<most>(rows, [&](auto height, int row, int number) {
      const T* next = from + (length + length * number / tiles) * step_size<T, Width>;
      const SharedWeights<T, Width> weights{from, next, 65536u / tiles};
      tile<T, height.value, Width / lanes>(x[row] + begin * Dot<T>::depth, x.stride, weights, 0,
                                           length, sums + row * panel_columns, panel_columns,
                                           block == 0 ? Start::zero : Start::resume);
    });
  }
}

// sums[rows][64] = x[rows, inputs] times one panel.
template <class T, int Width>
__attribute__((noinline)) void panel_product(Rows<const T> x, int rows, int inputs,
                                             const T* panel, float* sums) {
  const int steps = inputs / Dot<T>::depth;
  if (rows <= stream_rows)
    stream_panel<T, Width>(x, rows, steps, panel, sums);
  else
    share_panel<T, Width>(x, rows, steps, panel, sums);
  if constexpr (Dot<T>::depth > 1) {
    if (inputs % Dot<T>::depth == 0) return;
    const StreamedWeights<T, Width> weights{panel};
    for (int row = 0; row < rows; ++row)
      for (int v = 0; v < Width / lanes; ++v) {
        float* sum = sums + row * panel_columns + v * lanes;
        const auto last = Dot<T>::last_row(x[row] + inputs - 1);
        store(sum, Dot<T>::step(load(sum), weights.load(v, steps), last));
      }
  }
}

// A weight matrix of this model: its shape, and where its panels lie.
template <class T, int Inputs, int Outputs>
struct Panels {
  static constexpr int depth = Dot<T>::depth;
  static constexpr int count = (Outputs + panel_columns - 1) / panel_columns;
  static constexpr int last_width = round_up(Outputs - (count - 1) * panel_columns, 16);
  static constexpr std::ptrdiff_t panel_size =
      static_cast<std::ptrdiff_t>(panel_columns) * round_up(Inputs, depth);

  const T* data;

  void product(Rows<const T> x, int rows, int panel, float* sums) const {
    const T* at = data + panel * panel_size;
    if (last_width == panel_columns || panel + 1 < count)
      panel_product<T, panel_columns>(x, rows, Inputs, at, sums);
    else
      panel_product<T, last_width>(x, rows, Inputs, at, sums);
  }

  // Element k of column `column`.
  T at(int column, int k) const {
    const int panel = column / panel_columns, inside = column % panel_columns;
    const int width = panel + 1 < count ? panel_columns : last_width;
    const std::ptrdiff_t pair = static_cast<std::ptrdiff_t>(k / depth) * width + inside;
    return data[panel * panel_size + pair * depth + k % depth];
  }
};

// Calls body(panel, first row, rows) for the units of one thread.
template <class Body>
inline void for_units(Team team, int panels, int rows, Body body) {
  const int blocks = (rows + block_rows - 1) / block_rows;
  const Range units = share(panels * blocks, team);
  for (int unit = units.begin; unit < units.end; ++unit) {
    const int row = unit % blocks * block_rows;
    body(unit / blocks, row, rows - row < block_rows ? rows - row : block_rows);
  }
}

template <class T, class Out, int Inputs, int Outputs>
[[gnu::noinline, gnu::noipa]]
void linear(Team team, int rows, Rows<const T> x, const T* weight, const float* bias,
            Rows<Out> out) {
  const Panels<T, Inputs, Outputs> panels{weight};
  for_units(team, panels.count, rows, [&](int panel, int row, int count) {
    auto& sums = team.workspace<float[block_rows * panel_columns]>();
    panels.product({x[row], x.stride}, count, panel, sums);
    const int column = panel * panel_columns;
    const int width = Outputs - column < panel_columns ? Outputs - column : panel_columns;
    for (int r = 0; r < count; ++r)
      for (int c = 0; c < width; c += lanes) {
        const Part part{width - c < lanes ? width - c : lanes};
        vf value = load(sums + r * panel_columns + c);
        if (bias != nullptr) value = value + load(bias + column + c, part);
        store(out[row + r] + column + c, value, part);
      }
  });
}

}  // namespace ingot
