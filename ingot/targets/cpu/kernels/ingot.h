// Everything that a generated step may call.
//
// Kernels are `noinline`: a step calls the same one for every layer, and one copy of it compiles
// in a fraction of the time. They are `noipa`, too: GCC 12 can conclude of a kernel that works on
// an array of its own that it has no other effects, and then drops the call.
#pragma once

#include "attention.h"
#include "cache.h"
#include "elementwise.h"
#include "gather.h"
#include "heads.h"
#include "linear.h"
#include "machine_limits.h"
#include "model.h"
#include "norm.h"
#include "quantize.h"
#include "quantized_linear.h"
#include "rope.h"
