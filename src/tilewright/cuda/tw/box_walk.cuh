// A walk through the boxes of a matrix, so many boxes further each time and round again at its end.
#pragma once
#include <tw/types.cuh>
namespace tw {
// Boxes of WIDTH columns and HEIGHT rows, `across` to a row, `boxes` in whole rows; `box` counts along the rows. Where the
// next one lies takes no division: that was most of what a loader's loop took.
template <int WIDTH, int HEIGHT>
struct BoxWalk {
  u32 box, boxes, step, across, column, row, columns, rows, last;

  __device__ __forceinline__ BoxWalk(u32 first, u32 further, u32 count, u32 wide)
      : box(first % count), boxes(count), step(further % count), across(wide) {
    column = box % across, row = box / across;
    columns = step % across, rows = step / across;
    last = boxes / across;
  }
  __device__ __forceinline__ int x() const { return int(column) * WIDTH; }
  __device__ __forceinline__ int y() const { return int(row) * HEIGHT; }
  __device__ __forceinline__ void next() {
    box += step, column += columns, row += rows;
    if (column >= across) column -= across, ++row;
    if (box >= boxes) box -= boxes, row -= last;
  }
};
}  // namespace tw
