// The products of experts.h with x in int8 or int16 and matrices in 4 to 8 bits.
#pragma once

#include "experts.h"
#include "quantized_linear.h"

namespace ingot {

template <int bits, int group, int block, int Inputs, int Outputs, class X>
struct QuantizedHalf {
  using Element = std::uint8_t;
  using Linear = QuantizedLinear<bits, group, block, Inputs, Outputs, X>;
  using Weights = typename Linear::Panels;
  static constexpr int columns = quantized_columns, outputs = Outputs, count = Weights::count;
  static constexpr int job_rows = Linear::block_rows, row_scales = Linear::row_scales;
  static constexpr std::ptrdiff_t bytes = count * Weights::panel_bytes;

  struct Source {
    Rows<const X> x;
    Rows<const float> scales;
  };
  struct Memory {
    alignas(64) X rows[job_rows * Inputs];
    alignas(64) float scales[job_rows * row_scales];
    typename Linear::Own own;
  };

  static void gather(const Source& from, int row, int to, Memory& memory) {
    std::memcpy(memory.rows + to * Inputs, from.x[row], Inputs * sizeof(X));
    std::memcpy(memory.scales + to * row_scales, from.scales[row], row_scales * sizeof(float));
  }
  static void start(int rows, Memory& memory) {
    Linear::start(operands(memory), rows, memory.own);
  }

  static const char* unit(const char* half, int index) {
    return half + index * Weights::panel_bytes;
  }
  static void product(Team team, Memory& memory, int rows, const char* half, int index,
                      const char* next, Rows<float> sums) {
    Linear::product(team, operands(memory), rows,
                    reinterpret_cast<const std::uint8_t*>(unit(half, index)),
                    reinterpret_cast<const std::uint8_t*>(next), memory.own, sums,
                    AroundRows{[](int, int) {}, [](int, int) {}});
  }

 private:
  static typename Linear::Operands operands(const Memory& memory) {
    return Linear::operands(memory.rows, memory.scales, memory.own);
  }
};

template <class Gate, int bits, int group, int block, int Experts, int Picks, int Inputs, int Inner,
          std::ptrdiff_t stride, class Out, class X>
[[gnu::noinline, gnu::noipa]]
void quantized_expert_gate(Slice slice, Rows<const X> x, Rows<const float> scales,
                           Rows<const float> shares, const std::uint8_t* weight, const float* bias,
                           float limit, Rows<Out> out) {
  using Half = QuantizedHalf<bits, group, block, Inputs, Inner, X>;
  const GateProduct<Gate, Half, Experts, Picks, stride, StoreInner<Out>> product{
      {reinterpret_cast<const char*>(weight)}, {x, scales}, shares, bias, limit,
      {{out.data, Gate::values * Inner}}};
  product.run(slice);
}

// The same, rounded to integers.
template <int result_group, class Gate, int bits, int group, int block, int Experts, int Picks,
          int Inputs, int Inner, std::ptrdiff_t stride, class X, class V>
[[gnu::noinline, gnu::noipa]]
void quantized_expert_gate_quantize(Slice slice, Rows<const X> x,
                                    Rows<const float> scales, Rows<const float> shares,
                                    const std::uint8_t* weight, const float* bias, float limit,
                                    Rows<V> values, Rows<float> value_scales) {
  using Half = QuantizedHalf<bits, group, block, Inputs, Inner, X>;
  using Out = RoundInner<result_group, Gate::values * Inner, V>;
  const GateProduct<Gate, Half, Experts, Picks, stride, Out> product{
      {reinterpret_cast<const char*>(weight)}, {x, scales}, shares, bias, limit,
      {{values.data, Gate::values * Inner}, {value_scales.data, Out::blocks}}};
  product.run(slice);
}

template <int bits, int group, int block, int Experts, int Picks, int Inputs, int Outputs,
          std::ptrdiff_t stride, class X>
[[gnu::noinline, gnu::noipa]]
void quantized_expert_sum(Slice slice, Rows<const X> x, Rows<const float> scales,
                          Rows<const float> shares, const std::uint8_t* weight, const float* bias,
                          Rows<float> out) {
  using Half = QuantizedHalf<bits, group, block, Inputs, Outputs / 2, X>;
  const SumProduct<Half, Experts, Picks, stride> product{
      {reinterpret_cast<const char*>(weight)},
      {{x.data, Inputs}, {scales.data, Half::row_scales}}, shares, bias, out};
  product.run(slice);
}

}  // namespace ingot
