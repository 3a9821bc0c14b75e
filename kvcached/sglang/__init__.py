"""Elastic KV cache under an unmodified SGLang, through SGLang's own plugin entry point.

`patch_points` is the whole list of what is touched, `activate` applies and verifies it, `capacity` answers
the three questions about memory (docs/capacity-protocol in ARCHITECTURE.md), `allocator`, `budget`,
`buffers` and `scheduler` are the hooks themselves. Only this package imports SGLang.
"""
