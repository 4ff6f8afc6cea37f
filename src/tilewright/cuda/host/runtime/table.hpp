// A hash table from 64-bit keys to zero-initialised records that stay where they are. For the observers: keys are call
// sites and barriers, a few hundred of them, looked up on every access.
#pragma once
#include "runtime.hpp"
#include <stdlib.h>

namespace tw {
// calloc that ends the launch instead of returning null.
inline void* allocate(size_t count, size_t bytes) {
  void* memory = calloc(count, bytes);
  if (memory == nullptr) fault("misuse", "the emulator's observer ran out of memory");
  return memory;
}

template <class Record> class Table {
 public:
  // The record of `key`, made on first use. Key 0 is not allowed.
  Record& operator[](u64 key) {
    if (2 * (count_ + 1) > capacity_) grow();
    Slot* slot = find(key);
    if (slot->key == 0) {
      slot->key = key;
      slot->record = static_cast<Record*>(allocate(1, sizeof(Record)));
      ++count_;
    }
    return *slot->record;
  }

  u32 count() const { return count_; }

  template <class Visit> void each(Visit visit) {
    for (u32 i = 0; i < capacity_; ++i)
      if (slots_[i].key != 0) visit(slots_[i].key, *slots_[i].record);
  }

  // Forgets everything. What the records own is the caller's to free first.
  void clear() {
    each([](u64, Record& record) { free(&record); });
    free(slots_);
    slots_ = nullptr;
    count_ = capacity_ = 0;
  }

 private:
  struct Slot {
    u64 key;
    Record* record;
  };

  Slot* find(u64 key) {
    // Fibonacci hashing: the top bits of the product depend on all bits of the key.
    u32 i = u32((key * 0x9E3779B97F4A7C15ull) >> 32) & (capacity_ - 1);
    while (slots_[i].key != 0 && slots_[i].key != key) i = (i + 1) & (capacity_ - 1);
    return &slots_[i];
  }

  void grow() {
    Slot* old = slots_;
    const u32 old_capacity = capacity_;
    capacity_ = old_capacity == 0 ? 256 : 2 * old_capacity;
    slots_ = static_cast<Slot*>(allocate(capacity_, sizeof(Slot)));
    for (u32 i = 0; i < old_capacity; ++i)
      if (old[i].key != 0) *find(old[i].key) = old[i];
    free(old);
  }

  Slot* slots_ = nullptr;
  u32 count_ = 0, capacity_ = 0;
};
}  // namespace tw
