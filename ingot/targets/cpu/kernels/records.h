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

// Some blocks of the columns of a head, for all rows of a sequence.
struct RecordUnit {
  int head, sequence;
  Range blocks;
};

// Calls body(unit, the unit after it) for the part of a thread; behind the last comes itself again.
//
// Work is divided by rows of blocks, head after head, in each sequence after sequence, in each
// block after block. So threads have equally much to do however long the sequences are, and all of
// them work on the only row of one sequence. A block belongs to the thread that has its first row.
template <class Body>
inline void deal_records(Team team, const Records& records, int heads, int blocks, Body body) {
  const int of_head = records.rows * blocks;
  const Range own = share(heads * of_head, team);
  if (own.begin == own.end) return;
  RecordUnit before{0, 0, {0, 0}};
  for (int head = own.begin / of_head; head * of_head < own.end; ++head)
    for (int s = 0; s < records.count; ++s) {
      const int begin = records.first_row(s), rows = records.end(s) - begin;
      if (rows == 0) continue;
      const int start = head * of_head + begin * blocks;
      const auto block_from = [&](int row) {
        const int block = row <= start ? 0 : (row - start + rows - 1) / rows;
        return block < blocks ? block : blocks;
      };
      const RecordUnit unit{head, s, {block_from(own.begin), block_from(own.end)}};
      if (unit.blocks.begin == unit.blocks.end) continue;
      if (before.blocks.end > 0) body(before, unit);
      before = unit;
    }
  if (before.blocks.end > 0) body(before, before);
}

}  // namespace ingot
