// Which rows and which pages belong to which sequence.
#pragma once

namespace ingot {

// The sequences of a step, as attention needs them.
struct Sequences {
  int count;
  const int *spans, *page_table;  // of each its first row, its end and the position of the first
  int page_table_stride;

  int first_row(int s) const { return spans[3 * s]; }
  int num_queries(int s) const { return spans[3 * s + 1] - spans[3 * s]; }
  int position(int s, int query) const { return spans[3 * s + 2] + query; }
};

}  // namespace ingot
