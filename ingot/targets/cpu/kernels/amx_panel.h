// The product of some rows and one panel of bfloat16 in tiles of AMX.
//
// A tile of columns is 16 columns of a panel by 32 k, where the panel has them. Up to 16 rows read
// a panel once and in sequence, all its columns side by side. More rows take it in blocks of k that
// stay in the L1 cache, 32 rows and 32 columns at a time. Up to three rows take vectors, which
// round as tiles do. So the bits of an element depend neither on rows nor on threads.
#pragma once

#include <cstring>
#include <type_traits>

#include "amx.h"
#include "amx_vectors.h"
#include "panel.h"

namespace ingot {

inline constexpr int amx_block_steps = 8;                  // of 32 k
inline constexpr int amx_block_rows = 2 * amx::most_rows;  // that pass over a block at once
inline constexpr int amx_lines = 16;                       // of a tile of columns

// Calls body(constant) for 0 .. Count - 1.
template <int Count, int First = 0, class Body>
[[gnu::always_inline]] inline void for_constants(Body body) {
  if constexpr (First < Count) {
    body(std::integral_constant<int, First>{});
    for_constants<Count, First + 1>(body);
  }
}

// Fetches some lines of what is read later at each call, one after the other.
struct AmxFetch {
  const bf16* next;
  int lines;

  void operator()() {
    for (int i = 0; i < lines; ++i, next += 64 / sizeof(bf16)) prefetch(next);
  }
};

// Rows of x and a panel of `Width` columns, from a k on, over some steps.
template <int Width>
struct AmxOperands {
  static constexpr int count = Width / amx::columns;  // tiles of columns
  static constexpr std::ptrdiff_t step_size = Width * amx::depth;

  Rows<const bf16> x;
  const bf16* panel;
  int steps;

  AmxOperands steps_of(int begin, int end) const {
    return {{x.data + begin * amx::depth, x.stride}, panel + begin * step_size, end - begin};
  }
  AmxOperands rows_from(int row) const { return {{x[row], x.stride}, panel, steps}; }

