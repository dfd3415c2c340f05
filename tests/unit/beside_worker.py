"""A worker of `tools.beside` without a device: each answer is what its schedule's name says."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def answer(do: str, given: dict[str, Any]) -> Any:
    schedule = given.get("schedule", "")
    if schedule == "dies":
        os._exit(9)
    if schedule == "hangs":
        time.sleep(60)
    if schedule == "long":
        return "x" * 200_000
    if schedule == "refused":
        raise ValueError("no such schedule")
    return {"do": do, "with": given}


def main() -> None:
    if sys.argv[1] == "7":
        print(json.dumps({"error": "DeviceError: no GPU"}))
        return
    checkout = os.environ["PYTHONPATH"].split(os.pathsep)[0]
    print(json.dumps({"value": {"checkout": str(Path(checkout).resolve()), "gpus": sys.argv[1]}}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            told = {"value": answer(request["do"], request["with"])}
        except ValueError as error:
            told = {"error": f"ValueError: {error}"}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
