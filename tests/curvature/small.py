"""Small networks in float64, and examples of domains of unequal size in mixed order."""

import torch
from torch import Tensor, nn

SIZES = (7, 5, 9)


def relu_mlp(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.LeakyReLU(0.1)]
    return nn.Sequential(*layers, nn.Linear(4, outputs)).double()


def relu_convolutions() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.ReLU6(), nn.MaxPool2d(2), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(2, 3)).double()
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2)
    return model.eval()


def tanh_mlp(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, outputs)).double()


def group_norm() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 2, 2), nn.ReLU(), nn.GroupNorm(1, 2), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, 3)).double()


class UsedTwice(nn.Module):
    """One weight in two layers: the logits are not linear in it, even in a ReLU network."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden = nn.Linear(4, 4).double()
        self.classifier = nn.Linear(4, 3).double()

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.hidden(self.hidden(inputs).relu()).relu())
        return out


def examples(shape: tuple[int, ...] = (4,), classes: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, labels and domains; each domain has its own scale."""
    generator = torch.Generator().manual_seed(1)
    domains = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))
    domains = domains[torch.randperm(len(domains), generator=generator)]
    inputs = torch.randn(len(domains), *shape, generator=generator, dtype=torch.float64)
    inputs *= (1 + domains).reshape(-1, *[1] * len(shape))
    labels = torch.randint(classes, (len(domains),), generator=generator)
    return inputs, labels, domains