  template <int tile>
  void load_rows(int row, int step) const {
    amx::load<tile>(x[row] + step * amx::depth, x.stride * sizeof(bf16));
  }
  template <int tile>
  void load_columns(int number, int step) const {
    constexpr std::ptrdiff_t stride = 2 * Width * sizeof(bf16);
    amx::load<tile>(panel + step * step_size + number * 2 * amx::columns, stride);
  }
};

// Count tiles side by side from `First` on begin with zeros, or with sums of row 0 on.
template <int First, int Count>
inline void begin_sums(Rows<float> sums, Start start) {
  for_constants<Count>([&](auto i) {
    if (start == Start::zero)
      amx::zero<First + i>();
    else
      amx::load<First + i>(sums.data + i * amx::columns, sums.stride * sizeof(float));
  });
}
template <int First, int Count>
inline void store_sums(Rows<float> sums) {
  for_constants<Count>([&](auto i) {
    amx::store<First + i>(sums.data + i * amx::columns, sums.stride * sizeof(float));
  });
}

// sums[rows] of up to 16 rows. They are in tiles 0 to 3, rows in 4, columns in the others. A step
// fetches the one after it, and the last one the start of `next`. Steps follow each other without a
// break, as sums that go to memory and come back would hold up the stream.
template <int Width>
inline void amx_stream(const AmxOperands<Width>& all, int rows, const bf16* next, Rows<float> sums,
                       Start start) {
  constexpr int count = AmxOperands<Width>::count, free = amx::tiles - 5;
  amx::Shape shape;
  for (int tile = 0; tile <= 4; ++tile) shape.rows[tile] = static_cast<std::uint8_t>(rows);
  amx::configure(shape);
  begin_sums<0, count>(sums, start);
  for (int step = 0; step < all.steps; ++step) {
    AmxFetch fetch{step + 1 < all.steps ? all.panel + (step + 1) * all.step_size : next, amx_lines};
    all.template load_rows<4>(0, step);
    for_constants<(count < free ? count : free)>(
        [&](auto i) { all.template load_columns<5 + i>(i, step); });
    for_constants<count>([&](auto i) {
      fetch();
      amx::multiply<i, 4, 5 + i % free>();
      if constexpr (i + free < count) all.template load_columns<5 + i % free>(i + free, step);
    });
  }
  store_sums<0, count>(sums);
}

// Sums of up to 32 rows and one or two tiles of columns, from number `first` on. Those of the first
// 16 rows are in tiles 0 and 1, of the others in 2 and 3; 4 and 5 hold rows, 6 and 7 columns.
template <int Count, bool High, int Width>
inline void amx_square(const AmxOperands<Width>& from, int first, Rows<float> upper, Start start,
                       AmxFetch& fetch) {
  const Rows<float> lower{upper[amx::most_rows], upper.stride};
  begin_sums<0, Count>(upper, start);
  if constexpr (High) begin_sums<2, Count>(lower, start);
  for (int step = 0; step < from.steps; ++step) {
    from.template load_rows<4>(0, step);
    if constexpr (High) from.template load_rows<5>(amx::most_rows, step);
    for_constants<Count>([&](auto i) {
      from.template load_columns<6 + i>(first + i, step);
      amx::multiply<i, 4, 6 + i>();
      if constexpr (High) amx::multiply<2 + i, 5, 6 + i>();
      fetch();
    });
  }
  store_sums<0, Count>(upper);
  if constexpr (High) store_sums<2, Count>(lower);
}

template <int Count, int Width>
inline void amx_square(const AmxOperands<Width>& from, int rows, int first, Rows<float> all,
                       Start start, AmxFetch& fetch) {
  const Rows<float> sums{all.data + first * amx::columns, all.stride};
  const bool high = rows > amx::most_rows;
  amx::Shape shape;
  const auto rest = static_cast<std::uint8_t>(high ? rows - amx::most_rows : rows);
  if (high)
    shape.rows[2] = shape.rows[3] = shape.rows[5] = rest;
  else
    shape.rows[0] = shape.rows[1] = shape.rows[4] = rest;
  amx::configure(shape);
  if (high)
    amx_square<Count, true>(from, first, sums, start, fetch);
  else
    amx_square<Count, false>(from, first, sums, start, fetch);
}

// The same of more rows, which take the panel in blocks of k and pairs of tiles. While they pass
// over a block, they fetch the next one, each pass its part. Fetches are spread evenly: many lines
// at once keep loads waiting.
template <int Width, class Ahead>
inline void amx_share(const AmxOperands<Width>& all, int rows, const bf16* next, Rows<float> sums,
                      Ahead ahead_of) {
  constexpr int count = AmxOperands<Width>::count;
  const int blocks = num_row_tiles<amx_block_steps>(all.steps);
  const int passes = num_row_tiles<amx_block_rows>(rows);
  for (int block = 0; block < blocks; ++block) {
    const int begin = all.steps * block / blocks, end = all.steps * (block + 1) / blocks;
    const auto now = all.steps_of(begin, end);
    const Start start = block == 0 ? Start::zero : Start::resume;
    const bf16* following = block + 1 < blocks ? all.panel + end * all.step_size : next;
    for (int pass = 0, row = 0; row < rows; ++pass, row += amx_block_rows) {
      const int height = rows - row < amx_block_rows ? rows - row : amx_block_rows;
      if (block == 0) ahead_of(row, height);
      AmxFetch fetch{following + now.steps * all.step_size / passes * pass,
                     (amx_lines + passes - 1) / passes};
      for_constants<(count + 1) / 2>([&](auto pair) {
        constexpr int first = 2 * pair, width = count - first < 2 ? 1 : 2;
        amx_square<width>(now.rows_from(row), height, first, {sums[row], sums.stride}, start,
                          fetch);
      });
    }
  }
}

// The same of few rows, to which it adds if it resumes.
template <int Width>
inline void amx_few(const AmxOperands<Width>& all, int rows, const bf16* next, Rows<float> sums,
                    Start start) {
  if (rows <= amx_vector_rows)
    amx_vectors<Width>(all.x, rows, all.steps, {all.panel, next}, sums, start);
  else
    amx_stream(all, rows, next, sums, start);
}

// Adds the k behind the last whole step, from copies that are filled up with zeros.
template <int Width>
inline void amx_rest(const AmxOperands<Width>& from, int rows, int rest, Rows<float> sums,
                     Start start) {
  alignas(64) bf16 x[amx::most_rows][amx::depth] = {};
  alignas(64) bf16 columns[AmxOperands<Width>::step_size] = {};
  std::memcpy(columns, from.panel, (rest + 1) / 2 * 2 * Width * sizeof(bf16));
  for (int row = 0; row < rows; row += amx::most_rows) {
    const int height = rows - row < amx::most_rows ? rows - row : amx::most_rows;
    for (int r = 0; r < height; ++r) std::memcpy(x[r], from.x[row + r], rest * sizeof(bf16));
    amx_few<Width>({{x[0], amx::depth}, columns, 1}, height, columns, {sums[row], sums.stride},
                   start);
  }
}

// sums[rows] = x[rows, inputs] times one panel. For more than 16 rows, calls ahead_of(row, rows)
// before each tile that starts the panel.
template <int Width, class Ahead>
inline void amx_panel_product(Rows<const bf16> x, int rows, int inputs, PanelPlace<bf16> place,
                              Rows<float> sums, Ahead ahead_of) {
  const int steps = inputs / amx::depth, rest = inputs % amx::depth;
  const AmxOperands<Width> all{x, place.panel, steps};
  if (rows <= amx::most_rows)
    amx_few(all, rows, place.next, sums, Start::zero);
  else
    amx_share(all, rows, place.next, sums, ahead_of);
  if (rest > 0)
    amx_rest(all.steps_of(steps, steps), rows, rest, sums, steps > 0 ? Start::resume : Start::zero);
}

}  // namespace ingot
