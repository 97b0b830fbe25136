"""Whether the promises were kept: results counted, and calls at the provider held against what Redis granted.

Three witnesses that know nothing of each other: the results that consumers see, the books of the simulated provider,
and the journal of the Redis server.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from pipeline.sandbox.calls import Call
from tests.chaos.ground import Blow, Ground
from tests.chaos.journal import Loss, Start
from tests.chaos.load import named

# Two clocks are compared, each read over HTTP or a socket on busy cores.
_CLOCKS_S = 0.25
# While these last nobody can renew a lease.
_OUT_OF_REACH = ("freeze", "restart", "down", "silent", "slow")


class Verdict(msgspec.Struct, kw_only=True):
    """What a run came to. Everything from `lost` to `unexplained` but the ratios must be 0.

    Attributes:
        cut_replies: connections that broke in the middle of a reply of Redis, or before its first byte.
        lost, duplicates: requests without a terminal result, and with more than one.
        ungranted_calls: calls of the paid model for which no started grant can be found.
        repeated_ratio: calls of a model beyond the first one, per request.
        failed: requests that didn't end with `ok`.
        rejected: 429s of the provider.
        unexplained: repeated calls whose first holder suffered nothing.
        deferred_ratio, edge_ratio: requests that waited in the backlog; requests that the edge was called for.
        stories: what is known of some requests with which a promise was broken.
    """

    server: str
    requests: int
    kills: int
    cut_replies: int
    lost: int
    duplicates: int
    ungranted_calls: int
    repeated_ratio: float
    seconds: float
    failed: int
    rejected: int
    unexplained: int
    deferred_ratio: float
    edge_ratio: float
    blows: dict[str, int]
    stories: list[str]

    @property
    def broken(self) -> dict[str, int]:
        """The promises that weren't kept."""
        counts = {name: getattr(self, name) for name in ("lost", "duplicates", "ungranted_calls", "failed")}
        counts |= {"rejected": self.rejected, "unexplained": self.unexplained}
        return {name: count for name, count in counts.items() if count}


def judge(ground: Ground, *, seconds: float, faulty: bool = False) -> Verdict:
    """Hold the books against each other; nothing may be on its way any more.

    Args:
        faulty: providers failed, too: a call that brought no answer is a reason for another one.
    """
    ground.read_books()
    sent, journal = ground.sent, ground.journal
    calls = defaultdict(list)
    for call in ground.calls:
        calls[named(call.prompt)].append(call)
    del calls[""]
    repeated = {id_: len(made) - 1 for id_, made in calls.items() if len(made) > 1}
    hits = Counter(loss.id for loss in journal.losses if explained(loss, ground.blows, lease_s=ground.lease_s))
    if faulty:
        hits += Counter(named(call.prompt) for call in ground.calls if call.fate != "answered")
    premium = {id_: [call for call in made if call.side == "premium"] for id_, made in calls.items()}
    struck = Counter(blow.what for blow in ground.blows)
    # `responses` as a consumer read it, and as Redis wrote it.
    counts = [ground.results, Counter({id_: count for (id_, _), count in journal.results.items()})]
    strange = [id_ for id_, count in repeated.items() if count > hits[id_]]
    strange = [id_ for id_, count in counts[1].items() if count > 1] + strange
    strange += [] if faulty else [result.id for result in ground.failures]
    return Verdict(
        server=ground.server,
        requests=len(sent),
        kills=struck["kill"],
        cut_replies=ground.proxy.broken,
        lost=max(sum(not count[id_] for id_ in sent) for count in counts),
        duplicates=max(sum(count[id_] > 1 for id_ in count) for count in counts),
        ungranted_calls=ungranted(premium, journal.starts, offset_s=ground.clock_offset_s),
        repeated_ratio=round(sum(repeated.values()) / len(sent), 4),
        seconds=round(seconds, 1),
        failed=len(ground.failures),
        rejected=ground.rig.book().premium.rejected,
        unexplained=sum(repeated[id_] - hits[id_] for id_ in repeated if repeated[id_] > hits[id_]),
        deferred_ratio=round(len(journal.deferred & set(sent)) / len(sent), 3),
        edge_ratio=round(sum(any(call.side == "edge" for call in made) for made in calls.values()) / len(sent), 3),
        blows=dict(struck),
        stories=[_story(ground, id_, calls[id_]) for id_ in strange[:5]],
    )


def _story(ground: Ground, id_: str, calls: Sequence[Call]) -> str:
    """All that the witnesses say of a request, in the order of time."""
    offset_s, journal = ground.clock_offset_s, ground.journal
    told = [(call.at_s + offset_s, f"{call.side} called: {call.fate}") for call in calls]
    told += [(start.at_s, f"granted, attempt {start.attempt}") for start in journal.starts if start.id == id_]
    told += [(loss.at_s, f"taken over from {loss.holder} on {loss.lane}") for loss in journal.losses if loss.id == id_]
    first_s, last_s = min(told, default=(0.0, ""))[0], max(told, default=(0.0, ""))[0]
    near = [blow for blow in ground.blows if first_s - 5 < blow.ended_s and blow.began_s < last_s]
    told += [(blow.began_s, f"({blow.what} {blow.pid or ''} for {blow.ended_s - blow.began_s:.1f} s)") for blow in near]
    ends = [f"{one.status} {one.code} {bytes(one.body)[:200]!r}" for one in ground.failures if one.id == id_]
    return f"{id_}: " + "; ".join([f"{at_s - first_s:+.3f} {what}" for at_s, what in sorted(told)] + ends)


def ungranted(calls: dict[str, list[Call]], starts: Sequence[Start], *, offset_s: float) -> int:
    """Calls that can't be given a started grant of their own, of the same request and from before the call."""
    free = defaultdict(list)
    for start in starts:
        free[start.id].append(start.at_s - offset_s)
    without = 0
    for id_, made in calls.items():
        # Each takes the newest grant from before it, the first call first: so none takes what a later one needs.
        for call in sorted(made, key=lambda call: call.at_s):
            fitting = [at_s for at_s in free[id_] if at_s <= call.at_s + _CLOCKS_S]
            if fitting:
                free[id_].remove(max(fitting))
            else:
                without += 1
    return without


def explained(loss: Loss, blows: Sequence[Blow], *, lease_s: float) -> bool:
    """Whether the worker that lost the entry had been killed, or Redis had been out of its reach for a lease."""
    for blow in blows:
        if blow.pid == loss.holder and blow.began_s <= loss.at_s:
            return True
        out_of_reach = blow.what in _OUT_OF_REACH
        if out_of_reach and blow.began_s <= loss.at_s <= blow.ended_s + 2 * lease_s:
            return True
    return False
