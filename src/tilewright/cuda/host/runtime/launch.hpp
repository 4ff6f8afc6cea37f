// What a launch is told and what it tells. Python mirrors these structs (backends/emulator_runtime.py).
#pragma once
#include "scheduler.hpp"

namespace tw {
struct LaunchRequest {
  void (*thunk)(void** arguments);
  void** arguments;
  u64 arguments_begin, arguments_bytes;  // the memory that holds the pointers and the values
  const char* observer;                  // "trace", "race", or null
  const u64* block_ids;                  // linear, x fastest; null: all blocks
  u64 block_id_count;
  const Buffer* buffers;  // in the order of the arguments that are matrices
  u64 seed;               // of AsyncPolicy::kRandom
  u32 buffer_count;
  u32 grid[3], block[3];
  u32 cluster_blocks, shared_bytes;
  u32 together;    // blocks that run in turns, of a grid without clusters; 1: one after another
  u32 policy;      // AsyncPolicy
  u32 interrupts;  // whether Ctrl-C is this launch's to handle
};

struct LaunchResult {
  Counts counts;
  u64 fmas;
  char kind[32];  // of the fault; empty: none
  char report[8192];
};

// Runs the launch's kernel with its arguments, on the calling fiber.
void call_kernel();
}  // namespace tw
