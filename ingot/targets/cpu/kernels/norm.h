// Norms over rows of C columns. Each row belongs to one thread.
#pragma once

#include "quantize.h"

namespace ingot {

// The sum over a row of value(column, part). Vectors go to four partial sums in turn.
template <int Columns, class Value>
inline float row_sum(Value value) {
  vf partial[4] = {zero(), zero(), zero(), zero()};
  constexpr int whole = Columns / (4 * lanes) * (4 * lanes);
  for (int c = 0; c < whole; c += 4 * lanes)
    for (int i = 0; i < 4; ++i) partial[i] = partial[i] + value(c + i * lanes, Full{});
  for_columns<Columns - whole>([&](int c, auto part) {
    partial[c / lanes] = partial[c / lanes] + value(whole + c, part);
  });
  return sum((partial[0] + partial[1]) + (partial[2] + partial[3]));
}

// The factor that gives a row unit mean square.
template <int Columns, class T>
inline vf rms_scale(const T* x, float eps) {
  const float squares = row_sum<Columns>([&](int c, auto part) {
    const vf v = load(x + c, part);
    return v * v;
  });
  return splat(1.0f / __builtin_sqrtf(squares / static_cast<float>(Columns) + eps));
}

template <int Columns, class T, class Out>
inline void rms_norm_row(const T* x, const float* weight, float eps, float offset, Out* out) {
  const vf scale = rms_scale<Columns>(x, eps);
  for_columns<Columns>([&](int c, auto part) {
    const vf w = load(weight + c, part) + splat(offset);
    store(out + c, load(x + c, part) * scale * w, part);
  });
}

// out = x / rms(x) * (weight + offset), head by head; with one weight for all of them or one for each
template <int Columns, int Heads, bool Own = false, class T, class Out>
[[gnu::noinline, gnu::noipa]]
void rms_norm(Slice slice, Rows<const T> x, const float* weight, float eps,
              float offset, Rows<Out> out) {
  for (int row = slice.rows.begin; row < slice.rows.end; ++row)
    for (int c = 0; c < Heads * Columns; c += Columns)
      rms_norm_row<Columns>(x[row] + c, Own ? weight + c : weight, eps, offset, out[row] + c);
}

// The same for a whole row, rounded to integers in groups.
template <int Columns, int group, class T, class V>
[[gnu::noinline, gnu::noipa]]
void rms_norm_quantize(Slice slice, Rows<const T> x, const float* weight, float eps, float offset,
                       Rows<V> values, Rows<float> scales) {
  auto& normed = slice.team.workspace<float[Columns]>();
  for (int row = slice.rows.begin; row < slice.rows.end; ++row) {
    rms_norm_row<Columns>(x[row], weight, eps, offset, normed);
    quantize_row<Columns, group>(normed, integer_row(values, row), scales[row]);
  }
}

// sum = x + residual; out = rms_norm(sum)
template <int Columns, class X, class Residual, class Out>
[[gnu::noinline, gnu::noipa]]
void add_rms_norm(Slice slice, Rows<const X> x, Rows<const Residual> residual,
                  const float* weight, float eps, float offset, Rows<Out> out,
                  Rows<float> sum) {
  for (int row = slice.rows.begin; row < slice.rows.end; ++row) {
    for_columns<Columns>([&](int c, auto part) {
      store(sum[row] + c, load(x[row] + c, part) + load(residual[row] + c, part), part);
    });
    rms_norm_row<Columns, float>(sum[row], weight, eps, offset, out[row]);
  }
}

// out = (x - mean) / sqrt(variance + eps) * weight + bias
template <int Columns, class T, class Out>
inline void layer_norm_row(const T* from, const float* weight, const float* bias, float eps,
                           Out* out) {
  constexpr float count = static_cast<float>(Columns);
  const float total = row_sum<Columns>([&](int c, auto part) { return load(from + c, part); });
  const vf mean = splat(total / count);
  const float squares = row_sum<Columns>([&](int c, auto part) {
    const vf v = load(from + c, part) - mean;
    return keep(v * v, 0, Columns - c, zero());  // lanes past the row hold -mean
  });
  const vf scale = splat(1.0f / __builtin_sqrtf(squares / count + eps));
  for_columns<Columns>([&](int c, auto part) {
    vf value = (load(from + c, part) - mean) * scale * load(weight + c, part);
    if (bias != nullptr) value = value + load(bias + c, part);
    store(out + c, value, part);
  });
}

template <int Columns, class T, class Out>
[[gnu::noinline, gnu::noipa]]
void layer_norm(Slice slice, Rows<const T> x, const float* weight, const float* bias,
                float eps, Rows<Out> out) {
  for (int row = slice.rows.begin; row < slice.rows.end; ++row)
    layer_norm_row<Columns>(x[row], weight, bias, eps, out[row]);
}

// The same, and its results in another type; or rounded to integers in groups. Those in float32 are
// left out if `out` is null.
template <int Columns, class T, class Other>
[[gnu::noinline, gnu::noipa]]
void layer_norm_cast(Slice slice, Rows<const T> x, const float* weight, const float* bias,
                     float eps, Rows<float> out, Rows<Other> other) {
  auto& normed = slice.team.workspace<float[Columns]>();
  for (int row = slice.rows.begin; row < slice.rows.end; ++row) {
    float* to = out.data == nullptr ? normed : out[row];
    layer_norm_row<Columns>(x[row], weight, bias, eps, to);
    for_columns<Columns>([&](int c, auto part) { store(other[row] + c, load(to + c, part), part); });
  }
}

template <int Columns, int group, class T, class V>
[[gnu::noinline, gnu::noipa]]
void layer_norm_quantize(Slice slice, Rows<const T> x, const float* weight, const float* bias,
                         float eps, Rows<float> out, Rows<V> values, Rows<float> scales) {
  auto& normed = slice.team.workspace<float[Columns]>();
  for (int row = slice.rows.begin; row < slice.rows.end; ++row) {
    float* to = out.data == nullptr ? normed : out[row];
    layer_norm_row<Columns>(x[row], weight, bias, eps, to);
    quantize_row<Columns, group>(to, integer_row(values, row), scales[row]);
  }
}

// Norms head by head, with one weight and bias for all of them or one for each.
template <int Columns, int Heads, bool Own, class T, class Out>
[[gnu::noinline, gnu::noipa]]
void layer_norm_heads(Slice slice, Rows<const T> x, const float* weight, const float* bias,
                      float eps, Rows<Out> out) {
  for (int row = slice.rows.begin; row < slice.rows.end; ++row)
    for (int c = 0; c < Heads * Columns; c += Columns) {
      const int own = Own ? c : 0;
      const float* shift = bias == nullptr ? bias : bias + own;
      layer_norm_row<Columns>(x[row] + c, weight + own, shift, eps, out[row] + c);
    }
}

}  // namespace ingot
