"""The limits of a configured deployment, for the gate and for people. Pure; the maths is in `tokenweir.terms`."""

from __future__ import annotations

from pipeline.config import Deployment
from tokenweir.terms import DAY_LIMITS, WINDOW_LIMITS, Allowed, Limit, Terms, seed_row
from tokenweir.terms import terms as resolve_terms


def allowed(deployment: Deployment) -> Allowed:
    """What the deployment's provider allows, as it is configured."""
    given = {name: getattr(deployment, name) for name in (*WINDOW_LIMITS, *DAY_LIMITS)}
    return Allowed(
        limits={name: limit for name, limit in given.items() if limit is not None},
        max_in_flight=deployment.max_in_flight,
        window_s=deployment.window_s,
        send_within_s=deployment.send_within_s,
        enforcement=deployment.enforcement,
        settlement=deployment.settlement,
        day_resets_at=deployment.day_resets_at,
    )


def terms(deployment: Deployment) -> Terms:
    """The terms of a configured deployment."""
    return resolve_terms(allowed(deployment))


def seed(deployment: Deployment) -> tuple[str, str, bytes]:
    """Name, fingerprint of the configured values, and terms as JSON, as the seed script takes them."""
    return seed_row(deployment.name, terms(deployment))


def _sixth(deployment: Deployment, limit: Limit) -> str:
    """What no gate can cure: a provider whose bucket holds a sixth of the limit."""
    if deployment.enforcement != "auto" or limit.name == "rpm":
        return ""
    return f"; a provider that counts in sixths of a window refuses single requests beyond {limit.limit // 6:,}"


def explain(deployment: Deployment) -> list[str]:
    """The resolved numbers of a deployment, one line a limit, for people."""
    lines = []
    for limit in terms(deployment).limits:
        per_s = limit.rate * 1e6
        if limit.paced:
            lines.append(
                f"{deployment.name} {limit.name} {limit.limit:,} per {limit.window_us / 1e6:g} s: "
                f"burst {limit.capacity:,.0f}, refill {per_s:,.2f}/s, uses up to {limit.expected_use:.1%}, "
                f"worst window 100 %, opens {limit.opening_s:.1f} s after a cold start{_sixth(deployment, limit)}"
            )
        else:
            day = "any 24 h" if limit.resets_us < 0 else f"the day that begins at {deployment.day_resets_at} UTC"
            lines.append(f"{deployment.name} {limit.name} {limit.limit:,} in {day}: counted, not paced")
    if deployment.max_in_flight:
        lines.append(f"{deployment.name} max_in_flight {deployment.max_in_flight}: calls at the same time")
    return lines
