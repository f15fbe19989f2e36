// Which rows have picked each expert, in the order of rows: a counting sort of (row, expert) pairs.
#pragma once

#include <cstring>

#include "team.h"

namespace ingot {

inline constexpr int most_pairs = 8192;

// Some of the pairs of one expert.
struct Job {
  int expert, first, count;
};

// The pairs of some rows in jobs of at most `job_rows` each, experts ascending. A pair is row *
// Picks + its place among the picks of the row.
template <int Experts, int Picks, int job_rows>
class PickLists {
 public:
  static constexpr int most_rows = Picks < most_pairs ? most_pairs / Picks : 1;
  static constexpr int most_jobs = Experts + most_rows * Picks / job_rows;

  void fill(Rows<const float> shares, Range rows) {
    std::memset(ends_, 0, sizeof ends_);
    lacking_ = false;
    for (int row = rows.begin; row < rows.end; ++row) find(shares[row], row - rows.begin);
    for (int e = 0, end = 0; e < Experts; ++e) {
      const int begin = end;
      end += ends_[e];
      ends_[e] = begin;
    }
    for (int row = rows.begin; row < rows.end; ++row)
      for (int i = 0; i < num_picks_[row - rows.begin]; ++i)
        pairs_[ends_[picks_[(row - rows.begin) * Picks + i]]++] = row * Picks + i;
    num_jobs_ = 0;
    for (int e = 0, begin = 0; e < Experts; begin = ends_[e++])
      for (int first = begin; first < ends_[e]; first += job_rows) {
        const int left = ends_[e] - first;
        jobs_[num_jobs_++] = {e, first, left < job_rows ? left : job_rows};
      }
    rows_ = rows;
  }

  int num_jobs() const { return num_jobs_; }
  const Job& job(int index) const { return jobs_[index]; }
  const int* pairs(const Job& job) const { return pairs_ + job.first; }

  // Calls body(pair) for the places that rows leave empty because they have picked too few.
  template <class Body>
  void for_lacking(Body body) const {
    for (int row = rows_.begin; lacking_ && row < rows_.end; ++row)
      for (int i = num_picks_[row - rows_.begin]; i < Picks; ++i) body(row * Picks + i);
  }

 private:
  void find(const float* shares, int row) {
    int count = 0;
    for (int e = 0; e < Experts; ++e) {
      found_[count] = e;
      count += shares[e] != 0.0f;
    }
    if (count > Picks) count = Picks;
    for (int i = 0; i < count; ++i) {
      picks_[row * Picks + i] = found_[i];
      ++ends_[found_[i]];
    }
    num_picks_[row] = count;
    lacking_ |= count < Picks;
  }

  int found_[Experts], ends_[Experts];
  int num_picks_[most_rows], picks_[most_rows * Picks], pairs_[most_rows * Picks];
  Job jobs_[most_jobs];
  int num_jobs_;
  bool lacking_;
  Range rows_;
};

}  // namespace ingot
