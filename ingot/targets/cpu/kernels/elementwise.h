// Ops that map each element by itself. Each row belongs to one thread.
#pragma once

#include "math.h"
#include "team.h"

namespace ingot {

// out[r][c] = function(vectors of the inputs at r, c)
template <int Columns, class Function, class Out, class... Inputs>
inline void map_rows(Slice slice, Function function, Rows<Out> out,
                     Rows<const Inputs>... inputs) {
  for (int row = slice.rows.begin; row < slice.rows.end; ++row)
    for_columns<Columns>([&](int c, auto part) {
      store(out[row] + c, function(load(inputs[row] + c, part)...), part);
    });
}

template <int Columns, class Kind, class T, class Out>
[[gnu::noinline, gnu::noipa]]
void gate(Slice slice, Rows<const T> gate, Rows<const T> up, Rows<Out> out) {
  map_rows<Columns>(slice, [](vf g, vf u) { return Kind::of(g) * u; }, out, gate, up);
}

template <int Columns, class Kind, class T, class Out>
[[gnu::noinline, gnu::noipa]]
void activation(Slice slice, Rows<const T> x, Rows<Out> out) {
  map_rows<Columns>(slice, [](vf v) { return Kind::of(v); }, out, x);
}

template <int Columns, class X, class Y, class Out>
[[gnu::noinline, gnu::noipa]]
void add(Slice slice, Rows<const X> x, Rows<const Y> y, Rows<Out> out) {
  map_rows<Columns>(slice, [](vf a, vf b) { return a + b; }, out, x, y);
}

// out[r][h] = x[r][h] * share[r][h], with a share for each head of D
template <int Heads, int D, class X, class Share, class Out>
[[gnu::noinline, gnu::noipa]]
void head_scale(Slice slice, Rows<const X> x, Rows<const Share> share, Rows<Out> out) {
  for (int r = slice.rows.begin; r < slice.rows.end; ++r)
    for (int h = 0; h < Heads; ++h) {
      const vf factor = splat(static_cast<float>(share[r][h]));
      for_columns<D>([&](int c, auto part) {
        store(out[r] + h * D + c, load(x[r] + h * D + c, part) * factor, part);
      });
    }
}

// out[r][h] = x[r][h], then y[r][h]
template <int Heads, int Left, int Right, class X, class Y, class Out>
[[gnu::noinline, gnu::noipa]]
void concat(Slice slice, Rows<const X> x, Rows<const Y> y, Rows<Out> out) {
  const auto copy = [](vf v) { return v; };
  for (int h = 0; h < Heads; ++h) {
    Out* head = out.data + h * (Left + Right);
    map_rows<Left>(slice, copy, Rows<Out>{head, out.stride},
                   Rows<const X>{x.data + h * Left, x.stride});
    map_rows<Right>(slice, copy, Rows<Out>{head + Left, out.stride},
                    Rows<const Y>{y.data + h * Right, y.stride});
  }
}

// out[r][c] = x[r][order[c]], where order has whole numbers
template <int Columns, class T, class Out>
[[gnu::noinline, gnu::noipa]]
void reorder(Slice slice, Rows<const T> x, const float* order, Rows<Out> out) {
  for (int row = slice.rows.begin; row < slice.rows.end; ++row) {
    float wide[Columns];
    for_columns<Columns>([&](int c, auto part) { store(wide + c, load(x[row] + c, part), part); });
    for_columns<Columns>([&](int c, auto part) {
      float picked[lanes] = {};
      for (int i = 0; i < lanes && c + i < Columns; ++i)
        picked[i] = wide[static_cast<int>(order[c + i])];
      store(out[row] + c, load(picked), part);
    });
  }
}

template <int Columns, class T, class Out>
[[gnu::noinline, gnu::noipa]]
void mul(Slice slice, Rows<const T> x, float factor, Rows<Out> out) {
  map_rows<Columns>(slice, [=](vf v) { return v * splat(factor); }, out, x);
}

// out[r][c] = x[r][c] * weight[c]; `weight` is the same row for all
template <int Columns, class T, class Out>
[[gnu::noinline, gnu::noipa]]
void scale(Slice slice, Rows<const T> x, Rows<const float> weight, Rows<Out> out) {
  map_rows<Columns>(slice, [](vf v, vf w) { return v * w; }, out, x, weight);
}

// out = x + (y - x) * share; `share` may be the same row for all
template <int Columns, class X, class Y, class S, class Out>
[[gnu::noinline, gnu::noipa]]
void lerp(Slice slice, Rows<const X> x, Rows<const Y> y, Rows<const S> share, Rows<Out> out) {
  map_rows<Columns>(
      slice, [](vf from, vf to, vf s) { return fma(to - from, s, from); }, out, x, y, share);
}

template <int Columns, class T, class Out>
[[gnu::noinline, gnu::noipa]]
void clamp_rows(Slice slice, Rows<const T> x, float low, float high, Rows<Out> out) {
  map_rows<Columns>(slice, [=](vf v) { return clamp(v, low, high); }, out, x);
}

template <int Columns, class T, class Out>
[[gnu::noinline, gnu::noipa]]
void soft_cap(Slice slice, Rows<const T> x, float cap, Rows<Out> out) {
  map_rows<Columns>(slice, [=](vf v) { return capped(v, cap); }, out, x);
}

template <int Columns, class T, class Out>
[[gnu::noinline, gnu::noipa]]
void cast(Slice slice, Rows<const T> x, Rows<Out> out) {
  map_rows<Columns>(slice, [](vf v) { return v; }, out, x);
}

}  // namespace ingot
