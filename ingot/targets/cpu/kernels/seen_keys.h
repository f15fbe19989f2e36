// Which keys of a tile some row of a block sees.
#pragma once

#include "cache.h"

namespace ingot {

struct SeenKeys {
  int start;       // of the tile, in its sequence
  int begin, end;  // what is seen, from there on

  // Of a tile of so many keys, if [begin, end) of the sequence are seen.
  static SeenKeys of_tile(int keys, int start, int begin, int end) {
    return {start, begin > start ? begin - start : 0, end - start < keys ? end - start : keys};
  }

  bool shows(int key) const { return key >= begin && key < end; }
  bool sees(int group) const { return begin < (group + 1) * key_group && end > group * key_group; }
};

// The slot of a sequence that group `group` of the tile at `start` is read from, if keys [begin,
// end) are seen. Only pages with such keys may be read, so groups outside get the place of the
// nearest one inside.
inline int readable_slot(int group, int start, int begin, int end) {
  const int lowest = begin / key_group, highest = (end - 1) / key_group;
  const int wanted = start / key_group + group;
  return (wanted < lowest ? lowest : wanted > highest ? highest : wanted) * key_group;
}

}  // namespace ingot
