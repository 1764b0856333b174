"""The embedded text encoder (all-MiniLM-L6-v2, int8 ONNX) and its tokenizer."""
