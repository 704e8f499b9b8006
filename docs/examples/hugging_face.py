"""Fishr in Hugging Face's Trainer: a text classifier; a domain is the origin of a text."""

import torch
from torch import Tensor, nn

import shoal
from shoal.vision import mend_torchvision

mend_torchvision()  # Transformers imports it, and would fail if it does not fit torch
import transformers  # noqa: E402


class WithFishr(transformers.Trainer):
    """A trainer that adds the penalty on the classifier; each row of the data has a domain."""

    def __init__(self, *args: object, num_domains: int, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.fishr = shoal.Fishr(num_domains, penalty_weight=100.0, warmup_steps=4)
        # Keeps the input of the head, z.
        self.model.classifier.register_forward_pre_hook(self._remember)

    def _remember(self, head: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        (self.features,) = inputs

    def compute_loss(
        self, model: nn.Module, inputs: dict, return_outputs: bool = False, **_: object
    ) -> object:
        domains = inputs.pop("domains")
        outputs = model(**inputs)
        loss = outputs.loss
        if model.training:
            loss = loss + self.fishr(self.features, outputs.logits, inputs["labels"], domains)
        return (loss, outputs) if return_outputs else loss


torch.manual_seed(0)
# A tiny network with random weights; yours comes from from_pretrained(...).
config = transformers.BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
)
texts = [
    {"input_ids": torch.randint(50, (12,)), "labels": i % 2, "domains": i // 2 % 3}
    for i in range(96)
]
trainer = WithFishr(
    model=transformers.BertForSequenceClassification(config),
    num_domains=3,
    args=transformers.TrainingArguments(
        "texts",
        per_device_train_batch_size=24,
        num_train_epochs=2,
        report_to=[],
        save_strategy="no",
        remove_unused_columns=False,  # or the domains would go
        disable_tqdm=True,
    ),
    train_dataset=texts,
)
print(f"loss {trainer.train().training_loss:.3f} after {int(trainer.fishr.steps)} steps")
