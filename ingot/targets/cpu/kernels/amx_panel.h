// The product of some rows and one panel of bfloat16 in tiles of AMX.
//
// A tile of columns is 16 columns of a panel by 32 k, where the panel has them. Up to 16 rows read
// a panel once and in sequence, all its columns side by side. More rows take it in blocks of k that
// stay in the L1 cache, 16 rows after the other. Up to three rows take vectors, which round as
// tiles do. So the bits of an element depend neither on rows nor on threads.
#pragma once

#include <cstring>
#include <type_traits>

#include "amx.h"
#include "amx_vectors.h"
#include "panel.h"

namespace ingot {

inline constexpr int amx_block_steps = 8;  // of 32 k; two tiles of rows take more, see amx_share
inline constexpr int amx_lines = 16;       // of a tile of columns

// Calls body(constant) for 0 .. Count - 1.
template <int Count, int First = 0, class Body>
[[gnu::always_inline]] inline void for_constants(Body body) {
  if constexpr (First < Count) {
    body(std::integral_constant<int, First>{});
    for_constants<Count, First + 1>(body);
  }
}

// Fetches lines one after the other.
struct LineFetch {
  const char* next;

  explicit LineFetch(const void* from) : next(static_cast<const char*>(from)) {}

  void operator()(int lines) {
    for (int i = 0; i < lines; ++i, next += 64) prefetch(next);
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

  // They take no place in the L1 cache: it is full of columns before these rows come again.
  template <int tile>
  void load_rows(int step) const {
    amx::load_once<tile>(x.data + step * amx::depth, x.stride * sizeof(bf16));
  }
  template <int tile>
  void load_columns(int number, int step) const {
    constexpr std::ptrdiff_t stride = 2 * Width * sizeof(bf16);
    amx::load<tile>(panel + step * step_size + number * 2 * amx::columns, stride);
  }
};

// Sums of tiles 0, 1, ... lie side by side. They begin with zeros, or with those of row 0 on.
template <int tile>
inline void begin_sum(Rows<float> sums, Start start) {
  if (start == Start::zero)
    amx::zero<tile>();
  else
    amx::load<tile>(sums.data + tile * amx::columns, sums.stride * sizeof(float));
}
template <int tile>
inline void store_sum(Rows<float> sums) {
  amx::store<tile>(sums.data + tile * amx::columns, sums.stride * sizeof(float));
}
template <int Count>
inline void begin_sums(Rows<float> sums, Start start) {
  for_constants<Count>([&](auto tile) { begin_sum<tile>(sums, start); });
}
template <int Count>
inline void store_sums(Rows<float> sums) {
  for_constants<Count>([&](auto tile) { store_sum<tile>(sums); });
}

// For sums of up to 16 rows in tiles 0 to 3, these rows in tile 4, and columns in the others.
inline void configure_rows(int rows) {
  amx::Shape shape;
  for (int tile = 0; tile <= 4; ++tile) shape.rows[tile] = static_cast<std::uint8_t>(rows);
  amx::configure(shape);
}

// Adds up steps of k. Calls before(tile) before the first product of a tile, fetches so many lines
// after each product, and calls beside() after each step.
template <int Width, class Before, class Beside>
[[gnu::always_inline]] inline void amx_steps(const AmxOperands<Width>& from, LineFetch fetch,
                                             int lines, Before before, Beside& beside) {
  constexpr int count = AmxOperands<Width>::count, free = amx::tiles - 5;
  for (int step = 0; step < from.steps; ++step) {
    from.template load_rows<4>(step);
    for_constants<(count < free ? count : free)>(
        [&](auto i) { from.template load_columns<5 + i>(i, step); });
    for_constants<count>([&](auto i) __attribute__((always_inline)) {
      if (step == 0) before(i);
      amx::multiply<i, 4, 5 + i % free>();
      fetch(lines);
      if constexpr (i + free < count) from.template load_columns<5 + i % free>(i + free, step);
    });
    beside();
  }
}

// sums[rows] of up to 16 rows. A step fetches the one after it, and the last one the start of
// `next`. Steps follow each other without a break, as sums that go to memory and come back would
// hold up the stream.
template <int Width>
inline void amx_stream(const AmxOperands<Width>& all, int rows, const bf16* next, Rows<float> sums,
                       Start start) {
  constexpr int count = AmxOperands<Width>::count;
  const int last = all.steps > 0 ? all.steps - 1 : 0;
  const auto nothing = [](auto...) {};
  configure_rows(rows);
  begin_sums<count>(sums, start);
  amx_steps(all.steps_of(0, last), LineFetch(all.panel + all.step_size), amx_lines, nothing,
            nothing);
  amx_steps(all.steps_of(last, all.steps), LineFetch(next), amx_lines, nothing, nothing);
  store_sums<count>(sums);
}

// Sums of one tile of rows after the other. Each stays until its tile is needed for the next rows,
// so that their products overlap with those of the last ones.
template <int Width>
class AmxSums {
 public:
  void configure(int rows) {
    if (rows == rows_) return;
    store();
    configure_rows(rows);
    rows_ = rows;
  }

