"""A small model in vLLM, with dummy weights: nothing is downloaded but its configuration."""

from __future__ import annotations

import json
import os

from vllm import LLM, SamplingParams

model = os.environ.get("VLLM_BENCH_MODEL", "")
if not model:
    print(json.dumps({"skip": "VLLM_BENCH_MODEL names no model"}))
else:
    llm = LLM(model=model, load_format="dummy", gpu_memory_utilization=0.8, max_model_len=512)
    answers = llm.generate(["one", "two", "three"], SamplingParams(max_tokens=32))
    print(json.dumps({"is_right": len(answers) == 3}))
