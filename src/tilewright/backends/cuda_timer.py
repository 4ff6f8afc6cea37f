"""Times launches on one GPU: CUDA graphs where they can be captured, events around them, and the SMs' own clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tilewright.backends.cuda import CudaBackend
from tilewright.backends.cuda_errors import call, driver_errors
from tilewright.gpu_clock import GpuClock
from tilewright.measure import Launch, Slot

MOST_NODES = 16  # of a launch's graph: a GEMM is one or two kernels
POLL_S = 0.005  # between two looks at a running slot; NVML refreshes its readings more slowly than that


@dataclass
class Prepared:
    """Launches that can be started again and again. ``method`` is ``graph`` or ``launches``."""

    launches: int
    method: str
    replay: Callable[[], None] = field(repr=False)
    note: str = ""  # why there is no graph
    keep: Any = field(default=None, repr=False)  # a graph holds no reference to the memory its kernels use


class CudaTimer:
    """The clock of ``measure.measure`` on a GPU; everything runs on the backend's stream."""

    def __init__(self, backend: CudaBackend) -> None:
        from cuda.core import EventOptions

        self.backend = backend
        self.stream = backend.stream
        with backend.current() as device, driver_errors("creating events"):
            options = EventOptions(timing_enabled=True)
            self._start, self._end = device.create_event(options), device.create_event(options)
        self._clock = GpuClock(backend)

    def prepare(self, launches: Sequence[Launch], count: int) -> Prepared:
        """Capture ``count`` launches, taken in turn from ``launches``, in one graph.

        All are run once before, which loads modules and lets libraries allocate their workspaces. A library that
        cannot be captured is launched one by one instead.
        """
        in_turn = [launches[i % len(launches)] for i in range(count)]
        with self.backend.current(), driver_errors("running a kernel"):
            for launch in launches:
                launch(self.stream)
            self.stream.sync()
            try:
                graph = self._capture(in_turn)
            except Exception as error:
                self.stream.sync()  # raises when it was the kernel and not the capture that failed
                return Prepared(count, "launches", lambda: self._run(in_turn), note=str(error))
        return Prepared(count, "graph", lambda: graph.launch(self.stream), keep=in_turn)

    def slot(self, prepared: Prepared, warm: int, timed: int, sample: Callable[[], None] | None = None) -> Slot:
        """Replay ``warm`` times untimed and ``timed`` times timed.

        ``sample`` is called now and then while the timed replays run. The SMs' clocks are read just outside the events.
        """
        with self.backend.current(), driver_errors("running a kernel"):
            self._clock.clear()
            for _ in range(warm):
                prepared.replay()
            self._clock.start(self.stream)
            self.stream.record(self._start)
            for _ in range(timed):
                prepared.replay()
            self.stream.record(self._end)
            self._clock.stop(self.stream)
            if sample is not None:
                while not self._start.is_done:
                    time.sleep(POLL_S / 5)
                while not self._end.is_done:
                    sample()
                    time.sleep(POLL_S)
            self._end.sync()
            time_us = float(self._end - self._start) * 1e3 / (timed * prepared.launches)
            clock = self._clock.read()
        return Slot(time_us, clock.mhz, clock.note)

    def kernel_names(self, launch: Launch) -> list[str]:
        """The kernels of one launch, in their own words, read from a capture of it; it is run once before."""
        from cuda.bindings import driver

        relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        kernel = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
        found = []
        with self.backend.current(), driver_errors("capturing a launch"):
            launch(self.stream)
            self.stream.sync()
            call(driver.cuStreamBeginCapture, self.stream.handle, relaxed)
            try:
                launch(self.stream)
            finally:
                graph = call(driver.cuStreamEndCapture, self.stream.handle)
            for node in filter(int, call(driver.cuGraphGetNodes, graph, MOST_NODES)):
                if call(driver.cuGraphNodeGetType, node) == kernel:
                    params = call(driver.cuGraphKernelNodeGetParams, node)
                    named = (
                        (driver.cuFuncGetName, params.func)
                        if int(params.func)
                        else (driver.cuKernelGetName, params.kern)
                    )
                    found.append(call(*named).decode())
            call(driver.cuGraphDestroy, graph)
        return found

    def _run(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            launch(self.stream)

    def _capture(self, launches: Sequence[Launch]) -> Any:
        builder = self.stream.create_graph_builder()
        # Relaxed: a library may allocate during the capture; nothing else uses the GPU while something is measured.
        builder.begin_building("relaxed")
        try:
            self._run(launches)
            builder.end_building()
            graph = builder.complete()
        except BaseException:
            with suppress(Exception):
                builder.close()
            raise
        graph.upload(self.stream)
        self.stream.sync()
        return graph
