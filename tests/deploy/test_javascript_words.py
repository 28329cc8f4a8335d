"""The JavaScript client says of a fault what Python's client says of it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from overhand.deploy.protocol.document import Document
from overhand.errors import OverhandError
from overhand.values import values_of
from support.vector_documents import documents, edited

CLIENT = Path(__file__).parents[2] / "clients" / "javascript"
USER = " of user 1"  # there is one in a page

VALUES: list[tuple[str, Any]] = [
    ("bit", 2),
    ("bit", 0.5),
    ("real:-2.0:5.0", 5.25),
    ("real:0.0:10.0", -1e20),
    ("histogram:3", 3),
    ("histogram:like,love", "xyz"),
    ("binned:0.0:10.0:5", 11),
    ("vector:2", [3, 4]),
    ("vector:2:2.5", [1e200, 0]),
    ("matrix:2", [[0, 0.5], [0.25, 0]]),
    ("regression:2", [0.6, 0.9, 0.5]),
    ("regression:2", [0.6, 0.8, -1.5]),
    ("grouped:DE,FR:real:0.0:10.0", ["DE", 11]),
]
LAPLACE = {"shape": 1, "users": 10, "ratio": "0x1.8000000000000p-1"}
SERVICES = {"each_service": LAPLACE, "cap": 100}
ROTATIONS = "plan.mechanisms.0.noise.rotations"
UNOPPOSED = {"bits": 3, "probability": [1, 1], "opposed": False}
FIELDS: list[tuple[str, str, Any]] = [
    ("ballots-bit", "version", 4),
    ("ballots-bit", "plan.format", 3),
    ("ballots-bit", "plan.honest", 1.5),
    ("ballots-bit", "plan.reports", 0),
    ("ballots-bit", "plan.hold", 7),
    ("ballots-bit", "plan.delta", 1.5),
    ("coins-bit", "plan.degrees", [10, 4, 2]),
    ("coins-bit", "plan.mechanisms.0.size", 11),
    ("coins-bit", "plan.mechanisms.1.noise", SERVICES),
    ("ballots-bit", "plan.horizon", 1001),
    ("ballots-bit", "plan.mechanisms.0.steps", 2),
    ("ballots-bit", "plan.mechanisms.0.dummies", 19),
    ("ballots-bit", "plan.mechanisms.0.mechanism", "stones"),
    ("ballots-bit", "plan.mechanisms.0.bound", 0),
    ("ballots-bit", "plan.mechanisms.0.noise.cap", 0),
    ("ballots-bit", "plan.mechanisms.0.noise.each_service.shape", 2000),
    ("ballots-bit", "plan.mechanisms.0.noise.each_service", UNOPPOSED),
    ("ballots-histogram", "plan.mechanisms.0.noise.step", 7),
    ("ballots-histogram", ROTATIONS, []),
    ("ballots-histogram", f"{ROTATIONS}.0.0", 129),
    ("ballots-histogram", f"{ROTATIONS}.0.3", 41),
    ("ballots-histogram", f"{ROTATIONS}.0.4", 1 << 63),
    ("ballots-histogram", f"{ROTATIONS}.0", [128, 6, 128, 7, 0]),
    ("ballots-histogram", f"{ROTATIONS}.0", [126, 10, 125, 7, 0]),
    ("ballots-histogram", f"{ROTATIONS}.0", [100, 9, 96, 8, 0]),
    ("ballots-bit", "plan.values.kind", "real"),
    ("ballots-bit", "plan.values.kind", "colour:3"),
    ("ballots-bit", "plan.values.clip", True),
    ("coins-bit", "plan.mechanisms.0.noise.bits", 15),
    ("pairs-bit", "plan.mechanisms.0.modulus_bits", 49),
    ("pairs-bit", "plan.mechanisms.0.noise", LAPLACE),
    ("shares-bit", "plan.mechanisms.0.noise", SERVICES),
    ("shares-bit", "plan.mechanisms.0.noise", UNOPPOSED),
    ("coins-bit", "plan.mechanisms.0.noise", LAPLACE),
]
SCRIPT = """
import { readFileSync } from "node:fs";
import { Document } from "./src/document.js";
import { kindOf } from "./src/values.js";
const { values, texts } = JSON.parse(readFileSync(0));
const words = values.map(([spec, value]) => {
  try { return kindOf(spec, false).coordinates(value); } catch (error) { return error.message; }
});
for (const text of texts) {
  const reading = Document.of(new TextEncoder().encode(text));
  words.push(await reading.then(() => "taken", (error) => error.message));
}
console.log(JSON.stringify(words));
"""


@pytest.mark.slow  # runs after node's packages are there
@pytest.mark.skipif(
    shutil.which("node") is None or not (CLIENT / "node_modules").is_dir(),
    reason="needs node, and `make javascript`",
)
def test_the_same_fault_has_the_same_words() -> None:
    texts = [edited(documents()[name][1].to_json(), path, to) for name, path, to in FIELDS]
    said = subprocess.run(
        ["node", "--input-type=module", "--eval", SCRIPT],
        cwd=CLIENT,
        input=json.dumps({"values": VALUES, "texts": texts}).encode(),
        capture_output=True,
        check=True,
    )
    expected = []
    for spec, value in VALUES:
        with pytest.raises(OverhandError) as refusal:
            values_of(spec).rows([value])
        expected.append(str(refusal.value).replace(USER, ""))
    for text in texts:
        with pytest.raises(OverhandError) as refusal:
            Document.from_json(text)
        expected.append(str(refusal.value))
    assert json.loads(said.stdout) == expected
