// out[N, O] = x[N, K] W^T + bias, W packed in panels of 64 columns.
//
// A panel holds [ceil(K / depth)][width][depth]. Its width is 64, or in the last panel the multiple
// of 16 that covers the columns left. A thread owns (columns, rows) units of a sink, panel by
// panel. The product of rows and one panel is that of panel.h or amx_panel.h, by the target.
#pragma once

#include <cstring>

#include "amx_panel.h"
#include "panel.h"
#include "sinks.h"

namespace ingot {

inline constexpr int panel_columns = 64;
inline constexpr int most_unit_rows = 256;  // in tiles
inline constexpr std::size_t copied_bytes = tuned::core_cache / 8 * 5;  // of rows, beside panels

constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

template <class T>
inline constexpr bool takes_amx = amx::available && std::is_same_v<T, bf16>;

// Rows of a unit of products with weights T. In tiles, all rows that pass over a block share the
// time in which the next one comes from memory, so they are as many as a thread's scratch holds.
// Where weights become float32, they share that time.
template <class T, class Sink>
constexpr int rows_at_once() {
  if (!takes_amx<T>) return widens<T> ? 2 * unit_rows : unit_rows;
  constexpr std::size_t one = sizeof(UnitMemory<Sink, 2>) - sizeof(UnitMemory<Sink, 1>);
  constexpr int most = (scratch_bytes - sizeof(UnitMemory<Sink, 1>)) / one;
  return most < most_unit_rows ? most / amx::most_rows * amx::most_rows : most_unit_rows;
}

// sums[rows] = x[rows, inputs] times one panel. For many rows, vectors call beside(row, rows)
// before each tile that starts the panel, and tiles of AMX call beside() after each step.
template <class T, int Width, class Beside>
[[gnu::noinline]] void panel_product(Team team, const PanelRows<T>& of, int rows, int inputs,
                                     PanelPlace<T> place, Rows<float> sums, Widened<T>& widened,
                                     Beside& beside) {
  if constexpr (takes_amx<T>)
    amx_panel_product<Width>(of.x, rows, inputs, place, sums, beside);
  else
    vector_panel_product<T, Width>(team, of, rows, inputs, place, sums, widened, beside);
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

  template <class Beside>
  void product(Team team, const PanelRows<T>& of, int rows, int panel, int next,
               Rows<float> sums, Widened<T>& widened, Beside& beside) const {
    const PanelPlace<T> place{data + panel * panel_size, data + next * panel_size};
    if (last_width == panel_columns || panel + 1 < count)
      panel_product<T, panel_columns>(team, of, rows, Inputs, place, sums, widened, beside);
    else
      panel_product<T, last_width>(team, of, rows, Inputs, place, sums, widened, beside);
  }

  // Element k of column `column`.
  T at(int column, int k) const {
    const int panel = column / panel_columns, inside = column % panel_columns;
    const int width = panel + 1 < count ? panel_columns : last_width;
    const std::ptrdiff_t pair = static_cast<std::ptrdiff_t>(k / depth) * width + inside;
    return data[panel * panel_size + pair * depth + k % depth];
  }
};

// The sums of a unit that its sink has not taken yet. Tiles leave the vectors of a processor idle,
// so while they multiply for the next unit, the sink takes a row every `pace` steps.
template <class Sink>
class Untaken {
 public:
  Untaken(const Sink& sink, const float* bias, typename Sink::Scratch& scratch, int pace)
      : sink_(sink), bias_(bias), scratch_(scratch), pace_(pace) {}

  void add(int unit, int row, int rows, Rows<float> sums) {
    take(rows_);
    unit_ = unit, row_ = row, rows_ = rows, sums_ = sums;
  }
  void take_all() { take(rows_); }

  // After each step.
  void operator()() {
    if (rows_ > 0 && ++steps_ >= pace_) take(1);
  }

 private:
  [[gnu::noinline]] void take(int rows) {
    if (bias_ != nullptr) add_bias<Sink>(bias_, unit_, rows, sums_);
    sink_.take(unit_, row_, rows, sums_, scratch_);
    row_ += rows, rows_ -= rows, steps_ = 0;
    sums_.data += rows * sums_.stride;
  }

  const Sink& sink_;
  const float* bias_;
  typename Sink::Scratch& scratch_;
  const int pace_;
  int unit_ = 0, row_ = 0, rows_ = 0, steps_ = 0;
  Rows<float> sums_{};
};

// What a product works on: the sums of two units, one of which its sink takes, and rows, for tiles
// of AMX or in float32. Rows lie a line further apart than they are long. In the arena they are
// often a power of two apart, so that those of a tile would share few sets of the L1 cache.
template <class T, int Inputs, class Sink, int most_rows>
struct ProductMemory {
  using Unit = UnitMemory<Sink, most_rows>;
  using Element = Wide<T>;
  static constexpr int line = 64 / sizeof(Element);
  static constexpr std::ptrdiff_t stride = round_up(Inputs, line) + line;
  static constexpr std::size_t beside = 2 * sizeof(Unit) + sizeof(Widened<T>) + 4 * 64;
  static constexpr std::size_t left = all_scratch_bytes - beside;
  static constexpr std::size_t bytes = takes_amx<T> ? copied_bytes : widens<T> ? left : 0;
  static constexpr int fit = bytes / (stride * sizeof(Element));

  Unit units[2];
  Widened<T> widened;
  alignas(64) Element rows[fit > 0 ? fit * stride : 1];

