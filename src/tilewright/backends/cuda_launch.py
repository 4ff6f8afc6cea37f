"""One launch through the driver's own function.

Not cuda.core's ``launch``: the only tensor maps that it takes are its own (``cuda_tensor_map.encode`` says why those do
not do).
"""

from __future__ import annotations

from typing import Any

from tilewright.backends.arguments import Arguments
from tilewright.backends.base import Dim3
from tilewright.backends.cuda_errors import call


def launch(
    kernel: int,
    grid: Dim3,
    block: Dim3,
    arguments: Arguments,
    shared_bytes: int,
    *,
    cluster: int,
    dependent: bool,
    stream: Any,
) -> None:
    """Start the kernel of that handle on a stream of cuda.core. Raises ``DriverError``."""
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes, config.hStream = shared_bytes, stream.handle
    attributes = launch_attributes(cluster, dependent)
    config.attrs, config.numAttrs = attributes, len(attributes)
    # The driver takes a CUkernel where it says CUfunction (CUDA Driver API, cuLaunchKernelEx).
    call(driver.cuLaunchKernelEx, config, driver.CUfunction(kernel), arguments.address, 0)


def launch_attributes(cluster: int, dependent: bool) -> list[Any]:
    """The driver's attributes of a launch in clusters along x, and of one that may start under the kernel ahead."""
    from cuda.bindings import driver

    attributes = []
    if cluster > 1:
        attributes.append(driver.CUlaunchAttribute())
        attributes[-1].id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dim = attributes[-1].value.clusterDim
        dim.x, dim.y, dim.z = cluster, 1, 1
    if dependent:
        attributes.append(driver.CUlaunchAttribute())
        attributes[-1].id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attributes[-1].value.programmaticStreamSerializationAllowed = 1
    return attributes
