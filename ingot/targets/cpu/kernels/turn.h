// As many rows of words as a vector has lanes, turned into columns.
#pragma once

#include <cstddef>
#include <cstring>
#include <utility>

#include "simd.h"

namespace ingot {

// Of squares of Step words that lie in two rows, the upper right one and the lower left one change
// places.
template <int Step, std::size_t... Lane>
[[gnu::always_inline]] inline void swap_squares(vf& upper, vf& lower,
                                                std::index_sequence<Lane...>) {
  const vf before = upper;
  upper = __builtin_shufflevector(before, lower, ((Lane & Step) ? lanes + Lane - Step : Lane)...);
  lower = __builtin_shufflevector(before, lower, ((Lane & Step) ? lanes + Lane : Lane + Step)...);
}

// Word i of row j becomes word j of row i.
template <int Step = lanes / 2>
[[gnu::always_inline]] inline void turn(vf (&rows)[lanes]) {
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i)
    if ((i & Step) == 0)
      swap_squares<Step>(rows[i], rows[i + Step], std::make_index_sequence<lanes>());
  if constexpr (Step > 1) turn<Step / 2>(rows);
}

// The same in memory. Rows of either are so many bytes apart.
inline void turn(const void* from, std::ptrdiff_t from_stride, void* to, std::ptrdiff_t to_stride) {
  vf rows[lanes];
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i)
    std::memcpy(&rows[i], static_cast<const char*>(from) + i * from_stride, sizeof rows[i]);
  turn(rows);
#pragma GCC unroll 16
  for (int i = 0; i < lanes; ++i)
    std::memcpy(static_cast<char*>(to) + i * to_stride, &rows[i], sizeof rows[i]);
}

}  // namespace ingot
