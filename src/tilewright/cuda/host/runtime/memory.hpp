// Memory whose edges are page-protected: matrices, shared memory, stacks. And what lies where, in words.
#pragma once
#include "fault.hpp"
#include "runtime.hpp"

namespace tw {
enum : u8 { kPoison = 0xFF };  // NaN in fp32, bf16 and fp16
enum : u64 { kGuardBytes = 1u << 20 };

// A matrix's memory, between two guards of kGuardBytes. Python keeps it to give it back.
struct Allocation {
  u64 address;  // 16-byte aligned, its end against the upper guard but for what that leaves (less than 16 bytes)
  u64 mapping, mapping_bytes;
};

// Each returns false where the system has no memory.
bool reserve_stacks(u32 threads);
bool reserve_shared(u32 blocks, u32 bytes);

u8* stack_of(u32 thread);  // lowest address of kStackBytes
u8* shared_of(u32 rank);
// The first byte around a block's shared memory that no longer holds the poison it was given; null: all is as it was.
// Of what a protected page cannot guard, since shared memory neither begins nor ends with one.
const u8* overwritten_around_shared(u32 rank);

// Bytes from a matrix's first element to its last. The last row has no padding: what lies there may be a neighbour's.
u64 extent_of(const Buffer& buffer);
void register_buffers(const Buffer* all, u32 count);
bool in_one_buffer(u64 address, u32 bytes);

// "address 0x..., 4 bytes past the end of matrix 2 (c), row 128, column 0".
void describe_address(Report& report, u64 address);
}  // namespace tw
