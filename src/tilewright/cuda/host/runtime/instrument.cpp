// What compilers call around each memory access of a kernel that was compiled for watching.
//
// Kernels are compiled for the thread sanitizer (-fsanitize=thread), and this file stands in for its runtime.
#include "runtime.hpp"
#include <string.h>

namespace tw {
namespace {
inline void accessed(const volatile void* address, u32 bytes, bool write, u64 pc) {
  const Fiber* fiber = current_fiber();
  if (fiber == nullptr || g_observer == nullptr) return;
  if (u64(address) - u64(fiber->stack) < kStackBytes) return;  // locals: most calls of unoptimised code
  g_observer->access(u64(address), bytes, write, pc);
}

// A struct copied or filled at once, or an access whose type allows less alignment than its size has: bytes that are
// moved in the pieces that a GPU makes of a struct of floats. Their alignment is the compiler's concern, not a fault.
inline void accessed_range(const volatile void* address, u64 bytes, bool write, u64 pc) {
  const volatile u8* at = static_cast<const volatile u8*>(address);
  for (u64 left = bytes, piece; left != 0; at += piece, left -= piece) {
    piece = u64(at) % 2 != 0 ? 1 : u64(at) % 4 != 0 ? 2 : 4;
    while (piece > left) piece /= 2;
    accessed(at, u32(piece), write, pc);
  }
}

inline void atomically_accessed(const volatile void* address, u32 bytes, u64 pc) {
  if (current_fiber() != nullptr && g_observer != nullptr) g_observer->atomic(u64(address), bytes, pc);
}
}  // namespace
}  // namespace tw

#define TW_PC uint64_t(__builtin_return_address(0))
#pragma GCC visibility push(default)
extern "C" {
#define TW_ACCESS(BYTES)                                                                     \
  void __tsan_read##BYTES(void* p) { tw::accessed(p, BYTES, false, TW_PC); }                 \
  void __tsan_write##BYTES(void* p) { tw::accessed(p, BYTES, true, TW_PC); }                 \
  void __tsan_unaligned_read##BYTES(void* p) { tw::accessed_range(p, BYTES, false, TW_PC); } \
  void __tsan_unaligned_write##BYTES(void* p) { tw::accessed_range(p, BYTES, true, TW_PC); } \
  void __tsan_volatile_read##BYTES(void* p) { tw::accessed(p, BYTES, false, TW_PC); }        \
  void __tsan_volatile_write##BYTES(void* p) { tw::accessed(p, BYTES, true, TW_PC); }
TW_ACCESS(1)
TW_ACCESS(2)
TW_ACCESS(4)
TW_ACCESS(8)
TW_ACCESS(16)
#undef TW_ACCESS

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_read_range(void* p, size_t bytes) { tw::accessed_range(p, bytes, false, TW_PC); }
void __tsan_write_range(void* p, size_t bytes) { tw::accessed_range(p, bytes, true, TW_PC); }
void __tsan_vptr_read(void** p) { tw::accessed(p, sizeof *p, false, TW_PC); }
void __tsan_vptr_update(void** p, void*) { tw::accessed(p, sizeof *p, true, TW_PC); }
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  tw::accessed_range(from, bytes, false, TW_PC);
  tw::accessed_range(to, bytes, true, TW_PC);
  return memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  tw::accessed_range(from, bytes, false, TW_PC);
  tw::accessed_range(to, bytes, true, TW_PC);
  return memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  tw::accessed_range(to, bytes, true, TW_PC);
  return memset(to, value, bytes);
}

// Atomics of kernel code. One OS thread runs all fibers, so plain operations are atomic among them.
void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}
#define TW_UPDATE(BITS, NAME, RESULT)                                                              \
  uint##BITS##_t __tsan_atomic##BITS##_##NAME(volatile uint##BITS##_t* p, uint##BITS##_t v, int) { \
    tw::atomically_accessed(p, BITS / 8, TW_PC);                                                   \
    const uint##BITS##_t old = *p;                                                                 \
    *p = uint##BITS##_t(RESULT);                                                                   \
    return old;                                                                                    \
  }
#define TW_COMPARE(BITS, STRENGTH)                                                                            \
  int __tsan_atomic##BITS##_compare_exchange_##STRENGTH(volatile uint##BITS##_t* p, uint##BITS##_t* expected, \
                                                        uint##BITS##_t desired, int, int) {                   \
    tw::atomically_accessed(p, BITS / 8, TW_PC);                                                              \
    const uint##BITS##_t old = *p;                                                                            \
    if (old != *expected) {                                                                                   \
      *expected = old;                                                                                        \
      return 0;                                                                                               \
    }                                                                                                         \
    *p = desired;                                                                                             \
    return 1;                                                                                                 \
  }
#define TW_ATOMICS(BITS)                                                                \
  uint##BITS##_t __tsan_atomic##BITS##_load(const volatile uint##BITS##_t* p, int) {    \
    tw::atomically_accessed(p, BITS / 8, TW_PC);                                        \
    return *p;                                                                          \
  }                                                                                     \
  void __tsan_atomic##BITS##_store(volatile uint##BITS##_t* p, uint##BITS##_t v, int) { \
    tw::atomically_accessed(p, BITS / 8, TW_PC);                                        \
    *p = v;                                                                             \
  }                                                                                     \
  TW_UPDATE(BITS, exchange, v)                                                          \
  TW_UPDATE(BITS, fetch_add, old + v)                                                   \
  TW_UPDATE(BITS, fetch_sub, old - v)                                                   \
  TW_UPDATE(BITS, fetch_and, (old & v))                                                 \
  TW_UPDATE(BITS, fetch_or, old | v)                                                    \
  TW_UPDATE(BITS, fetch_xor, old ^ v)                                                   \
  TW_UPDATE(BITS, fetch_nand, ~(old & v))                                               \
  TW_COMPARE(BITS, strong)                                                              \
  TW_COMPARE(BITS, weak)
TW_ATOMICS(8)
TW_ATOMICS(16)
TW_ATOMICS(32)
TW_ATOMICS(64)
}
#pragma GCC visibility pop
