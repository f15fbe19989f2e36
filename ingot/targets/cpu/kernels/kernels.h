// The kernels, which a generated step may call.
//
// Kernels are `noinline`: a step calls the same kernel for every layer, and a single copy compiles
// in a fraction of the time. They are also `noipa`: if a kernel works on an array of its own, GCC
// 12 can conclude that it has no other effects, and drop the call.
#pragma once

#include "attention.h"
#include "bonus.h"
#include "cache.h"
#include "elementwise.h"
#include "experts.h"
#include "gather.h"
#include "heads.h"
#include "linear.h"
#include "look_ahead.h"
#include "maxima.h"
#include "norm.h"
#include "quantize.h"
#include "quantized_experts.h"
#include "quantized_linear.h"
#include "recurrence.h"
#include "rope.h"
#include "route.h"
#include "segments.h"
#include "selective_scan.h"
#include "short_conv.h"
#include "step.h"
