// What one warp-wide request costs: shared-memory wavefronts and global-memory sectors.
#pragma once
#include "runtime.hpp"

namespace tw {
struct Cost { u32 actual, ideal; };

// Shared-memory wavefronts of one request: lane i, where bit i of `active` is set, touches `bytes` bytes at
// addresses[i]. `ideal` is what the request takes without bank conflicts.
//
// The rule is an H200's, read from ncu for 492 patterns (tests/fixtures/wavefronts_h200.json): `actual` is its counter
// l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld or _st, `actual - ideal` its
// l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld or _st.
Cost shared_wavefronts(const u64 (&addresses)[32], u32 active, u32 bytes, bool write);

// Distinct 32-byte sectors of one global request, where lane i touches bytes[i] bytes. `ideal` is the fewest sectors
// that could hold the distinct bytes.
Cost global_sectors(const u64 (&addresses)[32], const u32 (&bytes)[32], u32 active);
}  // namespace tw
