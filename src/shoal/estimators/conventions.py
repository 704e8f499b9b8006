"""What scikit-learn asks of a classifier, answered where it is installed."""

from typing import Any, cast


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
    """Return that ``fit`` of ``owner`` wants domains."""
    from sklearn.utils.metadata_routing import MetadataRequest

    request = MetadataRequest(owner=owner)
    request.fit.add_request(param="domains", alias=True)
    return request


def not_fitted() -> Exception:
    """Return the error of a prediction before ``fit``: scikit-learn's, where it is installed."""
    told = "this DomainClassifier is not fitted yet; call fit first"
    try:
        from sklearn.exceptions import NotFittedError
    except ModuleNotFoundError:
        return ValueError(told)
    return cast(Exception, NotFittedError(told))
