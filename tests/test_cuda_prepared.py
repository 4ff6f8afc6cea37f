"""Launches that are prepared once, with functions of the test in the driver's place."""

from __future__ import annotations

import ctypes
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright import FP32, LaunchError
from tilewright.backends.base import Matrix
from tilewright.backends.cuda_prepared import LaunchConfig, PreparedLaunch


class Driver:
    """Notes the first argument of each launch and its stream; ``inside`` is called while the driver would read them."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int | None]] = []
        self.code, self.elsewhere = 0, 0
        self.inside: Any = lambda: None

    def launch(self, config: Any, handle: Any, args: Any, extra: None) -> int:
        self.inside()
        if self.elsewhere:
            return self.elsewhere
        first = ctypes.c_uint64.from_address(ctypes.addressof(args._obj)).value
        self.seen.append((ctypes.c_uint64.from_address(first).value, config._obj.stream))
        return self.code


class Backend:
    """Counts how often its context was made current, in which the driver runs launches."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.entered = driver, 0

    def current(self) -> Any:
        self.entered += 1
        self.driver.elsewhere = 0
        return nullcontext()


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def prepared(driver: Driver) -> Any:
    """A launch of one matrix, 4 bytes past the address of its role."""
    made: Any = object.__new__(PreparedLaunch)
    made._backend, made._kernel = Backend(driver), SimpleNamespace(name="tw_gemm")
    made._args, made._slots, made._fields = [Matrix(0, 1, 1, 1, FP32, None)], [(0, 0, 4)], ()
    made._launch, made._replace = driver.launch, None
    made._free, made._handle = [], None
    made._attributes = ctypes.create_string_buffer(1)
    made._configured = ((1, 1, 1), (128, 1, 1), 0, None, ctypes.addressof(made._attributes), 0)
    return made


def test_each_launch_has_the_addresses_and_the_stream_of_its_call(prepared: Any, driver: Driver) -> None:
    for at, stream in ((64, 7), (128, 7), (128, 9), (64, 9)):
        prepared.start((at,), stream)
    assert driver.seen == [(68, 7), (132, 7), (132, 9), (68, 9)]
    assert prepared._backend.entered == 1, "the arguments were encoded once, the context was there"


def test_a_launch_while_another_thread_is_in_the_driver_has_arguments_of_its_own(prepared: Any, driver: Driver) -> None:
    inside, go = threading.Event(), threading.Event()

    def wait() -> None:
        if threading.current_thread() is slow:
            inside.set()
            assert go.wait(10)

    slow = threading.Thread(target=prepared.start, args=((64,), 7))
    driver.inside = wait
    slow.start()
    assert inside.wait(10)
    prepared.start((128,), 9)
    go.set()
    slow.join()
    assert driver.seen == [(132, 9), (68, 7)]
    assert len(prepared._free) == 2


@pytest.mark.parametrize("code", [201, 400])
def test_the_kernels_context_is_made_current_where_another_one_is(prepared: Any, driver: Driver, code: int) -> None:
    prepared.start((64,), 0)
    driver.elsewhere = code
    prepared.start((128,), 0)
    assert prepared._backend.entered == 2
    assert driver.seen == [(68, None), (132, None)], "each was queued once"


def test_a_launch_that_fails_is_an_error_and_the_next_one_runs(prepared: Any, driver: Driver) -> None:
    driver.code = 700
    with pytest.raises(LaunchError, match="tw_gemm"):
        prepared.start((64,), 7)
    driver.code = 0
    prepared.start((128,), 7)
    assert driver.seen[-1] == (132, 7)


def test_the_configuration_is_laid_out_as_the_driver_has_it() -> None:
    assert LaunchConfig.stream.offset == 32
    assert ctypes.sizeof(LaunchConfig) == 56
