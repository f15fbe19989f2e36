// bfloat16: the upper half of a float32. Arithmetic is always done in float32.
#pragma once

#include <cstdint>

namespace ingot {

struct bf16 {
  std::uint16_t bits;
};

}  // namespace ingot
