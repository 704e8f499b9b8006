"""CondCAD: CAD within each class (Ruan et al., 2022)."""

from .domain_bottleneck import DomainBottleneck


class CondCAD(DomainBottleneck):
    """Match the features of a class: an example's neighbours in it come from other domains."""

    paper = "Optimal Representations for Covariate Shift (Ruan et al.)"
    year = 2022
    conditional = True
