// What the levels of x86 share, said in assembly since compilers have no words for it.
#pragma once

namespace ingot {

// Into the L2 cache. Volatile: of a function that prefetches and does nothing else, GCC may drop the
// calls before it looks inside.
inline void prefetch(const void* address) {
  asm volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(address)));
}

// A sum that is complete here. Else the compiler puts off the additions of many steps, and the
// products that wait for them do not fit in registers.
template <class V>
inline V added_up(V sum) {
  asm("" : "+v"(sum));
  return sum;
}

}  // namespace ingot
