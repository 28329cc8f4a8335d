"""HPKE (RFC 9180) from its primitives: base mode, X25519, HKDF-SHA256, AES-128-GCM, one message.

What is deployed takes it from a library, which draws its ephemeral keys itself. Here they are
given, so that the same seal comes out again.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEM_ID, KDF_ID, AEAD_ID = 0x0020, 0x0001, 0x0001
_KEM_SUITE = b"KEM" + KEM_ID.to_bytes(2, "big")
_SUITE = b"HPKE" + b"".join(number.to_bytes(2, "big") for number in (KEM_ID, KDF_ID, AEAD_ID))
_BASE_MODE = b"\x00"


@dataclass(frozen=True)
class Sealed:
    """A seal, and all that it was made of, under the names of the RFC."""

    ikm_e: bytes
    sk_em: bytes
    enc: bytes
    shared_secret: bytes
    key: bytes
    base_nonce: bytes
    ciphertext: bytes

    @property
    def whole(self) -> bytes:
        """As it goes over the wire."""
        return self.enc + self.ciphertext


def _extract(suite: bytes, salt: bytes, label: bytes, material: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + material, "sha256")


def _expand(suite: bytes, secret: bytes, label: bytes, info: bytes, length: int) -> bytes:
    labelled = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    assert length <= hashlib.sha256().digest_size
    return hmac.digest(secret, labelled + b"\x01", "sha256")[:length]


def derived_key(ikm: bytes) -> X25519PrivateKey:
    """DeriveKeyPair of the RFC."""
    secret = _extract(_KEM_SUITE, b"", b"dkp_prk", ikm)
    raw = _expand(_KEM_SUITE, secret, b"sk", b"", 32)
    return X25519PrivateKey.from_private_bytes(raw)


def seal(
    public_key: bytes, info: bytes, plaintext: bytes, ikm_e: bytes, aad: bytes = b""
) -> Sealed:
    """SealBase of the RFC with the ephemeral key that this material makes."""
    ephemeral = derived_key(ikm_e)
    enc = ephemeral.public_key().public_bytes_raw()
    exchanged = ephemeral.exchange(X25519PublicKey.from_public_bytes(public_key))
    eae = _extract(_KEM_SUITE, b"", b"eae_prk", exchanged)
    shared = _expand(_KEM_SUITE, eae, b"shared_secret", enc + public_key, 32)
    context = (
        _BASE_MODE
        + _extract(_SUITE, b"", b"psk_id_hash", b"")
        + _extract(_SUITE, b"", b"info_hash", info)
    )
    secret = _extract(_SUITE, shared, b"secret", b"")
    key = _expand(_SUITE, secret, b"key", context, 16)
    nonce = _expand(_SUITE, secret, b"base_nonce", context, 12)
    ciphertext = AESGCM(key).encrypt(nonce, plaintext, aad)
    return Sealed(ikm_e, ephemeral.private_bytes_raw(), enc, shared, key, nonce, ciphertext)
