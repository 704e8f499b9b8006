"""CAD: neighbours from other domains, by a contrastive bottleneck (Ruan et al., 2022)."""

from .domain_bottleneck import DomainBottleneck


class CAD(DomainBottleneck):
    """Match the features: the neighbours of an example come from other domains."""

    paper = "Optimal Representations for Covariate Shift (Ruan et al.)"
    year = 2022
    conditional = False
