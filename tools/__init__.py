"""Development tools of the project: the CPU install of SGLang and the makers of the demo's and the tests' models."""
