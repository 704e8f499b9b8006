"""The processes that torchrun started: their group and their devices."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any


@contextmanager
def process_group(device: Any) -> Iterator[Any]:
    """Yield the device of this process, inside the group of all processes of torchrun, if any."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield device
        return
    import torch
    import torch.distributed as dist

    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if device.index >= torch.cuda.device_count():
            raise ValueError(
                f"torchrun started process {device.index + 1} on this machine, which has "
                f"{torch.cuda.device_count()} GPUs; use a smaller --nproc-per-node"
            )
        torch.cuda.set_device(device)
    # The first can decode images for hours; if it dies, torchrun ends the others.
    patience = timedelta(days=1)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=patience)
    try:
        yield device
        dist.barrier()  # no process ends while another still works
        follows = dist.get_rank() > 0
    finally:
        dist.destroy_process_group()
    if follows:
        # The first process has written everything. Torch's threads abort one in thirty processes
        # at a normal exit, which torchrun takes for a failure of all.
        os._exit(0)
