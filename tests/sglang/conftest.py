"""Loads SGLang once, without letting its and torch's own import-time warnings count as failures of ours."""

import importlib
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    importlib.import_module("kvcached.sglang.verify")
