// The keys and values of a tile as products of AMX read them: columns of bfloat16.
//
// The cache holds keys so, 16 of them by 32 d, unless it stores int8 or 32 does not divide the size
// of a head. Queries of int8 are whole numbers, too, so that their scores are exact in float32.
// Values are always copied, 16 d by 32 keys: such a tile may lie in two pages, and values of keys
// that no row sees have to be zeros, since a weight of zero does not hide a NaN.
#pragma once

#include <algorithm>
#include <cstring>

#include "amx.h"
#include "key_tiles.h"

namespace ingot {

inline constexpr int amx_keys = 128;  // at once: with fewer, sums would come and go more often
inline constexpr int amx_quarters = amx_keys / amx::depth;

// Pairs of neighbouring k of 16 columns.
using AmxLine = __m512i;
using AmxColumns = AmxLine[amx::depth / 2];

// Columns that sum up the weights of a quarter of the keys.
inline void fill_ones(AmxColumns& columns) {
  for (int pair = 0; pair < amx::depth / 2; ++pair)
    columns[pair] = _mm512_maskz_set1_epi32(1 << pair, 0x3f803f80);  // 1, twice
}

// Calls body(key) for each pair of keys in the quarters of a tile of which some key is seen.
template <class Tile, class Body>
[[gnu::always_inline]] inline void for_pairs(const Tile& tile, Body body) {
  for (int key = tile.begin / amx::depth * amx::depth; key < tile.end; key += amx::depth)
    for (int i = 0; i < amx::depth; i += 2) body(key + i);
}

// The scales of a tile's keys and values, by which scores and weights are multiplied.
class AmxScales {
 public:
  // Keys that no row sees may have any scale, even NaN.
  void read(const Tile<std::int8_t, amx_keys>& tile) {
    for (int key = 0; key < amx_keys; key += key_group) {
      const int group = key / key_group, begin = tile.begin - key, end = tile.end - key;
      store(keys_ + key, keep(load(tile.key_scales.at[group]), begin, end, zero()));
      store(values_ + key, keep(load(tile.value_scales.at[group]), begin, end, zero()));
    }
  }
  vf of_keys(int v) const { return load(keys_ + v * lanes); }
  vf of_values(int v) const { return load(values_ + v * lanes); }

 private:
  alignas(64) float keys_[amx_keys], values_[amx_keys];
};

// Element d of 16 keys.
inline vf key_values(const std::int8_t* group, int d) {
  constexpr int bits = 8, quad = Dot<std::int8_t>::depth;
  const auto* quads = reinterpret_cast<const std::uint8_t*>(group + d / quad * quad * key_group);
  const vi values = shift_left(less_128(load_quads(quads)), bits * (quad - 1 - d % quad));
  return to_float(shift_right(values, bits * (quad - 1)));
}

template <class S, int D>
class AmxFew;

template <class S, int D>
class AmxReader {
 public:
  static constexpr int key_size = D, value_size = D;
  // So many that multiplying with keys and values takes longer than to read them from memory.
  static constexpr int most_rows = D <= 128 ? 256 : D <= 256 ? 128 : 64;
  static constexpr bool scales_scores = is_scaled<S>, keys_are_rows = false;
  static constexpr int depth = (D + amx::depth - 1) / amx::depth * amx::depth;  // of keys
  static constexpr int columns = (D + amx::columns - 1) / amx::columns;         // tiles of values
  using Tile = ingot::Tile<S, amx_keys>;
  using Few = AmxFew<S, D>;

  static auto fetch(const Tile& tile) { return fetch_tile<D>(tile); }

  // Behind the values of a quarter of the keys lie columns that sum up its weights.
  void begin() {
    for (auto& quarter : values_) fill_ones(quarter[columns]);
  }

  void read_keys(const Tile& tile) {
    for (int g = 0; g < amx_keys / key_group; ++g)
      if constexpr (copies_keys) {
        if (tile.sees(g)) copy_keys(tile.keys.at[g], copies_[g]);
        keys_[g] = copies_[g];
      } else {
        keys_[g] = tile.keys.at[g];
      }
  }
  // Those of a group from d on.
  const void* keys(int group, int d) const {
    return static_cast<const AmxLine*>(keys_[group]) + d / 2;
  }

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
  static constexpr bool copies_keys = is_scaled<S> || D != depth;

  static void copy_keys(const S* group, AmxLine* to) {
    for (int d = 0; d < D; d += 2) to[d / 2] = key_pair(group, d);
    for (int d = D; d < depth; d += 2) to[d / 2] = _mm512_setzero_si512();
  }
  static AmxLine key_pair(const bf16* group, int d) {
    return _mm512_loadu_si512(group + d * key_group);
  }
  static AmxLine key_pair(const std::int8_t* group, int d) {
    return interleave(key_values(group, d), key_values(group, d + 1));
  }

  // Two neighbouring keys. Those that no row sees have zeros for values.
  void copy_values(const Tile& tile, int key) {
    const unsigned seen = (tile.shows(key) ? 0xffffu : 0u) | (tile.shows(key + 1) ? ~0xffffu : 0u);
    const S* from = tile.values.at[key / key_group] + key % key_group * D;
    AmxColumns* to = values_[key / amx::depth];
    for (int c = 0; c < columns; ++c)
      to[c][key % amx::depth / 2] = _mm512_and_si512(
          value_pair(from, c * amx::columns), _mm512_set1_epi32(static_cast<int>(seen)));
  }
  static AmxLine value_pair(const bf16* pair, int column) {
    return _mm512_maskz_loadu_epi32(first_lanes(D - column), pair + 2 * column);
  }
  static AmxLine value_pair(const std::int8_t* pair, int column) {
    return interleave(load(pair + column, D - column), load(pair + D + column, D - column));
  }

  const void* keys_[amx_keys / key_group];
  AmxColumns values_[amx_quarters][columns + 1];
  AmxLine copies_[copies_keys ? amx_keys / key_group : 1][copies_keys ? depth / 2 : 1];
};

}  // namespace ingot
