"""The head's penalty and its backward pass on a CPU, compared with BackPACK and vmap.

The size is DomainNet's: 345 classes, 2,048 features, 5 domains of 32 examples.
"""

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import shoal

from .recording import options, write

DOMAINS, EACH, CLASSES, FEATURES = 5, 32, 345, 2048


def penalties(features: Tensor, head: nn.Linear, labels: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Return three implementations of the same penalty, each from features to a scalar."""
    domains = torch.arange(DOMAINS).repeat_interleave(EACH)

    def spread_of(g: Tensor) -> Tensor:
        return shoal.spread(g.reshape(DOMAINS, EACH, -1).var(1))

    def by_shoal() -> Tensor:
        rows = shoal.head_variance(features, head(features), labels, domains, num_domains=DOMAINS)
        return shoal.spread(rows)

    def by_vmap() -> Tensor:
        def loss(weight: Tensor, bias: Tensor, z: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(F.linear(z, weight, bias)[None], y[None])

        gradient = torch.func.vmap(torch.func.grad(loss, (0, 1)), (None, None, 0, 0))
        weight, bias = gradient(head.weight, head.bias, features, labels)
        return spread_of(torch.cat([weight.flatten(1), bias], 1))

    def by_backpack() -> Tensor:
        from backpack import backpack, extend
        from backpack.extensions import BatchGrad

        layer, criterion = extend(head), extend(nn.CrossEntropyLoss(reduction="sum"))
        loss = criterion(layer(features), labels)
        with backpack(BatchGrad()):
            # The features must be among the inputs, or the hooks never fire.
            loss.backward(
                inputs=[*head.parameters(), features], retain_graph=True, create_graph=True
            )
        g = torch.cat([head.weight.grad_batch.flatten(1), head.bias.grad_batch], 1)
        for parameter in head.parameters():
            parameter.grad = None
            del parameter.grad_batch
        features.grad = None
        return spread_of(g)

    return {"shoal": by_shoal, "vmap": by_vmap, "backpack": by_backpack}


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--repeats", type=int, default=7)
    asked = parser.parse_args()
    torch.manual_seed(0)
    features = torch.randn(DOMAINS * EACH, FEATURES, requires_grad=True)
    head = nn.Linear(FEATURES, CLASSES)
    labels = torch.randint(0, CLASSES, (DOMAINS * EACH,))
    roads = penalties(features, head, labels)
    times: dict[str, list[float]] = {name: [] for name in roads}
    values: dict[str, float] = {}
    gradients: dict[str, Tensor] = {}
    for repeat in range(asked.repeats + 1):
        for name, road in roads.items():  # interleaved; the first round is not counted
            begin = time.perf_counter()
            value = road()
            found = torch.autograd.grad(value, [features, *head.parameters()])
            if repeat:
                times[name].append(time.perf_counter() - begin)
            values[name], gradients[name] = value.item(), found[0]
    for name in ("vmap", "backpack"):
        torch.testing.assert_close(values[name], values["shoal"], rtol=1e-3, atol=0)
        torch.testing.assert_close(gradients[name], gradients["shoal"], rtol=1e-2, atol=1e-9)
    median = {name: statistics.median(many) for name, many in times.items()}
    numbers = {
        "size": {"classes": CLASSES, "features": FEATURES, "domains": DOMAINS, "each": EACH},
        "median_ms": {name: round(1e3 * value, 2) for name, value in median.items()},
        "min_max_ms": {n: [round(1e3 * f(t), 2) for f in (min, max)] for n, t in times.items()},
        "times_faster_than": {
            name: round(median[name] / median["shoal"], 1) for name in ("backpack", "vmap")
        },
    }
    path = write("head_cpu", asked, numbers)
    print(numbers, path, sep="\n")


if __name__ == "__main__":
    main()