  // These rows, copied if they are many and fit.
  Rows<const T> copied(Rows<const T> x, Range of) {
    const int count = of.end - of.begin;
    const Rows<const T> given{x[of.begin], x.stride};
    if constexpr (takes_amx<T>) {
      if (count <= amx::most_rows || count > fit) return given;
      for (int row = 0; row < count; ++row)
        std::memcpy(rows + row * stride, x[of.begin + row], Inputs * sizeof(T));
      return {rows, stride};
    }
    return given;
  }

  // As many of `count` rows as fit become float32, unless they are so few that tiles do not.
  // Returns their number.
  int widen(Rows<const T> x, int count) {
    if (!widens<T> || count <= stream_rows) return 0;
    const int wide = count < fit ? count : fit;
    for (int row = 0; row < wide; ++row)
      for_columns<Inputs>([&](int k, auto part) {
        store(rows + row * stride + k, load(x[row] + k, part), part);
      });
    return wide;
  }
};

// x[N, K] W^T + bias into a sink.
template <class T, int Inputs, int Outputs, class Sink>
inline void multiply(Slice slice, Rows<const T> x, const T* weight, const float* bias,
                     const Sink& sink) {
  using Unit = UnitPanels<Sink, panel_columns>;
  const Panels<T, Inputs, Outputs> panels{weight};
  constexpr int most_rows = rows_at_once<T, Sink>();
  constexpr int pace = Inputs * Unit::count / (amx::depth * amx::most_rows);
  auto& memory = slice.team.large_workspace<ProductMemory<T, Inputs, Sink, most_rows>>();
  Untaken<Sink> untaken(sink, bias, memory.units[0].scratch, pace);
  const Rows<const T> from = memory.copied(x, slice.rows);
  const int wide = memory.widen(from, slice.rows.end - slice.rows.begin);
  int turn = 0;
  for_units<Sink, most_rows>(slice, [&](int index, int row, int count, int end) {
    const int unit = sink.unit(slice.team, index), first = row - slice.rows.begin;
    const Rows<float> sums = memory.units[turn].rows();
    PanelRows<T> of{{from[first], from.stride}};
    if constexpr (widens<T>)
      if (first + count <= wide) of.wide = {memory.rows + first * memory.stride, memory.stride};
    for (int i = 0; i < Unit::count; ++i) {
      const int at = index * Unit::count + i;
      const int next = at + 1 < end * Unit::count ? at + 1 : at;
      const auto multiply_beside = [&](auto& beside) {
        panels.product(slice.team, of, count,
                       Unit::panel(sink, slice.team, at),
                       Unit::panel(sink, slice.team, next),
                       {sums.data + i * panel_columns, sums.stride}, memory.widened, beside);
      };
      const auto fetch = [&](int r, int n) {
        for (const int last = r + n; i == 0 && r < last; ++r) sink.fetch(unit, row + r);
      };
      if constexpr (takes_amx<T>)
        multiply_beside(untaken);
      else
        multiply_beside(fetch);
    }
    untaken.add(unit, row, count, sums);
    if (takes_amx<T> && count > amx::most_rows)
      turn = 1 - turn;
    else
      untaken.take_all();
  });
  untaken.take_all();
}

template <class T, class Out, int Inputs, int Outputs>
[[gnu::noinline, gnu::noipa]]
void linear(Slice slice, Rows<const T> x, const T* weight, const float* bias,
            Rows<const float> residual, Rows<Out> out) {
  const Store<panel_columns, Outputs, Out> sink{{}, residual, out};
  multiply<T, Inputs, Outputs>(slice, x, weight, bias, sink);
}

template <class T, class Sink, int most_rows>
struct HeadMemory {
  UnitMemory<Sink, most_rows> unit;
  Widened<T> widened;
};

// out = each head of x times the rows of W that are its own. Panels do not end where heads do, so
// a panel is multiplied with every head that has rows in it.
template <int Heads, class T, class Out, int Inputs, int Outputs>
[[gnu::noinline, gnu::noipa]]
void head_linear(Slice slice, Rows<const T> x, const T* weight, Rows<Out> out) {
  constexpr int size = Outputs / Heads;
  using Sink = Store<panel_columns, Outputs, Out>;
  const Panels<T, Inputs, Outputs> panels{weight};
  constexpr int most_rows = rows_at_once<T, Sink>();
  auto& memory = slice.team.workspace<HeadMemory<T, Sink, most_rows>>();
  const Rows<float> sums = memory.unit.rows();
  for_units<Sink, most_rows>(slice, [&](int panel, int row, int count, int end) {
    const auto nothing = [](auto...) {};
    const int first = panel * panel_columns;
    const int last = first + panel_columns < Outputs ? first + panel_columns : Outputs;
    for (int head = first / size; head * size < last; ++head) {
      panels.product(slice.team, {{x[row] + head * Inputs, x.stride}}, count, panel,
                     panel + 1 < end ? panel + 1 : panel, sums, memory.widened, nothing);
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

// out = activation(x W^T + bias). If that is gated, W has the rows of the gate, and then those of
// what it multiplies.
template <class Kind, class T, class Out, int Inputs, int Outputs>
[[gnu::noinline, gnu::noipa]]
void activated_linear(Slice slice, Rows<const T> x, const T* weight, const float* bias,
                      Rows<Out> out) {
  const StoreActivated<panel_columns, Outputs, Kind, Out> sink{{}, out};
  multiply<T, Inputs, Outputs>(slice, x, weight, bias, sink);
}

}  // namespace ingot
