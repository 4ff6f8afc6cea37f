// mbarriers: 8 bytes of a block's shared memory each, in which a phase's arrivals and bytes are counted (PTX ISA,
// "mbarrier"). What the bytes cannot hold lies beside them: who waits, and what nobody has waited for yet.
#pragma once
#include "fault.hpp"
#include "runtime.hpp"

#pragma GCC visibility push(hidden)
namespace tw {
void mbarriers_begin_cluster();

// Where an mbarrier of the running block lies in its shared memory. Faults where there can be none.
u32 mbarrier_offset(const void* barrier, const char* operation);

// Bytes that a TMA load brings into a block: they count for the phase that is under way when it is issued.
void mbarrier_load_issued(Block& block, u32 offset, u32 bytes);
void mbarrier_load_landed(Block& block, u32 offset, u32 bytes);

// Lets the threads in try_wait go on, whose phase has not completed. False: there are none, or they have been let on
// so often with nothing else happening that they wait for ever.
bool time_out_polls();

// The block has returned: faults when something may still come into its shared memory.
void check_mbarriers_at_exit(const Block& block);

// The mbarrier that a thread waits at; null: none.
const void* mbarrier_of(const Fiber& fiber);
// " shared+40 parity 0 (phase 0, 1 arrivals missing, 2048 bytes missing)" of it.
void describe_mbarrier(Report& report, const Fiber& fiber);
}  // namespace tw
#pragma GCC visibility pop
