"""Votes over HTTP: one sum, which all threads of a web server use without a lock of their own.

FastAPI runs plain `def` endpoints in a pool of threads, and every call of a sum is whole. Run one
process (`uvicorn --workers 1`): several would each have a sum of their own, and what each
publishes is a total of its own voters. This process sees the votes, and only what it publishes is
private; for users who do not trust it there are the services.
"""

from __future__ import annotations

import asyncio

import httpx
from fastapi import FastAPI
from pydantic import BaseModel

import overhand as oh

PLAN = oh.Plan.best(horizon=10_000, shufflers=3, privacy=oh.Privacy(epsilon=1.0, delta=1e-6))


class Vote(BaseModel):
    yes: bool


def app_for(total: oh.ContinualSum) -> FastAPI:
    app = FastAPI()

    @app.post("/vote", status_code=204)
    def vote(vote: Vote) -> None:
        total.update(int(vote.yes))

    @app.get("/total")
    def published() -> dict[str, int]:
        estimate = total.estimate  # of one moment, whoever votes meanwhile
        low, high = estimate.interval(0.95)
        yes = round(estimate.value)
        return {"voters": estimate.t, "yes": yes, "low": round(low), "high": round(high)}

    return app


async def main() -> None:
    transport = httpx.ASGITransport(app_for(oh.ContinualSum(PLAN)))
    async with httpx.AsyncClient(transport=transport, base_url="http://votes") as web:
        for _ in range(3):
            votes = [web.post("/vote", json={"yes": number % 4 > 0}) for number in range(400)]
            await asyncio.gather(*votes)
            print((await web.get("/total")).json())


if __name__ == "__main__":
    asyncio.run(main())
