// out[N, O] = x[N, K] W^T + bias, x in int8 and W in int8 or int4, both with a scale a group of k.
//
// Over the groups in ascending order, sum += float(x . w) * (scale of x * scale of w): the dot
// product of a group is an exact integer, and the sum one float32 per element, so the bits depend
// neither on rows nor on threads. Threads divide the panels of columns. Few rows read every weight
// once, in sequence; many rows are taken in blocks that stay in the L2 cache. Nibbles are taken
// apart in registers, once for the rows of a tile: that hides behind the products, so that
// unpacking a panel beforehand would only cost its stores.
#pragma once

#include "linear.h"
#include "quantized_panels.h"
#include "tile.h"

namespace ingot {

// Rows that stay in the L2 cache while all panels pass over them: few enough to leave room for
// two panels, enough that the panels come from memory at a small part of its speed.
inline constexpr int rows_bytes = 384 << 10;
inline constexpr int least_block_rows = 24, most_block_rows = 96;  // multiples of the tiles

#if defined(__AVX512F__)
inline constexpr int quad_tile_rows = 6, quad_tile_vectors = 2;
#elif defined(__AVX2__)
inline constexpr int quad_tile_rows = 4, quad_tile_vectors = 2;
#else
inline constexpr int quad_tile_rows = 2, quad_tile_vectors = 2;
#endif

// Rows of x with what every column's sum starts from: -zero_point * (sum of x), by group.
struct QuantizedRows {
  Rows<const std::int8_t> values;
  Rows<const float> scales;
  Rows<const int> starts;

  QuantizedRows from(int row) const {
    return {{values[row], values.stride}, {scales[row], scales.stride},
            {starts[row], starts.stride}};
  }
};

// Fetches ahead of a tile that reads the memory itself: the less, the more work a byte is.
template <int bits>
struct FetchStream {
  void at(const std::uint8_t* place, int) const { prefetch(place + (bits == 4 ? 1536 : 2560)); }
  void next() {}
};

// Fetches, for one of several tiles that share a panel, its part of the panel that comes next, so
// that the memory works all the time and not only while the first tile passes.
struct FetchShared {
  const std::uint8_t* part;
  std::uint64_t pace;  // bytes of the part a line of quads, in units of 2^-16
  std::uint64_t fetched = 0;

  void at(const std::uint8_t*, int vector) const {
    prefetch(part + (fetched >> 16) + vector * line_bytes);
  }
  void next() { fetched += pace; }
};

// Calls step(quads of Width vectors, k) for the lines of a group from `first` to `last`.
template <int bits, int Width, class Fetch, class Step>
inline void for_quads(const std::uint8_t* weights, int first, int last, Fetch& fetch, Step step) {
  for (int line = first; line < last; ++line, fetch.next()) {
    vi low[Width], high[Width];
    for (int v = 0; v < Width; ++v) {
      const std::uint8_t* at = weights + line * quad_bytes + v * lanes * 4;
      fetch.at(at, v);
      low[v] = load_quads(at);
      if constexpr (bits == 4) {
        high[v] = high_nibbles(low[v]);
        low[v] = low_nibbles(low[v]);
      }
    }
    if constexpr (bits == 8) {
      step(low, line * 4);
    } else {
      const int k = first * 8 + (line - first) * 4;
      step(low, k);
      step(high, k + 16);
    }
  }
}

// acc += the dot products of a tile's rows and columns over one group: `weights` of its first
// column, `values` of its first row.
template <int bits, int group, int Height, int Width, class Fetch>
inline void group_product(const std::uint8_t* weights, Rows<const std::int8_t> values,
                          Fetch& fetch, vi (&acc)[Height][Width]) {
  using Dot = QuadDot<bits>;
  constexpr int lines = group * bits / 32, lines_at_once = Dot::most_steps * bits / 8;
  for (int first = 0; first < lines; first += lines_at_once) {
    typename Dot::Sums part[Height][Width];
    for (int r = 0; r < Height; ++r)
      for (int v = 0; v < Width; ++v) part[r][v] = Dot::open(acc[r][v]);
    const int last = lines - first < lines_at_once ? lines : first + lines_at_once;
    for_quads<bits, Width>(weights, first, last, fetch, [&](const vi(&quads)[Width], int k) {
      typename Dot::Weights w[Width];
      for (int v = 0; v < Width; ++v) w[v] = Dot::weights(quads[v]);
      for (int r = 0; r < Height; ++r) {
        const vi row = splat_quad(values[r] + k);
        for (int v = 0; v < Width; ++v) part[r][v] = Dot::step(part[r][v], w[v], row);
      }
    });
    for (int r = 0; r < Height; ++r)
      for (int v = 0; v < Width; ++v) acc[r][v] = Dot::close(acc[r][v], part[r][v]);
  }
}

// Where a panel's sums go: out[row][column] = sum + bias.
template <class Out>
struct PanelOut {
  Rows<Out> out;      // of the panel's first column
  const float* bias;  // of its first column, or null
  int count;          // the panel's columns that exist

  void fetch(int row, int vector) const { prefetch(out[row] + vector * lanes); }

  void write(int row, int vector, vf sum) const {
    const int column = vector * lanes, left = count - column;
    if (left <= 0) return;
    const Part part{left < lanes ? left : lanes};
    if (bias != nullptr) sum = sum + load(bias + column, part);
    store(out[row] + column, sum, part);
  }

