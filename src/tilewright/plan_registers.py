"""What the registers of a thread leave room for in a tensor-core rung."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tilewright.gpu import get_gpu

if TYPE_CHECKING:
    from tilewright.plan_tensor import TensorPlan

REGISTER_FILE = get_gpu("h200").registers_per_sm  # or h100: what bounds a plan is the architecture's
# Registers a multiplying thread needs beside its accumulators (and, in rung 5, fragments): addresses, descriptors, loop
# counters. With fewer, ptxas spills (scripts/check_kernels.py): 192 accumulators fit 232 registers.
SPARE_REGISTERS = 40
# And those that ptxas must find at the kernel's entry for an instruction with N / 2 accumulators (its error C7602).
ENTRY_REGISTERS = 26
# What a thread needs that loads: with 24, ptxas spills in its loop where a stage takes many TMA loads.
LOADER_REGISTERS = 32


def about_registers(plan: TensorPlan, *, loads_apart: bool) -> Iterator[str]:
    """Why its registers do not do; ``loads_apart`` says that a warpgroup only loads."""
    available, limit = plan.entry_registers, "a thread of the block"
    if loads_apart:
        producer, consumer = plan.producer_registers, plan.consumer_registers
        for name, value in (("producer_registers", producer), ("consumer_registers", consumer)):
            if value % 8 or not 24 <= value <= 256:
                yield f"{name} is {value}; setmaxnreg takes multiples of 8 from 24 to 256"
        if producer < LOADER_REGISTERS:
            yield f"producer_registers is {producer}; a thread that loads needs {LOADER_REGISTERS}"
        if not producer <= available <= consumer:
            yield (
                f"registers go from {available} at entry down to {producer} and up to {consumer}; producer_registers "
                "is the lower, consumer_registers the higher"
            )
        total, most = producer + plan.consumers * consumer, (plan.consumers + 1) * available
        if total > most:
            yield (
                f"{producer} + {plan.consumers} x {consumer} registers are {total}; the block starts with "
                f"{plan.consumers + 1} x {available} = {most}"
            )
        available, limit = consumer, "a consumer thread"
        if plan.bn // 2 + ENTRY_REGISTERS > plan.entry_registers:
            yield (
                f"bn is {plan.bn}, whose wgmma needs {plan.bn // 2 + ENTRY_REGISTERS} registers at entry; "
                f"{plan.threads} threads leave {plan.entry_registers}"
            )
    spare = SPARE_REGISTERS + plan.fragments
    if plan.accumulators + spare > available:
        yield (
            f"a tile of {plan.bm}x{plan.bn} takes {plan.accumulators} accumulators and about {spare} other "
            f"registers; {limit} has {available}"
        )
