// Everything that a generated step may call.
#pragma once

#include "attention.h"
#include "cache.h"
#include "elementwise.h"
#include "gather.h"
#include "linear.h"
#include "model.h"
#include "norm.h"
#include "quantize.h"
#include "quantized_linear.h"
#include "rope.h"
