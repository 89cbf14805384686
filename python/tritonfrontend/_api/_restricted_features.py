"""Features of a port that need a key: a header with a value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Union

from pydantic import field_validator
from pydantic.dataclasses import dataclass

from tritonserver import InvalidArgumentError


class Feature(Enum):
    """The groups of routes and RPCs that can be restricted."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    SHM_MEMORY = "shared-memory"
    MODEL_CONFIG = "model-config"
    MODEL_REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    TRACE = "trace"
    LOGGING = "logging"


@dataclass
class FeatureGroup:
    """Features that need the same key. Over gRPC the header's name begins with `triton-grpc-protocol-`."""

    key: str
    value: str
    features: Union[Feature, list[Feature]]

    @field_validator("features", mode="after")
    @classmethod
    def _listed(cls, features: Union[Feature, list[Feature]]) -> list[Feature]:
        return [features] if isinstance(features, Feature) else features


class RestrictedFeatures:
    """Groups of features, each of which is in one at most."""

    def __init__(self, groups: Iterable[FeatureGroup] = ()) -> None:
        self.feature_groups: list[FeatureGroup] = []
        for group in groups:
            self.add_feature_group(group)

    def create_feature_group(self, key: str, value: str, features: Union[Feature, list[Feature]]) -> FeatureGroup:
        """Adds a group of these features, and returns it."""
        group = FeatureGroup(key, value, features)
        self.add_feature_group(group)
        return group

    def add_feature_group(self, group: FeatureGroup) -> None:
        if not isinstance(group, FeatureGroup):
            raise InvalidArgumentError(f"a group must be a FeatureGroup, not {type(group).__name__}")
        for feature, _, _ in _keys_of(group):
            if self.has_feature(Feature(feature)):
                text = f"A given feature can only belong to one group. {feature} already belongs to a group."
                raise InvalidArgumentError(text)
        self.feature_groups.append(group)

    def has_feature(self, feature: Feature) -> bool:
        """Whether a group has it."""
        return any(of == feature.value for of, _, _ in self._keys())

    def _keys(self) -> Iterator[tuple[str, str, str]]:
        for group in self.feature_groups:
            yield from _keys_of(group)

    def __repr__(self) -> str:
        # Without the values, which are secrets.
        groups = [f"{group.key}: {[of for of, _, _ in _keys_of(group)]}" for group in self.feature_groups]
        return f"RestrictedFeatures({', '.join(groups)})"


def _keys_of(group: FeatureGroup) -> Iterator[tuple[str, str, str]]:
    """Feature, header and value."""
    features = [group.features] if isinstance(group.features, Feature) else group.features
    for feature in features:
        yield feature.value, group.key, group.value
