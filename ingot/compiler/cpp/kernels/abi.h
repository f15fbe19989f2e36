// The C interface of a compiled model, version 1. The runtime calls it through these structs.
#pragma once

#include <cstdint>

extern "C" {

struct ingot_model {
  const void* const* weights;  // in the order of the plan, as are the caches
  void* const* caches;
  void* arena;  // 64-byte aligned, as is every cache
  std::int32_t num_pages;
  std::int32_t num_threads;
};

struct ingot_step {
  std::int32_t num_tokens, num_seqs, num_rows, page_table_stride;
  const std::int32_t *tokens, *positions, *slots, *query_start, *context_lens, *page_table,
      *logit_rows;
  float* logits;  // [num_rows, vocabulary]
};
}
