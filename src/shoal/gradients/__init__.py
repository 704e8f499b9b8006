"""Moments of per-example gradients: closed forms per layer type, ``torch.func`` for the rest.

- ``domains``: which examples belong to which domain;  ``examples``: inputs, losses ℓ_i and r
- ``parameters``: the weights P covers;  ``job``: a statistic to compute, with checked arguments
- ``sources``: the protocol of a weight's moments, and linear layers as matrix products
- ``materialised``: gradients formed chunk by chunk;  ``convolutions``, ``layers``: those of
  convolutions, frozen batch norm and every other layer type that has a rule
- ``recording``: z and r of every layer, by hooks;  ``vmap``: any weight, by ``torch.func``;
  ``collect``: both together, verified against autograd
- ``double_backward``: forwards that can be differentiated twice
- ``streaming``: each layer's gradients as one backward reaches it, for statistics without a graph
- ``sharding``: networks under FSDP2 as plain ones
- ``variance``, ``mean``, ``gram``: the statistics
- ``memory``: how many examples fit;  ``precision``: what matrix products round
"""
