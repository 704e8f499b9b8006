"""Moments of per-example gradients: closed forms per layer type, ``torch.func`` for the rest.

- ``groups``: which examples belong to which domain;  ``losses``: ℓ_i and its gradient r
- ``linear``: the moments of r ⊗ z as matrix products;  ``layers``: one rule per other layer type
- ``anywhere``: any weight, by ``torch.func``;  ``capture``: z and r of every layer in one pass
- ``sources``: moments per weight;  ``job``: a statistic to be taken, made by ``asked`` of what a
  caller asks for;  ``repeat``: running a forward again
- ``convolved``: convolutions and frozen batch norm by hand;  ``budget``: what fits into memory
- ``passes``: losses and variances at once, or in two passes over chunks
- ``variance``, ``mean``, ``gram``: the statistics built on them
"""
