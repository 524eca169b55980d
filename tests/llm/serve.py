"""A real model behind a real server: llama.cpp with OpenAI's interface, on a port of its choice.

Run with the path of a GGUF file; prints its address, and ends when its input does.
"""

from __future__ import annotations

import importlib
import sys

WINDOW = 2048


def main(path: str) -> None:
    """Serve the model until standard input is closed."""
    llama = importlib.import_module("xllamacpp")  # no dependency of ours: `make test-llm` has it
    parameters = llama.CommonParams()
    parameters.model.path = path
    parameters.port = 0
    parameters.n_ctx = WINDOW
    parameters.n_parallel = 1
    parameters.ctx_shift = False  # what does not fit is an error, not cut in silence
    server = llama.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
