"""Several processes that torchrun has started: which device is whose."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any


@contextmanager
def joined(device: Any) -> Iterator[Any]:
    """Yield this process's device, inside the group of all that torchrun started, if it did."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield device
        return
    import torch
    import torch.distributed as dist

    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if device.index >= torch.cuda.device_count():
            raise ValueError(
                f"torchrun has started process {device.index + 1} on this machine, which has "
                f"{torch.cuda.device_count()} GPUs; give --nproc-per-node as many as there are"
            )
        torch.cuda.set_device(device)
    # The first may read and decode images for hours; if it dies, torchrun ends the others.
    patience = timedelta(days=1)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=patience)
    try:
        yield device
        dist.barrier()  # nobody ends while another still works
        follows = dist.get_rank() > 0
    finally:
        dist.destroy_process_group()
    if follows:
        # The first has written everything. Torch's threads abort one process in thirty that ends
        # as usual, which torchrun takes for a failure of all.
        os._exit(0)
