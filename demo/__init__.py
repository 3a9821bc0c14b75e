"""The main job on real input: three SGLang engines share one KV budget behind one endpoint."""
