"""Requests to an application in this process, without a network."""

from __future__ import annotations

from typing import Any

import httpx

from overhand.deploy.transport import Answer, Unreachable


class AsgiTransport:
    """A `Transport` that calls the application itself."""

    def __init__(self, app: Any, token: str | None = None) -> None:
        headers = {"content-type": "application/octet-stream"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self._http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://here", headers=headers
        )

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        try:
            answer = await self._http.request(method, path, content=body)
        except httpx.TransportError as error:
            raise Unreachable(type(error).__name__) from error
        retry_after = float(answer.headers.get("retry-after", 0))
        return Answer(answer.status_code, answer.content, retry_after)

    async def close(self) -> None:
        await self._http.aclose()