  PanelOut from(int row) const { return {{out[row], out.stride}, bias, count}; }
};

// A tile of rows times vectors First .. First + Width - 1 of a panel. The lines that it writes are
// fetched before the products: a store that waits for its line holds up all later ones.
template <int bits, int group, int Height, int First, int Width, class Fetch, class Out>
inline void quantized_register_tile(const QuantizedRows& x, const std::uint8_t* panel, int groups,
                                    Fetch fetch, const PanelOut<Out>& columns) {
  using Group = PackedGroup<bits, group>;
  vf total[Height][Width];
  for (int r = 0; r < Height; ++r)
    for (int v = 0; v < Width; ++v) {
      total[r][v] = zero();
      columns.fetch(r, First + v);
    }
  for (int g = 0; g < groups; ++g) {
    const Group packed{panel + g * Group::bytes};
    fetch.at(packed.data, 0);
    vi acc[Height][Width];
    for (int r = 0; r < Height; ++r)
      for (int v = 0; v < Width; ++v)
        acc[r][v] = splat_int(QuadDot<bits>::zero_point == 0 ? 0 : x.starts[r][g]);
    group_product<bits, group>(packed.weights() + First * lanes * 4,
                               {x.values.data + g * group, x.values.stride}, fetch, acc);
    vf scales[Width];
    for (int v = 0; v < Width; ++v) scales[v] = packed.scales(First + v);
    for (int r = 0; r < Height; ++r) {
      const vf scale = splat(x.scales[r][g]);
      for (int v = 0; v < Width; ++v)
        total[r][v] = fma(to_float(acc[r][v]), scales[v] * scale, total[r][v]);
    }
  }
  for (int r = 0; r < Height; ++r)
    for (int v = 0; v < Width; ++v) columns.write(r, First + v, total[r][v]);
}

// A tile of rows times a panel, cut into as many register tiles as the level needs.
template <int bits, int group, int Height, int First = 0, class Fetch, class Out>
inline void quantized_tile(const QuantizedRows& x, const std::uint8_t* panel, int groups,
                           Fetch fetch, const PanelOut<Out>& columns) {
  constexpr int left = quantized_vectors - First;
  constexpr int width = left < quad_tile_vectors ? left : quad_tile_vectors;
  quantized_register_tile<bits, group, Height, First, width>(x, panel, groups, fetch, columns);
  if constexpr (width < left)
    quantized_tile<bits, group, Height, First + width>(x, panel, groups, fetch, columns);
}

// The rows of x times one panel; `next` is the panel that follows.
template <int bits, int group, class Out>
__attribute__((noinline)) void quantized_product(const QuantizedRows& x, int rows,
                                                 const std::uint8_t* panel,
                                                 const std::uint8_t* next, int groups,
                                                 const PanelOut<Out>& columns) {
  constexpr int bytes = PackedGroup<bits, group>::bytes, lines = group * bits / 32;
  const int tiles = num_row_tiles<quad_tile_rows>(rows);
  for_row_tiles<quad_tile_rows>(rows, [&](auto height, int row, int number) {
    if (tiles == 1)
      return quantized_tile<bits, group, height.value>(x, panel, groups, FetchStream<bits>{}, columns);
    const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(bytes) * groups;
    const FetchShared fetch{next + size * number / tiles,
                            (static_cast<std::uint64_t>(bytes) << 16) / (lines * tiles)};
    quantized_tile<bits, group, height.value>(x.from(row), panel, groups, fetch,
                                              columns.from(row));
  });
}

template <int bits, int group, int Inputs, int Outputs>
class QuantizedLinear {
 public:
  using Panels = QuantizedPanels<bits, group, Inputs, Outputs>;

  Panels panels;
  const float* bias;

  template <class Out>
  void run(Team team, int rows, Rows<const std::int8_t> x, Rows<const float> scales,
           Rows<Out> out) const {
    const Range mine = share(Panels::count, team);
    auto& starts = team.workspace<Starts>();
    for (int row = 0; row < rows; row += block_rows) {
      const int count = rows - row < block_rows ? rows - row : block_rows;
      const QuantizedRows part{{x[row], x.stride}, {scales[row], scales.stride},
                               {starts[0], Panels::groups}};
      start(starts, part.values, count);
      for (int panel = mine.begin; panel < mine.end; ++panel) {
        const int next = panel + 1 < mine.end ? panel + 1 : mine.begin;
        const PanelOut<Out> to = columns(panel, Rows<Out>{out[row], out.stride});
        quantized_product<bits, group>(part, count, panels.panel(panel), panels.panel(next),
                                       Panels::groups, to);
      }
    }
  }

 private:
  // A row of x with its scales and starts.
  static constexpr int row_bytes = Inputs + Panels::groups * 8;
  static constexpr int most_rows = rows_bytes / row_bytes / quad_tile_rows * quad_tile_rows;
  static constexpr int block_rows = most_rows < least_block_rows  ? least_block_rows
                                    : most_rows > most_block_rows ? most_block_rows
                                                                  : most_rows;
  using Starts = int[block_rows][Panels::groups];

  static void start(Starts& starts, Rows<const std::int8_t> x, int rows) {
    constexpr int zero_point = QuadDot<bits>::zero_point;
    if (zero_point == 0) return;
    for (int r = 0; r < rows; ++r)
      for (int g = 0; g < Panels::groups; ++g)
        starts[r][g] = -zero_point * sum_values<group>(x[r] + g * group);
  }

  template <class Out>
  PanelOut<Out> columns(int panel, Rows<Out> out) const {
    const int first = panel * quantized_columns;
    return {{out.data + first, out.stride}, bias == nullptr ? nullptr : bias + first,
            Outputs - first};
  }
};

template <int bits, int group, int Inputs, int Outputs, class Out>
[[gnu::noinline, gnu::noipa]]
void quantized_linear(Team team, int rows, Rows<const std::int8_t> x, Rows<const float> scales,
                      const std::uint8_t* weight, const float* bias, Rows<Out> out) {
  QuantizedLinear<bits, group, Inputs, Outputs>{{weight}, bias}.run(team, rows, x, scales, out);
}

}  // namespace ingot
