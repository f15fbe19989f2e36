// What a thread does with a product's sums while they are still in its cache.
//
// A product hands over its sums in units. A unit is some rows of `columns` neighbouring columns in
// each of `parts` equal parts of the matrix; the sums of all parts lie side by side. A sink says
// what a unit is and which units belong to a thread, and takes their sums, which it may overwrite.
// Before that, it is asked row by row to fetch what it will write or read, because rows lie too far
// apart for the hardware to foresee them.
#pragma once

#include "math.h"
#include "quantize.h"
#include "team.h"

namespace ingot {

inline constexpr int unit_rows = 96;  // 24 KiB of sums of 64 columns; a multiple of the tiles

// The units of a matrix with so many outputs, in the order of its columns.
template <int Columns, int Parts, int Outputs>
struct Units {
  static constexpr int columns = Columns, parts = Parts;
  static constexpr int part_columns = Outputs / Parts;
  static constexpr int count = (part_columns + Columns - 1) / Columns;
  static constexpr int width = Parts * Columns;  // of its sums
  static_assert(Parts == 1 || part_columns % Columns == 0, "a unit is cut off");

  // The unit with number `index` in the deal; threads get equal ranges of numbers.
  static int unit(Team, int index) { return index; }

  struct Scratch {};  // what it needs to take a unit
};

// Fetches `count` neighbours.
template <class T>
inline void prefetch_row(const T* row, int count) {
  for (int i = 0; i < count; i += 64 / sizeof(T)) prefetch(row + i);
}

// out = sums + residual; in the last unit, only the columns that exist.
template <int Columns, int Outputs, class Out>
struct Store : Units<Columns, 1, Outputs> {
  using typename Units<Columns, 1, Outputs>::Scratch;
  Rows<const float> residual;  // null for none
  Rows<Out> out;

  void fetch(int unit, int row) const {
    prefetch_row(out[row] + unit * Columns, Columns);
    if (residual.data != nullptr) prefetch_row(residual[row] + unit * Columns, Columns);
  }

  void take(int unit, int row, int rows, Rows<float> sums, Scratch&) const {
    const int column = unit * Columns;
    const int existing = Outputs - column < Columns ? Outputs - column : Columns;
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < existing; c += lanes) {
        const Part part{existing - c < lanes ? existing - c : lanes};
        vf value = load(sums[r] + c);
        if (residual.data != nullptr) value = value + load(residual[row + r] + column + c, part);
        store(out[row + r] + column + c, value, part);
      }
  }
};

// out = sums, bounded to (-cap, cap)
template <int Columns, int Outputs, class Out>
struct StoreCapped : Units<Columns, 1, Outputs> {
  using typename Units<Columns, 1, Outputs>::Scratch;
  float cap;
  Rows<Out> out;

  void fetch(int unit, int row) const { prefetch_row(out[row] + unit * Columns, Columns); }

  void take(int unit, int row, int rows, Rows<float> sums, Scratch&) const {
    const int column = unit * Columns;
    const int existing = Outputs - column < Columns ? Outputs - column : Columns;
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < existing; c += lanes) {
        const Part part{existing - c < lanes ? existing - c : lanes};
        store(out[row + r] + column + c, capped(load(sums[r] + c), cap), part);
      }
  }
};

// What columns of a row of sums become, in a unit of so many columns: activated, or times those of the
// second half of the matrix as well.
template <class Activation>
struct ActivatedSums {
  static constexpr int parts = 1;
  template <int Columns>
  static vf value(const float* sums, int c) {
    return Activation::of(load(sums + c));
  }
};
template <class Activation>
struct GatedSums {
  static constexpr int parts = 2;
  template <int Columns>
  static vf value(const float* sums, int c) {
    return Activation::of(load(sums + c)) * load(sums + Columns + c);
  }
};

// out = what sums become
template <int Columns, int Outputs, class Kind, class Out>
struct StoreActivated : Units<Columns, Kind::parts, Outputs> {
  using Base = Units<Columns, Kind::parts, Outputs>;
  using typename Base::Scratch;
  Rows<Out> out;

