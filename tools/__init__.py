"""Development tools: the CPU install of SGLang, and the makers of the demo's and the tests' models."""
