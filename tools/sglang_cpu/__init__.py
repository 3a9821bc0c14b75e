"""Real SGLang on a machine without a GPU: the install recipe and its stand-ins."""
