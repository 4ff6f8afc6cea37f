"""An epilogue as a graph: what is computed of the accumulator and the arguments, each value once.

Nodes stand in the order in which the outputs need them, so that the same function gives the same graph, the same text
and the same digest, whatever order its arguments were named in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.epilogue.operations import OPERATIONS, Kind

Array = np.ndarray[Any, Any]
INPUT, CONSTANT = "input", "constant"
ACC, SECOND = "acc", "second"  # the accumulators; of a pair of Bs those of the first and of the second


@dataclass(frozen=True)
class Node:
    """One value: an operation on earlier ones, an input by its name, or a constant by the bits of its fp32."""

    operation: str
    operands: tuple[int, ...] = ()
    value: str | int = 0

    @property
    def kind(self) -> Kind:
        """What it is."""
        return OPERATIONS[self.operation].gives if self.operation in OPERATIONS else "float"

    @property
    def number(self) -> np.float32:
        """A constant's value."""
        return np.uint32(self.value).view(np.float32)


class GraphBuilder:
    """A graph that grows. A node that is there already is that node."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._places: dict[Node, int] = {}

    def put(self, operation: str, operands: tuple[int, ...] = (), value: str | int = 0) -> int:
        """The place of a node with these properties, new or not."""
        node = Node(operation, operands, value)
        if node not in self._places:
            self._places[node] = len(self.nodes)
            self.nodes.append(node)
        return self._places[node]

    def constant(self, number: float) -> int:
        """The place of a constant, rounded to fp32."""
        return self.put(CONSTANT, value=int(np.float32(number).view(np.uint32)))

    def graph(self, outputs: Sequence[int], marks: Sequence[str] = ()) -> Graph:
        """What ``outputs`` need, in the order in which they need it; ``marks`` as ``Graph`` has them."""
        order: dict[int, int] = {}
        kept: list[Node] = []
        for output in outputs:
            waiting = [output]
            while waiting:  # a long sum is deeper than Python's stack
                at = waiting[-1]
                missing = [operand for operand in self.nodes[at].operands if operand not in order]
                if missing:
                    waiting.append(missing[0])
                    continue
                waiting.pop()
                if at not in order:
                    order[at] = len(kept)
                    node = self.nodes[at]
                    kept.append(Node(node.operation, tuple(order[o] for o in node.operands), node.value))
        return Graph(tuple(kept), tuple(order[output] for output in outputs), tuple(marks) if any(marks) else ())


@dataclass(frozen=True)
class Graph:
    """A finished graph. ``outputs`` are places in ``nodes``; the first becomes C.

    ``marks`` says of each output what its rows or columns are reduced to, "" where they are not; none where none are.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
    marks: tuple[str, ...] = ()

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of what it reads, in the order in which it does, the accumulator's among them."""
        return tuple(str(node.value) for node in self.nodes if node.operation == INPUT)

    @property
    def plain(self) -> bool:
        """Whether C is the accumulator as it is, and nothing else is written."""
        return self.nodes == (Node(INPUT, (), ACC),) and self.outputs == (0,)

    @cached_property
    def text(self) -> str:
        """The graph in words, a line a node."""
        lines = [
            f"v{place} = {node.operation} "
            + (" ".join(f"v{operand}" for operand in node.operands) if node.operands else str(node.value))
            for place, node in enumerate(self.nodes)
        ]
        marks = self.marks or ("",) * len(self.outputs)
        returned = (f"{mark} v{output}".strip() for mark, output in zip(marks, self.outputs, strict=True))
        return "\n".join([*lines, "return " + " ".join(returned)])

    @cached_property
    def digest(self) -> str:
        """Of its text, in 16 hex digits of its SHA-256: graphs that compute the same in the same way have the same."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def evaluate(self, inputs: Mapping[str, Any]) -> tuple[Array, ...]:
        """What it computes of ``inputs``, in NumPy's fp32, broadcast as NumPy does, and nothing reduced.

        Raises ``KeyError`` for an input that it reads and that is not there.
        """
        values: list[Any] = []
        with np.errstate(all="ignore"):  # infinities and NaN are values here
            for node in self.nodes:
                if node.operation == INPUT:
                    values.append(np.asarray(inputs[str(node.value)]).astype(np.float32))
                elif node.operation == CONSTANT:
                    values.append(node.number)
                else:
                    operands = (values[operand] for operand in node.operands)
                    values.append(OPERATIONS[node.operation].numpy(*operands))
        return tuple(np.asarray(values[output]) for output in self.outputs)
