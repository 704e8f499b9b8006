"""What scikit-learn asks of a classifier, answered where it is installed."""

from typing import Any, cast

# Where scikit-learn's ``clone`` looks for what was requested.
REQUESTS = "_metadata_request"


def sklearn_tags() -> Any:
    """Return what kind of estimator it is, and that values may be missing."""
    from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

    return Tags(
        estimator_type="classifier",
        target_tags=TargetTags(required=True),
        classifier_tags=ClassifierTags(),
        input_tags=InputTags(allow_nan=True),
    )


def sklearn_routing(owner: Any) -> Any:
    """Return what ``owner`` was told to request; at first domains for ``fit``, and no more."""
    from sklearn.utils.metadata_routing import MetadataRequest

    if hasattr(owner, REQUESTS):
        return getattr(owner, REQUESTS)
    request = MetadataRequest(owner=owner)
    request.fit.add_request(param="domains", alias=True)
    # As in scikit-learn's own classifiers: known to score, and refused until it is asked for.
    request.score.add_request(param="sample_weight", alias=None)
    return request


def request(owner: Any, method: str, **wanted: bool | str | None) -> Any:
    """Return ``owner``, whose ``method`` now requests this, as scikit-learn's set_…_request."""
    routing = sklearn_routing(owner)
    for param, alias in wanted.items():
        getattr(routing, method).add_request(param=param, alias=alias)
    setattr(owner, REQUESTS, routing)
    return owner


def not_fitted() -> Exception:
    """Return the error of a prediction before ``fit``: scikit-learn's, where it is installed."""
    told = "this DomainClassifier is not fitted yet; call fit first"
    try:
        from sklearn.exceptions import NotFittedError
    except ModuleNotFoundError:
        return ValueError(told)
    return cast(Exception, NotFittedError(told))
