// The inner step of every matrix product: it multiplies `depth` neighbouring k of a row with those
// of `lanes` columns. Only this file fixes the order of operations on one output element.
#pragma once

#include <type_traits>

#include "quads.h"
#include "tuning.h"

namespace ingot {

template <class T>
struct Dot;

template <>
struct Dot<float> {
  static constexpr int depth = 1;
  using Columns = vf;

  static Columns columns(const float* w) { return load(w); }
  static Columns columns(const float* w, int n) { return load(w, n); }
  static Columns row(const float* x) { return splat(*x); }
  static vf step(vf acc, Columns w, Columns x) { return fma(w, x, acc); }
  static Columns columns(const vf (&k)[1]) { return k[0]; }
  // The same of `depth` rows in memory, of which it reads the first n columns.
  static Columns columns(const float* const* rows, int at, int n) {
    return n >= lanes ? load(rows[0] + at) : load(rows[0] + at, n);
  }
  static void store_columns(float* to, Columns w) { store(to, w); }
};

template <>
struct Dot<bf16> {
  static constexpr int depth = 2;
  using Columns = pairs;

  static Columns columns(const bf16* w) { return load_pairs(w); }
  static Columns columns(const bf16* w, int n) { return load_pairs(w, n); }
  static Columns row(const bf16* x) { return splat_pair(read_pair(x)); }
  static vf step(vf acc, Columns w, Columns x) { return dot(acc, w, x); }
  // Columns from `depth` vectors, one for each k, of values that are exact in bfloat16.
  static Columns columns(const vf (&k)[2]) { return join_pairs(k[0], k[1]); }
  static Columns columns(const bf16* const* rows, int at, int n) {
    return n >= lanes ? zip_pairs(rows[0] + at, rows[1] + at)
                      : zip_pairs(rows[0] + at, rows[1] + at, n);
  }
  static void store_columns(bf16* to, Columns w) { store_pairs(to, w); }

  // The last k of an odd number, which has no neighbour.
  static Columns last_row(const bf16* x) { return splat_pair(x->bits); }
};

// Bytes of a row times columns of value + 128, which a sum starts at -zero_point * (sum of the row)
// for. Sums are exact integers.
template <>
struct Dot<std::int8_t> {
  static constexpr int depth = 4, zero_point = QuadDot<8>::zero_point;
  using Columns = QuadDot<8>::Weights;
  static_assert(std::is_same_v<QuadDot<8>::Sums, vi>, "of as many steps as there are");

  static Columns columns(const std::int8_t* w) {
    return QuadDot<8>::weights(load_quads(reinterpret_cast<const std::uint8_t*>(w)));
  }
  static vi row(const std::int8_t* x) { return splat_quad(x); }
  static vi step(vi acc, Columns w, vi x) { return QuadDot<8>::step(acc, w, x); }
};

// What is multiplied where weights are read more than once: float32 if no instruction multiplies
// pairs, since those of a row would be split again for each vector of columns. It changes no bit.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, bf16> && !multiplies_pairs, float, T>;
template <class T>
inline constexpr bool widens = !std::is_same_v<Wide<T>, T>;

// Rows x vectors of a register tile: as many sums as fit beside the operands.
template <class T>
inline constexpr int max_tile_rows = tuned::float_rows;
template <>
inline constexpr int max_tile_rows<bf16> = tuned::bfloat16_rows;
#if defined(__AVX512F__)
constexpr int tile_vectors(int rows) { return rows <= 3 ? 8 : 4; }
#elif defined(__AVX2__)
constexpr int tile_vectors(int rows) { return rows == 1 ? 8 : rows <= 3 ? 4 : 2; }
#else
constexpr int tile_vectors(int) { return 4; }
#endif

}  // namespace ingot
