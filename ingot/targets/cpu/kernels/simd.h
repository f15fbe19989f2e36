// The vector types and functions at the level that this unit is compiled for.
//
// Each level gives the same names:
//   lanes                       floats in a vector `vf`; + - * / are the language's own
//   zero, splat, load, store    load and store convert bf16 and round to nearest even; a third
//                               argument n touches only the first n elements, the rest read as 0
//   store_alternate(to, from, odd, n)   to[2 i + odd] = from[i] in bf16, and touches no other
//   fma(a, b, c)                a * b + c, fused where the level has the instruction
//   min, max                    the second operand if either is NaN
//   round_even, scale2, sqrt    nearest integer; a * 2^n for integral n, in the normal range
//   zero_below(v, x, limit)     0 where x < limit, else v
//   keep(v, begin, end, other)  v in lanes [begin, end), `other` elsewhere
//   sum, maximum                over the lanes, in a fixed order
//   larger_magnitude(top, v)    the larger of top >= 0 and |v|; NaN is the largest of all
//   largest_magnitude           over the lanes
//   any_above(v, limit)         whether a lane exceeds the limit; NaN does not
//   sums(v)                     of `lanes` vectors, the sum of each in the lane of its number; each
//                               is summed in the same order
//   first                       lane 0
//   pairs                       lanes columns x 2 neighbouring k of bf16 weights; load_pairs with
//                               an argument n reads the first n columns, the rest as 0
//   split_pairs(from, odd, n)   the even or the odd k of `lanes` pairs in memory, or of the first n
//   multiplies_pairs            whether an instruction multiplies them; else they are {even, odd}
//   dot(acc, w, x)              acc + w.even * x.even + w.odd * x.odd, in the level's one order
//   join_pairs(even, odd)       pairs of values that bfloat16 holds exactly; store_pairs of them;
//                               zip_pairs reads the two from memory, with n the first n columns
//   prefetch                    into the L2 cache; a hint, for which any address is valid
//   prefetch_stream             the same for what is read once and soon, into tuned::stream_cache
//
// A function does the same operations on a lane whatever the other lanes hold, so results do not
// depend on how rows are grouped. Levels may differ from each other in the last bits.
#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

namespace ingot {

// Calls body(column, part) for the vectors of a row. `part` is Full, or Part for the last columns
// if they do not fill a vector. It selects an overload of load and store.
struct Full {};
struct Part {
  int count;
};

template <class T>
inline vf load(const T* from, Full) {
  return load(from);
}
template <class T>
inline vf load(const T* from, Part part) {
  return load(from, part.count);
}
template <class T>
inline void store(T* to, vf v, Full) {
  store(to, v);
}
template <class T>
inline void store(T* to, vf v, Part part) {
  store(to, v, part.count);
}

// As a T holds it.
template <class T>
inline vf rounded(vf v) {
  T all[lanes];
  store(all, v);
  return load(all);
}

template <int Columns, class Body>
inline void for_columns(Body body) {
  int column = 0;
  for (; column + lanes <= Columns; column += lanes) body(column, Full{});
  if constexpr (Columns % lanes != 0) body(column, Part{Columns % lanes});
}

}  // namespace ingot
