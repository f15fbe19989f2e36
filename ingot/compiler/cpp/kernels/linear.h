// out[N, O] = x[N, K] W^T + bias, W packed in panels of 64 columns.
//
// A panel holds [ceil(K / depth)][width][depth]: width is 64, in the last panel the multiple of
// 16 that covers the columns left. A thread owns (panel, rows) units, panel by panel, so few rows
// read every weight once and in sequence; many rows are taken in blocks whose part of the panel
// stays in the L2 cache. Sums over k run in ascending order in one float32 per element; a cut in
// k continues them, so the bits depend neither on rows nor on threads.
#pragma once

#include "team.h"
#include "tile.h"

namespace ingot {

inline constexpr int panel_columns = 64;
inline constexpr int block_rows = 96;             // 24 KiB of sums; a multiple of the tiles
inline constexpr int panel_bytes_in_l2 = 512 << 10;  // of 1 MiB; the rest is for the rows
inline constexpr int prefetch_bytes = 2048;

constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

template <class T, int Width>
struct PanelSource {
  const T* panel;

  typename Dot<T>::Columns load(int vector, int step) const {
    const T* at = panel + (static_cast<std::ptrdiff_t>(step) * Width + vector * lanes) *
                              Dot<T>::depth;
    prefetch(reinterpret_cast<const char*>(at) + prefetch_bytes);
    return Dot<T>::columns(at);
  }
};

// sums[rows][64] = x[rows, inputs] times one panel.
template <class T, int Width>
__attribute__((noinline)) void panel_product(Rows<const T> x, int rows, int inputs,
                                             const T* panel, float* sums) {
  constexpr int depth = Dot<T>::depth, vectors = Width / lanes;
  constexpr int steps_in_l2 = panel_bytes_in_l2 / (Width * depth * static_cast<int>(sizeof(T)));
  const PanelSource<T, Width> source{panel};
  const int steps = inputs / depth;
  for (int begin = 0; begin < steps || begin == 0; begin += steps_in_l2) {
    const int end = steps - begin < steps_in_l2 ? steps : begin + steps_in_l2;
    for_row_tiles<max_tile_rows<T>>(rows, [&](auto height, int row) {
      tile<T, height.value, vectors>(x[row], x.stride, source, begin, end,
                                     sums + row * panel_columns, panel_columns,
                                     begin == 0 ? Start::zero : Start::resume);
    });
  }
  if constexpr (depth > 1) {
    if (inputs % depth == 0) return;
    for (int row = 0; row < rows; ++row) {
      const auto last = Dot<T>::last_row(x[row] + inputs - 1);
      for (int v = 0; v < vectors; ++v) {
        float* sum = sums + row * panel_columns + v * lanes;
        store(sum, Dot<T>::step(load(sum), source.load(v, steps), last));
      }
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
