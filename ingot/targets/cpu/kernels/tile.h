// sums[r][c] (+)= x[r] . column c, in registers, over a range of k.
#pragma once

#include <cstddef>
#include <type_traits>

#include "dot.h"

namespace ingot {

// Calls body(constant) for a run-time number of rows from Least to Most.
template <int Most, int Least = 1, class Body>
inline void with_rows(int rows, Body body) {
  if constexpr (Most > Least) {
    if (rows < Most) return with_rows<Most - 1, Least>(rows, body);
  }
  body(std::integral_constant<int, Most>{});
}

template <int Most>
constexpr int num_row_tiles(int rows) {
  return (rows + Most - 1) / Most;
}

// Cuts rows into as few tiles as possible, of nearly equal height: 7 rows become 4 + 3. Calls
// body(height, first row, number of the tile). No height is below Least.
template <int Most, int Least = 1, class Body>
inline void for_row_tiles(int rows, Body body) {
  const int tiles = num_row_tiles<Most>(rows);
  for (int tile = 0, row = 0; tile < tiles; ++tile) {
    const int height = rows / tiles + (tile < rows % tiles ? 1 : 0);
    with_rows<Most, Least>(height, [&](auto constant) { body(constant, row, tile); });
    row += height;
  }
}

enum class Start { zero, resume };

// Calls body(row, vector) for all of a register tile. Without unrolling, sums leave the registers.
template <int Height, int Width, class Body>
[[gnu::always_inline]] inline void for_tile(Body body) {
#pragma GCC unroll 16
  for (int r = 0; r < Height; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < Width; ++v) body(r, v);
}

// Calls body(step) in the order in which columns are summed. A source can have an overload.
template <class Source, class Body>
[[gnu::always_inline]] inline void for_steps(const Source&, int begin, int end, Body body) {
  for (int step = begin; step < end; ++step) body(step);
}

// One register tile. `Source` gives the columns: load(vector, step). Its fetch(vector, step) asks
// for what is read later, once for each load. Fetches stand between the products, as several in a row
// hold up the loads: that costs one row a quarter of the bandwidth of a Sapphire Rapids core.
// Start::resume continues sums in memory; a float32 loses nothing there.
template <class T, int Height, int First, int Width, class Source>
inline void register_tile(const T* x, std::ptrdiff_t x_stride, const Source& source, int begin,
                          int end, float* sums, int sums_stride, Start start) {
  vf acc[Height][Width];
  for_tile<Height, Width>([&](int r, int v) {
    acc[r][v] = start == Start::zero ? zero()
                                     : load(sums + r * sums_stride + (First + v) * lanes);
  });
  for_steps(source, begin, end, [&](int step) __attribute__((always_inline)) {
    typename Dot<T>::Columns columns[Width];
    for (int v = 0; v < Width; ++v) columns[v] = source.load(First + v, step);
    for_tile<Height, Width>([&](int r, int v) {
      const auto row = Dot<T>::row(x + r * x_stride + step * Dot<T>::depth);
      acc[r][v] = Dot<T>::step(acc[r][v], columns[v], row);
      if (r == 0) source.fetch(First + v, step);
    });
  });
  for_tile<Height, Width>([&](int r, int v) {
    store(sums + r * sums_stride + (First + v) * lanes, acc[r][v]);
  });
}

// A tile of Vectors vectors, in as many register tiles as the level needs.
template <class T, int Height, int Vectors, int First = 0, class Source>
inline void tile(const T* x, std::ptrdiff_t x_stride, const Source& source, int begin, int end,
                 float* sums, int sums_stride, Start start) {
  constexpr int most = tile_vectors(Height);
  constexpr int width = Vectors - First < most ? Vectors - First : most;
  register_tile<T, Height, First, width>(x, x_stride, source, begin, end, sums, sums_stride,
                                         start);
  if constexpr (First + width < Vectors)
    tile<T, Height, Vectors, First + width>(x, x_stride, source, begin, end, sums, sums_stride,
                                            start);
}

}  // namespace ingot
