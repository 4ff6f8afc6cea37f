// See shadow.hpp.
#include "shadow.hpp"
#include "table.hpp"

namespace tw {
namespace {
void push(Cell& cell, const Access& access) {
  if (cell.older_count == cell.older_capacity) {
    cell.older_capacity = cell.older_capacity == 0 ? 4 : 2 * cell.older_capacity;
    cell.older = static_cast<Access*>(realloc(cell.older, cell.older_capacity * sizeof(Access)));
    if (cell.older == nullptr) fault("misuse", "the race detector ran out of memory");
  }
  cell.older[cell.older_count++] = access;
}
}  // namespace

void Cell::add(const Access& access) {
  if (latest.lanes == 0) {
    latest = access;
    return;
  }
  if (!latest.same_event(access)) {
    push(*this, latest);
    latest = access;
    latest.lanes = 0;
  }
  // Take the lane out of its group's earlier entries; an equal event becomes the latest again, whole.
  u32 kept = 0;
  for (u32 i = 0; i < older_count; ++i) {
    Access entry = older[i];
    if (entry.group == access.group && entry.atomic == access.atomic) {
      if (entry.same_event(access)) {
        latest.lanes |= entry.lanes;
        continue;
      }
      entry.lanes &= ~access.lanes;
      if (entry.lanes == 0) continue;
    }
    older[kept++] = entry;
  }
  older_count = kept;
  latest.lanes |= access.lanes;
}

void Shadow::begin(u32 bytes, u32 cell_bytes) {
  const u32 count = (bytes + cell_bytes - 1) / cell_bytes;
  if (count > count_) {
    for (u32 i = 0; i < count_; ++i) free(cells_[i].older);
    free(cells_);
    cells_ = static_cast<Cell*>(allocate(count, sizeof(Cell)));
    count_ = count;
    return;
  }
  for (u32 i = 0; i < count; ++i) {
    cells_[i].writer_epoch = 0;
    cells_[i].forget_accesses();
  }
}
}  // namespace tw
