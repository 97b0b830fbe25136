"""The line a sandbox prints when it listens: shared by the server that writes it and the starter that reads it."""

import msgspec

from pipeline.sandbox.latency import Latency
from pipeline.sandbox.settings import SandboxSettings


class Latencies(msgspec.Struct, frozen=True):
    """Measured on 10,000 draws, before division by `time_scale`.

    Attributes:
        premium_ttft: time to first token.
        edge_total: time of a whole edge call.
    """

    premium_ttft: Latency
    edge_total: Latency
    tokens_per_second: float
    time_scale: float


class Ready(msgspec.Struct, frozen=True):
    """Where the sandbox listens.

    Attributes:
        premium: base URL for an OpenAI client.
        edge: host URL for an Ollama client.
        control: prefix of `/ledger`, `/calls`, `/settings`, `/faults`, `/reset`.
    """

    premium: str
    edge: str
    control: str
    pid: int
    latency: Latencies

    def for_machines(self) -> str:
        """One line of JSON."""
        return msgspec.json.encode(self).decode()

    def for_people(self, settings: SandboxSettings) -> str:
        """The same in sentences."""
        latency = self.latency
        first, edge = latency.premium_ttft, latency.edge_total
        limits = ", ".join(f"{name} {limit}" for name, limit in settings.limits().items())
        return (
            f"OpenAI side   {self.premium}\n"
            f"Ollama side   {self.edge}  (model {settings.edge_model}, {settings.edge_parallel} at a time)\n"
            f"Ledger        {self.control}/ledger\n"
            f"Limits        {limits}; W = {settings.window_s:g} s, {settings.enforcement}\n"
            f"Account       headers {settings.headers}, refunds {'on' if settings.refund else 'off'},"
            f" foreign load {settings.foreign_share:.0%}\n"
            f"First token   mean {first.mean_s:.3f} s, p50 {first.p50_s:.3f} s, p99 {first.p99_s:.3f} s,"
            f" then {latency.tokens_per_second:g} tokens/s\n"
            f"Edge call     mean {edge.mean_s:.3f} s, p50 {edge.p50_s:.3f} s, p99 {edge.p99_s:.3f} s\n"
            f"Time scale    {latency.time_scale:g} (the latencies above are divided by it)\n"
            "Ends with Ctrl-C."
        )
