// The paged cache of latent attention: one row of a token, which all heads share, is a key, and its
// first columns are a value.
//
// Inside one page, rows lie as they are, one after the other: [page size][D]. int8 has a scale for
// every `block` columns of a row.
#pragma once

#include "cache.h"

namespace ingot {

template <class S, int PageSize, int D, int V, int block>
struct LatentCache {
  static_assert(PageSize % key_group == 0 && D % 4 == 0 && V <= D && D % block == 0, "see above");
  static constexpr int heads = 1, key_size = D, value_size = V, page_size = PageSize;
  static constexpr int num_scales = D / block;

  S* rows;
  float* scales;  // [pages][PageSize][num_scales]; null where S is not scaled

  static std::ptrdiff_t token(int page, int slot) {
    return static_cast<std::ptrdiff_t>(page) * PageSize + slot;
  }

  template <class From>
  void write(int slot, const From* from) const {
    S* row = rows + static_cast<std::ptrdiff_t>(slot) * D;
    if constexpr (is_scaled<S>)
      quantize_row<D, block>(from, IntegerRow<std::int8_t>{row, 0}, scales + static_cast<std::ptrdiff_t>(slot) * num_scales);
    else
      for_columns<D>([&](int c, auto part) { store(row + c, load(from + c, part), part); });
  }
};

// The rows of a step's tokens into their slots; a slot < 0 writes nothing.
template <class S, int PageSize, int D, int V, int block, class From>
[[gnu::noinline, gnu::noipa]]
void latent_write(Slice slice, Rows<const From> k, const int* slots,
                  LatentCache<S, PageSize, D, V, block> cache) {
  if (slice.team.rank != 0) return;  // there is one head to deal
  for (int row = slice.rows.begin; row < slice.rows.end; ++row)
    if (slots[row] >= 0) cache.write(slots[row], k[row]);
}

}  // namespace ingot
