// Rows of a latent cache as products of AMX read them.
//
// A row of the cache is a row of a tile: so keys are multiplied with queries, whose columns are
// made once for all keys, and the scores are turned. Values are copied, 16 columns by 32 rows.
#pragma once

#include "amx_keys.h"
#include "latent_rows.h"

namespace ingot {

// No rows are few: their products take longer than memory, since all heads read the same keys.
struct NoFew {
  static constexpr int most_rows = 0;
};

template <class S, int D, int V, int block>
class AmxLatentReader {
 public:
  static constexpr int key_size = D, value_size = V;
  static constexpr int most_rows = 128;  // of which working memory holds sums and columns
  static constexpr bool scales_scores = false, keys_are_rows = true;
  static constexpr int depth = (D + amx::depth - 1) / amx::depth * amx::depth;  // of keys
  static constexpr int columns = (V + amx::columns - 1) / amx::columns;         // tiles of values
  static constexpr std::ptrdiff_t key_stride = depth * sizeof(bf16);
  using Tile = LatentTile<S, amx_keys>;
  using Fetch = FetchTile<amx_keys / key_group, key_group * D * sizeof(S)>;
  using Few = NoFew;

  static Fetch fetch(const Tile& tile) {
    Fetch found;
    for (int g = 0; g < tile.groups; ++g)
      if (tile.sees(g)) found.add(tile.rows[g]);
    return found;
  }

  void begin() {
    for (auto& quarter : values_) fill_ones(quarter[columns]);
  }

  void read_keys(const Tile& tile) {
    for (int g = 0; g < tile.groups; ++g)
      if constexpr (copies) {
        if (tile.sees(g))
          for (int key = 0; key < key_group; ++key)
            copy(tile, g, key, copies_[g * key_group + key]);
        keys_[g] = copies_[g * key_group];
      } else {
        keys_[g] = tile.rows[g];
      }
  }
  // Those of a group from d on.
  const void* keys(int group, int d) const { return keys_[group] + d; }

  // Calls meanwhile() for each pair of keys.
  template <class Meanwhile>
  void read_values(const Tile& tile, Meanwhile meanwhile) {
    for_pairs(tile, [&](int key) {
      copy_values(tile, key);
      meanwhile();
    });
  }
  const void* values(int quarter, int column) const { return values_[quarter][column]; }

 private:
  static constexpr bool copies = is_scaled<S> || D != depth;

  static void copy(const Tile& tile, int group, int key, bf16* to) {
    const S* row = tile.rows[group] + key * D;
    std::memset(to + D, 0, (depth - D) * sizeof(bf16));
    if constexpr (is_scaled<S>) {
      const float* scales = tile.scales[group] + key * (D / block);
      for (int b = 0; b < D / block; ++b)
        for_columns<block>([&](int c, auto part) {
          store(to + b * block + c, load(row + b * block + c, part) * splat(scales[b]), part);
        });
    } else {
      std::memcpy(to, row, D * sizeof(bf16));
    }
  }

  // Two neighbouring keys. Those that no row sees have zeros for values.
  void copy_values(const Tile& tile, int key) {
    const bf16* rows = keys_[key / key_group] + key % key_group * depth;
    const __mmask16 first = tile.shows(key) ? 0xffff : 0, second = tile.shows(key + 1) ? 0xffff : 0;
    AmxColumns* to = values_[key / amx::depth];
    for (int c = 0; c < columns; ++c) {
      const AmxLine low = _mm512_maskz_mov_epi32(first, words(rows + c * amx::columns));
      const AmxLine high = _mm512_maskz_mov_epi32(second, words(rows + depth + c * amx::columns));
      to[c][key % amx::depth / 2] = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    }
  }
  static AmxLine words(const bf16* from) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }

  const bf16* keys_[amx_keys / key_group];
  AmxColumns values_[amx_quarters][columns + 1];
  alignas(64) bf16 copies_[copies ? amx_keys : 1][copies ? depth : 1];
};

}  // namespace ingot
