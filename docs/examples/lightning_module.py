"""Fishr in Lightning: the regulariser is a submodule, so checkpoints contain its state."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import shoal
from shoal.vision import mend_torchvision

mend_torchvision()  # Lightning imports it, and would fail if it does not fit torch
import lightning  # noqa: E402


class Classifier(lightning.LightningModule):
    """A network with Fishr on its head."""

    def __init__(self, num_domains: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(6, 32), nn.ReLU())
        self.classifier = nn.Linear(32, 3)
        self.fishr = shoal.Fishr(num_domains, penalty_weight=100.0, warmup_steps=10)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        inputs, labels, domains = batch
        z = self.features(inputs)
        logits = self.classifier(z)
        risk = F.cross_entropy(logits, labels)
        # With several processes, Fishr gathers the whole batch itself.
        penalty = self.fishr(z, logits, labels, domains)
        self.log_dict({"risk": risk, "penalty": penalty})
        return risk + penalty

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


torch.manual_seed(0)
data = TensorDataset(
    torch.randn(256, 6), torch.randint(3, (256,)), torch.arange(4).repeat_interleave(64)
)
trainer = lightning.Trainer(
    max_epochs=3,
    accelerator="auto",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    # No accumulate_grad_batches: it would add up penalties of small batches. Use
    # shoal.in_micro_batches, as in gradient_accumulation.py.
)
model = Classifier(num_domains=4)
trainer.fit(model, DataLoader(data, batch_size=64, shuffle=True))
trainer.save_checkpoint("fishr.ckpt")
print(f"{int(model.fishr.steps)} steps, variances of {tuple(model.fishr.v_bar.shape)} saved")
