"""What a sandbox can be told, in one frozen struct: the command line and Python share it, defaults included."""

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from pipeline.sandbox.latency import Lognormal

Enforcement = Literal["bucket", "bucket/6", "sliding", "fixed", "10s", "1s"]
Dimension = Literal["rpm", "tpm", "itpm", "otpm", "rpd", "tpd", "max_in_flight"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
HeaderDialect = Literal["openai", "azure", "anthropic", "per-day-requests", "none"]


class SandboxSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One provider account, one edge server, and how fast both are.

    Rates and `window_s` are on the real clock; latencies are the provider's own and are divided by `time_scale`.
    A provider minute played in 6 s is therefore `window_s=6, time_scale=10` with the rates left as they are.

    Raises:
        ValueError: no lognormal distribution has this mean and this p99, or headers of a day limit without one.
    """

    rpm: Annotated[int, Meta(description="requests admitted per window", gt=0)] = 500
    tpm: Annotated[int, Meta(description="tokens admitted per window", gt=0)] = 30_000
    window_s: Annotated[float, Meta(description="length of a window, in seconds of the real clock", gt=0)] = 60.0
    enforcement: Annotated[
        Enforcement, Meta(description="how the limits are enforced: bucket, bucket/6, sliding, fixed, 10s or 1s")
    ] = "sliding"
    itpm: Annotated[int, Meta(description="prompt tokens admitted per window; 0: no such limit", ge=0)] = 0
    otpm: Annotated[int, Meta(description="output tokens admitted per window; 0: no such limit", ge=0)] = 0
    rpd: Annotated[int, Meta(description="requests admitted in 1440 windows; 0: no such limit", ge=0)] = 0
    tpd: Annotated[int, Meta(description="tokens admitted in 1440 windows; 0: no such limit", ge=0)] = 0
    max_in_flight: Annotated[int, Meta(description="calls at a time; 0: no such limit", ge=0)] = 0
    refund: Annotated[bool, Meta(description="give back what an answer left of its cap")] = False
    headers: Annotated[
        HeaderDialect,
        Meta(description="dialect of the rate headers: openai, azure, anthropic, per-day-requests or none"),
    ] = "openai"
    foreign_share: Annotated[
        float, Meta(description="share of the limit that another program on the key takes", ge=0)
    ] = 0.0
    foreign_tokens: Annotated[int, Meta(description="mean size of its calls, in tokens", gt=0)] = 500
    time_scale: Annotated[float, Meta(description="every latency is divided by this", gt=0)] = 1.0
    seed: Annotated[int, Meta(description="of latencies and lengths of answers", ge=0)] = 1
    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(description="of the OpenAI side and the control; 0 takes a free one", ge=0, le=65535)] = 0
    edge_port: Annotated[int, Meta(description="of the Ollama side; 0 takes a free one", ge=0, le=65535)] = 0
    model: Annotated[str, Meta(description="listed by /v1/models; any other name is answered too")] = "gpt-4o"
    api_keys: Annotated[
        tuple[str, ...], Meta(description="an accepted key, may be repeated; none: every caller is served")
    ] = ()
    ttft_mean_s: Annotated[float, Meta(description="premium: mean time to first token", gt=0)] = 0.9
    ttft_p99_s: Annotated[float, Meta(description="premium: 99th percentile of it", gt=0)] = 1.8
    tokens_per_second: Annotated[float, Meta(description="premium: speed after the first token", gt=0)] = 80.0
    pieces: Annotated[
        int, Meta(description="most pieces of a stream's text: each costs a write and a timer", gt=0, le=1000)
    ] = 8
    edge_model: Annotated[str, Meta(description="the one model the edge has")] = "llama3:8b-instruct-q4_K_M"
    edge_parallel: Annotated[
        int, Meta(description="edge calls answered at a time; the rest queue without bound", gt=0)
    ] = 4
    edge_mean_s: Annotated[float, Meta(description="edge: mean time of a whole call", gt=0)] = 0.12
    edge_p99_s: Annotated[float, Meta(description="edge: 99th percentile of it", gt=0)] = 0.3
    edge_load_s: Annotated[float, Meta(description="edge: time to load the model at its first call", ge=0)] = 0.0
    with_parent: Annotated[int, Meta(description="end when this parent process ends (0: never mind)", ge=0)] = 0

    def __post_init__(self) -> None:
        self.premium_latency()
        self.edge_latency()
        if self.headers == "per-day-requests" and not self.rpd:
            raise ValueError("headers per-day-requests describe a day limit; set rpd")

    def limits(self) -> dict[Dimension, int]:
        """The limits that the account has."""
        return {name: limit for name in DIMENSIONS if (limit := getattr(self, name))}

    def premium_latency(self) -> Lognormal:
        """Time to first token, unscaled."""
        return Lognormal.through(mean_s=self.ttft_mean_s, p99_s=self.ttft_p99_s)

    def edge_latency(self) -> Lognormal:
        """Time of a whole edge call, unscaled."""
        return Lognormal.through(mean_s=self.edge_mean_s, p99_s=self.edge_p99_s)
