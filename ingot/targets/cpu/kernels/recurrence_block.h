// A block of the columns of a matrix: its vectors, its rows in memory, and sums over its rows.
#pragma once

#include "math.h"

namespace ingot {

// Vectors side by side of a block of so many columns; the last one may be a part.
template <int Columns>
inline constexpr int vectors_of = (Columns + lanes - 1) / lanes;

template <int Columns, class Body>
inline void for_vectors(Body body) {
  for (int i = 0; i < Columns / lanes; ++i) body(i, Full{});
  if constexpr (Columns % lanes != 0) body(Columns / lanes, Part{Columns % lanes});
}

// How a matrix of D rows is divided into blocks, and its sums over rows into chains.
template <int D>
struct RecurrenceBlock {
  static constexpr int most_vectors = 4, bytes = 16 << 10;  // half of a small first level
  static constexpr int fitting = bytes / (D * lanes * static_cast<int>(sizeof(float)));
  static constexpr int vectors = fitting < 1 ? 1 : fitting > most_vectors ? most_vectors : fitting;
  static constexpr int columns = vectors * lanes;
  // So many that a sum need not wait for the one before it.
  static constexpr int chains = vectors >= 4 || columns >= 32 ? 1 : vectors >= 2 ? 2 : 4;
};

template <int Columns>
struct Width {
  static constexpr int value = Columns;
};

// Sums over the rows of a block: rows go to the chains in turn.
template <int Vectors, int Chains>
struct RowSums {
  vf part[Chains][Vectors];

  void clear() {
    for (auto& chain : part)
      for (vf& v : chain) v = zero();
  }
  void add(int row, int i, vf factor, vf v) {
    vf& to = part[row % Chains][i];
    to = fma(factor, v, to);
  }
  vf total(int i) const {
    if constexpr (Chains == 4) return (part[0][i] + part[1][i]) + (part[2][i] + part[3][i]);
    if constexpr (Chains == 2) return part[0][i] + part[1][i];
    return part[0][i];
  }
};

// Rows of a block in memory.
template <class T>
struct BlockRows {
  T* data;
  std::ptrdiff_t stride;

  T* at(int row, int i) const { return data + row * stride + i * lanes; }
};

}  // namespace ingot
