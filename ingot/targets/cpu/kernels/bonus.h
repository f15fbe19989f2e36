// What a token reads of itself, past its state (RWKV). Each row belongs to one thread.
#pragma once

#include "norm.h"

namespace ingot {

// out[r][h] = v[r][h] * the sum of q[r][h] k[r][h] weight[h], over the D elements of a head
template <int Heads, int D, int P, class Q, class K, class V, class Out>
[[gnu::noinline, gnu::noipa]]
void bonus(Slice slice, Rows<const Q> q, Rows<const K> k, Rows<const V> v, const float* weight,
           Rows<Out> out) {
  for (int row = slice.rows.begin; row < slice.rows.end; ++row)
    for (int h = 0; h < Heads; ++h) {
      const vf read = splat(row_sum<D>([&](int c, auto part) {
        const int at = h * D + c;
        return load(q[row] + at, part) * load(k[row] + at, part) * load(weight + at, part);
      }));
      for_columns<P>([&](int c, auto part) {
        store(out[row] + h * P + c, read * load(v[row] + h * P + c, part), part);
      });
    }
}

}  // namespace ingot