  void fetch(int unit, int row) const { prefetch_row(out[row] + unit * Columns, Columns); }

  void take(int unit, int row, int rows, Rows<float> sums, Scratch&) const {
    constexpr int left = Base::part_columns % Columns;
    if (left == 0 || unit + 1 < Base::count)
      store_columns<Columns>(unit, row, rows, sums);
    else
      store_columns<left == 0 ? Columns : left>(unit, row, rows, sums);
  }

 private:
  template <int Existing>
  void store_columns(int unit, int row, int rows, Rows<float> sums) const {
    for (int r = 0; r < rows; ++r)
      for_columns<Existing>([&](int c, auto part) {
        const vf value = Kind::template value<Columns>(sums[r], c);
        store(out[row + r] + unit * Columns + c, value, part);
      });
  }
};

// The same, rounded to integers in groups.
template <int Columns, int Outputs, class Kind, int group, class V>
struct QuantizeActivated : Units<Columns, Kind::parts, Outputs> {
  using typename Units<Columns, Kind::parts, Outputs>::Scratch;
  static_assert(Columns % group == 0, "groups are a unit's");
  Rows<V> values;
  Rows<float> scales;

  void fetch(int unit, int row) const {
    integer_row(values, row).from(unit * Columns).fetch(Columns);
  }

  void take(int unit, int row, int rows, Rows<float> sums, Scratch&) const {
    for (int r = 0; r < rows; ++r) {
      float* made = sums[r];
      for_columns<Columns>(
          [&](int c, auto) { store(made + c, Kind::template value<Columns>(made, c)); });
      quantize_row<Columns, group>(made, integer_row(values, row + r).from(unit * Columns),
                                   scales[row + r] + unit * (Columns / group));
    }
  }
};

// Adds the bias of a unit's columns to its sums.
template <class Sink>
inline void add_bias(const float* bias, int unit, int rows, Rows<float> sums) {
  for (int part = 0; part < Sink::parts; ++part) {
    const int left = Sink::part_columns - unit * Sink::columns;
    const float* from = bias + part * Sink::part_columns + unit * Sink::columns;
    for (int c = 0; c < Sink::columns && c < left; c += lanes) {
      const vf value = load(from + c, Part{left - c < lanes ? left - c : lanes});
      for (int r = 0; r < rows; ++r) {
        float* sum = sums[r] + part * Sink::columns + c;
        store(sum, load(sum) + value);
      }
    }
  }
}

// A thread's memory for the sums of its units. Rows lie a line further apart than they are long, so
// that the rows of a panel spread over the L1 cache.
template <class Sink, int most_rows>
struct UnitMemory {
  alignas(64) float sums[most_rows][Sink::width + 16];
  alignas(64) typename Sink::Scratch scratch;

  Rows<float> rows() { return {sums[0], Sink::width + 16}; }
};

// The panels of `width` columns that a thread multiplies with, one after the other; `index` counts
// the panels of its units.
template <class Sink, int width>
struct UnitPanels {
  static_assert(Sink::columns % width == 0, "a unit is a whole number of panels");
  static constexpr int each = Sink::columns / width, count = Sink::parts * each;

  static int panel(const Sink& sink, Team team, int index) {
    const int unit = sink.unit(team, index / count), inside = index % count;
    return unit * each + inside % each + inside / each * (Sink::part_columns / width);
  }
};

// Calls body(index of a unit, first row, rows, end of the indices) for the units of one thread.
template <class Sink, int most_rows, class Body>
inline void for_units(Slice slice, Body body) {
  const int rows = slice.rows.end - slice.rows.begin;
  const int blocks = (rows + most_rows - 1) / most_rows;
  const Range mine = share(Sink::count * blocks, slice.team);
  for (int i = mine.begin; i < mine.end; ++i) {
    const int row = slice.rows.begin + i % blocks * most_rows, left = slice.rows.end - row;
    body(i / blocks, row, left < most_rows ? left : most_rows, (mine.end - 1) / blocks + 1);
  }
}

}  // namespace ingot
