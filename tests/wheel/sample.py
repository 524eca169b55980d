"""A program as a user writes it; checked by mypy --strict against the installed wheel."""

import asyncio
from collections.abc import Sequence

import everlog


class Clock(everlog.Hook):
    """A hook that injects the time."""

    def on_before_run(
        self, agent: str, session: everlog.Session, messages: Sequence[everlog.Message]
    ) -> list[everlog.Message]:
        return [everlog.user("It is noon.", auto_injected=True)]


@everlog.tool
def roll(dice: int = 1) -> str:
    """Roll some dice."""
    return " ".join("4" for _ in range(dice))


def synchronous() -> int:
    with everlog.open_store("memory:") as store:
        session: everlog.Session = store.session("support-42", create=True, title="Help")
        message: everlog.Message = session.append("hello", expected_seq=0)
        event: everlog.Event = session.append(everlog.Event(kind="seen"))
        context: everlog.Context = session.context(window=10_000)
        results: everlog.Results = store.search("hello", agent="main", limit=5)
        report: everlog.UsageReport = store.usage(since="2026-01-01")
        rows: list[everlog.SessionRow] = list(store.walk(title="Help"))
        metadata: everlog.Metadata = session.update(title="More help", model=None)
        counts = (message.seq, event.seq, context.tokens, results.total, len(report.spent))
        return sum(counts) + len(rows) + len(metadata.id)


async def asynchronous() -> str:
    async with everlog.open_async_store("memory:") as store:
        session: everlog.AsyncSession = await store.create(agent="main", sender="me")
        message: everlog.Message = await session.append("hello")
        page: everlog.Page = await store.list(limit=message.seq)
        agent = everlog.Agent(store, model="offline", tools=[roll], hooks=[Clock()])
        reply: everlog.Message = await agent.run("!say hi", session=session)
        again: everlog.Message = await agent.run("!say hi", session="by-name")
        return f"{page.total} {reply.text} {again.text}"


async def running() -> str:
    runtime: everlog.Runtime = everlog.open_runtime("memory:", tools=[roll], hooks=[Clock()])
    await runtime.start()
    inbound = everlog.Inbound(channel="telegram", chat_id="7", sender_id="7")
    result = await runtime.inbound(inbound, "!say hi", id="update-1")
    answer: everlog.Answer = await result.run.answer()
    await runtime.drain(5)
    await runtime.store.close()
    return answer.reply.text


if __name__ == "__main__":
    print(synchronous() > 0, asyncio.run(asynchronous()), asyncio.run(running()))
