// The C interface of a compiled model, version 7. The runtime calls it through these structs.
#pragma once

#include <cstdint>

extern "C" {

struct ingot_model {
  const void* const* weights;  // in the order of the plan, as are the caches
  void* const* caches;
  void* arena;  // 64-byte aligned, as is every cache
  std::int32_t num_pages;
  std::int32_t num_threads;
  std::int32_t watches_host;  // whether other work decides how many threads begin
};

// Arrays are row-major, and lie in the order in which the spec of the program lists them.
struct ingot_step {
  std::int32_t num_tokens, num_seqs, num_rows, page_table_stride;
  const void* const* inputs;
  void* const* outputs;
};

enum : std::int32_t {
  ingot_not_finite = 1,    // a logit is NaN or +inf, or all of them are -inf
  ingot_nothing_left = 2,  // the edits have left no token
};

// A request to draw from a row of logits, and, below, its result. `given` >= 0 draws nothing and
// only scores that token. Edits change the row.
struct ingot_draw {
  float* logits;  // [vocabulary]
  std::uint64_t seed, key, position;
  const std::int32_t *allowed, *biased, *seen, *times, *banned;
  const float* bias;
  std::int32_t* top_ids;  // [num_logprobs]
  double* top_logprobs;
  double top_p;
  float scale;  // log2(e) / temperature; 0: the likeliest token
  float min_p, repetition, frequency, presence;
  std::int32_t top_k;  // 0: all
  std::int32_t num_allowed, num_biased, num_seen, num_banned;  // num_allowed < 0: all
  std::int32_t num_logprobs;                                   // < 0: none, not even the token's
  std::int32_t given;

  std::int32_t token, rank, status, reserved;
  double logprob;
};

struct ingot_sampling {
  ingot_draw* rows;
  void* memory;  // ingot_sampler_bytes(vocabulary) for each thread, 64-byte aligned
  std::int32_t num_rows, vocabulary;
};
}
