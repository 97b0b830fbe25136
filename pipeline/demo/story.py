"""The users' story as data: who asks what and when, the same in both runs. Pure and seeded.

Forty people of a support desk ask, read the answer, think for a minute and ask again; then somebody starts a batch
job. Everything is stated at the provider's real scale and handed out in seconds of the demo, in which a provider
minute lasts `minute_s`.
"""

from collections.abc import Iterator
from random import Random

import msgspec

BATCH_TENANT = "reports"
SIMPLE_TASKS = ("intent", "route")  # what the edge model is trusted with


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """What is played.

    Attributes:
        minute_s: length of a provider minute in the demo; all latencies and pauses are divided alike.
        minutes: for how many of them the users go on asking.
        think_s: mean pause of a user between an answer and the next wish, at real scale.
        batch_at_minutes: when the batch job starts.
        rpm, tpm: the provider account's limits.
        late_s: longest time from a grant to the provider's count, at real scale; J in the gate's arithmetic.
    """

    minute_s: float = 6.0
    minutes: int = 5
    seed: int = 5
    users: int = 40
    think_s: float = 60.0
    batch_calls: int = 400
    batch_at_minutes: float = 0.5
    workers: int = 12
    rpm: int = 500
    tpm: int = 30_000
    late_s: float = 1.0

    @property
    def time_scale(self) -> float:
        """By how much everything is faster than in real life."""
        return 60.0 / self.minute_s

    @property
    def length_s(self) -> float:
        """How long the users ask."""
        return self.minutes * self.minute_s

    @property
    def batch_at_s(self) -> float:
        """When the batch job starts."""
        return self.batch_at_minutes * self.minute_s


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request: who wants what answered, in at most `cap` tokens."""

    id: str
    tenant: str
    task: str
    prompt: str
    cap: int

    @property
    def batch(self) -> bool:
        """Whether it belongs to the batch job."""
        return self.tenant == BATCH_TENANT


class Wish(msgspec.Struct, frozen=True):
    """A user's next request, wished `think_s` after the last answer (the first: after the start)."""

    think_s: float
    ask: Ask


def wishes(story: Story, user: int) -> Iterator[Wish]:
    """What `user` will ask, without end; how far they get depends on how fast they are answered."""
    random = Random(f"{story.seed} user {user}")
    number = 0
    while True:
        think_s = random.expovariate(1 / story.think_s) / story.time_scale
        number += 1
        task, prompt, cap = _question(random)
        request_id = f"user-{user:02}-{number:03}"
        yield Wish(think_s, Ask(id=request_id, tenant=f"user-{user:02}", task=task, prompt=prompt, cap=cap))


def batch(story: Story) -> list[Ask]:
    """The batch job: a label for each of last month's tickets. Short, but in all one and a half minutes' budget."""
    random = Random(f"{story.seed} batch")
    return [
        Ask(
            id=f"batch-{number:04}",
            tenant=BATCH_TENANT,
            task="label",
            prompt=f"Ticket {number} of last month. Give it a topic, a mood and a product area, one word each.\n\n"
            + _letter(random, sentences=(1, 3)),
            cap=random.choice((32, 40, 48)),
        )
        for number in range(1, story.batch_calls + 1)
    ]


# Shares of the tasks: 27 % of what users ask can be answered by the edge.
_TASKS = {"intent": 15, "route": 12, "analysis": 43, "summary": 30}
_INTENTS = "order status, delivery delay, return, refund, damaged item, invoice, password, account, complaint, praise"
_TEAMS = "shipping, returns, payments, accounts, technical support, business customers, legal"

_OPENINGS = (
    "Hello, I need your help with order {order}.",
    "Good morning, this is about my order {order} from {days} days ago.",
    "Hi team, I am writing for the second time about order {order}.",
    "Dear support, I bought the {thing} from your shop {days} days ago.",
)
_SENTENCES = (
    "The parcel was sent {days} days ago and the tracking page has not changed since then.",
    "The {thing} came with a broken case and one part is missing from the box.",
    "I paid by card but the money was taken twice from my account.",
    "Your chat told me to wait, and now nobody answers any more.",
    "I want to send the {thing} back and get my money back, not a voucher.",
    "The invoice shows the old address of our office, so our bank will not accept it.",
    "When I try to log in the page says that my account is closed.",
    "We need {days} more of the {thing} before the end of the month.",
    "The driver left a note, but the shop named on it does not know the parcel.",
    "After the last update the {thing} turns itself off every {days} minutes.",
    "I have already sent you pictures and the receipt by mail.",
    "Please tell me who is responsible and when I can expect an answer.",
    "The price on the bill is higher than the price shown in the shop.",
    "My colleague ordered the same {thing} and had no problem at all.",
    "The tracking page says that the parcel came back to you because of a wrong address.",
    "I called twice this week and was told that somebody would call me back.",
    "The first {thing} was fine, the second one does not start at all.",
    "We are a small company and every day without it costs us money.",
    "I was promised a refund within {days} days and nothing has come so far.",
    "The door of our office is on the other side of the house, please tell the driver.",
)
_THINGS = ("coffee machine", "desk lamp", "office chair", "label printer", "water filter", "phone case", "sound bar")
_ORDERS = {
    "analysis": "Find the most likely cause of this problem, check it against our terms of sale, say what we still have"
    " to ask, and write a friendly answer to the customer that explains the next two steps.",
    "summary": "Summarise this case for the next colleague: what happened, what was promised, what is still open,"
    " and how the customer feels about it.",
}


def _question(random: Random) -> tuple[str, str, int]:
    """Task, prompt and cap of something a user wants to know."""
    task = random.choices(list(_TASKS), list(_TASKS.values()))[0]
    match task:
        case "intent":
            frame = f"Name the one intent that fits best. Intents: {_INTENTS}. Answer with its name and a reason."
            return task, f"{frame}\n\n{_letter(random, sentences=(12, 18))}", random.choice((64, 96, 128))
        case "route":
            frame = f"Which team should take this case? Teams: {_TEAMS}. Answer with its name and a reason."
            return task, f"{frame}\n\n{_letter(random, sentences=(12, 18))}", random.choice((96, 128, 160))
        case "analysis":
            return task, f"{_ORDERS[task]}\n\n{_letter(random, sentences=(5, 12))}", random.choice((380, 440, 500))
        case _:
            return task, f"{_ORDERS[task]}\n\n{_letter(random, sentences=(9, 18))}", random.choice((320, 380, 440))


def _letter(random: Random, *, sentences: tuple[int, int]) -> str:
    """What a customer wrote, with between so many sentences."""
    count = random.randint(*sentences)
    lines = [random.choice(_OPENINGS), *random.sample(_SENTENCES, count)]
    facts = {"order": random.randint(100, 999), "days": random.randint(2, 9), "thing": random.choice(_THINGS)}
    return " ".join(line.format(**facts) for line in lines)
