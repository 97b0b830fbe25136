"""The stages and their order: a request flows down this list.

ingest -> classify -> gate -> premium | edge | (backlog -> deferred -> premium | edge) -> responses
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.config import Pool
from pipeline.stage import Stage
from stages.classify import Classify
from stages.deferred import Deferred
from stages.edge import EdgeCall
from stages.gate import GateStage
from stages.premium import Premium
from tokenweir.keys import Keys

FLOW = ("classify", "gate", "premium", "edge", "deferred")


def build(
    pool: Pool, keys: Keys, *, api_keys: Mapping[str, str], only: frozenset[str] = frozenset(FLOW)
) -> list[Stage]:
    """The stages named in `only`, in the order of the flow; `edge` only where the pool has an edge model.

    Args:
        api_keys: each deployment's key by its name; read only where `premium` is built.
    """
    stages: list[Stage] = []
    if "classify" in only:
        stages.append(Classify(pool, keys))
    if "gate" in only:
        stages.append(GateStage())
    if "premium" in only:
        stages.append(
            Premium(
                pool.deployments,
                keys=api_keys,
                max_attempts=pool.max_attempts,
                concurrency=pool.premium_concurrency,
            )
        )
    if "edge" in only and pool.edge is not None:
        stages.append(EdgeCall(pool.edge))
    if "deferred" in only:
        stages.append(Deferred())
    return stages
