// out[N, O] = x[N, K] W^T + bias, x in int8 and W in int8 or int4, both with a scale a group of k.
//
// Over the groups in ascending order, sum += float(x . w) * (scale of x * scale of w): the dot
// product of a group is an exact integer, and the sum one float32 per element, so the bits depend
// neither on rows nor on threads. Threads divide the panels of columns. Few rows read every weight
// once, in sequence; many rows are taken in blocks, stripe by stripe of panels that stay in the
// L2 cache, and int4 is unpacked to bytes once a block.
#pragma once

#include "quantized_panels.h"
#include "tile.h"

namespace ingot {

inline constexpr int start_bytes = 64 << 10;
inline constexpr int unpacked_bytes = 128 << 10;
inline constexpr int stripe_bytes = 384 << 10;  // of 1 MiB; the rest is for the rows
inline constexpr int most_block_rows = 96;      // a multiple of the tiles
inline constexpr int unpack_from_rows = 24;     // unpacking costs as much as two rows

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

// sums[r][c] (+)= a tile of rows times vectors First .. First + Width - 1 of a panel, over groups
// [begin, end). `stored` is 8 where the weights of int4 have been unpacked.
template <int bits, int stored, int group, int Height, int First, int Width>
inline void quantized_register_tile(const QuantizedRows& x, const std::uint8_t* panel, int begin,
                                    int end, float* sums, Start start) {
  using Dot = QuadDot<bits>;
  using Group = PackedGroup<stored, group>;
  constexpr int lines = group * stored / 32, lines_at_once = stored;
  vf total[Height][Width];
  for (int r = 0; r < Height; ++r)
    for (int v = 0; v < Width; ++v)
      total[r][v] = start == Start::zero
                        ? zero()
                        : load(sums + r * quantized_columns + (First + v) * lanes);
  for (int g = begin; g < end; ++g) {
    const Group weights{panel + (g - begin) * Group::bytes};
    const std::int8_t* values = x.values.data + g * group;
    vi acc[Height][Width];
    for (int r = 0; r < Height; ++r)
      for (int v = 0; v < Width; ++v)
        acc[r][v] = splat_int(Dot::zero_point == 0 ? 0 : x.starts[r][g]);
    for (int first = 0; first < lines; first += lines_at_once) {
      typename Dot::Sums part[Height][Width];
      for (int r = 0; r < Height; ++r)
        for (int v = 0; v < Width; ++v) part[r][v] = Dot::open(acc[r][v]);
      const auto step = [&](const vi (&quads)[Width], int k) {
        typename Dot::Weights w[Width];
        for (int v = 0; v < Width; ++v) w[v] = Dot::weights(quads[v]);
        for (int r = 0; r < Height; ++r) {
          const vi row = splat_quad(values + r * x.values.stride + k);
          for (int v = 0; v < Width; ++v) part[r][v] = Dot::step(part[r][v], w[v], row);
        }
      };
      const int last = lines - first < lines_at_once ? lines : first + lines_at_once;
      for (int line = first; line < last; ++line) {
        const std::uint8_t* at = weights.weights() + line * quad_bytes + First * lanes * 4;
        vi quads[Width], others[Width];
        for (int v = 0; v < Width; ++v) {
          prefetch(at + v * lanes * 4 + stream_ahead);
          quads[v] = load_quads(at + v * lanes * 4);
        }
        if constexpr (stored == 8) {
          step(quads, line * 4);
        } else {
          for (int v = 0; v < Width; ++v) {
            others[v] = high_nibbles(quads[v]);
            quads[v] = low_nibbles(quads[v]);
          }
          const int k = first * 8 + (line - first) * 4;
          step(quads, k);
          step(others, k + 16);
        }
      }
      for (int r = 0; r < Height; ++r)
        for (int v = 0; v < Width; ++v) acc[r][v] = Dot::close(acc[r][v], part[r][v]);
    }
    vf scales[Width];
    for (int v = 0; v < Width; ++v) scales[v] = weights.scales(First + v);
    for (int r = 0; r < Height; ++r) {
      const vf scale = splat(x.scales[r][g]);
      for (int v = 0; v < Width; ++v)
        total[r][v] = fma(to_float(acc[r][v]), scales[v] * scale, total[r][v]);
    }
  }
  for (int r = 0; r < Height; ++r)
    for (int v = 0; v < Width; ++v)
      store(sums + r * quantized_columns + (First + v) * lanes, total[r][v]);
}

template <int bits, int stored, int group, int Height, int First = 0>
inline void quantized_tile(const QuantizedRows& x, const std::uint8_t* panel, int begin, int end,
                           float* sums, Start start) {
  constexpr int left = quantized_vectors - First;
  constexpr int width = left < quad_tile_vectors ? left : quad_tile_vectors;
  quantized_register_tile<bits, stored, group, Height, First, width>(x, panel, begin, end, sums,
                                                                     start);
  if constexpr (width < left)
    quantized_tile<bits, stored, group, Height, First + width>(x, panel, begin, end, sums, start);
}

// The rows of x in tiles, over groups [begin, end) whose weights start at `panel`.
template <int bits, int stored, int group>
__attribute__((noinline)) void quantized_product(const QuantizedRows& x, int rows,
                                                 const std::uint8_t* panel, int begin, int end,
                                                 float* sums) {
  for_row_tiles<quad_tile_rows>(rows, [&](auto height, int row) {
    quantized_tile<bits, stored, group, height.value>(x.from(row), panel, begin, end,
                                                      sums + row * quantized_columns,
                                                      begin == 0 ? Start::zero : Start::resume);
  });
}

// Groups of int4 as groups of bytes, k ascending; the scales are copied.
template <int group>
inline void unpack_groups(const std::uint8_t* from, int count, std::uint8_t* to) {
  constexpr int vector_bytes = lanes * 4;
  for (int g = 0; g < count; ++g) {
    std::memcpy(to, from, scale_bytes);
    from += scale_bytes;
    to += scale_bytes;
    for (int block = 0; block < group; block += 32, from += 4 * quad_bytes, to += 8 * quad_bytes)
      for (int at = 0; at < 4 * quad_bytes; at += vector_bytes) {
        prefetch(from + at + stream_ahead);
        const vi both = load_quads(from + at);
        store_quads(to + at, low_nibbles(both));
        store_quads(to + 4 * quad_bytes + at, high_nibbles(both));
      }
  }
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
    const int stripe = rows <= block_rows ? Panels::count : stripe_panels;
    auto& block = team.workspace<Block>();
    for (int first = mine.begin; first < mine.end; first += stripe)
      for (int row = 0; row < rows; row += block_rows) {
        const int count = rows - row < block_rows ? rows - row : block_rows;
        const QuantizedRows part{{x[row], x.stride}, {scales[row], scales.stride},
                                 {block.starts[0], Panels::groups}};
        start(block, part.values, count);
        const int end = mine.end - first < stripe ? mine.end : first + stripe;
        for (int panel = first; panel < end; ++panel) {
          product(block, part, count, panels.panel(panel));
          write(block, panel, count, Rows<Out>{out[row], out.stride});
        }
      }
  }