  template <int tile>
  void begin(Rows<float> sums, Start start) {
    if (last_.data != nullptr) store_sum<tile>(last_);
    begin_sum<tile>(sums, start);
  }
  void end(Rows<float> sums) { last_ = sums; }

  void store() {
    if (last_.data != nullptr) store_sums<AmxOperands<Width>::count>(last_);
    last_.data = nullptr;
  }

 private:
  Rows<float> last_{};
  int rows_ = 0;
};

// The same of more rows, which take the panel in blocks of k, in tiles of nearly equal height.
// While they pass over a block, they fetch the next one, each pass its part. Fetches are spread
// evenly: many lines at once keep loads waiting.
template <int Width, class Beside>
inline void amx_share(const AmxOperands<Width>& all, int rows, const bf16* next, Rows<float> sums,
                      Beside& beside) {
  const int passes = num_row_tiles<amx::most_rows>(rows), lines = (amx_lines + passes - 1) / passes;
  const int most_steps = passes == 2 ? 4 * amx_block_steps : amx_block_steps;
  const int blocks = (all.steps + most_steps - 1) / most_steps;
  AmxSums<Width> in_tiles;
  for (int block = 0; block < blocks; ++block) {
    const int begin = all.steps * block / blocks, end = all.steps * (block + 1) / blocks;
    const auto now = all.steps_of(begin, end);
    const Start start = block == 0 ? Start::zero : Start::resume;
    const bf16* following = block + 1 < blocks ? all.panel + end * all.step_size : next;
    for (int pass = 0, row = 0; pass < passes; ++pass) {
      const int height = rows / passes + (pass < rows % passes ? 1 : 0);
      const Rows<float> part{sums[row], sums.stride};
      in_tiles.configure(height);
      const LineFetch fetch(following + now.steps * all.step_size / passes * pass);
      amx_steps(now.rows_from(row), fetch, lines,
                [&](auto tile) { in_tiles.template begin<tile>(part, start); }, beside);
      in_tiles.end(part);
      row += height;
    }
  }
  in_tiles.store();
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

// sums[rows] = x[rows, inputs] times one panel. For more than 16 rows, calls beside() after each
// step of each tile of rows.
template <int Width, class Beside>
inline void amx_panel_product(Rows<const bf16> x, int rows, int inputs, PanelPlace<bf16> place,
                              Rows<float> sums, Beside& beside) {
  const int steps = inputs / amx::depth, rest = inputs % amx::depth;
  const AmxOperands<Width> all{x, place.panel, steps};
  if (rows <= amx::most_rows)
    amx_few(all, rows, place.next, sums, Start::zero);
  else
    amx_share(all, rows, place.next, sums, beside);
  if (rest > 0)
    amx_rest(all.steps_of(steps, steps), rows, rest, sums, steps > 0 ? Start::resume : Start::zero);
}

}  // namespace ingot
