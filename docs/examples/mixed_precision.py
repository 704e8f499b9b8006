"""Fishr in mixed precision: bf16 without a scaler, fp16 with one. Statistics stay float32."""

import torch
import torch.nn.functional as F
from torch import nn

import shoal

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
# On tensor cores, the channels-last layout is faster still.
images = torch.randn(96, 3, 16, 16, device=device).contiguous(memory_format=torch.channels_last)
labels = torch.randint(4, (96,), device=device)
domains = torch.arange(3).repeat_interleave(32)  # on the CPU: no wait for the GPU

for dtype in (torch.bfloat16, torch.float16):
    features = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )
    features = features.to(device, memory_format=torch.channels_last)
    classifier = nn.Linear(64, 4).to(device)
    fishr = shoal.Fishr(num_domains=3, penalty_weight=100.0, warmup_steps=2).to(device)
    optimiser = torch.optim.Adam([*features.parameters(), *classifier.parameters()], lr=1e-3)
    # bf16 has the range of float32 and needs no scaler; it is switched off then.
    scaler = torch.amp.GradScaler(device, enabled=dtype == torch.float16)
    for _ in range(6):
        with torch.autocast(device, dtype):
            z = features(images)
            logits = classifier(z)
            loss = F.cross_entropy(logits, labels) + fishr(z, logits, labels, domains)
        optimiser.zero_grad()
        scaler.scale(loss).backward()
        # If a gradient overflows, the scaler skips this step; the running variances stay finite.
        scaler.step(optimiser)
        scaler.update()
    print(f"{dtype}: loss {loss.item():.3f}, variances in {fishr.v_bar.dtype}")
