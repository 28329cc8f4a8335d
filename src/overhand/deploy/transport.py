"""Requests to a service, whatever carries them."""

from __future__ import annotations

import re
import ssl
from io import BytesIO
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

try:
    import aiohttp
except ModuleNotFoundError as error:  # `overhand.Client` is a name of the bare install, too
    hint = "aiohttp is not installed: pip install 'overhand[client]'"
    raise ModuleNotFoundError(hint, name="aiohttp") from error

from overhand.errors import InvalidValue, ServiceError

SLOWEST_LINE = 1 << 16
"""Bytes per second: a body gets that much more time. Both sides use it."""
_MOST_ANSWER_BYTES = 1 << 24
_PATIENCE = 60.0
_LONGEST_RETRY = 3600.0
_PIECE = 1 << 20


class Unreachable(ServiceError):
    """No answer: it is unknown whether the request was handled."""


class Untrusted(Unreachable):
    """The service at this address cannot prove its identity: nothing was sent."""


class Answer(NamedTuple):
    """What a service said."""

    status: int
    body: bytes
    retry_after: float = 0.0
    """Seconds after which it wants to be asked again."""


class Transport(Protocol):
    """Carries requests to one service."""

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """The answer, or `Unreachable`."""

    async def close(self) -> None:
        """Let go of all connections."""


class HttpTransport:
    """HTTP/1.1 over kept-alive connections, to the address `url`.

    No redirect is followed and no cookie is kept: nobody can send a client elsewhere, or mark it.
    `authorities` is a file of certificates to trust instead of the system's. What is sent to an
    `http://` address can be read on the way, so it must be this machine's unless `insecure`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        authorities: Path | None = None,
        insecure: bool = False,
    ) -> None:
        self._url = _check_address(url).rstrip("/")
        if not insecure:
            _check_private(self._url)
        self._with_body = {"content-type": "application/octet-stream"}
        if token is not None:
            self._with_body["authorization"] = f"Bearer {token}"
        self._trust: ssl.SSLContext | bool = authorities is None or _load_authorities(authorities)
        self._session: aiohttp.ClientSession | None = None

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        if self._session is None:  # made late, because it belongs to the running loop
            self._session = aiohttp.ClientSession(
                headers={"user-agent": "overhand"},
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=aiohttp.TCPConnector(ssl=self._trust, limit=0),
            )
        try:
            async with self._session.request(
                method,
                self._url + path,
                data=_in_pieces(body),
                headers=self._with_body if body is not None else None,
                allow_redirects=False,
                timeout=_limits(len(body or b"")),
            ) as answer:
                content = await _content(answer)
                return Answer(answer.status, content, _seconds(answer.headers.get("retry-after")))
        except aiohttp.ClientConnectorCertificateError as error:
            raise Untrusted(self._why_untrusted(error)) from error
        except aiohttp.ClientConnectorDNSError as error:
            raise Unreachable(f"there is no host {error.host}") from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Unreachable(f"no answer from {self._url} ({type(error).__name__})") from error

    def _why_untrusted(self, error: aiohttp.ClientConnectorCertificateError) -> str:
        reason = getattr(error.certificate_error, "verify_message", "") or "it cannot be verified"
        return (
            f"the certificate of {self._url} is not trusted: {reason}. If your own authority "
            "issued it, name its file (--ca, authorities=); if not, check the clock"
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def _check_address(url: str) -> str:
    """An address at which somebody might answer: others would be tried again and again."""
    if not url.startswith(("http://", "https://")):
        raise InvalidValue(f"{url!r} is not an address: it starts with http:// or https://")
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0  # ValueError if it is none at all
    except ValueError:
        has_host = False
    if not has_host or re.search(r"[\s?#@]", url):
        shown = re.sub("//.*@", "//***@", url)  # a password
        raise InvalidValue(
            f"{shown!r} is not an address: it has a host, perhaps a port and a path, no more"
        )
    return url


def _check_private(url: str) -> None:
    """Refuse an address to which everything would travel in the clear."""
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_this_machine(parts.netloc):
        raise InvalidValue(
            f"{url!r} is another machine, and http:// is not encrypted: anyone on the way could "
            "read the token, see who reports, and change the answers. Use https://, or set "
            "insecure=True (--insecure) if that network is yours alone"
        )


def is_this_machine(netloc: str) -> bool:
    """By what is written, never by a look-up: its answer may be another tomorrow.

    Anything that is not plainly this machine is another, also `127.1`: parsers differ about it.
    """
    host = re.sub(r":\d*$", "", netloc).lower()
    six = re.fullmatch(r"\[([\da-f:.]+)\]", host)
    try:
        address = ip_address(six[1] if six else host)
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _load_authorities(authorities: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authorities)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidValue(f"no certificates in {authorities}: {error}") from error


def _in_pieces(body: bytes | None) -> bytes | BytesIO | None:
    """A long body is written piece by piece: whole, it would be in memory once more."""
    return body if body is None or len(body) <= _PIECE else BytesIO(body)


def _limits(length: int) -> aiohttp.ClientTimeout:
    """How long a request with a body of this length may take.

    There is a limit on the whole, because an answer may come byte by byte, each of them in time;
    and none on the silence after the body, most of which may still be on its way.
    """
    total = _PATIENCE + length / SLOWEST_LINE
    return aiohttp.ClientTimeout(total=total, sock_connect=10.0)


async def _content(answer: aiohttp.ClientResponse) -> bytes:
    """The body of an answer, unless it is longer than any that a service gives."""
    content = bytearray()
    async for chunk in answer.content.iter_any():
        content += chunk
        if len(content) > _MOST_ANSWER_BYTES:
            raise Unreachable(f"an answer of more than {_MOST_ANSWER_BYTES} bytes")
    return bytes(content)


def _seconds(header: str | None) -> float:
    """What Retry-After asks for, if it is a number and not a date, within limits."""
    if header is None or not (header.isascii() and header.isdigit()):
        return 0.0
    return min(float(header), _LONGEST_RETRY)
