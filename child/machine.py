"""What a child runs on, as it tells the master in its confirmation."""

import os
import platform
from functools import cache
from importlib.metadata import version

import torch

from trunkline.messages import Machine


@cache
def describe() -> Machine:
    """Processors, memory, accelerators and versions; read once a process."""
    cuda = torch.cuda.is_available()
    gpus = tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())) if cuda else ()
    bf16 = cuda and torch.cuda.is_bf16_supported()
    return Machine(
        cpus=os.cpu_count() or 1,
        memory=_memory(),
        gpus=gpus,
        precision=("float32", "bf16") if bf16 else ("float32",),
        python=platform.python_version(),
        torch=torch.__version__,
        trunkline=version("trunkline"),
    )


def _memory() -> int:
    """Bytes of memory; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
