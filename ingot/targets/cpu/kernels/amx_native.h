// AMX by its instructions. They are written in assembly, because the intrinsics of GCC do not say
// that they read and write memory. See amx.h for the contract.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

namespace ingot::amx {

inline bool allowed() {
  constexpr long request_permission = 0x1023, tile_data = 18;  // of arch_prctl
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

inline void configure(const Shape& shape) { asm volatile("ldtilecfg %0" : : "m"(shape)); }

template <int tile>
inline void zero() {
  asm volatile("tilezero %%tmm%c0" : : "n"(tile));
}

template <int tile>
inline void load(const void* from, std::ptrdiff_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "n"(tile) : "memory");
}

template <int tile>
inline void load_once(const void* from, std::ptrdiff_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "n"(tile) : "memory");
}

template <int tile>
inline void store(void* to, std::ptrdiff_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "n"(tile) : "memory");
}

template <int sums, int rows, int columns>
inline void multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "n"(sums), "n"(rows), "n"(columns));
}

template <int sums, int rows, int columns>
inline void multiply_bytes() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "n"(sums), "n"(rows), "n"(columns));
}

inline void release() { asm volatile("tilerelease"); }

}  // namespace ingot::amx
