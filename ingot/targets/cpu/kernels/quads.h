// Integer dot products at the level that this unit is compiled for. A quad is four neighbouring k,
// and a vector of quads holds the quads of `lanes` columns.
//
// Each level gives the same names:
//   vi                       a vector of `lanes` quads, or of `lanes` 32-bit integers
//   load_quads, store_quads  `lanes` quads as they lie in memory
//   splat_quad(x)            the quad at x in every lane
//   splat_int, to_float, add, multiply, shift_left, shift_right   of 32-bit integers; the last one
//                            keeps the sign, the others wrap around
//   add_in_words, multiply_in_words   the same of 16-bit integers
//   both_words(v)            the lower half of every integer in both of its halves
//   add_products(acc, a, b)  acc + the products of both signed halves of every integer
//   load_words(x)            `lanes` unsigned integers of 8 or 16 bits as 32-bit ones
//   low_nibbles, high_nibbles   the halves of every byte, as bytes of 0..15
//   kept_bits(v, mask), either(a, b)   v & mask in every byte, and a | b
//   masked(v, mask)          v & mask in every integer
//   look_up(table, v)        the byte of the table, aligned to 16, for every byte of 0..15
//   less_128                 unsigned bytes, each less 128, as signed ones
//   sum_values<n>(x)         the sum of n bytes
//   load_halves              `lanes` float16 as float32
//   store_int8(to, v, n)     the first n of integral values in [-127, 127]; n may exceed `lanes`
//   QuadDot<bits>            sums over k of unsigned weights (value + 2^(bits - 1)) with x:
//     zero_point             the offset left in each weight: acc starts at -zero_point * sum(x)
//     weights(quads)         the operand of `step` for stored weights, made once for many rows
//     open(acc), close(acc, sums)   around at most `most_steps` steps: sums may be narrower
//     step(sums, weights, x) adds the products of a quad of every column with one of a row
//   fast_bytes               whether steps of QuadDot<8> are as fast as those of narrower weights
//   unpacking_pays           whether many rows are worth the time to make bytes of narrower weights
//
// All sums are exact, so every level computes the same integers.
#pragma once

#include "simd.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include "quads_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "quads_avx2.h"
#else
#include "quads_portable.h"
#endif
