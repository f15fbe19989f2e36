// Records: the one that each sequence has in a state, and how threads divide the work on them.
#pragma once

#include "team.h"

namespace ingot {

// The sequences of a step, and the slots of their records.
struct Records {
  int rows, count;  // of the step, and sequences
  const int *spans, *slots;

  int first_row(int s) const { return spans[3 * s]; }
  int end(int s) const { return spans[3 * s + 1]; }
  bool begins(int s) const { return spans[3 * s + 2] == 0; }  // then its record counts as zeros

  // The record of a sequence, of so many elements.
  template <class T>
  T* record(T* state, int s, std::ptrdiff_t size) const {
    return state + slots[s] * size;
  }
};

// Calls body(sequence, blocks) for the part of a thread, of records that consist of so many blocks.
//
// Work is divided by rows of blocks: of sequence after sequence, and in each of block after block. So
// threads have equally much to do however long the sequences are, and all of them work on the only
// row of one sequence. A block belongs to the thread that has its first row.
template <class Body>
inline void deal_records(Team team, const Records& records, int blocks, Body body) {
  const Range own = share(records.rows * blocks, team);
  for (int s = 0; s < records.count; ++s) {
    const int rows = records.end(s) - records.first_row(s);
    const int start = records.first_row(s) * blocks;
    const auto block_from = [&](int row) {
      if (row <= start || rows == 0) return 0;
      const int block = (row - start + rows - 1) / rows;
      return block < blocks ? block : blocks;
    };
    const Range part{block_from(own.begin), block_from(own.end)};
    if (part.begin < part.end) body(s, part);
  }
}

}  // namespace ingot
