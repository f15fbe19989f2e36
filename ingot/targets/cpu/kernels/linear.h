// out[N, O] = x[N, K] W^T + bias, W packed in panels of 64 columns.
//
// A panel holds [ceil(K / depth)][width][depth]. Its width is 64, or in the last panel the multiple
// of 16 that covers the columns left. A thread owns (columns, rows) units of a sink, panel by
// panel. A few rows read every weight once and in sequence, at the speed of memory. More rows take
// the panel in blocks that stay in the L2 cache while all rows pass over them. Sums over k run in
// ascending order in one float32 for each element, and a block continues them where the last one
// stopped. So the bits depend neither on rows nor on threads.
#pragma once

#include "sinks.h"
#include "tile.h"

namespace ingot {

inline constexpr int panel_columns = 64;
inline constexpr int block_bytes = 256 << 10;  // of weights; twice that, and rows, fit in L2
inline constexpr int stream_rows = 4 < max_tile_rows<bf16> ? 4 : max_tile_rows<bf16>;
// How far ahead a single stream is fetched into L2, in bytes. Measured on Zen 4 in pages of 4 KiB
// and of 2 MiB: 5,632 bytes cost int8 a fifth if memory is fast; 1 KiB costs bfloat16 5 % in small
// pages.
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
  constexpr int ahead = stream_distance / (size * sizeof(T));
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
__attribute__((noinline)) void panel_product(Rows<const T> x, int rows, int inputs,
                                             PanelPlace<T> place, Rows<float> sums,
                                             Ahead ahead_of) {
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

// A weight matrix of this model: its shape, and where its panels lie.
template <class T, int Inputs, int Outputs>
struct Panels {
  static constexpr int depth = Dot<T>::depth;
  static constexpr int count = (Outputs + panel_columns - 1) / panel_columns;
  static constexpr int last_width = round_up(Outputs - (count - 1) * panel_columns, 16);
  static constexpr std::ptrdiff_t panel_size =
      static_cast<std::ptrdiff_t>(panel_columns) * round_up(Inputs, depth);

  const T* data;

  template <class Ahead>
  void product(Rows<const T> x, int rows, int panel, int next, Rows<float> sums,
               Ahead ahead_of) const {
    const PanelPlace<T> place{data + panel * panel_size, data + next * panel_size};
    if (last_width == panel_columns || panel + 1 < count)
      panel_product<T, panel_columns>(x, rows, Inputs, place, sums, ahead_of);
    else
      panel_product<T, last_width>(x, rows, Inputs, place, sums, ahead_of);
  }

  // Element k of column `column`.
  T at(int column, int k) const {
    const int panel = column / panel_columns, inside = column % panel_columns;
    const int width = panel + 1 < count ? panel_columns : last_width;
    const std::ptrdiff_t pair = static_cast<std::ptrdiff_t>(k / depth) * width + inside;
    return data[panel * panel_size + pair * depth + k % depth];
  }
};

// x[N, K] W^T + bias into a sink.
template <class T, int Inputs, int Outputs, class Sink>
inline void multiply(Slice slice, Rows<const T> x, const T* weight, const float* bias,
                     const Sink& sink) {
  using Unit = UnitPanels<Sink, panel_columns>;
  const Panels<T, Inputs, Outputs> panels{weight};
  auto& memory = slice.team.workspace<UnitMemory<Sink, unit_rows>>();
  const Rows<float> sums = memory.rows();
  for_units<Sink>(slice, [&](int index, int row, int count, int end) {
    const int unit = sink.unit(slice.team, index);
    for (int i = 0; i < Unit::count; ++i) {
      const int at = index * Unit::count + i;
      const int next = at + 1 < end * Unit::count ? at + 1 : at;
      panels.product({x[row], x.stride}, count, Unit::panel(sink, slice.team, at),
                     Unit::panel(sink, slice.team, next),
                     {sums.data + i * panel_columns, sums.stride},
                     [&](int r, int n) {
                       for (const int last = r + n; i == 0 && r < last; ++r)
                         sink.fetch(unit, row + r);
                     });
    }
    if (bias != nullptr) add_bias<Sink>(bias, unit, count, sums);
    sink.take(unit, row, count, sums, memory.scratch);
  });
}

template <class T, class Out, int Inputs, int Outputs>
[[gnu::noinline, gnu::noipa]]
void linear(Slice slice, Rows<const T> x, const T* weight, const float* bias,
            Rows<const float> residual, Rows<Out> out) {
  const Store<panel_columns, Outputs, Out> sink{{}, residual, out};
  multiply<T, Inputs, Outputs>(slice, x, weight, bias, sink);
}

// out = each head of x times the rows of W that are its own. Panels do not end where heads do, so
// a panel is multiplied with every head that has rows in it.
template <int Heads, class T, class Out, int Inputs, int Outputs>
[[gnu::noinline, gnu::noipa]]
void head_linear(Slice slice, Rows<const T> x, const T* weight, Rows<Out> out) {
  constexpr int size = Outputs / Heads;
  using Sink = Store<panel_columns, Outputs, Out>;
  const Panels<T, Inputs, Outputs> panels{weight};
  const Rows<float> sums = slice.team.workspace<UnitMemory<Sink, unit_rows>>().rows();
  for_units<Sink>(slice, [&](int panel, int row, int count, int end) {
    const int first = panel * panel_columns;
    const int last = first + panel_columns < Outputs ? first + panel_columns : Outputs;
    for (int head = first / size; head * size < last; ++head) {
      panels.product({x[row] + head * Inputs, x.stride}, count, panel,
                     panel + 1 < end ? panel + 1 : panel, sums, [](int, int) {});
      const int from = head * size > first ? head * size : first;
      const int to = (head + 1) * size < last ? (head + 1) * size : last;
      for (int r = 0; r < count; ++r)
        for (int c = from; c < to; c += lanes) {
          const Part part{to - c < lanes ? to - c : lanes};
          store(out[row + r] + c, load(sums[r] + c - first), part);
        }
    }
  });
}

// out = x W^T + bias, bounded to (-cap, cap)
template <class T, class Out, int Inputs, int Outputs>
[[gnu::noinline, gnu::noipa]]
void linear_soft_cap(Slice slice, Rows<const T> x, const T* weight, const float* bias, float cap,
                     Rows<Out> out) {
  const StoreCapped<panel_columns, Outputs, Out> sink{{}, cap, out};
  multiply<T, Inputs, Outputs>(slice, x, weight, bias, sink);
}

// out = activation(gate) * up. W has the rows of the gate, and then those of up.
template <class Activation, class T, class Out, int Inputs, int Outputs>
[[gnu::noinline, gnu::noipa]]
void gated_linear(Slice slice, Rows<const T> x, const T* weight, const float* bias,
                  Rows<Out> out) {
  const Gate<panel_columns, Outputs, Activation, Out> sink{{}, out};
  multiply<T, Inputs, Outputs>(slice, x, weight, bias, sink);
}

}  // namespace ingot
