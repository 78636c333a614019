"""A model server without models: Ollama's, OpenAI's and ComfyUI's HTTP, with memory on simulated GPUs.

``python -m tests.fake_server --kind ollama --port 11435`` runs it, also as the ``command`` of a
``[serve.NAME]``. Options say how it misbehaves, and a log what happened to it.
"""
