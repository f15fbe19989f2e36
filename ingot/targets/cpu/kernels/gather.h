// Ops that make a row of other rows: embedding, select_rows and pool.
#pragma once

#include "linear.h"

namespace ingot {

// A table stored as plain rows.
template <class T, int Columns>
struct PlainTable {
  const T* data;

  const T* row(int index, T*) const { return data + static_cast<std::ptrdiff_t>(index) * Columns; }
};

// A table stored as the panels of a linear that shares it (tied embeddings): a row is a column
// of its panel, gathered into `scratch`.
template <class T, int Columns, int Vocabulary>
struct PanelTable {
  Panels<T, Columns, Vocabulary> panels;

  const T* row(int index, T* scratch) const {
    for (int k = 0; k < Columns; ++k) scratch[k] = panels.at(index, k);
    return scratch;
  }
};

// out[n] = table[tokens[n]]
template <int Columns, class T, class Out, class Table>
[[gnu::noinline, gnu::noipa]]
void embedding(Slice slice, const int* tokens, Table table, Rows<Out> out) {
  auto& scratch = slice.team.workspace<T[Columns]>();
  for (int row = slice.rows.begin; row < slice.rows.end; ++row) {
    const T* from = table.row(tokens[row], scratch);
    for_columns<Columns>(
        [&](int c, auto part) { store(out[row] + c, load(from + c, part), part); });
  }
}

// out[r] = x[indices[r]]
template <int Columns, class T>
[[gnu::noinline, gnu::noipa]]
void select_rows(Slice slice, Rows<const T> x, const int* indices, Rows<T> out) {
  for (int row = slice.rows.begin; row < slice.rows.end; ++row) {
    const T* from = x[indices[row]];
    for_columns<Columns>(
        [&](int c, auto part) { store(out[row] + c, load(from + c, part), part); });
  }
}

enum class Pooling { first, max, mean, mean_sqrt, weighted_mean, sum, last };

// Rows that are summed up before their sum is added to that of the ones before.
inline constexpr int summed_rows = 64;

// Rows [begin, end) of a segment that starts at row `start`.
struct PooledRows {
  int start, begin, end;

  // What their sum is divided by.
  template <Pooling How>
  float divisor() const {
    const double count = end - begin;
    if (How == Pooling::sum) return 1.0f;
    if (How == Pooling::mean_sqrt) return static_cast<float>(__builtin_sqrt(count));
    if (How == Pooling::mean) return static_cast<float>(count);
    return static_cast<float>(count * (begin - start + 1 + (end - start)) / 2);
  }
};

// The sum of one column of a segment. A row alone, and in parts of a fixed size, so that its bits
// are the same in any company, and so that little is lost over many rows.
template <Pooling How, class T, class Part>
inline vf column_sum(Rows<const T> x, PooledRows rows, int column, Part part) {
  const auto term = [&](int row) {
    const vf value = load(x[row] + column, part);
    return How == Pooling::weighted_mean ? value * splat(static_cast<float>(row - rows.start + 1))
                                        : value;
  };
  vf total = splat(0.0f);
  for (int start = rows.begin; start < rows.end; start += summed_rows) {
    const int stop = start + summed_rows < rows.end ? start + summed_rows : rows.end;
    vf sum = term(start);
    for (int row = start + 1; row < stop; ++row) sum += term(row);
    total += sum;
  }
  return total;
}

// out[s] = one row for the rows of segment s, but the first of them that its span leaves out
template <int Columns, Pooling How, class T, class Out>
[[gnu::noinline, gnu::noipa]]
void pool(Slice slice, Rows<const T> x, const int* spans, Rows<Out> out) {
  constexpr bool sums = How != Pooling::first && How != Pooling::last && How != Pooling::max;
  for (int s = slice.rows.begin; s < slice.rows.end; ++s) {
    const int* span = spans + 3 * s;
    const PooledRows rows{span[0], span[0] + span[2], span[1]};
    for_columns<Columns>([&](int c, auto part) {
      vf made = load(x[How == Pooling::last ? rows.end - 1 : rows.begin] + c, part);
      if constexpr (How == Pooling::max)
        for (int row = rows.begin + 1; row < rows.end; ++row) made = max(made, load(x[row] + c, part));
      if constexpr (sums)
        made = column_sum<How>(x, rows, c, part) / splat(rows.divisor<How>());
      store(out[s] + c, made, part);
    });
  }
}

}  // namespace ingot
