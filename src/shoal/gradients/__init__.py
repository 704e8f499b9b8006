"""Moments of per-example gradients: closed forms per layer type, ``torch.func`` for the rest.

- ``groups``, ``masked``: which examples belong to which domain;  ``losses``: ℓ_i and its gradient r
- ``sources``: moments per weight;  ``linear``: those of r ⊗ z as matrix products
- ``formed``: gradients formed chunk by chunk;  ``convolved``, ``depthwise``, ``normalised``: those
  of convolutions and frozen batch norm by hand;  ``layers``: one rule per other layer type
- ``recording``: z and r of every layer in one pass;  ``verdict``: whether they tell everything;
  ``anywhere``: any weight, by ``torch.func``;  ``capture``: all of these together
- ``job``: a statistic to be taken, made by ``asked`` of what a caller asks for
- ``elementary``, ``convolution``, ``frozen_norm``, ``rectified``: forwards to differentiate twice;
  ``uncompiled``: which a compiled step leaves to torch
- ``passes``: losses and variances at once, or in two passes over chunks;  ``repeat``: running a
  forward again;  ``budget``: what fits into memory;  ``precision``: what products keep
- ``variance``, ``mean``, ``gram``: the statistics built on them
"""
