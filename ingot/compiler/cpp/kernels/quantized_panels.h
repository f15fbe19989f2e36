// Weights in int8 or int4 with a float16 scale for every group of k, as they are packed.
//
// Panels of 32 columns, each [K / group] groups; a group holds the 32 scales in one line of 64
// bytes and after them its weights, so that a thread reads its columns in one sequential stream:
//   int8   [group / 4][32 columns][4 k], value + 128
//   int4   for every 32 k: [4][32 columns][4 k], value + 8; at step j the low nibbles are
//          k = 4 j .. 4 j + 3 and the high ones k = 16 + 4 j ..
// The last panel is filled with columns whose scale is 0.
#pragma once

#include "quads.h"
#include "team.h"

namespace ingot {

inline constexpr int quantized_columns = 32;
inline constexpr int line_bytes = 64;
inline constexpr int scale_bytes = quantized_columns * 2;
inline constexpr int quad_bytes = quantized_columns * 4;  // a quad of every column
inline constexpr int quantized_vectors = quantized_columns / lanes;

// One group of one panel.
template <int bits, int group>
struct PackedGroup {
  static_assert(group % (bits == 4 ? 32 : 4) == 0, "see the layout above");
  static constexpr int bytes = scale_bytes + quantized_columns * group * bits / 8;

  const std::uint8_t* data;

  const std::uint8_t* weights() const { return data + scale_bytes; }
  vf scales(int vector) const {
    return load_halves(reinterpret_cast<const std::uint16_t*>(data) + vector * lanes);
  }

  float scale(int column) const {
    float all[lanes];
    store(all, scales(column / lanes));
    return all[column % lanes];
  }
  int value(int column, int k) const {
    if constexpr (bits == 8) return weights()[k / 4 * quad_bytes + column * 4 + k % 4] - 128;
    const int step = k / 32 * 4 + k % 16 / 4;
    const int both = weights()[step * quad_bytes + column * 4 + k % 4];
    return (k % 32 < 16 ? both & 15 : both >> 4) - 8;
  }
};

// A whole weight matrix.
template <int bits, int group, int Inputs, int Outputs>
struct QuantizedPanels {
  static_assert(Inputs % group == 0, "groups divide the inputs");
  using Group = PackedGroup<bits, group>;
  static constexpr int count = (Outputs + quantized_columns - 1) / quantized_columns;
  static constexpr int groups = Inputs / group;
  static constexpr std::ptrdiff_t panel_bytes = static_cast<std::ptrdiff_t>(groups) * Group::bytes;

  const std::uint8_t* data;

  const std::uint8_t* panel(int index) const { return data + index * panel_bytes; }
};

// out[n] = the dequantized column tokens[n]
template <int bits, int group, int Columns, int Vocabulary>
void quantized_embedding(Team team, int rows, const int* tokens, const std::uint8_t* weight,
                         Rows<float> out) {
  using Panels = QuantizedPanels<bits, group, Columns, Vocabulary>;
  const Panels panels{weight};
  const Range mine = share(rows, team);
  for (int row = mine.begin; row < mine.end; ++row) {
    const std::uint8_t* panel = panels.panel(tokens[row] / quantized_columns);
    const int column = tokens[row] % quantized_columns;
    for (int g = 0; g < Panels::groups; ++g) {
      const typename Panels::Group from{panel + g * Panels::Group::bytes};
      const float scale = from.scale(column);
      for (int k = 0; k < group; ++k)
        out[row][g * group + k] = static_cast<float>(from.value(column, k)) * scale;
    }
  }
}

}  // namespace ingot
