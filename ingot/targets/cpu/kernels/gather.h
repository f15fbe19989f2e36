// Ops that copy rows by index: embedding and select_rows.
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

}  // namespace ingot