 private:
  static constexpr int unpacked_groups = unpacked_bytes / PackedGroup<8, group>::bytes;
  static constexpr int start_rows = start_bytes / (Panels::groups * static_cast<int>(sizeof(int)));
  static constexpr int block_rows = start_rows > most_block_rows     ? most_block_rows
                                    : start_rows >= quad_tile_rows   ? start_rows / quad_tile_rows * quad_tile_rows
                                                                     : quad_tile_rows;
  static constexpr int stripe_panels =
      Panels::panel_bytes < stripe_bytes ? stripe_bytes / static_cast<int>(Panels::panel_bytes) : 1;

  struct Block {
    alignas(64) std::uint8_t unpacked[unpacked_bytes];
    alignas(64) float sums[block_rows * quantized_columns];
    int starts[block_rows][Panels::groups];
  };

  static void start(Block& block, Rows<const std::int8_t> x, int rows) {
    constexpr int zero_point = QuadDot<bits>::zero_point;
    if (zero_point == 0) return;
    for (int r = 0; r < rows; ++r)
      for (int g = 0; g < Panels::groups; ++g) {
        int sum = 0;
        for (int k = 0; k < group; ++k) sum += x[r][g * group + k];
        block.starts[r][g] = -zero_point * sum;
      }
  }

  static void product(Block& block, const QuantizedRows& x, int rows, const std::uint8_t* panel) {
    if constexpr (bits == 4) {
      if (rows >= unpack_from_rows) {
        for (int g = 0; g < Panels::groups; g += unpacked_groups) {
          const int left = Panels::groups - g;
          const int count = left < unpacked_groups ? left : unpacked_groups;
          unpack_groups<group>(panel + g * Panels::Group::bytes, count, block.unpacked);
          quantized_product<bits, 8, group>(x, rows, block.unpacked, g, g + count, block.sums);
        }
        return;
      }
    }
    quantized_product<bits, bits, group>(x, rows, panel, 0, Panels::groups, block.sums);
  }

  template <class Out>
  void write(const Block& block, int panel, int rows, Rows<Out> out) const {
    const int column = panel * quantized_columns;
    const int left = Outputs - column;
    const int width = left < quantized_columns ? left : quantized_columns;
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < width; c += lanes) {
        const Part part{width - c < lanes ? width - c : lanes};
        vf value = load(block.sums + r * quantized_columns + c);
        if (bias != nullptr) value = value + load(bias + column + c, part);
        store(out[r] + column + c, value, part);
      }
  }
};

template <int bits, int group, int Inputs, int Outputs, class Out>
void quantized_linear(Team team, int rows, Rows<const std::int8_t> x, Rows<const float> scales,
                      const std::uint8_t* weight, const float* bias, Rows<Out> out) {
  QuantizedLinear<bits, group, Inputs, Outputs>{{weight}, bias}.run(team, rows, x, scales, out);
}

}  // namespace ingot
