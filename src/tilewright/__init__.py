"""A GEMM on a GPU from naive to past cuBLAS, with the arithmetic beside every number.

The names below are loaded when first used: ``import tilewright`` touches no driver, no compiler and not even NumPy.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if TYPE_CHECKING:
    from tilewright import nn as nn
    from tilewright import torch_op as torch_op
    from tilewright.compile_counter import Compiles as Compiles
    from tilewright.compile_counter import compiles as compiles
    from tilewright.dtypes import BF16 as BF16
    from tilewright.dtypes import FP16 as FP16
    from tilewright.dtypes import FP32 as FP32
    from tilewright.dtypes import DType as DType
    from tilewright.epilogue.functions import abs as abs
    from tilewright.epilogue.functions import clamp as clamp
    from tilewright.epilogue.functions import col_absmax as col_absmax
    from tilewright.epilogue.functions import col_max as col_max
    from tilewright.epilogue.functions import col_sum as col_sum
    from tilewright.epilogue.functions import erf as erf
    from tilewright.epilogue.functions import exp as exp
    from tilewright.epilogue.functions import gelu as gelu
    from tilewright.epilogue.functions import log as log
    from tilewright.epilogue.functions import maximum as maximum
    from tilewright.epilogue.functions import minimum as minimum
    from tilewright.epilogue.functions import relu as relu
    from tilewright.epilogue.functions import relu_squared as relu_squared
    from tilewright.epilogue.functions import row_absmax as row_absmax
    from tilewright.epilogue.functions import row_max as row_max
    from tilewright.epilogue.functions import row_sum as row_sum
    from tilewright.epilogue.functions import sigmoid as sigmoid
    from tilewright.epilogue.functions import silu as silu
    from tilewright.epilogue.functions import sqrt as sqrt
    from tilewright.epilogue.functions import swiglu as swiglu
    from tilewright.epilogue.functions import tanh as tanh
    from tilewright.epilogue.functions import where as where
    from tilewright.errors import CompileError as CompileError
    from tilewright.errors import EmulatorFault as EmulatorFault
    from tilewright.errors import LaunchError as LaunchError
    from tilewright.errors import TilewrightError as TilewrightError
    from tilewright.errors import UnavailableError as UnavailableError
    from tilewright.errors import UsageError as UsageError
    from tilewright.errors import VerifyError as VerifyError
    from tilewright.gpu import GpuSpec as GpuSpec
    from tilewright.gpu import get_gpu as get_gpu
    from tilewright.gpu import known_gpus as known_gpus
    from tilewright.gpu import query_gpu as query_gpu
    from tilewright.library.api import Matmul as Matmul
    from tilewright.library.api import explain as explain
    from tilewright.library.api import matmul as matmul
    from tilewright.library.bundle import Bundle as Bundle
    from tilewright.library.bundle import export_bundle as export_bundle
    from tilewright.library.bundle import load_bundle as load_bundle
    from tilewright.library.support import supported as supported
    from tilewright.library.warm import warmup as warmup
    from tilewright.plan_base import Plan as Plan
    from tilewright.planner.judge import judge as judge
    from tilewright.planner.plan import plan as plan
    from tilewright.problem import Problem as Problem

# Where each public name lives; the same names as above, which only type checkers read.
_HOMES = {
    "compile_counter": ("Compiles", "compiles"),
    "dtypes": ("BF16", "FP16", "FP32", "DType"),
    "epilogue.functions": (
        "abs", "clamp", "col_absmax", "col_max", "col_sum", "erf", "exp", "gelu", "log", "maximum", "minimum", "relu",
        "relu_squared", "row_absmax", "row_max", "row_sum", "sigmoid", "silu", "sqrt", "swiglu", "tanh",
        "where",
    ),
    "errors": (
        "CompileError", "EmulatorFault", "LaunchError", "TilewrightError", "UnavailableError", "UsageError",
        "VerifyError",
    ),
    "gpu": ("GpuSpec", "get_gpu", "known_gpus", "query_gpu"),
    "library.api": ("Matmul", "explain", "matmul"),
    "library.bundle": ("Bundle", "export_bundle", "load_bundle"),
    "library.support": ("supported",),
    "library.warm": ("warmup",),
    "plan_base": ("Plan",),
    "planner.judge": ("judge",),
    "planner.plan": ("plan",),
    "problem": ("Problem",),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", *sorted(_HOME_OF)]  # noqa: PLE0604 - the names are those of the table above


_WITH_TORCH = ("nn", "torch_op")  # modules that import PyTorch, and so no part of ``import *``


def __getattr__(name: str) -> Any:
    if name in _WITH_TORCH:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF, *_WITH_TORCH})


if hasattr(getattr(sys.modules.get("torch"), "library", None), "custom_op"):
    import_module(f"{__name__}.torch_library")  # a saved program names the operations and imports nothing
