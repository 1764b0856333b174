"""The embedded text encoder (all-MiniLM-L6-v2, int8 ONNX) and its tokenizer, as paths to files."""

from importlib.resources import files

_DATA = files(__name__) / "data"

ENCODER = _DATA / "encoder.onnx"
TOKENIZER = _DATA / "tokenizer.json"
NOTICE = _DATA / "NOTICE"
