// The product that makes queries, keys and values. The thread that has just computed a head also
// norms, rotates and stores it.
#pragma once

#include "cache.h"
#include "linear.h"
#include "quantized_linear.h"

namespace ingot {

// Each head of queries, keys and values, in this order, is a unit.
template <int Heads, int Half, bool Interleaved, class S, int KvHeads, int PageSize, int D,
          class Out>
struct HeadSink : Units<D, 1, (Heads + 2 * KvHeads) * D> {
  Rows<const float> table;
  const int* slots;
  Cache<S, KvHeads, PageSize, D> cache;
  HeadNorm norm;
  Rows<Out> out;

  using Scratch = S[D];

  // If KV heads are dealt evenly, a thread gets a KV head and its query heads, as in attention.
  static int unit(Team team, int index) {
    if (!even_heads(KvHeads, team)) return index;
    constexpr int group = Heads / KvHeads, each = group + 2;
    const int kv_head = index / each, part = index % each;
    return part < group ? kv_head * group + part : Heads + (part - group) * KvHeads + kv_head;
  }

  void fetch(int unit, int row) const {
    if (unit < Heads)
      prefetch_row(out[row] + unit * D, D);
    else if (slots[row] >= 0 && unit < Heads + KvHeads)
      cache.fetch_key(slots[row], unit - Heads);
    else if (slots[row] >= 0)
      cache.fetch_value(slots[row], unit - Heads - KvHeads);
  }

  void take(int unit, int row, int rows, Rows<float> sums, Scratch& rounded) const {
    for (int r = row; r < row + rows; ++r) {
      float* head = sums[r - row];
      if (unit < Heads)
        take_query(unit, r, head);
      else if (slots[r] >= 0 && unit < Heads + KvHeads)
        take_key(unit - Heads, r, head, rounded);
      else if (slots[r] >= 0)
        cache.write_value(slots[r], unit - Heads - KvHeads, head, rounded);
    }
  }

 private:
  void take_query(int h, int row, float* head) const {
    turn_head<D, Half, Interleaved>(head, norm.q, norm.eps, norm.offset, table[row], head);
    for_columns<D>([&](int c, auto part) {
      store(out[row] + h * D + c, load(head + c, part), part);
    });
  }

  void take_key(int h, int row, float* head, Scratch& rounded) const {
    turn_head<D, Half, Interleaved>(head, norm.k, norm.eps, norm.offset, table[row], head);
    cache.write_key(slots[row], h, head, rounded);
  }
};

template <int Heads, int Half, bool Interleaved, int Inputs, class T, class S, int KvHeads,
          int PageSize, int D, class Out>
[[gnu::noinline, gnu::noipa]]
void linear_rope_kv_write(Slice slice, Rows<const T> x, const T* weight,
                          const float* bias, Rows<const float> table, const int* slots,
                          Cache<S, KvHeads, PageSize, D> cache, HeadNorm norm, Rows<Out> out) {
  using Sink = HeadSink<Heads, Half, Interleaved, S, KvHeads, PageSize, D, Out>;
  multiply<T, Inputs, Sink::part_columns>(slice, x, weight, bias,
                                          Sink{{}, table, slots, cache, norm, out});
}

template <int Heads, int Half, bool Interleaved, int bits, int group, int block, int Inputs,
          class X, class S, int KvHeads, int PageSize, int D, class Out>
[[gnu::noinline, gnu::noipa]]
void quantized_linear_rope_kv_write(Slice slice, Rows<const X> x,
                                    Rows<const float> scales, const std::uint8_t* weight,
                                    const float* bias, Rows<const float> table, const int* slots,
                                    Cache<S, KvHeads, PageSize, D> cache, HeadNorm norm,
                                    Rows<Out> out) {
  using Sink = HeadSink<Heads, Half, Interleaved, S, KvHeads, PageSize, D, Out>;
  QuantizedLinear<bits, group, block, Inputs, Sink::part_columns, X>{{weight}}.run(
      slice, x, scales, bias, Sink{{}, table, slots, cache, norm, out});
}

}  // namespace ingot
