# What the daemon imports: pyproject.toml's dependencies, and pyverbs, which no index has in a form that builds.
python: with python; [
  aiohttp
  huggingface-hub
  prometheus-client
  pydantic
  pyroute2
  pyverbs
  rich
  sdnotify
  tomli
]
