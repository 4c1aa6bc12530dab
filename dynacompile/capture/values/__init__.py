"""Values of Python objects, and the protocol by which they ask the capture that they are a part of (`context.py`, `recording.py`, `writing.py`).

No file here knows tensors, but for what a tensor of the graph is as data (`graph_tensor.py`).
"""
