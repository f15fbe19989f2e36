// The rows that have picked an expert, gathered to be multiplied with its matrix.
//
// A matrix [O, K] is stored in halves of O / 2 rows; weights.py says where. A `Half` knows how one
// half is multiplied:
//   count, columns     its units of columns, and how many a unit has; the last may have fewer
//   job_rows           rows that are multiplied at once, which lie in Half::Memory
//   gather(...)        copies one there;  start(rows, memory) prepares them
//   product(...)       sums of one unit; `next` is what the thread reads after it
#pragma once

#include "linear.h"
#include "picks.h"

namespace ingot {

// Rows that stay in the L2 cache beside the panels that they are multiplied with.
inline constexpr int gathered_bytes = 384 << 10;

constexpr int rows_at_once(int row_bytes) {
  const int rows = gathered_bytes / row_bytes / 6 * 6;
  return rows < 6 ? 6 : rows > unit_rows ? unit_rows : rows;
}

template <class T, int Inputs, int Outputs>
struct PlainHalf {
  using Element = T;
  using Weights = Panels<T, Inputs, Outputs>;
  static constexpr int columns = panel_columns, outputs = Outputs, count = Weights::count;
  static constexpr int stride = round_up(Inputs, 64 / sizeof(T)) + 64 / sizeof(T);
  static constexpr int job_rows = rows_at_once(stride * sizeof(T));
  static constexpr std::ptrdiff_t bytes =
      (panel_columns * (count - 1) + Weights::last_width) *
      static_cast<std::ptrdiff_t>(round_up(Inputs, Weights::depth)) * sizeof(T);

  struct Source {
    Rows<const T> x;
  };
  struct Memory {
    alignas(64) T rows[job_rows * stride];
    Widened<T> widened;
  };

  static void gather(const Source& from, int row, int to, Memory& memory) {
    std::memcpy(memory.rows + to * stride, from.x[row], Inputs * sizeof(T));
  }
  static void start(int, Memory&) {}

  static const char* unit(const char* half, int index) {
    return half + index * Weights::panel_size * static_cast<std::ptrdiff_t>(sizeof(T));
  }
  static void product(Team team, Memory& memory, int rows, const char* half, int index,
                      const char* next, Rows<float> sums) {
    const PanelPlace<T> place{reinterpret_cast<const T*>(unit(half, index)),
                              reinterpret_cast<const T*>(next)};
    const Rows<const T> x{memory.rows, stride};
    const auto nothing = [](auto...) {};
    if (Weights::last_width == panel_columns || index + 1 < count)
      panel_product<T, panel_columns>(team, {x}, rows, Inputs, place, sums, memory.widened, nothing);
    else
      panel_product<T, Weights::last_width>(team, {x}, rows, Inputs, place, sums, memory.widened,
                                            nothing);
  }
};

// The stack of a layer: `stride` bytes from matrix to matrix.
template <class Half, std::ptrdiff_t stride>
struct Stack {
  const char* data;

  const char* half(int expert, int which) const {
    return data + expert * stride + which * Half::bytes;
  }
};

// What a thread needs for its jobs.
template <class Half, int Experts, int Picks, int width>
struct JobMemory {
  PickLists<Experts, Picks, Half::job_rows> lists;
  typename Half::Memory rows;
  alignas(64) float sums[Half::job_rows * (width + 16)];

  Rows<float> all_sums() { return {sums, width + 16}; }

  // Gathers the rows of a job; `pairs_a_row` of them share a row of the source.
  void gather(const typename Half::Source& x, const Job& job, int pairs_a_row) {
    const int* sorted = lists.pairs(job);
    for (int r = 0; r < job.count; ++r) Half::gather(x, sorted[r] / pairs_a_row, r, rows);
    Half::start(job.count, rows);
  }
};

}  // namespace ingot
